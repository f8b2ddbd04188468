"""Start the steps of one command as forks of processes that have made their imports, once for all of them.

    with copying():
        copy_of("stages.sft.train", ["--composed", ...], stdout, libraries).wait()      # its exit code

Python takes half a second to import a step's checks and settings, and four more for torch and transformers. The command
has imported the first already, so it forks its steps from itself. Once a step has made something, those after it will
train too: they are forked from a second process, which has imported the libraries of their engines. A start that finds
its results made before needs no library, and so has no second process.

A copy behaves as a new process would: it has its own signals, ends with this process, and reads the same command line.
Where that may not hold, the step gets a new Python: without Linux, while other threads run, after a module's
file was changed, and for libraries on a machine with a GPU, whose driver cannot be forked.
"""

import atexit
import gc
import importlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, NoReturn

from nemotron_shared.machine.machine import DRIVER
from nemotron_shared.system.background import can_fork
from nemotron_shared.system.console import doing, tell
from nemotron_shared.system.process import ENDING, end_with_parent, forking, heed_signals
from nemotron_shared.system.stop import STOPPED_EXIT_CODE
from nemotron_shared.tracking.progress import heartbeat

STDOUT = 1
LONGEST_LINE = 1 << 16
"""Bytes of a request: a module, its words and the names of libraries."""


class Copy:
    """A forked step, with the parts of `Popen` that its starter uses."""

    def __init__(self, pid: int, answers: IO[str] | None = None) -> None:
        """Args: answers: where another process, whose child it is, tells its exit code; None for a child of ours."""
        self._pid, self._answers, self._code = pid, answers, None

    def wait(self) -> int:
        """Wait for its end; returns its exit code, negative for a signal."""
        if self._answers is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        else:  # nothing, if that process was killed
            self._code = int(self._answers.readline() or -signal.SIGKILL)
        return self._code

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self._code is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)


class Copies:
    """Forks the steps of one command.

    Attributes:
        has_made: whether one of them has made something, so that those after it will, too.
    """

    def __init__(self) -> None:
        self.has_made = False
        self._files = _Files()
        self._importer: _Importer | None = None

    def copy(self, module: str, words: Sequence[str], stdout: int, libraries: Sequence[str]) -> Copy | None:
        """A step as a fork; None where it should be a new process."""
        if not can_fork() or not self._files.are_unchanged():
            return None
        if not libraries or not self.has_made or DRIVER.exists():
            return Copy(_fork(partial(_become, module, words, stdout)))
        self._importer = self._importer or _Importer()
        return self._importer.copy(module, words, stdout, libraries)

    def close(self) -> None:
        """End the process that has the libraries."""
        if self._importer is not None:
            self._importer.close()


_current: Copies | None = None


@contextmanager
def copying() -> Generator[Copies]:
    """Fork the steps that are started inside it, where that is possible."""
    global _current
    _current = copies = Copies()
    try:
        yield copies
    finally:
        _current = None
        copies.close()


def copy_of(module: str, words: Sequence[str], stdout: IO[bytes] | None, libraries: Sequence[str]) -> Copy | None:
    """A step as a copy, if steps are copied now and this one can be.

    Args:
        words: of its command line.
        stdout: None for that of this process.
        libraries: modules that its work imports first, if they take long.
    """
    if _current is None:
        return None
    return _current.copy(module, words, STDOUT if stdout is None else stdout.fileno(), libraries)


def note_made(reused: bool) -> None:
    """Note whether the step that has just ended made something, or found it."""
    if _current is not None and not reused:
        _current.has_made = True


