"""`nemotron env`: start, list, stop and try environments, which answer a model over several turns and reward it.

    nemotron env list                            what there is, and what is running
    nemotron env start drawers                   serve it on 127.0.0.1 until Ctrl-C, or until this terminal is closed
    nemotron env start nemo_gym:drawers          the same by NeMo-Gym (nemotron engine install nemo_gym)
    nemotron env stop drawers                    from another terminal
    nemotron env new mine                        one of your own to begin with, in environments/mine
    nemotron env try drawers rows.jsonl          its first rows and tools, and an episode that you write
    nemotron env try drawers rows.jsonl --say '<tool_call>{"name": "find", "arguments": {"name": "55"}}</tool_call>' \\
        --say white

Training and evaluation start the environments that their config names themselves, and end them.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import click

from nemotron_app.store_options import Look, store_options
from nemotron_app.wording import table_lines
from nemotron_data.formats.rl_rows import CORRECT_ROW, read_rl_rows, validate_prompt
from nemotron_data.gym.catalogue import available, find_environment, new_environment
from nemotron_data.gym.play import play
from nemotron_data.gym.server import memory_mb, serving
from nemotron_shared.artifacts.store import Store
from nemotron_shared.system.atomic import read_json, write_json
from nemotron_shared.system.console import say, tell
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.process import as_typed

STOP_SECONDS = 10.0
MOST_NAMED = 12
PLAYED_AGAIN = 4
"""How often `try` plays the episode again on each of two servers, to compare the answers."""


@click.group("env", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
def command() -> None:
    """See the module docstring."""


@command.command("list")
@store_options
def list_(look: Look) -> int:
    """List the environments, and those that are running."""
    found, rows = available(), list(running(look.store))
    ways = {"nemo-gym": "; for those of its wheel: nemotron engine install nemo_gym"}
    lines = [f"{place}: {_some(names) if names else 'none' + ways.get(place, '')}" for place, names in found.items()]
    if rows:
        table = [(one["name"], str(one["port"]), str(one["server"]), f"{memory_mb(one['server'])} MB") for one in rows]
        lines += ["", *table_lines(("running", "port", "process", "memory"), table)]
    look.tell({"available": found, "running": rows}, *lines)
    return 0


@command.command("start")
@click.argument("name")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="default: a free one")
@store_options
def start(look: Look, name: str, port: int) -> int:
    """Serve an environment until Ctrl-C."""
    environment = find_environment(name)
    folder = _folder(look.store)
    if any(one["name"] == environment.name for one in running(look.store)):
        raise UserError(f"'{environment.name}' is running already", f"stop it: nemotron env stop {environment.name}")
    place = folder / f"{environment.name}.json"
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a shell's background jobs ignore SIGINT
        signal.signal(number, signal.default_int_handler)
    parent = os.getppid()
    with serving(environment, folder / f"{environment.name}.log", port) as server:
        about = {"name": environment.name, "port": server.port, "process": os.getpid(), "server": server.pid}
        try:
            write_json(place, about)
            say(f"{environment.name}: http://127.0.0.1:{server.port}, {memory_mb(server.pid)} MB; Ctrl-C ends it")
            while not server.state() and os.getppid() == parent:
                time.sleep(0.5)
        except KeyboardInterrupt:
            return 0
        finally:
            place.unlink(missing_ok=True)
        if state := server.state():
            raise UserError(f"environment '{environment.name}': {state}", f"see {server.log}")
    return 0


@command.command("stop")
@click.argument("name")
@store_options
def stop(look: Look, name: str) -> int:
    """End an environment that `start` serves."""
    found = next((one for one in running(look.store) if one["name"] == name), None)
    if found is None:
        raise UserError(f"no environment named '{name}' is running", "see: nemotron env list")
    os.kill(found["process"], signal.SIGTERM)
    until = time.monotonic() + STOP_SECONDS
    while _is_ours(found["process"]):
        if time.monotonic() > until:
            raise UserError(f"'{name}' has not ended (process {found['process']})", "end that process")
        time.sleep(0.05)
    say(f"{name}: ended")
    return 0


@command.command("try")
@click.argument("name")
@click.argument("rows", required=False, type=click.Path(path_type=Path))
@click.option("--say", "turns", multiple=True, metavar="TEXT", help="a turn of the model; default: a right answer")
@click.option("--rows", "count", type=click.IntRange(1), default=3, show_default=True, help="rows to show")
def try_(name: str, rows: Path | None, turns: tuple[str, ...], count: int) -> int:
    """Show rows and tools of an environment, play an episode with the first row, and again to compare the answers."""
    environment = find_environment(name)
    file = rows or environment.examples
    if not file.is_file():
        raise UserError(f"{file}: no such file", "give a file of rows in NeMo-Gym's form")
    read = read_rl_rows(file, check=validate_prompt, fault="not a row in NeMo-Gym's form", remedy=CORRECT_ROW)
    shown = list(islice(read, count))
    if not shown:
        raise UserError(f"{file}: no rows", "give a file of rows in NeMo-Gym's form")
    for row in shown:
        tell(f"{row.place}  {row.text}" + (f"  expected: {row.expected_answer}" if row.expected_answer else ""))
    folder = Path(tempfile.mkdtemp(prefix="nemotron-env-try-"))
    for line in play(name, shown[0], turns, folder, again=PLAYED_AGAIN):
        tell(line)
    shutil.rmtree(folder)  # an error names the log in it
    return 0


@command.command("new")
@click.argument("name")
def new(name: str) -> int:
    """Write an environment of your own to begin with, in ./environments; also: nemotron new environment NAME."""
    folder = new_environment(name)
    tell(
        as_typed(
            f"wrote {folder}: {name}.py is the game, app.py serves it by NeMo-Gym, rows.py makes rows, rl.yaml trains\n"
            f"  nemotron env try {name}\n"
            f"  python {folder}/rows.py 5 {folder}/data/example.jsonl      after changes to the game\n"
            f"  python -m pytest {folder}/test_{name}.py\n"
            f"  python {folder}/rows.py 500 {folder}/rows.jsonl\n"
            f"  nemotron super3 rl -c {folder}/rl.yaml run.model=sft\n"
            f"  python {folder}/rows.py 200 {folder}/data/validation.jsonl      rows to evaluate on\n"
            f"  nemotron super3 eval -c drawers data_prep.tasks=[{name}] evaluation.environments.servers=[{name}]"
        )
    )
    return 0


def running(store: Store) -> list[dict[str, Any]]:
    """What `start` serves; records that a kill left behind are removed."""
    found = []
    for place in sorted(_folder(store).glob("*.json")):
        about = read_json(place)
        if _is_ours(about["process"]):
            found.append(about)
        else:
            place.unlink(missing_ok=True)
    return found


def _is_ours(process: int) -> bool:
    """Whether a process is a `nemotron env start`, and not another one that has its number now."""
    answer = subprocess.run(["ps", "-o", "command=", "-p", str(process)], capture_output=True, text=True, check=False)
    return " env start " in f" {answer.stdout.strip()} "


def _folder(store: Store) -> Path:
    return store.home / "environments"


def _some(names: Sequence[str]) -> str:
    left = f" and {len(names) - MOST_NAMED} more (--json)" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + left
