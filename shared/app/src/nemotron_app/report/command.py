"""`nemotron report`: write the report of what has been made so far, and print its table.

nemotron report
nemotron report --family nano3 --out nano3.html --json
"""

from pathlib import Path

import click

from nemotron_app.report.build import build_report
from nemotron_app.store_options import Look, store_options


@click.command("report")
@click.option("--out", metavar="FILE", help="the page (default: reports/FAMILY.html in the store's home)")
@store_options
def command(look: Look, out: str | None) -> int:
    """Write one HTML page about what has been made so far."""
    report = build_report(look.store, look.family, Path(out).expanduser().absolute() if out else None)
    report.print(as_json=look.json)
    return 0
