"""`nemotron report`: the report of what has been made so far, of some trainings beside each other, or of what runs.

nemotron report
nemotron report --family nano3 --out nano3.html --json
nemotron report --compare sft-model:v1 sft-model:v2
nemotron report --live
"""

from pathlib import Path

import click

from nemotron_app.report import overlay
from nemotron_app.report.build import build_report
from nemotron_app.report.live import watch
from nemotron_app.report.trained import training_named
from nemotron_app.rich_table import open_console, print_table, text_of
from nemotron_app.store_options import Look, store_options
from nemotron_shared.atomic import output_file, write_text
from nemotron_shared.errors import UserError


@click.command("report")
@click.argument("names", nargs=-1, metavar="[NAME|FOLDER]...")
@click.option("--compare", is_flag=True, help="lay the trainings named beside each other: models or runs, two or more")
@click.option("--live", is_flag=True, help="follow what runs now, here and on a page that renews itself")
@click.option("--out", metavar="FILE", help="the page (default: reports/FAMILY.html in the store's home)")
@store_options
def command(look: Look, names: tuple[str, ...], compare: bool, live: bool, out: str | None) -> int:
    """Write one HTML page about what has been made so far, compared, or running."""
    path = None if out is None else output_file(out)
    if compare and live:
        raise UserError("--compare and --live are two different pages", "give one of them")
    if compare:
        return _compare(look, names, path or look.store.home / "reports" / "compared.html")
    if names:
        raise UserError("names are only compared", f"nemotron report --compare {' '.join(names)}")
    if live:
        if look.json:
            raise UserError("--live is for people", "programs read metrics.jsonl of: nemotron runs --json")
        return watch(look.store, path or look.store.home / "reports" / "live.html")
    report = build_report(look.store, look.family, path)
    report.print(as_json=look.json)
    return 0


def _compare(look: Look, names: tuple[str, ...], page: Path) -> int:
    if len(names) < 2:
        raise UserError("--compare needs two trainings or more", "see what there is: nemotron artifacts list")
    trainings = [training_named(look.store, name, look.family) for name in names]
    write_text(page, overlay.render(trainings, " against ".join(one.name for one in trainings)))
    numbers, settings = overlay.numbers(trainings), overlay.differing_settings(trainings)
    if look.json:
        rows = [dict(zip(numbers.headings, row, strict=True)) for row in numbers.rows]
        differing = {row[0]: row[1:] for row in settings.rows} if settings else {}
        look.tell({"page": str(page), "trainings": rows, "settings": differing})
        return 0
    console = open_console()
    print_table(console, numbers)
    if settings:
        console.print()
        print_table(console, settings)
    console.print(text_of(console, f"page: {page}"), soft_wrap=True)
    return 0
