"""`nemotron data inspect`: look at a prepared set before training on it.

nemotron data inspect sft-data                             statistics, histograms and the first rows
nemotron data inspect sft-data --row 12                    one row
nemotron data inspect pretrain-data --shuffle 1 --rows 20  random documents, with a seed
nemotron data inspect out/train.parquet --html look.html   a self-contained page
nemotron data inspect rl-data --against eval-data          check for test questions in its questions
nemotron data inspect sft-data --json                      the statistics, for programs
"""

from pathlib import Path
from typing import Any

import click

from nemotron_app import completion
from nemotron_app.data_import import import_
from nemotron_app.inspect.measure import BUDGET, Options, inspect_data
from nemotron_app.inspect.show import print_inspection, render
from nemotron_app.store_options import Look, store_options
from nemotron_shared.atomic import output_file, write_text
from nemotron_shared.runtime.console import tell, tell_json

TOKENS_SHOWN = 600
TOKENS_ON_PAGE = 4_096
NATURAL = click.IntRange(min=0)


@click.group("data", no_args_is_help=False)
def command() -> None:
    """Inspect or import data. To prepare it, use: nemotron MODEL data prep STAGE."""


command.add_command(import_)


@command.command("inspect", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
@click.argument("path", shell_complete=completion.data)
@click.option("--split", metavar="NAME", help="show examples of this split (default: the first)")
@click.option("--rows", type=NATURAL, default=5, show_default=True, metavar="N", help="how many examples")
@click.option("--row", type=NATURAL, metavar="I", help="show only this one, counted from 0")
@click.option("--shuffle", type=int, metavar="SEED", help="choose the examples by this seed")
@click.option(
    "--tokens",
    type=NATURAL,
    metavar="N",
    help=f"show N tokens of an example (default: {TOKENS_SHOWN}, on the page {TOKENS_ON_PAGE})",
)
@click.option(
    "--scan",
    "budget",
    default=str(BUDGET),
    metavar="N|all",
    callback=lambda ctx, param, value: 2**62 if value == "all" else NATURAL(value, param, ctx),
    help=f"read N tokens per split for the statistics (default: {BUDGET:,}); beyond, a sample",
)
@click.option("--against", metavar="PATH", help="look for the questions of this held-out set")
@click.option("--tokenizer", type=click.Path(path_type=Path), metavar="DIR", help="decode with this tokenizer")
@click.option("--html", metavar="FILE", help="write a page instead")
@store_options
def inspect(look: Look, path: str, tokens: int | None, html: str | None, **choice: Any) -> int:
    """Inspect a prepared set."""
    page = None if html is None else output_file(html)
    found = inspect_data(path, look.store, Options(family=look.family, **choice))
    if page:
        write_text(page, render(found, tokens or TOKENS_ON_PAGE))
    if look.json:
        tell_json(found.summary())
    elif page:
        tell("\n".join([*(f"warning: {warning}" for warning in found.warnings), f"page: {html}"]))
    else:
        print_inspection(found, tokens or TOKENS_SHOWN)
    return 0