class _Files:
    """The files of imported modules: after an edit, a copy would run the old code under the new code's digest."""

    def __init__(self) -> None:
        self._states: dict[str, tuple[int, int, int] | None] = {}
        self.are_unchanged()

    def are_unchanged(self) -> bool:
        """Whether all files are those of the last look; notes those of modules imported since."""
        now = {file: _state(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", 0))}
        same = all(self._states[file] == state for file, state in now.items() if file in self._states)
        self._states |= {file: state for file, state in now.items() if file not in self._states}
        return same


def _state(file: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)  # noqa: PTH116  # thousands of files
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class _Importer:
    """Our side of the second process, which imports libraries and forks steps from itself."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._pid = _fork(partial(_serve, theirs, self._socket))
        theirs.close()
        self._answers = self._socket.makefile()

    def copy(self, module: str, words: Sequence[str], stdout: int, libraries: Sequence[str]) -> Copy | None:
        """A step as its fork; None if it cannot import the libraries, or files of its modules were changed."""
        request = json.dumps({"module": module, "words": list(words), "libraries": list(libraries)})
        doing("importing libraries")
        try:
            with heartbeat(module.removeprefix("stages.").partition(".")[0]):
                socket.send_fds(self._socket, [f"{request}\n".encode()], [stdout])
                pid = int(self._answers.readline() or 0)
        except OSError:  # it was killed
            return None
        return Copy(pid, self._answers) if pid else None

    def close(self) -> None:
        """Kill it. Between steps it has no children."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._answers.close()
        self._socket.close()


def _serve(ours: socket.socket, of_command: socket.socket) -> NoReturn:
    """The second process: import libraries, fork a step, tell its process id and its exit code."""
    of_command.close()  # so that we see when the command's own is closed
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)  # a terminal sends Ctrl-C to the step, too
    end_with_parent(os.getppid(), signal.SIGKILL)
    heed_signals()
    os.environ.setdefault("TQDM_DISABLE", "1")  # as every step does, before tqdm reads it
    files = _Files()
    while True:
        line, descriptors, _, _ = socket.recv_fds(ours, LONGEST_LINE, 1)
        if not line:  # the command was killed: Linux closes its files before it tells us
            os._exit(0)
        (stdout,), request = descriptors, json.loads(line)
        pid = 0
        if files.are_unchanged() and _imported(request["libraries"]) and files.are_unchanged():
            pid = _fork(partial(_become, request["module"], request["words"], stdout, ours))
        os.close(stdout)
        ours.sendall(f"{pid}\n".encode())
        if pid:
            ours.sendall(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n".encode())


def _imported(libraries: Sequence[str]) -> bool:
    """Import libraries; returns whether all are there. Nothing is hidden from them: another step may need it."""
    gc.disable()
    try:
        for name in libraries:
            importlib.import_module(name)
    except Exception:  # the step, in its own process, reports it
        return False
    finally:
        gc.enable()
    return True


def _fork(work: Callable[[], NoReturn]) -> int:
    """Fork a child that does a work and nothing else; signals that ask it to end wait until it heeds them."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    gc.freeze()  # else the collector of each copy would write to every page
    parent = os.getpid()
    with forking():
        pid = os.fork()
        if pid == 0:
            try:  # as a new process begins: the handlers of this one would do the wrong thing there
                signal.signal(signal.SIGINT, signal.default_int_handler)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                end_with_parent(parent, signal.SIGTERM)
                work()
            except BaseException as error:
                sys.excepthook(type(error), error, error.__traceback__)
            finally:  # else it would continue as this process does, and clean up what is still in use
                os._exit(1)
    return pid


def _become(module: str, words: Sequence[str], stdout: int, theirs: socket.socket | None = None) -> NoReturn:
    """Be `python -m module words` from here on."""
    if theirs is not None:
        theirs.close()
    if stdout != STDOUT:
        os.dup2(stdout, STDOUT)
    if not sys.flags.safe_path and sys.path[:1] == [str(Path.cwd())]:  # see `use_no_code_of_this_folder`
        del sys.path[0]
    code: object = 1
    try:
        step = importlib.import_module(module)
        sys.argv = [str(step.__file__), *words]
        code = step.main()
    except SystemExit as ended:
        code = ended.code
    except KeyboardInterrupt:  # just before it ended
        code = STOPPED_EXIT_CODE
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    _leave(code)


def _leave(code: object) -> NoReturn:
    """Exit as Python does, but without closing files of the process that this was forked from, and without freeing
    objects one by one: after torch was imported, that takes a while.
    """
    if not isinstance(code, int | None):
        tell(str(code), out=sys.stderr)
        code = 1
    threading._shutdown()  # ty: ignore[missing-attribute]  # waits for threads, as the interpreter does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or nobody reads it
            stream.flush()
    os._exit((code or 0) & 0xFF)
