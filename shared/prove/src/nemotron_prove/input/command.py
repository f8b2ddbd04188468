"""`nemotron prove input`: damaged files and words for every parser of the project.

nemotron prove input --seed 1                                all parsers, 20,000 damaged inputs
nemotron prove input --seed 1 --count 1000000 --budget 60    a campaign of at most an hour
nemotron prove input --target manifest --count 500           one parser
nemotron prove input --target manifest --seed 1 --see 42     one input of a campaign, and what came of it

An input that ends in a traceback, takes too long, is refused without a remedy, or is taken although it is not valid,
is a failure. Each is printed once, made small, with the command that shows it again; any of them gives exit code 1.
"""

import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click

from nemotron_prove.input.campaign import Failure, Tally, ground, run_apart
from nemotron_prove.input.record import add_to_record, table
from nemotron_prove.input.target import Files, Target
from nemotron_prove.input.targets import NAMES, target_named
from nemotron_prove.input.trial import input_of, tried
from nemotron_shared.errors import UserError, printable
from nemotron_shared.runtime.console import say, tell, tell_json
from nemotron_shared.runtime.machine import hardware

COUNT, MINUTES = 20_000, 30.0
ENOUGH = 20
"""Damaged inputs of one parser; fewer hardly reach each of the ways in which an input is damaged."""
SHOWN_BYTES = 400


@click.command("input", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
@click.option("--seed", type=int, default=1, show_default=True, help="another seed gives other inputs")
@click.option("--target", "names", multiple=True, metavar="NAME", help="this parser; may be given several times")
@click.option(
    "--count",
    type=click.IntRange(1),
    default=COUNT,
    show_default=True,
    help="damaged inputs, over all parsers",
)
@click.option("--budget", type=click.FloatRange(0.1), default=MINUTES, show_default=True, help="minutes, at most")
@click.option("--see", type=click.IntRange(0), metavar="NUMBER", help="show one input of the parser --target names")
@click.option("--record", is_flag=True, help="add the table to benchmarks/input.md of the repository")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def command(
    seed: int, names: tuple[str, ...], count: int, budget: float, see: int | None, record: bool, as_json: bool
) -> int:
    """See the head of this module."""
    chosen = [target_named(name) for name in dict.fromkeys(names or NAMES)]
    if see is not None:
        if not names or len(chosen) != 1:
            raise UserError("--see shows an input of one parser", "name it: --target NAME")
        return _show(chosen[0], seed, see, as_json=as_json)
    began = time.monotonic()
    tallies = _campaign(chosen, seed, count, budget)
    wall = time.monotonic() - began
    if as_json:
        tell_json({"seed": seed, "seconds": wall, "targets": [_figures(one) for one in tallies]})
    else:
        tell("\n".join([*table(tallies), *_too_few(tallies)]))
        for one in tallies:
            for failure in one.failures.values():
                tell("\n".join(_failure(one.target, seed, failure)))
    if record:
        say(f"added to {add_to_record(tallies, seed, wall)}")
    return 1 if any(one.failed for one in tallies) else 0


def _campaign(chosen: Sequence[Target], seed: int, count: int, budget: float) -> list[Tally]:
    """The targets, as many at a time as there are cores; each gets its share of the inputs and of the time."""
    cores = min(len(chosen), int(hardware()["cores"]))
    weight = sum(target.share for target in chosen)
    seconds = 60 * budget * cores / len(chosen)

    def run(target: Target) -> Tally:
        damaged = max(1, round(count * target.share / weight))
        made = run_apart(target.name, seed, len(target.examples()) + damaged, seconds)
        say(f"{target.name}: {made.inputs:,} inputs, {made.failed:,} failed, {made.seconds:.0f} s")
        return made

    with ThreadPoolExecutor(cores) as pool:
        return list(pool.map(run, chosen))


def _too_few(tallies: Sequence[Tally]) -> list[str]:
    """Whether the campaign says little, and how a longer one is made."""
    few = [one for one in tallies if one.damaged < ENOUGH]
    if not few:
        return []
    what = f"{len(few)} of {len(tallies)} parsers met fewer than {ENOUGH} damaged inputs, which says little of them"
    return [f"{what}: give a larger --count, or more minutes by --budget"]


def _show(target: Target, seed: int, number: int, *, as_json: bool) -> int:
    """One input, and what comes of it."""
    folder = ground()
    try:
        files = input_of(target, list(target.examples()), seed, number)
        verdict = tried(target, files, folder / "in")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        shown = [
            {"name": name, "bytes": len(content), "begins": repr(content[:SHOWN_BYTES])}
            for name, content in files.items()
        ]
        found = {"number": number, "kind": verdict.kind, "what": verdict.said, "files": shown}
        tell_json({"seed": seed, "target": target.name, **found})
    else:
        tell("\n".join(_contents(files)))
        tell(f"{verdict.kind}: {printable(verdict.said, keep=chr(10))}" if verdict.said else verdict.kind)
    return 0 if verdict.kind in ("accepted", "refused") else 1


def _failure(name: str, seed: int, failure: Failure) -> list[str]:
    again = f"nemotron prove input --target {name} --seed {seed} --see {failure.number}"
    said = printable(failure.verdict.said[:SHOWN_BYTES])
    head = [f"{name}: {failure.verdict.kind}: {failure.verdict.signature}", f"  {said}", f"  again: {again}"]
    return [*head, *(f"  {line}" for line in _contents(failure.files))]


def _contents(files: Files) -> list[str]:
    return [f"{printable(name)} ({len(content):,} bytes): {content[:SHOWN_BYTES]!r}" for name, content in files.items()]


def _figures(tally: Tally) -> dict[str, Any]:
    failures = [
        {"number": one.number, "kind": one.verdict.kind, "what": one.verdict.said} for one in tally.failures.values()
    ]
    counts = {kind: tally.kinds[kind] for kind in sorted(tally.kinds)}
    return {
        "target": tally.target,
        "inputs": tally.inputs,
        "damaged": tally.damaged,
        "seconds": tally.seconds,
        **counts,
        "failures": failures,
    }
