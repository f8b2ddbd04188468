"""`nemotron data inspect`: look at a prepared set before training on it.

nemotron data inspect sft-data                             figures, histograms and the first rows
nemotron data inspect sft-data --row 12                    one row
nemotron data inspect pretrain-data --shuffle 1 --rows 20  documents chosen by a seed
nemotron data inspect out/train.parquet --html look.html   one page that needs nothing else
nemotron data inspect rl-data --against eval-data          do its questions hold the test's questions?
nemotron data inspect sft-data --json                      the figures, for programs
"""

import argparse
import json
from pathlib import Path

from nemotron_app.inspect.build import BUDGET, Options, inspect_data
from nemotron_app.inspect.page import render
from nemotron_app.inspect.terminal import print_inspection
from nemotron_shared.artifacts.names import DEFAULT_FAMILY
from nemotron_shared.artifacts.store import HOME_VARIABLE, Store
from nemotron_shared.atomic import write_text

TOKENS_SHOWN = 600
TOKENS_ON_PAGE = 4_096


def main(argv: list[str]) -> int:
    """Run the command. `argv` is what follows `nemotron data inspect`; returns the exit code."""
    args = _parser().parse_args(argv)
    options = Options(
        args.split, args.rows, args.row, args.shuffle, args.scan, args.against,
        Path(args.tokenizer).expanduser() if args.tokenizer else None, args.family,
    )  # fmt: skip
    found = inspect_data(args.path, Store.open(args.home), options)
    if args.html:
        page = Path(args.html).expanduser()
        write_text(page, render(found, args.tokens or TOKENS_ON_PAGE))
    if args.json:
        print(json.dumps(found.summary(), indent=2, ensure_ascii=False))
    elif args.html:
        print("\n".join([*(f"warning: {warning}" for warning in found.warnings), f"page: {args.html}"]))
    else:
        print_inspection(found, args.tokens or TOKENS_SHOWN)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nemotron data inspect",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("path", metavar="PATH", help="artifact or its folder, .bin/.idx pair, packed .parquet, .jsonl")
    add("--split", metavar="NAME", help="show examples of this split (default: the first)")
    add("--rows", type=_natural, default=5, metavar="N", help="how many examples (default: 5)")
    add("--row", type=_natural, metavar="I", help="show only this one, counted from 0")
    add("--shuffle", type=int, metavar="SEED", help="choose the examples by this seed")
    tokens = f"show N tokens of an example (default: {TOKENS_SHOWN}, on the page {TOKENS_ON_PAGE})"
    add("--tokens", type=_natural, metavar="N", help=tokens)
    scan = f"read N tokens per split for the figures (default: {BUDGET:,}); beyond, a sample"
    add("--scan", type=_budget, default=BUDGET, metavar="N|all", help=scan)
    add("--against", metavar="PATH", help="look for the questions of this held-out set")
    add("--tokenizer", metavar="DIR", help="decode with this tokenizer (default: the set's own)")
    add("--html", metavar="FILE", help="write a page instead")
    add("--json", action="store_true", help="print the figures as JSON")
    add("--home", metavar="DIR", help=f"the store (default: ${HOME_VARIABLE}, else ./.nemotron)")
    add("--family", metavar="NAME", default=DEFAULT_FAMILY, help=f"default: {DEFAULT_FAMILY}")
    return parser


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return number


def _budget(text: str) -> int:
    return 2**62 if text == "all" else _natural(text)
