"""Measure the numerical errors of the families' small models, and write docs/measured.md.

    uv run python benchmarks/measured.py        # before a release

The figures come from the tests that use the fixture `measure` of conftest.py. They check each figure against its limit
in every run; the page only shows the size of the figures, so it need not be updated with every change of code.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from nemotron_shared.families import architecture, families
from nemotron_shared.machine.machine import hardware
from nemotron_shared.step.records import git_commit

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "measured.md"
HEAD = """# Measured figures

How far the small models of the families are from what they should compute. A family's small model is its twin, which \
`-c tiny` trains. Several families have the same twin, and each distinct one is measured once:

{twins}

`super49b` has no twin: its layers are never built here, so this page does not cover them.

Each row is a figure of a test, which fails if the figure is above the limit. A distance is the norm of the difference \
divided by the norm of the value. The tests run with all others; this page shows one run, at commit {commit}, on \
{date}, on {machine}. It is written before a release, by

```bash
uv run python benchmarks/measured.py
```

"""


def measure() -> list[dict[str, Any]]:
    """Run the tests that measure; returns their figures, in the order of the tests' names."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "figures.jsonl"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "measured", *files_that_measure()]
        done = subprocess.run(command, cwd=ROOT, env=os.environ | {"NEMOTRON_MEASURED": str(record)}, check=False)
        if done.returncode:
            sys.exit(f"{PAGE.relative_to(ROOT)} is left as it was: a test failed")
        figures = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    return sorted(figures, key=lambda figure: (figure["test"], figure["what"]))


def files_that_measure() -> list[str]:
    """Test files that use the fixture; collecting all others would take longer than the tests."""
    folders = [*ROOT.glob("*/*/tests"), ROOT / "tests"]
    return [
        str(file) for folder in folders for file in folder.glob("test_*.py") if "measure(" in file.read_text("utf-8")
    ]


def page(commit: str, figures: list[dict[str, Any]]) -> str:
    """The page. If tests measured a figure several times, it shows the largest."""
    twins = sorted({figure["twin"] for figure in figures}, reverse=True)
    hybrids = [family for family in families() if "hybrid_override_pattern" in architecture(family)]
    same = {
        twin: [f"`{one}`" for one in hybrids if architecture(f"{one}_tiny") == architecture(f"{twin}_tiny")]
        for twin in twins
    }
    rows: dict[str, dict[str, Any]] = {}
    for figure in figures:
        row = rows.setdefault(figure["what"], figure | dict.fromkeys(twins, 0.0))
        row[figure["twin"]] = max(row[figure["twin"]], figure["value"])
    here = hardware()
    head = HEAD.format(
        twins="\n".join(f"- the twin of {' and of '.join(names)}" for names in same.values()),
        commit=commit[:12] + (", with changes" if commit.endswith("-dirty") else ""),
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        machine=f"{here['processor']} with {here['cores']} cores",
    )
    table = [
        f"| figure | {' | '.join(f'twin of `{twin}`' for twin in twins)} | limit | test |",
        f"|---{'|--:' * len(twins)}|--:|---|",
    ]
    for what, row in rows.items():
        shown = " | ".join(f"{row[twin]:.2g}" for twin in twins)
        table.append(f"| {what} | {shown} | {row['limit']:g} | `{row['test'].rpartition('::')[0]}` |")
    return head + "\n".join(table) + "\n"


def main() -> None:
    """Measure, and write the page."""
    commit = git_commit(ROOT) or "unknown"  # read first, because people may edit during the run
    PAGE.write_text(page(commit, measure()), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
