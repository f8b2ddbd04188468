"""Put faults into real steps, run each again, and count what is left: bytes, processes, wrong results.

\b
nemotron prove faults --seed 1 --count 100       so many faults; about half a second of CPU time each
nemotron prove faults --seed 1 --budget 40       as many as 40 minutes allow
nemotron prove faults --seed 1 --only store-17   one of them again
nemotron prove faults --seed 1 --budget 40 --record    and note the result in benchmarks/faults.md

Full and failing disks, signals, damaged bytes, lost rights, a wrong clock, changed code, two runs at once; in the
store alone, in every data preparation and in every training, each of a second or less. The numbers of a seed name
the same cases on every machine; only moments in time are as exact as a clock is. It needs Linux and a C compiler.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import click

from nemotron_app.wording import table_lines
from nemotron_prove import records
from nemotron_prove.faults.campaign import Outcome, Record, again, numbers_of, run_campaign
from nemotron_prove.faults.parts import PARTS
from nemotron_prove.faults.shim import compiled
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.console import say, tell, tell_json
from nemotron_shared.runtime.stop import end_on_sigterm

SHIM = "NEMOTRON_FAULTS_SHIM"
"""Set in the process that was started under the shim: the folder that it lies in."""
LINES_SHOWN = 30
HEADINGS = ("part", "kind", "faults", "finished", "bytes lost", "silent", "tracebacks", "left", "failed")
SHOWN_EVERY = 100
HEADER = """# Faults

Made by `nemotron prove faults --seed N --budget MINUTES --record`, the newest last. docs/prove.md says what is counted.
"""


@click.command("faults", help=__doc__)
@click.option("--seed", type=int, default=1, show_default=True, metavar="N", help="draws the faults")
@click.option("--budget", type=click.FloatRange(min=0, min_open=True), metavar="MINUTES", help="stop after so long")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="so many faults")
@click.option("--only", multiple=True, metavar="CASE", help="this case; may be repeated")
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="processes; as many as cores without it")
@click.option("--record", is_flag=True, help="append the result to benchmarks/faults.md")
@click.option("--json", "as_json", is_flag=True, help="print the result as JSON")
def command(
    seed: int,
    budget: float | None,
    count: int | None,
    only: tuple[str, ...],
    workers: int | None,
    record: bool,
    as_json: bool,
) -> int:
    """See the module."""
    _check(budget, count, only)
    code = records.code_to_record() if record else ""
    if SHIM not in os.environ:
        _start_under_the_shim()
    os.environ.pop("LD_PRELOAD", None)  # the processes that steps start are left alone
    folder = Path(os.environ.pop(SHIM))
    end_on_sigterm()  # with the folder removed
    try:
        cores = len(os.sched_getaffinity(0))
        found = run_campaign(seed, folder, workers or cores, numbers_of(count, only), budget, _Shown(seed).show)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        tell_json(found.as_json())
    else:
        tell("\n".join(lines_of(found)))
    if record:
        about = f"seed {found.seed}, {found.seconds / 60:.0f} minutes"
        say(f"appended to {records.add('faults.md', HEADER, about, code, ['```text', *lines_of(found), '```'])}")
    return 1 if found.failures else 0


def _check(budget: float | None, count: int | None, only: tuple[str, ...]) -> None:
    if sys.platform != "linux":
        raise UserError("faults are put between a step and Linux's libc", "run it on Linux")
    if not (budget or count or only):
        raise UserError("how many faults are to be tried?", "give --count N, or --budget MINUTES")
    for name in only:
        part, _, number = name.rpartition("-")
        if part not in PARTS or not number.isdecimal():
            parts = f"the parts are {', '.join(PARTS)}; a case is a part and a number, such as {next(iter(PARTS))}-17"
            what = "is not a part of the campaign" if number.isdecimal() else "is not a case"
            raise UserError(f"--only {name}: '{part if number.isdecimal() else name}' {what}", parts)


def _start_under_the_shim() -> None:
    """Become the same command with the shim loaded; a library can only come into a process as it starts."""
    folder = Path(tempfile.mkdtemp(prefix="nemotron-faults-", dir=quick_place()))
    shim = compiled(folder)
    os.environ |= {SHIM: str(folder), "LD_PRELOAD": str(shim)}
    os.execv(sys.executable, [sys.executable, "-m", "nemotron_app.main", *sys.argv[1:]])


def quick_place() -> str | None:
    """Memory, where there is room: a campaign syncs a hundred thousand files."""
    place = Path("/dev/shm")
    return str(place) if place.is_dir() and shutil.disk_usage(place).free > 4e9 else None


class _Shown:
    """Lines for people while it runs: every failure, and now and then how far it is."""

    def __init__(self, seed: int) -> None:
        self._seed, self._seen, self._failed = seed, 0, 0

    def show(self, outcome: Outcome) -> None:
        self._seen += 1
        if outcome.tried.wrong:
            self._failed += 1
            say(f"{outcome.case}  {outcome.target}: {outcome.tried.what}: {'; '.join(outcome.tried.wrong)}")
            for line in outcome.tried.said.splitlines()[-LINES_SHOWN:]:  # a moment in time may not come again
                say(f"    | {line}")
            say(f"    {again(self._seed, outcome)}")
        if self._seen % SHOWN_EVERY == 0:
            say(f"[faults] {self._seen} tried, {self._failed} failed; now {outcome.part}")


def lines_of(found: Record) -> list[str]:
    """The table, and a line for each failure."""
    sums = [*found.sums().items(), (("", "all"), found.total())]
    rows = [
        (part, kind, str(one.faults), str(one.finished), str(one.bytes_lost), str(one.silent), str(one.tracebacks),
         str(one.left), str(one.failed))
        for (part, kind), one in sums
    ]  # fmt: skip
    lines = table_lines(HEADINGS, rows, right=HEADINGS[2:])
    if missed := found.total().not_reached:
        lines.append(f"{missed} more were drawn for a moment that the step did not reach")
    return [*lines, *(f"failed: {again(found.seed, one)}  ({'; '.join(one.tried.wrong)})" for one in found.failures)]
