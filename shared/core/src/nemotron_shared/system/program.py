"""Run a program: its errors become one message and an exit code, and libraries' lines are escaped and redacted.

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
"""

import logging
import os
import re
import select
import sys
import traceback
import warnings
from collections.abc import Callable
from types import TracebackType

from nemotron_shared.system.console import clear_renewed
from nemotron_shared.system.errors import UserError, disk_remedy, printable
from nemotron_shared.system.process import as_typed
from nemotron_shared.system.redaction import redact

COLOUR = re.compile(r"\x1b\[[\d;]*m")
_format_record, _format_warning = logging.Handler.format, warnings.formatwarning
READER_LEFT = 141
"""Exit code a shell reports for a program killed by SIGPIPE, as in `nemotron artifacts | head`."""
INTERRUPTED, INTERRUPTED_EXIT_CODE = "interrupted; ", 130
"""How the message of Ctrl-C begins, and the exit code of a program that it ended."""


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
        _print_error(as_typed(str(error)))
        return error.exit_code
    except RuntimeError as error:
        wrong = _wrong_path(str(error))
        if wrong is None:
            raise
        _print_error(wrong)
        return UserError.exit_code
    except KeyboardInterrupt as interrupt:
        clear_renewed()
        said = str(interrupt) or "run the same command again to continue"
        print(printable(f"{INTERRUPTED}{said}"), file=sys.stderr, flush=True)
        return INTERRUPTED_EXIT_CODE
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
        _print_error(f"{where}: {error.strerror}\n  {remedy}")
        return UserError.exit_code


def _print_error(text: str) -> None:
    clear_renewed()
    print("error:", printable(redact(text), keep="\n\t"), file=sys.stderr, flush=True)


def _wrong_path(said: str) -> str | None:
    """Message and remedy for an error raised by `Path`; None for any other text."""
    if "home directory" in said:  # Path.expanduser, for a ~NAME without such a user
        return "a path starts with ~ and an unknown user name\n  write ./~NAME for a file of that name"
    if said.startswith("Symlink loop"):  # Path.resolve, before Python 3.13
        return f"{said}\n  remove the link, or put the file back in its place"
    return None


def spell_out_libraries() -> None:
    """Escape and redact libraries' logs and warnings as we do our own lines: they may hold names from untrusted files.

    Every handler in this process gets its text from `logging.Handler.format`, whichever library added it.
    """

    def record_as_text(self: logging.Handler, record: logging.LogRecord) -> str:
        if getattr(self, "stream", None) is sys.stderr:
            clear_renewed()
        return _without_commands(_format_record(self, record))

    def warning_as_text(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        clear_renewed()
        return _without_commands(_format_warning(message, category, filename, lineno, line))

    logging.Handler.format = record_as_text
    warnings.formatwarning = warning_as_text  # ty: ignore[invalid-assignment]


def _without_commands(text: str) -> str:
    """Remove secrets, colours and terminal control sequences."""
    return printable(redact(COLOUR.sub("", text)), keep="\n\t")


def _print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback without secrets and escape sequences: clusters keep the output of jobs."""
    text = "".join(traceback.format_exception(kind, error, trace))
    clear_renewed()
    print(printable(redact(text), keep="\n\t"), end="", file=sys.stderr, flush=True)
