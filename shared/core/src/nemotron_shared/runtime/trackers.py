"""Experiment trackers: mirror a training's metrics and result to W&B or MLflow.

    with tracked(run, config, settings) as trackers:
        trackers.figures(10, {"loss": 3.91})
        trackers.result(artifact, inputs)

`metrics.jsonl` and the store are the record; a tracker is a copy. A tracker that cannot be reached at the start is an
error, because it was requested; one that fails later is reported once and dropped, because the training matters more.
"""

import netrc
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import wandb
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from nemotron_shared.artifacts import Artifact
from nemotron_shared.artifacts.manifest import MANIFEST
from nemotron_shared.config.schema import StageConfig
from nemotron_shared.config.training import EXPERIMENT, TrackerSection
from nemotron_shared.errors import UserError, how_to_add
from nemotron_shared.redaction import redact, redact_values
from nemotron_shared.runtime import distributed
from nemotron_shared.runtime.console import say
from nemotron_shared.runtime.machine import Machine
from nemotron_shared.runtime.needs import Problem
from nemotron_shared.runtime.stop import Interrupted, Stopped

KEYS = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")
WITHOUT_KEY = ("offline", "disabled", "dryrun")


def can_log(environment: Mapping[str, str] = os.environ, *, files: bool = True) -> bool:
    """Whether there is a key, or none is required.

    Args:
        environment: of the process that will log.
        files: whether that process has this account's files.
    """
    if any(environment.get(name) for name in KEYS) or environment.get("WANDB_MODE", "").lower() in WITHOUT_KEY:
        return True
    return files and (_has_own_settings(environment) or _is_logged_in(environment))


def _has_own_settings(environment: Mapping[str, str]) -> bool:
    """Whether W&B's settings file may waive the key: `wandb offline` or another server, left to W&B."""
    folder = environment.get("WANDB_CONFIG_DIR") or "~/.config/wandb"
    files = (Path(folder).expanduser() / "settings", Path(environment.get("WANDB_DIR") or ".") / "wandb" / "settings")
    return any("mode" in text or "base_url" in text for text in map(_text, files))


def _is_logged_in(environment: Mapping[str, str]) -> bool:
    """Whether `wandb login` left an entry in netrc."""
    named = environment.get("NETRC")
    places = [Path(place).expanduser() for place in ([named] if named else ["~/.netrc", "~/_netrc"])]
    file = next((place for place in places if place.exists()), None)
    try:
        hosts = netrc.netrc(file).hosts if file else {}
    except (netrc.NetrcParseError, OSError, UnicodeDecodeError):
        return False
    server = environment.get("WANDB_BASE_URL", "").partition("//")[2].strip("/")
    return any("wandb" in host or host in ("default", server) for host in hosts)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


Ending = Literal["finished", "stopped", "failed"]
SMALL_FILES = ("manifest.json", "metrics.jsonl", "config.json", "results.json")
"""Files of a result to upload; its manifest has the location and digests of the others."""

LONGEST = 200
OPENED = {
    "wandb": ("logger.wandb_project", "WANDB_MODE=offline needs no network"),
    "mlflow": ("logger.mlflow_tracking_uri", "start the server, or correct the address"),
}
"""The setting that enables each tracker, and the remedy if it cannot be opened."""
KEY_MISSING = "W&B has no key: WANDB_API_KEY is not set, and no login is kept in netrc"
KEY_REMEDY = "set WANDB_API_KEY, run `wandb login`, or set WANDB_MODE=offline"
JOB_REMEDY = (
    'set WANDB_API_KEY or WANDB_MODE=offline here, which travel with the job, or write WANDB_MODE = "offline" into '
    "the profile's env_vars; a login in netrc counts where the job has your home folder, which a container has not"
)


def section_of(config: StageConfig) -> TrackerSection | None:
    """The config section that names trackers."""
    section = getattr(config, "logger", None)
    return section if isinstance(section, TrackerSection) else None


def _logs_to_wandb(config: StageConfig) -> bool:
    section = section_of(config)
    return section is not None and section.wandb_project is not None


