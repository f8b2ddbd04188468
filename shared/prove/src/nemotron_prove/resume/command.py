"""Kill trainings at random moments, continue them by the same command, and compare them with uninterrupted ones.

\b
nemotron prove resume --seed 1 --kills 20                    20 kills of trainings on one process
nemotron prove resume --seed 1 --kills 20 --processes 1 2    as many on one and on two
nemotron prove resume --seed 1 --kills 20 --record           and note the result in benchmarks/resume.md

Pretraining, SFT and RL of the tiny models take a few steps each, with random settings. SIGKILL comes to all processes
of a training, or to one rank, once or several times, at any moment from its start to its end. Published files, the
figures of each step, the tokens that it trained on, and the optimizer's last state must be the same bytes. The seed
draws the same trainings on every machine; moments are only as exact as a clock is. It needs Linux.
"""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from nemotron_app.wording import table_lines
from nemotron_prove import records
from nemotron_prove.faults.bench import Bench
from nemotron_prove.faults.child import adopt_orphans
from nemotron_prove.faults.command import quick_place
from nemotron_prove.faults.parts import TRAIN
from nemotron_prove.resume.campaign import Found, run_campaign
from nemotron_prove.resume.lives import Hit, Life
from nemotron_prove.resume.trainings import prepare
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.console import say, tell, tell_json
from nemotron_shared.runtime.stop import end_on_sigterm

HEADINGS = ("processes", "life", "training", "killed", "begun after", "hit", "result")
HEAD = """# Killed and continued trainings

Made by `nemotron prove resume --seed N --kills N --record`, the newest last. docs/prove.md says what is compared.
"""


@click.command("resume", help=__doc__)
@click.option(
    "--seed", type=click.IntRange(min=0), default=1, show_default=True, metavar="N", help="draws the trainings"
)
@click.option("--kills", type=click.IntRange(min=1), required=True, metavar="N", help="for each number of processes")
@click.option("--processes", type=click.IntRange(min=1), multiple=True, metavar="N...", help="1 without it")
@click.argument("more", type=click.IntRange(min=1), nargs=-1, metavar="")
@click.option("--record", is_flag=True, help="append the result to benchmarks/resume.md")
@click.option("--json", "as_json", is_flag=True, help="print the result as JSON")
def command(
    seed: int, kills: int, processes: tuple[int, ...], more: tuple[int, ...], record: bool, as_json: bool
) -> int:
    """See the module."""
    counts = _checked(processes, more)
    code = records.code_to_record() if record else ""
    end_on_sigterm()  # with the folder removed
    adopt_orphans()
    TRAIN.get_ready()
    place = Path(tempfile.mkdtemp(prefix="nemotron-resume-", dir=quick_place()))
    try:
        bench = Bench(place)
        prepare(bench)
        found = run_campaign(seed, bench, counts, kills, _show)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if as_json:
        tell_json(found.as_json())
    else:
        tell("\n".join(lines_of(found)))
    if record:
        of = f"{kills} kills on {' and '.join(map(str, counts))} processes"
        about = f"seed {seed}, {of}, {found.seconds / 60:.0f} minutes"
        say(f"appended to {records.add('resume.md', HEAD, about, code, ['```text', *lines_of(found), '```'])}")
    return 1 if found.differing else 0


def _checked(processes: tuple[int, ...], more: tuple[int, ...]) -> list[int]:
    """The numbers of processes, each once: click gives those after the first one as words of the command."""
    if sys.platform != "linux":
        raise UserError("what a killed training leaves running is found by means of Linux", "run it on Linux")
    if more and not processes:
        raise UserError(f"'{more[0]}' belongs to no option", f"say: --processes {' '.join(map(str, more))}")
    return list(dict.fromkeys((*processes, *more))) or [1]


def _show(life: Life) -> None:
    hits = ", ".join(_where(hit, life) for hit in life.hits) or "not killed in time"
    say(f"[resume] {life.training} on {life.processes}: {hits}: {_result(life)}")
    for line in life.differing:
        say(f"    {line}")
    if life.differing:
        say(f"    {life.command}")


def lines_of(found: Found) -> list[str]:
    """A row for each kill, and what was compared."""
    rows = [
        (str(life.processes), str(number), life.training, *_hit(hit, life), _result(life))
        for number, life in enumerate(found.lives, 1)
        for hit in life.hits
    ]
    killed = [life for life in found.lives if life.hits]
    compared = {what: sum(life.compared.get(what, 0) for life in killed) for life in killed for what in life.compared}
    return [
        *table_lines(HEADINGS, rows, right=HEADINGS[:2]),
        f"{found.kills()} kills of {len(killed)} trainings, {len(found.differing)} differing",
        f"compared: {', '.join(f'{number:,} {what}' for what, number in compared.items())}",
        *_failures(found),
    ]


def _failures(found: Found) -> Iterator[str]:
    for number, life in enumerate(found.lives, 1):
        yield from (f"life {number} differs: {line}" for line in life.differing)


def _hit(hit: Hit, life: Life) -> tuple[str, str, str]:
    whom = "all" if hit.rank is None else f"rank {hit.rank} of {life.processes}"
    return whom, str(hit.start), _where(hit, life)


def _where(hit: Hit, life: Life) -> str:
    """The step that was being made; the line of a step comes before its checkpoint."""
    return f"in step {hit.last + 1} of {life.steps}" if hit.last < life.steps else f"behind step {hit.last}, the last"


def _result(life: Life) -> str:
    return "differing" if life.differing else "exact"
