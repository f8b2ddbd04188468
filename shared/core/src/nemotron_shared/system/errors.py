"""Errors for users: what is wrong, where, and what to do about it.

error: tiny.yaml: unknown key 'train.train_iter'
  did you mean 'train.train_iters'?
"""

import difflib
import errno
import logging
import os
import re
import select
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from types import TracebackType

from nemotron_shared.system.findings import problem
from nemotron_shared.system.redaction import redact

DISK_REMEDIES = (
    ((errno.EACCES, errno.EPERM, errno.EROFS), "check its permissions, or name another place"),
    ((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free space there and run the same command again"),
    ((errno.EIO, errno.ESTALE, errno.ENOTCONN), "look after the disk or file server, then run the same command again"),
    ((errno.ELOOP,), "a link that leads to itself: remove it, or put the file back in its place"),
    ((errno.ENAMETOOLONG,), "give a shorter name"),
    ((errno.EISDIR,), "a folder where a file is wanted: remove it, or put the file back in its place"),
)
"""Remedies for system errors a user can fix; any other error is our bug."""
COLOUR = re.compile(r"\x1b\[[\d;]*m")
_format_record, _format_warning = logging.Handler.format, warnings.formatwarning
READER_LEFT = 141
"""Exit code a shell reports for a program killed by SIGPIPE, as in `nemotron artifacts | head`."""


class UserError(Exception):
    """An error the user can fix. Shown as one message, without a traceback.

    Attributes:
        finding: what is wrong, and what to do.
    """

    exit_code = 2

    def __init__(self, message: str, remedy: str | None = None, key: str | None = None) -> None:
        self.finding = problem(message, remedy, key)
        super().__init__(self.finding.message)

    def __str__(self) -> str:
        return str(self.finding)

    @property
    def message(self) -> str:
        """What is wrong, and where."""
        return self.finding.message

    @property
    def remedy(self) -> str | None:
        """What to do about it."""
        return self.finding.remedy


class NotFound(UserError):
    """The named thing does not exist, as opposed to: it exists and is damaged."""


def did_you_mean(wrong: str, known: Iterable[str], otherwise: str | None = None) -> str | None:
    """A remedy naming the closest of `known`, or `otherwise` if none is close."""
    near = difflib.get_close_matches(wrong, list(known), n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'?" if near else otherwise


def how_to_add(*packages: str) -> str:
    """A remedy: the command that installs optional packages into this process's environment."""
    return f"add it to this environment: uv pip install --python {sys.executable} {' '.join(packages)}"


def exit_code_of(main: Callable[[], int | None]) -> int:
    """Run a program, turning a `UserError` or Ctrl-C into one message and an exit code.

    Any other exception keeps its traceback: it is a bug, and the traceback helps to fix it.
    """
    sys.excepthook = _print_traceback
    spell_out_libraries()
    try:
        code = main() or 0
        if sys.stdout is not None:  # None if it was closed before the program started
            sys.stdout.flush()
        return code
    except UserError as error:
        print("error:", printable(redact(str(error)), keep="\n\t"), file=sys.stderr, flush=True)
        return error.exit_code
    except RuntimeError as error:
        wrong = _wrong_path(str(error))
        if wrong is None:
            raise
        print("error:", printable(redact(wrong), keep="\n"), file=sys.stderr, flush=True)
        return UserError.exit_code
    except KeyboardInterrupt:
        print("interrupted; run the same command again to continue", file=sys.stderr, flush=True)
        return 130
    except BrokenPipeError:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        if not any(event & select.POLLERR for _, event in poll.poll(0)):
            raise  # stdout is still being read; another pipe broke
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes again at exit
        return READER_LEFT
    except OSError as error:
        remedy = disk_remedy(error)
        if remedy is None:
            raise
        where = error.filename2 or error.filename or "a file could not be read or written"
        print(
            "error:",
            printable(redact(f"{where}: {error.strerror}\n  {remedy}"), keep="\n"),
            file=sys.stderr,
            flush=True,
        )
        return UserError.exit_code


def _wrong_path(said: str) -> str | None:
    """Message and remedy for an error raised by `Path`; None for any other text."""
    if "home directory" in said:  # Path.expanduser, for a ~NAME without such a user
        return "a path starts with ~ and an unknown user name\n  write ./~NAME for a file of that name"
    if said.startswith("Symlink loop"):  # Path.resolve, before Python 3.13
        return f"{said}\n  remove the link, or put the file back in its place"
    return None


def disk_remedy(error: OSError) -> str | None:
    """Remedy for a full, failing or read-only disk, or for something else in a file's place; None for other errors."""
    return next((remedy for numbers, remedy in DISK_REMEDIES if error.errno in numbers), None)


def spell_out_libraries() -> None:
    """Escape and redact libraries' logs and warnings as we do our own lines: they may hold names from untrusted files.

    Every handler in this process gets its text from `logging.Handler.format`, whichever library added it.
    """

    def record_as_text(self: logging.Handler, record: logging.LogRecord) -> str:
        return _without_commands(_format_record(self, record))

    def warning_as_text(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        return _without_commands(_format_warning(message, category, filename, lineno, line))

    logging.Handler.format = record_as_text
    warnings.formatwarning = warning_as_text  # ty: ignore[invalid-assignment]


def _without_commands(text: str) -> str:
    """Remove secrets, colours and terminal control sequences."""
    return printable(redact(COLOUR.sub("", text)), keep="\n\t")


def _print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback without secrets and escape sequences: clusters keep the output of jobs."""
    text = "".join(traceback.format_exception(kind, error, trace))
    print(printable(redact(text), keep="\n\t"), end="", file=sys.stderr, flush=True)


def printable(text: str, keep: str = "") -> str:
    """Escape control characters, which could rewrite or forge what a terminal shows."""
    if text.translate(dict.fromkeys(map(ord, keep))).isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )
