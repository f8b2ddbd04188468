"""Generate parts of the documents from the code: tables of modules, settings, metrics and runs.

    uv run python ci/pages.py            # write them
    uv run python ci/pages.py --check    # exit code 1 if a page is out of date, for CI

Generated parts are between `<!-- modules -->` and `<!-- end of modules -->`; never edit them by hand. Settings are
documented below their field in the schema, and nowhere else.
"""

import ast
import re
import sys
from pathlib import Path

from decayed import decay_table
from published_data import data_table, model_table
from runs import runs_table
from settings import engine_table, stage_tables

from nemotron_shared.tracking.metrics import METRICS, MORE_METRICS

ROOT = Path(__file__).resolve().parent.parent
STAGES = ("pretrain", "sft", "rl", "eval")
ENGINE = re.compile(r"<!-- settings of (\w+) -->")


def replaced(page: str, name: str, content: str) -> str:
    """Replace the content of the part called `name` in a page."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    assert rest and after, f"no part '{name}' in the page"
    return f"{before}{begin}\n{content}\n{end}{after}"


def pages() -> dict[Path, str]:
    """Every page with generated parts, up to date."""
    made = {}
    for package in sorted((ROOT / "shared").glob("*/src/nemotron_*")):
        rows = ["| module | what it does |", "|---|---|"]
        for path in sorted(package.rglob("*.py")):
            name = path.relative_to(package).with_suffix("").as_posix().removesuffix("/__init__").replace("/", ".")
            if name != "__init__":
                docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
                paragraph = " ".join(docstring.split("\n\n")[0].split())
                sentence = re.split(r"[.:](?= [A-Z]|$)", paragraph)[0].replace("|", "\\|")
                rows.append(f"| `{name}` | {sentence} |")
        page = package.parent.parent / "README.md"
        made[page] = replaced(page.read_text(encoding="utf-8"), "modules", "\n".join(rows))
    for stage in STAGES:
        page = ROOT / "stages" / stage / "README.md"
        text = page.read_text(encoding="utf-8")
        for section, table in stage_tables(stage).items():
            text = replaced(text, f"settings of {section}", table)
        made[page] = text
    page = ROOT / "README.md"
    made[page] = replaced(page.read_text(encoding="utf-8"), "runs", runs_table(ROOT / "benchmarks" / "records.md"))
    rows = [f"| `{name}` | {meaning} |" for name, meaning in METRICS.items()]
    rows += [
        f"| `{name.format(name='NAME', layer='LAYER', depth='DEPTH')}` | {meaning} |"
        for name, meaning in MORE_METRICS.items()
    ]
    page = ROOT / "docs" / "report.md"
    table = "\n".join(["| key | meaning |", "|---|---|", *rows])
    made[page] = replaced(page.read_text(encoding="utf-8"), "metrics", table)
    page = ROOT / "docs" / "models.md"
    table = decay_table(ROOT / "shared" / "engines" / "tests" / "decayed.yaml")
    made[page] = replaced(page.read_text(encoding="utf-8"), "weight decay", table)
    page = ROOT / "docs" / "families.md"
    text = page.read_text(encoding="utf-8")
    for name, table in {"published data": data_table(), "published models": model_table()}.items():
        text = replaced(text, name, table)
    made[page] = text
    for page in sorted((ROOT / "docs" / "engines").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for engine in ENGINE.findall(text):
            text = replaced(text, f"settings of {engine}", engine_table(engine))
        made[page] = text
    return made


def main() -> int:
    """Write the pages, or only compare them."""
    stale = [(page, text) for page, text in pages().items() if page.read_text(encoding="utf-8") != text]
    for page, text in stale:
        if "--check" in sys.argv:
            print(f"{page.relative_to(ROOT)}: out of date; run: uv run python ci/pages.py", file=sys.stderr)
        else:
            page.write_text(text, encoding="utf-8")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
