"""Take every kind of model through every door, and compare each value with a program that imports nothing of ours.

    uv run python tests/matrix/campaign.py                                       # all cells that are not settled: hours
    uv run python tests/matrix/campaign.py --models llama qwen3 --doors sft dpo --minutes 30
    uv run python tests/matrix/campaign.py --models llama --doors sft --again --keep matrix
    uv run python tests/matrix/campaign.py --only-write                          # docs/models.md anew from the record

Each cell adds a line to benchmarks/matrix.jsonl as soon as it is done, so a campaign that was stopped continues with
the same command. Cells that were right or refused are settled until --again. At the end the table in docs/models.md is
made of the record. `doors.py` has the doors, `reference.py` the other program, and `zoo.py` beside it the models.
"""

import argparse
import json
import re
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from matrix import running
from matrix.doors import DOORS, DTYPES, Bench, Cell, Reference, Verdict, attempt, cells_of
from matrix.planted import FAULTS
from zoo import MATRIX

from nemotron_shared.artifacts.artifact import utc
from nemotron_shared.machine.machine import hardware
from nemotron_shared.step.records import git_commit
from nemotron_shared.system.atomic import write_text
from nemotron_shared.system.console import say

ROOT = Path(__file__).resolve().parents[2]
RECORD, PAGE = ROOT / "benchmarks" / "matrix.jsonl", ROOT / "docs" / "models.md"
BEGIN, END = "<!-- matrix -->\n", "<!-- end of matrix -->"
SETTLED = ("right", "refused")
PLACE = re.compile(r"/\S*nemotron-matrix-\w+/")
"""The folder of a campaign, in messages."""


@dataclass(frozen=True)
class Entry:
    """A line of the record.

    Attributes:
        off: the largest difference from the reference, as a share of what is allowed.
        seconds: how long the cell took, the reference's work included.
    """

    model: str
    door: str
    dtype: str
    processes: int
    state: str
    said: str
    off: float
    seconds: float
    code: str
    date: str
    machine: str

    @property
    def cell(self) -> Cell:
        return Cell(self.model, self.door, self.dtype, self.processes)


