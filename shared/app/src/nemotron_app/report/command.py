"""`nemotron report`: write the report of what has been made so far, and print its table.

nemotron report
nemotron report --family nano3 --out nano3.html --json
"""

import argparse
from pathlib import Path

from nemotron_app.report.build import build_report
from nemotron_shared.artifacts.names import DEFAULT_FAMILY
from nemotron_shared.artifacts.store import HOME_VARIABLE, Store


def main(argv: list[str]) -> int:
    """Run the command. `argv` is what follows `nemotron report`; returns the exit code."""
    args = _parser().parse_args(argv)
    out = Path(args.out).expanduser().absolute() if args.out else None
    build_report(Store.open(args.home), args.family, out).print(as_json=args.json)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nemotron report", description="Write one HTML page about what has been made so far."
    )
    parser.add_argument("--family", metavar="NAME", default=DEFAULT_FAMILY, help=f"default: {DEFAULT_FAMILY}")
    parser.add_argument("--home", metavar="DIR", help=f"the store (default: ${HOME_VARIABLE}, else ./.nemotron)")
    parser.add_argument("--out", metavar="FILE", help="the page (default: reports/FAMILY.html in the store's home)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser
