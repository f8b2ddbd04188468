"""Wait for a job and show its log. The job does not depend on this process."""

import shlex
import time
from pathlib import Path

from nemotron_cluster.backends import OVER, Backend, State
from nemotron_cluster.job import Record
from nemotron_cluster.transport import NoAnswer
from nemotron_shared.artifacts import Store
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.console import pass_on, say

LOOK_SECONDS, LOOK_FAR_SECONDS = 2.0, 10.0
REMIND_SECONDS = 600.0
DETACHED = 130


def follow(backend: Backend, record: Record) -> int:
    """Show a job's log until it ends; returns its exit code.

    Ctrl-C does not affect the job, and prints how to follow it again or cancel it.
    """
    try:
        say(f"job {record.id} ({record.name}) on {record.profile}; Ctrl-C leaves it running")
        state = _until_over(backend, record)
    except KeyboardInterrupt:
        say(
            f"job {record.id} goes on without this command\n"
            f"  come back: nemotron jobs logs {record.id} --follow{where(record)}\n"
            f"  end it: nemotron jobs cancel {record.id}{where(record)}"
        )
        return DETACHED
    say(f"job {record.id}: {state.sentence} ({state.source})")
    if state.state == "done":
        return 0
    return state.exit_code or 1


def where(record: Record) -> str:
    """The options that job commands need if the store is not the default one."""
    home = Path(record.folder).parents[1]
    return "" if home == Store.open().home else f" --home {shlex.quote(str(home))}"


def _until_over(backend: Backend, record: Record) -> State:
    told, said_at, shown = "", 0.0, 0
    while True:
        try:
            state = backend.state(record)
            shown += _show(backend, record, shown)
        except NoAnswer as error:  # a scheduler that does not answer does not mean that the job is over
            state = State("unknown", str(error.message))
        if state.state in OVER:
            _show(backend, record, shown)
            return state
        if state.state != "running" and (state.sentence != told or time.monotonic() - said_at > REMIND_SECONDS):
            say(f"job {record.id}: {state.sentence}")
            told, said_at = state.sentence, time.monotonic()
        time.sleep(LOOK_SECONDS if record.there == record.folder else LOOK_FAR_SECONDS)


def _show(backend: Backend, record: Record, start: int) -> int:
    """Print the log from byte `start` on; returns the number of bytes printed."""
    new = backend.log(record, start) or b""
    pass_on(new)
    return len(new)


def state_of(backend: Backend, record: Record) -> State:
    """State of a job. It is not considered ended if the scheduler does not answer."""
    try:
        return backend.state(record)
    except UserError as error:
        return State("unknown", error.message)