def read_record(file: Path = RECORD) -> dict[Cell, Entry]:
    """The newest entry of each cell that still exists."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    entries = {entry.cell: entry for entry in (Entry(**json.loads(line)) for line in lines)}
    return {cell: entries[cell] for model in MATRIX for cell in cells_of(model) if cell in entries}


def tidy(entries: Iterable[Entry], file: Path = RECORD) -> None:
    """Leave one line for each cell, in order."""
    write_text(file, "".join(json.dumps(asdict(entry), ensure_ascii=False) + "\n" for entry in entries))


def chosen(options: argparse.Namespace) -> list[Cell]:
    """The cells that a campaign asks for; first those of each model and door that are rehearsed."""
    cells = [
        cell
        for model in options.models
        for cell in cells_of(model)
        if cell.door in options.doors and cell.dtype in options.dtypes and cell.processes in options.processes
    ]
    return sorted(cells, key=lambda cell: options.models.index(cell.model))


def run_campaign(
    cells: Sequence[Cell], place: Path, until: float, *, planted: bool = False
) -> Iterator[tuple[Cell, Verdict, float]]:
    """Try the cells, model by model, until the time is over; `planted`: each with the fault of its door."""
    running.import_everything(place)
    reference = Reference()
    try:
        for model in dict.fromkeys(cell.model for cell in cells):
            bench = Bench(place / model, model, reference)
            for cell in (one for one in cells if one.model == model):
                if time.monotonic() > until:
                    return
                began = time.monotonic()
                bench.plant = FAULTS[cell.door] if planted else None
                verdict = attempt(bench, cell)
                yield cell, verdict, time.monotonic() - began
            shutil.rmtree(bench.place)
    finally:
        reference.end()


# The page


def summary(entries: Sequence[Entry], all_cells: Sequence[Cell]) -> str:
    """One cell of the table: how many were right of how many there are, and what became of the others."""
    counts: dict[str, int] = defaultdict(int)
    for entry in entries:
        counts[entry.state] += 1
    counts["not run"] += len(all_cells) - len(entries)
    if counts["right"] == len(all_cells):
        return str(len(all_cells))
    told = [f"{count} {state}" for state, count in counts.items() if count and state != "right"]
    return "; ".join(([f"{counts['right']} of {len(all_cells)}"] if counts["right"] else []) + sorted(told))


def page_lines(record: dict[Cell, Entry]) -> list[str]:
    """The table of all models and doors, and the reasons of what was not right."""
    total: dict[str, int] = defaultdict(int)
    for entry in record.values():
        total[entry.state] += 1
    every = {model: list(cells_of(model)) for model in MATRIX}
    missing = sum(map(len, every.values())) - len(record) + total["not run"]
    counts = ", ".join(f"{total[state]} {state}" for state in ("right", "refused", "wrong"))
    rows = [(f"`{door}`", *(_of(record, every[model], door) for model in MATRIX)) for door in DOORS]
    lines = ["| door | " + " | ".join(f"`{model}`" for model in MATRIX) + " |", "|---|" + "---|" * len(MATRIX)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    reasons = (("refused", "Refused"), ("wrong", "Wrong"), ("not run", "Not run, because something is not installed"))
    lists = [line for state, title in reasons for line in _reasons(record, state, title)]
    return [f"Cells: {counts}, {missing} not run.", "", *lines, *lists]


def _of(record: dict[Cell, Entry], cells: Sequence[Cell], door: str) -> str:
    own = [cell for cell in cells if cell.door == door]
    return summary([record[cell] for cell in own if cell in record], own) if own else ""


def _reasons(record: dict[Cell, Entry], state: str, title: str) -> list[str]:
    """Each reason once, with the cells that it holds for."""
    found: dict[str, list[Cell]] = defaultdict(list)
    for cell, entry in record.items():
        if entry.state == state:
            found[entry.said].append(cell)
    lines = [f"- {said}: {_named(cells)}" for said, cells in found.items()]
    return ["", f"{title}:", "", *lines] if lines else []


def _named(cells: Sequence[Cell]) -> str:
    """Models and doors, with what differs within them."""
    doors: dict[tuple[str, str], list[str]] = defaultdict(list)
    for cell in cells:
        doors[cell.model, cell.door].append(f"{cell.dtype} on {cell.processes}")
    return "; ".join(f"`{model}` {door} ({', '.join(how)})" for (model, door), how in doors.items())


def write_page(record: dict[Cell, Entry], page: Path = PAGE) -> None:
    """Put the table between its marks."""
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    newest = max(record.values(), key=lambda entry: entry.date, default=None)
    about = "Nothing was run." if newest is None else f"Code {newest.code}, {newest.date}; {newest.machine}."
    made = "\n".join([about, "", *page_lines(record)])
    write_text(page, f"{before}{BEGIN}{made}\n{END}{rest.split(END)[1]}")


def main() -> int:
    """Run a campaign; returns the exit code: 1 if a cell was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MATRIX, default=[*MATRIX], metavar="MODEL")
    parser.add_argument("--doors", nargs="+", choices=DOORS, default=[*DOORS], metavar="DOOR")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=[*DTYPES])
    parser.add_argument("--processes", nargs="+", type=int, choices=(1, 2), default=[1, 2])
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no cell after this time")
    parser.add_argument("--again", action="store_true", help="also cells that were right or refused before")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="work here, and leave it")
    parser.add_argument("--record", type=Path, default=RECORD, metavar="FILE", help="another record, and no page")
    parser.add_argument("--planted", action="store_true", help="with --record: put its fault into each cell")
    parser.add_argument("--only-write", action="store_true", help="run nothing; make the page of the record")
    options = parser.parse_args()
    if options.planted and options.record == RECORD:
        parser.error("--planted needs --record FILE: its cells are not results")
    wrong = False if options.only_write else run_and_record(options)
    if options.record == RECORD:
        write_page(read_record())
    return 1 if wrong else 0


def run_and_record(options: argparse.Namespace) -> bool:
    """Run the cells that are not settled; returns whether one was wrong."""
    code, wrong, record = git_commit(ROOT) or "of no commit", False, read_record(options.record)
    cells = [
        cell
        for cell in chosen(options)
        if options.again or cell not in record or record[cell].state not in SETTLED
    ]  # fmt: skip
    place = options.keep or Path(tempfile.mkdtemp(prefix="nemotron-matrix-"))
    until = time.monotonic() + 60 * options.minutes
    try:
        for cell, verdict, seconds in run_campaign(cells, place.resolve(), until, planted=options.planted):
            entry = entry_of(cell, verdict, seconds, code)
            with options.record.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(asdict(entry), ensure_ascii=False) + "\n")
            say(f"{cell}: {verdict.state} {verdict.said}")
            wrong = wrong or verdict.state == "wrong"
    finally:
        if options.keep is None:
            shutil.rmtree(place, ignore_errors=True)
    tidy(read_record(options.record).values(), options.record)
    return wrong


def entry_of(cell: Cell, verdict: Verdict, seconds: float, code: str) -> Entry:
    """The line for the record."""
    off = max(verdict.off.values(), default=0.0)
    said = PLACE.sub("", verdict.said).removeprefix(f"{cell.model}/{cell.dtype}: ")
    return Entry(
        **asdict(cell), state=verdict.state, said=said, off=float(f"{off:.2g}"),
        seconds=round(seconds, 1),
        code=code, date=utc(time.time()), machine=", ".join(map(str, hardware().values())),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