def missing_trackers(config: StageConfig, machine: Machine) -> Iterator[Problem]:
    """Packages that the config's trackers need and the machine lacks."""
    section = section_of(config)
    if section is None or not machine.knows_packages:
        return
    for key, value, packages in (
        ("logger.wandb_project", section.wandb_project, ("wandb",)),
        ("logger.mlflow_tracking_uri", section.mlflow_tracking_uri, ("mlflow-skinny", "mlflow")),
    ):
        if value is not None and not any(machine.version_of(package) for package in packages):
            yield Problem(f"it needs the package '{packages[0]}'", how_to_add(packages[0]), key=key)


def missing_key(config: StageConfig, machine: Machine) -> Iterator[Problem]:
    """Report a missing W&B key now: W&B would refuse the run only after everything else is prepared."""
    if not _logs_to_wandb(config) or (can_log() if machine.is_here else machine.wandb is not False):
        return
    remedy = KEY_REMEDY if machine.is_here else JOB_REMEDY
    yield Problem(KEY_MISSING, f"{remedy}; logger.wandb_project=null does without", key="logger.wandb_project")


def unknown_key(config: StageConfig, machine: Machine) -> Iterator[str]:
    """Report requirements on another machine that cannot be checked from here."""
    if _logs_to_wandb(config) and not machine.is_here and machine.wandb is None:
        yield f"logger.wandb_project: W&B's key must be there, which is not seen from here: {KEY_REMEDY}"


class Tracker(Protocol):
    """A service opened for one run. Any method may raise anything."""

    name: str

    def figures(self, step: int, values: Mapping[str, float]) -> None:
        """Log a step's metrics."""

    def result(self, artifact: Artifact, inputs: Sequence[Artifact]) -> None:
        """Log the result and its inputs."""

    def end(self, ending: Ending) -> None:
        """Send what is pending, and close."""


