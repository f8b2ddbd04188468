"""`nemotron runs`: the working folders of steps that are running, or stopped without a result.

    nemotron runs                        running and stopped ones; --all adds the finished
    nemotron runs show rl                what one does, and in RL the newest completions with their rewards
    nemotron runs stop sft               ask the process to save and stop, and wait until it has
    nemotron runs rm super3-sft-model-891fc106f3a7     remove a stopped run and its checkpoints

Every command takes --json, --home DIR and --family NAME.
"""

import json
import os
import shlex
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from humanize import naturalsize

from nemotron_app.completions import kept_in, lines_of
from nemotron_app.output import open_console
from nemotron_app.store_options import Look, store_options
from nemotron_app.training_log import folder_still_of
from nemotron_app.wording import minute, short_path, table_lines
from nemotron_shared.artifacts.housekeeping import INPUTS, tree_size
from nemotron_shared.artifacts.names import LATEST, is_path, parse_reference
from nemotron_shared.artifacts.starting import kept_inputs
from nemotron_shared.artifacts.store import Store
from nemotron_shared.config.files import parsed, read_text
from nemotron_shared.system.atomic import open_regular
from nemotron_shared.system.console import tell
from nemotron_shared.system.errors import NotFound, UserError
from nemotron_shared.system.lock import Holder, holder_of, is_held, locked
from nemotron_shared.tracking.run import LOCK_NAME

TAIL_BYTES = 65_536
STOP_SECONDS = 600.0
REWARDS, LOSSES = ("reward", "valid_reward"), ("loss", "valid_loss")
ALL = click.option("--all", "finished", is_flag=True, help="list finished runs too")
WANTED = click.argument("wanted", metavar="NAME|FOLDER")


@dataclass(frozen=True)
class RunState:
    """Summary of a run's folder. `host` and `pid` identify the process that holds it, if any."""

    name: str
    state: str
    started: str | None
    last: dict[str, Any]
    pid: int | None
    host: str | None
    folder: str
    bytes: int


@click.group("runs", invoke_without_command=True)
@ALL
@store_options
def command(look: Look, finished: bool) -> int | None:
    """List, stop and remove runs; without a command, list them."""
    return None if click.get_current_context().invoked_subcommand else print_list(look, finished)


def print_list(look: Look, finished: bool) -> int:
    """Print one line for each running or stopped run, and for each finished one if requested."""
    runs = [run_state(folder) for folder in _folders(look.store)]
    shown = sorted((run for run in runs if finished or run.state != "finished"), key=lambda run: run.started or "")
    rows = []
    for run in shown:
        process = f"{run.pid} on {run.host}" if run.pid else ""
        started = minute(run.started) if run.started else ""
        about = [run.name, run.state, started, _in_words(run.last), process, naturalsize(run.bytes)]
        rows.append([*about, short_path(run.folder)])
    headings = ("run", "state", "started", "last", "process", "size", "folder")
    hidden = len(runs) - len(shown)
    none = "" if shown else f"no running or stopped runs in {look.store.home / 'runs'}"
    notes = "; ".join(filter(None, (none, f"{hidden} finished: nemotron runs --all" if hidden else "")))
    spare = ("folder", "process", "size", "started")
    table = table_lines(headings, rows, right=("size",), spare=spare) if rows else []
    lines = [*table, *([notes] if notes else [])]
    look.tell([asdict(run) for run in shown], *lines)
    return 0


def _in_words(last: dict[str, Any]) -> str:
    """Format the last log line. Rewards replace the loss, which says little in RL."""
    names = REWARDS if last.keys() & set(REWARDS) else LOSSES
    said = {name: last[name] for name in ("step", *names) if name in last}
    return " ".join(f"{name} {f'{value:.4g}' if isinstance(value, float) else value}" for name, value in said.items())


@command.command("list")
@ALL
@store_options
def list_(look: Look, finished: bool) -> int:
    """List running and stopped runs (the default)."""
    above = click.get_current_context().parent
    return print_list(look, finished or (above is not None and above.params["finished"]))


