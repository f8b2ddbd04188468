"""MLflow, on a server (`http://host:5000`) or in a local database (`sqlite:///mlflow.db`)."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from nemotron_shared.artifacts import Artifact
from nemotron_shared.config.training import EXPERIMENT, TrackerSection
from nemotron_shared.tracking.completions import Completion
from nemotron_shared.tracking.trackers.base import SMALL_FILES, Ending

STATES: dict[Ending, str] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
NAME_TAG = "nemotron.run"
SEND_SECONDS, MOST_METRICS, MOST_PARAMS, LONGEST = 2.0, 1000, 100, 500
"""How often metrics are sent, and MLflow's limits per request."""
CLIENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""Settings of MLflow's client. By default it retries for four minutes, during which training would stall, and prints to
stdout, which is for results.
"""
ARTIFACTS = "mlflow-artifacts"
T = TypeVar("T")


class MLflowTracker:
    """A run in MLflow, found by a tag so that a resumed run continues the same one."""

    name = "MLflow"

    def __init__(self, name: str, section: TrackerSection, settings: Mapping[str, Any]) -> None:
        for variable, value in CLIENT.items():
            os.environ.setdefault(variable, value)
        address = section.mlflow_tracking_uri or ""
        self._client = MlflowClient(tracking_uri=address)
        experiment = self._experiment(section.mlflow_experiment or EXPERIMENT, artifact_folder(address))
        wanted = f"tags.`{NAME_TAG}` = '{name}'"
        found = self._client.search_runs([experiment], wanted, max_results=1)
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            self._id = self._client.create_run(experiment, tags={NAME_TAG: name}, run_name=name).info.run_id
        known = found[0].data.params if found else {}
        params = [Param(key, str(value)[:LONGEST]) for key, value in settings.items() if key not in known]
        for some in _batches(params, MOST_PARAMS):
            self._client.log_batch(self._id, params=some)
        self._waiting: list[Metric] = []
        self._sent = time.monotonic()

    def figures(self, step: int, values: Mapping[str, float]) -> None:
        """Buffer a step's metrics; they are sent together every few seconds."""
        now = int(time.time() * 1000)
        self._waiting += [Metric(name.replace(":", "_"), float(value), now, step) for name, value in values.items()]
        if time.monotonic() - self._sent > SEND_SECONDS or len(self._waiting) >= MOST_METRICS:
            self._send()

    def completions(self, step: int, completions: Sequence[Completion]) -> None:
        """Log a file for each step: a table that grows would be sent again with each (mlflow 3, `log_table`)."""
        content = {"step": step, "completions": [one.plain() for one in completions]}
        self._client.log_dict(self._id, content, f"completions/step-{step:06}.json")

    def result(self, artifact: Artifact, inputs: Sequence[Artifact]) -> None:
        """Log the result's small files in a folder of its name, and its path and inputs as tags."""
        made = artifact.manifest
        for name in SMALL_FILES:
            if (artifact.path / name).is_file():
                self._client.log_artifact(self._id, str(artifact.path / name), f"{made.name}-v{made.version}")
        tags = {"reference": artifact.reference, "digest": made.digest, "path": str(artifact.path)}
        tags["inputs"] = " ".join(used.reference for used in inputs)
        self._client.log_batch(self._id, tags=[RunTag(f"nemotron.{key}", value) for key, value in tags.items()])

    def end(self, ending: Ending) -> None:
        """Send what is pending."""
        self._send()
        self._client.set_terminated(self._id, STATES[ending])

    def _send(self) -> None:
        waiting, self._waiting, self._sent = self._waiting, [], time.monotonic()
        for some in _batches(waiting, MOST_METRICS):
            self._client.log_batch(self._id, metrics=some)

    def _experiment(self, name: str, artifacts: str | None) -> str:
        if found := self._client.get_experiment_by_name(name):
            return found.experiment_id
        try:
            return self._client.create_experiment(name, artifacts)
        except MlflowException:  # another run just created it
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            return found.experiment_id


def artifact_folder(address: str) -> str | None:
    """Folder for an experiment's files: a server chooses its own; for a local database, a folder next to it.

    MLflow's default for a database is a folder in the current directory.
    """
    prefix, _, path = address.partition(":///")
    return str(Path(path).absolute().parent / ARTIFACTS) if prefix == "sqlite" and path else None


def _batches(items: Sequence[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some