class Trackers:
    """The trackers of one run; none on ranks other than 0."""

    def __init__(self, name: str, trackers: list[Tracker]) -> None:
        self.name = name
        self._trackers = trackers

    def figures(self, step: int, values: Mapping[str, float]) -> None:
        """Log a step's metrics."""
        self._each(lambda tracker: tracker.figures(step, values))

    def result(self, artifact: Artifact, inputs: Sequence[Artifact] = ()) -> None:
        """Log the result's name, path and small files, and those of its inputs."""
        self._each(lambda tracker: tracker.result(artifact, inputs))

    def end(self, ending: Ending) -> None:
        """Close all trackers."""
        self._each(lambda tracker: tracker.end(ending))

    def _each(self, tell: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            try:
                tell(tracker)
            except Exception as error:  # whatever a library, a server or a network makes of it
                self._trackers.remove(tracker)
                say(f"[{self.name}] {tracker.name} is left out from here on: {_said(error)}")


class AtTheEnd:
    """A tracker for the result only, because the engine's library logs the metrics on its own.

    It is opened at the end, so that there is one run while the library works, not two.
    """

    def __init__(self, name: str, open_it: Callable[[], Tracker]) -> None:
        self.name = name
        self._open = open_it

    def figures(self, step: int, values: Mapping[str, float]) -> None:
        """Do nothing: the library has logged them."""

    def result(self, artifact: Artifact, inputs: Sequence[Artifact]) -> None:
        """Open the tracker, log the result, and close it."""
        tracker = self._open()
        tracker.result(artifact, inputs)
        tracker.end("finished")

    def end(self, ending: Ending) -> None:
        """Do nothing: nothing is open."""


@contextmanager
def tracked(
    name: str, directory: Path, section: TrackerSection, settings: Mapping[str, Any], itself: tuple[str, ...]
) -> Generator[Trackers]:
    """Open the config's trackers, on rank 0, and close them with the outcome of the work.

    Args:
        name: of the run; the same name continues the tracker's existing run.
        directory: the run's folder, where a tracker may keep its files.
        settings: flat, to filter runs by.
        itself: trackers that the engine's library logs to on its own.

    Raises:
        UserError: a tracker cannot be reached.
    """
    asked = {"wandb": section.wandb_project, "mlflow": section.mlflow_tracking_uri}
    wanted = [kind for kind, value in asked.items() if value is not None and distributed.rank() == 0]

    def opened(kind: str) -> Tracker:
        return _open(kind, name, directory, section, redact_values(dict(settings)))

    trackers = Trackers(
        name, [AtTheEnd(kind, partial(opened, kind)) if kind in itself else opened(kind) for kind in wanted]
    )
    ending: Ending = "failed"
    try:
        yield trackers
        ending = "finished"
    except (Stopped, Interrupted, KeyboardInterrupt):
        ending = "stopped"
        raise
    finally:
        trackers.end(ending)


def _open(kind: str, name: str, directory: Path, section: TrackerSection, settings: Mapping[str, Any]) -> Tracker:
    try:
        if kind == "wandb":
            from nemotron_shared.runtime.trackers import WandbTracker

            return WandbTracker(name, directory, section, settings)
        from nemotron_shared.runtime.trackers import MLflowTracker

        return MLflowTracker(name, section, settings)
    except Exception as error:  # whatever a library, a server or a network makes of it
        key, remedy = OPENED[kind]
        raise UserError(f"{key}: cannot log there: {_said(error)}", f"{remedy}; {key}=null does without") from error


def _said(error: Exception) -> str:
    """A library's error in short: type and first line, with the middle of a long one left out."""
    first = (redact(str(error)).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first if len(first) <= LONGEST else f'{first[:80]} ... {first[-80:]}'}"


EXIT_CODES: dict[Ending, int] = {"finished": 0, "stopped": 130, "failed": 1}


class WandbTracker:
    """A run in W&B. Its id is the name of the run's folder, so a resumed run continues the same one.

    If the engine's library has a run open in this process, that one is used.
    """

    name = "W&B"

    def __init__(self, name: str, directory: Path, section: TrackerSection, settings: Mapping[str, Any]) -> None:
        self._is_own = wandb.run is None
        self._run = wandb.run or wandb.init(
            project=section.wandb_project,
            entity=section.wandb_entity,
            id=name,
            name=section.wandb_name or name,
            resume="allow",
            dir=directory,
            config=dict(settings),
            settings=wandb.Settings(console="off", silent=True, x_disable_meta=True, disable_git=True, save_code=False),
        )

    def figures(self, step: int, values: Mapping[str, float]) -> None:
        """Log a step's metrics."""
        self._run.log(dict(values), step=step)

    def result(self, artifact: Artifact, inputs: Sequence[Artifact]) -> None:
        """Log the result as an artifact and the inputs as used ones; its metrics go into the summary."""
        self._run.summary.update(dict(numbers(artifact.manifest.metrics)))
        self._run.log_artifact(mirrored(artifact), aliases=[f"v{artifact.manifest.version}", "latest"])
        for used in inputs:
            if self._run.offline:  # `use_artifact` fails offline; record its underlying call for `wandb sync`
                self._run._log_artifact(mirrored(used), aliases=[], is_user_created=True, use_after_commit=True)
            else:
                self._run.use_artifact(mirrored(used))

    def end(self, ending: Ending) -> None:
        """Send what is pending."""
        if self._is_own:
            self._run.finish(exit_code=EXIT_CODES[ending])


def mirrored(artifact: Artifact) -> wandb.Artifact:
    """A W&B artifact with our artifact's small files; its metadata has the location of the full one."""
    made = artifact.manifest
    known = {"reference": artifact.reference, "digest": made.digest, "path": str(artifact.path), **made.metrics}
    found = wandb.Artifact(made.name, type=made.type, metadata=known)
    for name in SMALL_FILES:
        if (artifact.path / name).is_file() and not (artifact.is_external and name == MANIFEST):
            found.add_file(str(artifact.path / name), name=name)
    if artifact.is_external:  # an external folder has no manifest; its digest identifies it
        with found.new_file("digest.txt") as file:
            file.write(f"{made.digest}\n")
    return found


def numbers(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    """Numbers in nested mappings, by path: `sft/sums/accuracy`."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{above}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{above}{name}", value


STATES: dict[Ending, str] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
NAME_TAG = "nemotron.run"
SEND_SECONDS, MOST_METRICS, MOST_PARAMS, LONGEST_PARAM = 2.0, 1000, 100, 500
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
        params = [Param(key, str(value)[:LONGEST_PARAM]) for key, value in settings.items() if key not in known]
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
