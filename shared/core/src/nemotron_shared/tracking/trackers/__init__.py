"""Experiment trackers: mirror a training's metrics and result to W&B or MLflow.

    with tracked(run, config, settings) as trackers:
        trackers.figures(10, {"loss": 3.91})
        trackers.result(artifact, inputs)

`metrics.jsonl` and the store are the record; a tracker is a copy. A tracker that cannot be reached at the start is an
error, because it was requested; one that fails later is reported once and dropped, because the training matters more.
"""

import netrc
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from nemotron_shared.artifacts import Artifact
from nemotron_shared.config.training import TrackerSection
from nemotron_shared.machine.machine import Machine
from nemotron_shared.system import distributed
from nemotron_shared.system.console import say
from nemotron_shared.system.errors import Finding, UserError, how_to_add, lacking, note, pending
from nemotron_shared.system.redaction import redact, redact_values
from nemotron_shared.system.stop import Interrupted, Stopped
from nemotron_shared.tracking.completions import Completion
from nemotron_shared.tracking.trackers.base import Ending, Tracker

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


def tracker_problems(section: TrackerSection, machine: Machine) -> Iterator[Finding]:
    """What the machine lacks for the trackers that the section names: packages, and W&B's key.

    The key is checked now, because W&B would refuse the run only after everything else is prepared.
    """
    for key, value, packages in (
        ("logger.wandb_project", section.wandb_project, ("wandb",)),
        ("logger.mlflow_tracking_uri", section.mlflow_tracking_uri, ("mlflow-skinny", "mlflow")),
    ):
        absent = machine.knows_packages and not any(machine.version_of(package) for package in packages)
        if value is not None and absent:
            yield lacking(f"it needs the package '{packages[0]}'", how_to_add(packages[0]), key=key)
    if section.wandb_project is not None and not (can_log() if machine.is_here else machine.wandb is not False):
        remedy = KEY_REMEDY if machine.is_here else JOB_REMEDY
        what = lacking(KEY_MISSING, f"{remedy}; logger.wandb_project=null does without", key="logger.wandb_project")
        yield pending(what)


def unseen_key(section: TrackerSection, machine: Machine) -> Iterator[Finding]:
    """Report that the key on another machine cannot be checked from here."""
    if section.wandb_project is not None and not machine.is_here and machine.wandb is None:
        yield note(f"logger.wandb_project: W&B's key must be there, which is not seen from here: {KEY_REMEDY}")


class Trackers:
    """The trackers of one run; none on ranks other than 0."""

    def __init__(self, name: str, trackers: list[Tracker]) -> None:
        self.name = name
        self._trackers = trackers

    def figures(self, step: int, values: Mapping[str, float]) -> None:
        """Log a step's metrics."""
        self._each(lambda tracker: tracker.figures(step, values))

    def completions(self, step: int, completions: Sequence[Completion]) -> None:
        """Log a few completions of a step of RL."""
        self._each(lambda tracker: tracker.completions(step, completions))

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

    def completions(self, step: int, completions: Sequence[Completion]) -> None:
        """Do nothing: the library logs its own."""

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
            from nemotron_shared.tracking.trackers.wandb_tracker import WandbTracker

            return WandbTracker(name, directory, section, settings)
        from nemotron_shared.tracking.trackers.mlflow_tracker import MLflowTracker

        return MLflowTracker(name, section, settings)
    except Exception as error:  # whatever a library, a server or a network makes of it
        key, remedy = OPENED[kind]
        raise UserError(f"{key}: cannot log there: {_said(error)}", f"{remedy}; {key}=null does without") from error


def _said(error: Exception) -> str:
    """A library's error in short: type and first line, with the middle of a long one left out."""
    first = (redact(str(error)).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first if len(first) <= LONGEST else f'{first[:80]} ... {first[-80:]}'}"
