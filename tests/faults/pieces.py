"""The store and the checkpoints alone, as steps that take milliseconds: a piece of what every stage does.

python -m faults.pieces publish        make a version, give it an alias
python -m faults.pieces checkpoints    six steps, each with a checkpoint, from the newest on; publish
python -m faults.pieces remove         remove version 1 of two
"""

import hashlib
import shutil
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from nemotron_shared.artifacts import Artifact, Producer, Store
from nemotron_shared.artifacts.housekeeping import remove
from nemotron_shared.artifacts.names import Reference
from nemotron_shared.artifacts.verified import require_intact
from nemotron_shared.engine.checkpoints import (
    Layout,
    mark_complete,
    prune,
    removed_when_disk_is_full,
    resume_point,
    step_of,
)
from nemotron_shared.system.atomic import open_atomic, write_bytes, write_json
from nemotron_shared.system.console import say
from nemotron_shared.system.program import exit_code_of
from nemotron_shared.system.stop import Stopped, end_on_sigterm
from nemotron_shared.tracking.run import Run, locked_run

NAME = "faults-piece"
LAYOUT = Layout()
FORCE = "--force"
STEPS = 6
STATE_BYTES = 32768
PRODUCER = Producer("faults", "pieces", "", "", "", "", None, __name__, {})


def publish(store: Store) -> None:
    """A folder of several files and an alias."""
    artifact = finished(store, "publish")
    if artifact is None:
        with opened(store, "publish") as run:
            if finished(store, "publish") is not None:
                return
            folder = run.fresh_output()
            for number in range(3):
                write_bytes(folder / "parts" / f"{number}.bin", _state(number))
            write_json(folder / "stats.json", {"parts": 3})
            artifact = published(store, run, "publish")
    store.set_alias(NAME, artifact.manifest.version, "best")


def checkpoints(store: Store) -> None:
    """A training without a model: its state follows from the state before."""
    if finished(store, "checkpoints") is not None:
        return
    with opened(store, "checkpoints") as run:
        if finished(store, "checkpoints") is not None:
            return
        point = resume_point(run.checkpoints, LAYOUT, run.say)
        state = (point / "state.bin").read_bytes() if point else _state(0)
        first = step_of(point) if point else 0
        run.metrics.cut_after(first)
        for step in range(first + 1, STEPS + 1):
            run.stop_if_requested()
            state = _state(hashlib.sha256(state).digest())
            run.metrics.append(step, loss=state[0] / 256)
            checkpoint(run, step, state)
        with open_atomic(run.fresh_output() / "state.bin") as file:
            file.write(state)
        shutil.copyfile(run.metrics.path, run.output / "metrics.jsonl")
        published(store, run, "checkpoints")
        shutil.rmtree(run.checkpoints)


@contextmanager
def opened(store: Store, what: str) -> Generator[Run]:
    """The folder of a piece's run, which `--force` empties."""
    with locked_run(store.home / "runs" / f"{NAME}-{what}", NAME, what) as run:
        if FORCE in sys.argv:
            run.forget()
        yield run


def checkpoint(run: Run, step: int, state: bytes) -> None:
    """Two files, written as a library does: in their place, and not synced."""
    folder = run.checkpoints / f"checkpoint-{step}"
    with removed_when_disk_is_full(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "state.bin").write_bytes(state)
        (folder / "step.txt").write_text(f"{step}\n")
    mark_complete(folder, LAYOUT, world_size=1)
    prune(run.checkpoints, LAYOUT, keep=2, keep_best=False)


def remove_first(store: Store) -> None:
    """The older of two versions."""
    if 1 in store.versions(NAME):
        remove(store, Reference(NAME, 1))


def _state(seed: int | bytes) -> bytes:
    return hashlib.shake_256(repr(seed).encode()).digest(STATE_BYTES)


def finished(store: Store, what: str) -> Artifact | None:
    if FORCE in sys.argv:
        return None
    found = store.find_by_fingerprint(NAME, what)
    if found is not None:
        require_intact(found, store.home, "run the piece again with --force")
        say(f"unchanged: using {found.reference}")
    return found


def published(store: Store, run: Run, what: str) -> Artifact:
    return store.publish(run.output, name=NAME, type="SFTDataArtifact", fingerprint=what, producer=PRODUCER)


PIECES: dict[str, Callable[[Store], None]] = {
    "publish": publish,
    "checkpoints": checkpoints,
    "remove": remove_first,
}


class Pieces:
    """Called as the step of a stage is."""

    directory = Path(__file__).parent

    def main(self) -> int:
        """Do the piece that the command line names; returns the exit code."""
        end_on_sigterm()
        return exit_code_of(lambda: self._main(sys.argv[1]))

    def _main(self, piece: str) -> int:
        try:
            PIECES[piece](Store.open())
        except Stopped as stopped:
            say(str(stopped))
            return stopped.exit_code
        return 0


STEP = Pieces()
main = STEP.main

if __name__ == "__main__":
    sys.exit(STEP.main())