@command.command("show")
@WANTED
@click.option("--step", type=click.IntRange(min=1), metavar="N", help="of this step (default: the newest)")
@store_options
def show_(look: Look, wanted: str, step: int | None) -> int:
    """Show a run's state, and of RL the newest completions with their rewards.

    Of several runs that make a model, it shows the one that is running, or else the newest.
    """
    folder = _find(look, wanted, state=None, newest=True)
    run, kept = run_state(folder), kept_in(folder)
    if step is not None and step not in kept.steps:
        known = f"there are those of steps {_ranges(list(kept.steps))}" if kept.steps else "none have been kept"
        raise UserError(f"{run.name}: no completions of step {step}", known)
    shown = kept.steps.get(step or max(kept.steps, default=0), [])
    width = open_console().width
    lines = [f"{run.name}: {run.state}{f', {said}' if (said := _in_words(run.last)) else ''}", f"folder: {run.folder}"]
    lines += [f"warning: {kept.problem}"] if kept.problem else []
    for one in shown:
        lines += ["", *lines_of(one, width)]
    if not shown:
        lines.append(_without_completions(run))
    lines += _starting(look.store)
    plain = [one.plain() for one in shown]
    look.tell(asdict(run) | {"completions": plain, "problem": kept.problem}, *lines)
    return 0


def _without_completions(run: RunState) -> str:
    """Why a run has no completions."""
    if run.state == "running" and not run.last:
        with suppress(OSError, UserError, KeyError, TypeError):
            config = Path(run.folder) / "config.yaml"
            if parsed(config, read_text(config))["logger"]["completions"]:
                return "no completions yet: the first step is not done"
    return "no completions are kept: only RL keeps some, unless logger.completions=0"


def _starting(store: Store) -> Iterator[str]:
    """A line for each step that has no run yet, while it checks and rehearses. Where one runs, it may be that one."""
    if any(holder_now(folder) for folder in _folders(store)):
        return
    inputs: dict[str, list[str]] = {}
    for reference, starter in kept_inputs(store):
        inputs.setdefault(starter, []).append(str(reference))
    for starter, read in inputs.items():
        yield f"newer: {starter} reads {', '.join(dict.fromkeys(read))}; it has no run yet"


def _ranges(steps: list[int]) -> str:
    """`1 to 16`, or `1 to 1,200 (324 steps)` where some are missing."""
    whole = steps[-1] - steps[0] + 1 == len(steps)
    return f"{steps[0]} to {steps[-1]:,}" + ("" if whole else f" ({len(steps)} steps)")


@command.command()
@WANTED
@click.option("--timeout", default=STOP_SECONDS, show_default=True, metavar="S", help="seconds to wait for it")
@store_options
def stop(look: Look, wanted: str, timeout: float) -> int:
    """Ask a run to save and stop, and wait until it has."""
    folder = _find(look, wanted, state="running")
    holder = holder_now(folder)
    if holder is None:
        raise UserError(f"{folder.name} is not running", "see what is: nemotron runs")
    if not holder.is_here:
        raise UserError(
            f"{folder.name} runs on {holder.host} as process {holder.pid}, out of reach from here",
            f"stop it there: {shlex.join(['ssh', '--', holder.host, 'kill', '-TERM', str(holder.pid)])}",
        )
    try:
        os.kill(holder.pid, signal.SIGTERM)
    except PermissionError as error:
        raise UserError(f"process {holder.pid} belongs to another user", "ask them to stop it") from error
    except ProcessLookupError:
        pass  # it has just ended
    if not look.json:
        tell(f"asked process {holder.pid} to save and stop; waiting")
    began = time.monotonic()
    while holder.lives and time.monotonic() - began < timeout:
        time.sleep(0.1)
    stopped, seconds = not holder.lives, round(time.monotonic() - began, 1)
    line = f"{folder.name}: stopped after {seconds} s; the command that began it continues it"
    if not stopped:
        line = f"{folder.name}: process {holder.pid} still runs after {seconds} s; at once: kill -KILL {holder.pid}"
    look.tell({"run": folder.name, "pid": holder.pid, "stopped": stopped, "seconds": seconds}, line)
    return 0 if stopped else 1


