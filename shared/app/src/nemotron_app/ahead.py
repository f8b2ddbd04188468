"""What a pipeline that has everything before it does at the same time as something else.

    pretrain data prep | pretrain .................................. | sft .......... | rl ............ | eval
    imports for it     | imports for sft; data prep of sft, rl, eval | imports for rl | imports for eval

The libraries of the trainings are imported once for all (see `copies.py`): those of the first one while its data is
prepared, those of each other while the one before it runs. Meanwhile the data of all stages is prepared, one after the
other, for the training keeps another core busy; their lines are shown when their turn comes.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from nemotron_app import copies
from nemotron_app.launch import ask_step, engine_here, step_command, wait_for
from nemotron_shared.runtime.console import doing, tell
from nemotron_shared.runtime.engine import Engine, import_libraries
from nemotron_shared.runtime.heartbeat import heartbeat
from nemotron_shared.runtime.process import ending_with_us

if TYPE_CHECKING:
    from nemotron_app.main import Request

PREPARES, TRAINS = "data_prep", "train"
LOOK_SECONDS = 0.05
"""How often it is seen whether a step has ended."""
Verb = tuple[str, str]
"""A stage, and what it does."""


class Ended(NamedTuple):
    """How a step ended."""

    code: int
    answer: dict[str, Any]
    """What it tells a program; nothing where it failed."""
    seconds: float


class Started:
    """A step that runs, or has run, before its turn.

    Args:
        answer: where its standard output goes; `lines`: the other one, None where people may see it at once.
    """

    def __init__(self, command: Sequence[str], answer: IO[bytes], lines: IO[bytes] | None) -> None:
        self._answer, self._lines, self._began = answer, lines, time.time()
        self.process = subprocess.Popen(ending_with_us(command), stdout=answer, stderr=lines)

    def finish(self) -> Ended:
        """Wait for its end, and show its lines."""
        had_ended = self.process.poll() is not None
        code = wait_for(self.process)
        if self._lines is not None:
            self._lines.seek(0)
            tell(self._lines.read().decode(errors="replace"), end="", out=sys.stderr)
        self._answer.seek(0)
        answered = os.fstat(self._answer.fileno()).st_mtime  # the last thing that it did
        return Ended(
            code,
            {} if code else json.loads(self._answer.read()),
            (answered if had_ended else time.time()) - self._began,
        )


class Ahead:
    """Runs the steps of a pipeline in their order, with what can be done ahead.

    Args:
        order: all that is to be run.
        requests: of each stage.
        fresh: no training has been done yet. Where some have, a step mostly finds its result and needs no library.
    """

    def __init__(self, order: Sequence[Verb], requests: Mapping[str, "Request"], *, fresh: bool) -> None:
        self._order, self._requests, self._fresh = order, requests, fresh
        self._started: dict[Verb, Started] = {}
        self._engines: dict[Verb, type[Engine[Any]]] = {}
        """Of the trainings to come that run in this Python."""
        self._files = ExitStack()

    def __enter__(self) -> "Ahead":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for started in self._started.values():
            started.process.terminate()
            started.process.wait()
        self._files.close()

    def run(self, stage: str, verb: str) -> Ended:
        """Run a step to its end."""
        here = self._order.index((stage, verb))
        if self._fresh and here == 0 and copies.possible():
            self._begin(self._order[0], hidden=False)
            self._engines = self._find_engines()
            doing("importing the libraries of the first training")
            with heartbeat("pipeline"):  # its thread is gone before the first copy is made
                self._import_for_next(self._order)
        if (started := self._started.pop((stage, verb), None)) is not None:
            return started.finish()
        began = time.time()
        code, answer = ask_step(stage, verb, self._requests[stage], meanwhile=partial(self._work_ahead, here))
        return Ended(code, answer, time.time() - began)

    def _work_ahead(self, here: int, running: Callable[[], bool]) -> None:
        """What can be done while a training runs."""
        following = self._order[here + 1 :]
        if not self._fresh or self._order[here][1] != TRAINS:
            return
        self._import_for_next(following)
        for step in following if cores() > 1 else ():
            if not running():
                return
            if step[1] == PREPARES and step not in self._started:
                self._begin(step, hidden=True)
                while running() and self._started[step].process.poll() is None:
                    time.sleep(LOOK_SECONDS)

    def _begin(self, step: Verb, *, hidden: bool) -> None:
        stage, verb = step
        request = replace(self._requests[stage], json=True)
        answer, lines = tempfile.TemporaryFile(), tempfile.TemporaryFile() if hidden else None  # noqa: SIM115
        for file in filter(None, (answer, lines)):
            self._files.enter_context(file)
        self._started[step] = Started(step_command(stage, verb, request), answer, lines)

    def _import_for_next(self, following: Sequence[Verb]) -> None:
        """Import what the next training needs, and nothing of later ones: it may change how those before it work."""
        step = next((step for step in following if step[1] == TRAINS), None)
        if step in self._engines:
            copies.get_ready({f"stages.{step[0]}.{TRAINS}": partial(import_libraries, self._engines.pop(step))})

    def _find_engines(self) -> dict[Verb, type[Engine[Any]]]:
        found = {step: engine_here(step[0], self._requests[step[0]]) for step in self._order if step[1] == TRAINS}
        return {step: engine for step, engine in found.items() if engine is not None}


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
