"""Steps in copies of this process, which has imported their libraries once: that takes longer than a tiny training.

    get_ready({"stages.sft.train": lambda: importlib.import_module("stages.sft.engines.transformers.train")})
    process = Copy("stages.sft.train", ["-c", "tiny"])
    process.wait()

A copy does what `python -m stages.sft.train` would, with its own signals, standard output and exit code. What this
process has done beyond importing is nothing that a step would notice: no thread runs, and no generator is seeded.
"""

import atexit
import gc
import importlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO

from nemotron_app.garbage import no_searches
from nemotron_shared.runtime.machine import has_accelerator
from nemotron_shared.runtime.process import end_with_parent, forked, forking

_ready: set[str] = set()


def possible() -> bool:
    """Whether a copy of this process would work."""
    alone = sys.platform == "linux" and threading.active_count() == 1
    return alone and not has_accelerator()


def get_ready(steps: Mapping[str, Callable[[], object]]) -> None:
    """Import steps and their libraries; one that cannot be imported says so when it runs.

    Args:
        steps: what imports the libraries of each, by the module of the step.
    """
    before = dict(os.environ)
    os.environ["TQDM_DISABLE"] = "1"  # as a step has it, and read when the libraries are imported
    with no_searches():
        for step, import_libraries in steps.items():
            with suppress(ImportError):
                importlib.import_module(step)
                import_libraries()
                _ready.add(step)
        os.environ.clear()
        os.environ.update(before)
        gc.freeze()  # or a copy's search for garbage would copy all of it


def can_run(command: Sequence[str]) -> bool:
    """Whether a command, as a list of words, is a step that this process is ready for."""
    return list(command[:2]) == [sys.executable, "-m"] and command[2] in _ready and possible()


class Copy:
    """A step that runs in a copy of this process; used like a `subprocess.Popen`."""

    def __init__(self, module: str, words: Sequence[str], stdout: IO[bytes] | None = None) -> None:
        self.args = [module, *words]
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_become, args=(module, words, stdout, os.getpid()))
        with forking():
            self._process.start()

    def send_signal(self, number: int) -> None:
        """Signal it, where it still runs."""
        if self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, number)

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._process.exitcode

    def wait(self) -> int:
        """Its exit code; below 0 the signal that ended it."""
        self._process.join()
        code = self._process.exitcode
        assert code is not None, "it was joined"
        return code


def _become(module: str, words: Sequence[str], stdout: IO[bytes] | None, parent: int) -> None:
    """Be the process of a step, as far as it can tell."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent(parent, signal.SIGTERM)
    forked()
    if stdout is not None:
        os.dup2(stdout.fileno(), sys.stdout.fileno())
    sys.argv = [module, *words]
    code = 1
    try:
        code = importlib.import_module(module).STEP.main()
    except Exception as error:  # ours to show: the library would show it with secrets
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        atexit._run_exitfuncs()  # the library leaves these out in a copy; trackers of experiments finish in them
    sys.exit(code)