@command.command()
@WANTED
@store_options
def rm(look: Look, wanted: str) -> int:
    """Remove the folder of a run that no process is using."""
    folder = _find(look, wanted, state=None)
    if folder.is_symlink():  # check before taking the lock, which would write through the link
        raise UserError(f"{folder}: a link, and where it leads is not the store's to remove", "remove the link by hand")
    run = run_state(folder)
    if run.state == "running":
        raise UserError(
            f"{run.name} is running: process {run.pid} on {run.host}", f"stop it first: nemotron runs stop {run.name}"
        )
    doomed = folder.with_name(f".removed-{folder.name}-{time.time_ns()}")
    with locked(folder / LOCK_NAME, wait=False):
        folder.rename(doomed)  # first, so that a new run never starts in a half-deleted folder
    shutil.rmtree(doomed)
    look.tell({"removed": run.name, "bytes": run.bytes}, f"removed {run.name} ({naturalsize(run.bytes)})")
    return 0


def holder_now(folder: Path) -> Holder | None:
    """The process that is working in a run's folder, or None."""
    holder = holder_of(folder / LOCK_NAME)
    return holder if holder is not None and is_held(folder / LOCK_NAME, holder) else None


def run_state(folder: Path) -> RunState:
    """Read the state of a run from its folder."""
    holder = holder_now(folder)
    config = folder / "config.yaml"
    began = holder.started if holder else config.stat().st_mtime if config.is_file() else None
    # The inputs record is removed when the result is published. Before work starts, neither it nor a config exists.
    state = "running" if holder else "stopped" if (folder / INPUTS).is_file() or not config.is_file() else "finished"
    return RunState(
        name=folder.name,
        state=state,
        started=None if began is None else datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds"),
        last=_last_entry(folder / "metrics.jsonl"),
        pid=holder.pid if holder else None,
        host=holder.host if holder else None,
        folder=str(folder),
        bytes=tree_size(folder),
    )


def _began(folder: Path) -> float:
    """When a run's latest attempt began; 0 if it has not come so far."""
    config = folder / "config.yaml"
    return config.stat().st_mtime if config.is_file() else 0.0


def _last_entry(path: Path) -> dict[str, Any]:
    """The last complete line of a metrics file, read from the end."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = file.read().splitlines(keepends=True)
    except (OSError, UserError):
        return {}
    for line in reversed(lines):
        try:
            entry = json.loads(line) if line.endswith(b"\n") else None
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            return entry
    return {}


def _folders(store: Store) -> list[Path]:
    runs = store.home / "runs"
    if not runs.is_dir():
        return []
    return sorted(path for path in runs.iterdir() if path.is_dir() and not path.name.startswith("."))


def _find(look: Look, wanted: str, state: str | None, *, newest: bool = False) -> Path:
    """Find a run by path, by name, or by the name of its result if only one run makes that.

    Args:
        newest: of several that make it, take the one that runs, or else the newest.
    """
    folders = _folders(look.store)
    if is_path(wanted):
        path = Path(wanted).expanduser().resolve()
        found = [folder for folder in folders if folder.resolve() == path]
    elif not (found := [folder for folder in folders if folder.name == wanted]):
        reference = parse_reference(wanted, look.family)
        if reference.version != LATEST:  # a version was made by one run
            folders = [folder_still_of(look.store.resolve(reference), look.store)]
        found = [folder for folder in folders if folder.name.rpartition("-")[0] == reference.name]
        if state:
            found = [folder for folder in found if run_state(folder).state == state]
    if len(found) == 1:
        return found[0]
    if found and newest:
        return max(found, key=lambda folder: (holder_now(folder) is not None, _began(folder)))
    if found:
        raise UserError(f"'{wanted}' could be: {', '.join(folder.name for folder in found)}", "write one of these")
    raise NotFound(
        f"no {state or ''} run '{wanted}' in {look.store.home / 'runs'}".replace("  ", " "), "see: nemotron runs --all"
    )
