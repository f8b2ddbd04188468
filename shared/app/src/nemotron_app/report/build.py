"""Build a report from an artifact store.

report = build_report(Store.open(None), "super3")
report.print()
print(report.html_path)          # .nemotron/reports/super3.html
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemotron_app.report.collect import Collected, collect
from nemotron_app.report.page import render
from nemotron_app.report.terminal import print_report, summary
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.atomic import write_text
from nemotron_shared.runtime.console import tell_json

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Report:
    """A written page and its data."""

    html_path: Path
    collected: Collected

    def summary(self) -> dict[str, Any]:
        """The data as plain JSON values."""
        return {"report": str(self.html_path), **summary(self.collected)}

    def print(self, console: "Console | None" = None, *, as_json: bool = False) -> None:
        """Print the table, or its JSON form, on stdout or a given console."""
        if as_json:
            tell_json(self.summary())
        else:
            print_report(self.collected, self.html_path, console)


def build_report(
    store: Store,
    family: str,
    out: Path | None = None,
    pipeline: dict[str, Any] | None = None,
    results: Artifact | None = None,
) -> Report:
    """Write the page. Equal artifacts give equal bytes.

    Args:
        out: output path; default `reports/<family>.html` in the store's home, and with `results`
            `reports/<name>-v<version>.html`.
        pipeline: facts from the command that ran the steps: {"steps": [{"name": "sft data prep", "seconds": 3.1,
            "reused": false}], "seconds": 180.2, "config": "tiny"}. All keys are optional. They do not affect the page,
            so that a later report is identical.
        results: the evaluation to report; default the newest.

    Raises:
        UserError: the store has nothing of this family, or a file in it is damaged.
    """
    collected = collect(store, family, pipeline or {}, results)
    page = family if results is None else f"{results.manifest.name}-v{results.manifest.version}"
    path = out or store.home / "reports" / f"{page}.html"
    write_text(path, render(collected))
    return Report(path, collected)
