"""`nemotron jobs`: the jobs submitted from here with --run, --batch or --stage.

    nemotron jobs                       waiting, running and finished jobs
    nemotron jobs logs 4711 --follow    follow the log of a job; without --follow, print it
    nemotron jobs cancel 4711           have it save and end

A job is named by its id or its folder's name; `last` is the newest.
"""

import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path

import click

from nemotron_app.store_options import Look, store_options
from nemotron_app.wording import minute, table_lines
from nemotron_cluster.backends import OVER, Backend, State, backend_of
from nemotron_cluster.job import Record, jobs_folder, records
from nemotron_cluster.profiles import PROFILES
from nemotron_cluster.transport import NoAnswer
from nemotron_shared.artifacts import Store
from nemotron_shared.system.console import pass_on, say, tell
from nemotron_shared.system.errors import NotFound, UserError

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
            f"job {record.id} keeps running without this command\n"
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


WANTED = click.argument("wanted", metavar="ID|NAME|last")
SHOWN = 20


@click.group("jobs", invoke_without_command=True)
@click.option("--all", "everything", is_flag=True, help=f"more than the last {SHOWN}")
@store_options
def command(look: Look, everything: bool) -> int | None:
    """List, follow and cancel jobs; without a command, list them."""
    return None if click.get_current_context().invoked_subcommand else print_list(look, everything)


@command.command("list")
@click.option("--all", "everything", is_flag=True, help=f"more than the last {SHOWN}")
@store_options
def listing(look: Look, everything: bool) -> int:
    """List the jobs, newest last."""
    return print_list(look, everything)


@command.command()
@WANTED
@click.option("-f", "--follow", "follows", is_flag=True, help="until it ends")
@store_options
def logs(look: Look, wanted: str, follows: bool) -> int:
    """Show the log of a job."""
    record = find(look, wanted)
    backend = backend_for(record)
    if follows and record.id is not None:
        return follow(backend, record)
    said = backend.log(record)
    if not said:
        tell(f"nothing yet: {state_of(backend, record).sentence}", out=sys.stderr)
        return 0
    pass_on(said)
    return 0


@command.command()
@WANTED
@store_options
def cancel(look: Look, wanted: str) -> int:
    """Ask a job to save and end."""
    record = find(look, wanted)
    if record.id is None:
        raise UserError(f"{Path(record.folder).name} was laid out and never submitted", "remove its folder")
    backend = backend_for(record)
    try:
        if (before := backend.state(record)).state in OVER:
            tell(f"job {record.id} is over already: {before.sentence}")
            return 0
    except NoAnswer:
        pass  # cancel it even if this fails
    backend.cancel(record)
    after = _waiting_for(look, record)
    for one in after:
        backend.cancel(one)
    more = f", and {len(after)} that wait for it" if after else ""
    if record.more.get("submits_jobs"):
        more += (
            f"; the jobs that it submitted keep running; its log shows how to end them: nemotron jobs logs {record.id}"
        )
    look.tell({"id": record.id, "asked": True}, f"asked job {record.id} ({record.name}) to save and end{more}")
    return 0


def _waiting_for(look: Look, record: Record) -> list[Record]:
    """Jobs of the same profile that depend on this one, directly or indirectly."""
    ended, found = {record.id}, []
    for one in records(jobs_folder(str(look.store.home))):
        if one.profile == record.profile and one.submitted > record.submitted and ended & set(one.after):
            ended.add(one.id)
            found.append(one)
    return found


def print_list(look: Look, everything: bool) -> int:
    """Print one line per job."""
    found = list(records(jobs_folder(str(look.store.home))))
    shown = found if everything else found[-SHOWN:]
    states = states_of(shown)
    rows = [
        [
            one.id or "",
            one.name,
            one.profile,
            minute(one.submitted),
            state.state,
            state.sentence,
            state.source,
            Path(one.folder).name,
        ]
        for one, state in zip(shown, states, strict=True)
    ]
    headings = ("job", "name", "profile", "submitted", "state", "", "said by", "folder")
    hidden = len(found) - len(shown)
    notes = [] if shown else [f"no jobs in {jobs_folder(str(look.store.home))}; --run or --batch makes one"]
    notes += [f"{hidden} older: nemotron jobs --all"] if hidden else []
    data = [asdict(one) | {"state": asdict(state)} for one, state in zip(shown, states, strict=True)]
    look.tell(
        data,
        *(table_lines(headings, rows, spare=("folder", "said by", "submitted", "profile")) if rows else []),
        *notes,
    )
    return 0


def states_of(shown: list[Record]) -> list[State]:
    """State of each job. A scheduler that did not answer is not asked again."""
    silent: dict[str, State] = {}
    states = []
    for one in shown:
        if one.id is None:
            state = State("unknown", "prepared, but not submitted, or the scheduler did not answer")
        elif one.profile in silent:
            state = silent[one.profile]
        else:
            try:
                state = backend_for(one).state(one)
            except NoAnswer as error:
                state = silent[one.profile] = State("unknown", error.message)
            except UserError as error:
                state = State("unknown", error.message)
        states.append(state)
    return states


def find(look: Look, wanted: str) -> Record:
    """Find a job by its full id, its folder's name, or `last`.

    Raises:
        NotFound: no match, or several.
    """
    found = list(records(jobs_folder(str(look.store.home))))
    if wanted == "last" and found:
        return found[-1]
    fits = [one for one in found if wanted in (one.id, Path(one.folder).name, one.folder)]
    if len(fits) == 1:
        return fits[0]
    if fits:
        names = ", ".join(Path(one.folder).name for one in fits)
        raise NotFound(f"several jobs have the id {wanted}", f"name the folder of one: {names}")
    raise NotFound(f"no job '{wanted}' in {jobs_folder(str(look.store.home))}", "see: nemotron jobs")


def backend_for(record: Record) -> Backend:
    """The backend of a job, from the profile that it was submitted with."""
    return backend_of(PROFILES[record.executor].model_validate(record.more["profile"]))
