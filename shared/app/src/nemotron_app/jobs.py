"""`nemotron jobs`: the jobs that --run, --batch and --stage made from here.

    nemotron jobs                       what waits, runs, or has ended
    nemotron jobs logs 4711 --follow    what one says; without --follow, what it has said
    nemotron jobs cancel 4711           have it save and end

A job is named by its id or its folder's name; `last` is the newest.
"""

import sys
from dataclasses import asdict
from pathlib import Path

import click

from nemotron_app.plain import minute, table_lines
from nemotron_app.remote.follow import follow, state_of
from nemotron_app.store_options import Look, store_options
from nemotron_cluster.backends import OVER, Backend, State, backend_of
from nemotron_cluster.folder import Record, jobs_folder, records
from nemotron_cluster.profiles.schema import PROFILES
from nemotron_shared.errors import NotFound, UserError

WANTED = click.argument("wanted", metavar="ID|NAME|last")
SHOWN = 20


@click.group("jobs", invoke_without_command=True)
@click.option("--all", "everything", is_flag=True, help=f"more than the last {SHOWN}")
@store_options
def command(look: Look, everything: bool) -> int | None:
    """Look at jobs, follow and cancel them; without a command, list them."""
    return None if click.get_current_context().invoked_subcommand else print_list(look, everything)


@command.command("list")
@click.option("--all", "everything", is_flag=True, help=f"more than the last {SHOWN}")
@store_options
def listing(look: Look, everything: bool) -> int:
    """List the jobs, the newest last."""
    return print_list(look, everything)


@command.command()
@WANTED
@click.option("-f", "--follow", "follows", is_flag=True, help="until it ends")
@store_options
def logs(look: Look, wanted: str, follows: bool) -> int:
    """Show what a job has said."""
    record = find(look, wanted)
    backend = backend_for(record)
    if follows and record.id is not None:
        return follow(backend, record)
    said = backend.log(record)
    if said is None:
        print(f"nothing yet: {state_of(backend, record).sentence}", file=sys.stderr)
        return 0
    sys.stdout.buffer.write(said)
    return 0


@command.command()
@WANTED
@store_options
def cancel(look: Look, wanted: str) -> int:
    """Have a job save and end."""
    record = find(look, wanted)
    if record.id is None:
        raise UserError(f"{Path(record.folder).name} was laid out and never submitted", "remove its folder")
    backend = backend_for(record)
    before = backend.state(record)
    if before.state in OVER:
        print(f"job {record.id} is over already: {before.sentence}")
        return 0
    backend.cancel(record)
    look.tell({"id": record.id, "asked": True}, f"asked job {record.id} ({record.name}) to save and end")
    return 0


def print_list(look: Look, everything: bool) -> int:
    """Print one line for each job."""
    found = list(records(jobs_folder(str(look.store.home))))
    shown = found if everything else found[-SHOWN:]
    states = [
        State("unknown", "laid out, not submitted") if one.id is None else state_of(backend_for(one), one)
        for one in shown
    ]
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
    look.tell(data, *(table_lines(headings, rows) if rows else []), *notes)
    return 0


def find(look: Look, wanted: str) -> Record:
    """The job that is meant: by its whole id, its folder's name, or `last`.

    Raises:
        NotFound: none, or several of that id.
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
    """What a job was handed to, by the profile that it was submitted with."""
    return backend_of(PROFILES[record.executor].model_validate(record.more["profile"]))
