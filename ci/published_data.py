"""The tables of published data and models in docs/families.md, from what a dry run reads."""

import json
from collections import defaultdict
from pathlib import Path

from nemotron_data.sources.published import HUB, Published, table

NOT_READ = "not read"
STAGES = Path(__file__).resolve().parent.parent / "stages"


def data_table() -> str:
    """Data sets of the shipped blends and of the benchmarks, then those that only take another's place."""
    used = blends_by_repository()
    shown = ["| data set | blends | licence | access | nearest public |", "|---|---|---|---|---|"]
    stand_ins = set(filter(None, (*table().missing.values(), *(row.stand_in for row in table().data.values()))))
    for name, row in table().data.items():
        where = ", ".join(f"`{blend}`" for blend in used.get(name, ()))
        only = "a stand-in" if name in stand_ins and not where else ""
        shown.append(
            f"| `{name}` | {where or only} | {row.licence or NOT_READ} | {row.access or NOT_READ} | {near(row)} |"
        )
    for name, stand_in in table().missing.items():
        where = ", ".join(f"`{blend}`" for blend in sorted(missing_by_name()[name]))
        shown.append(f"| {name} | {where} | | unreleased | {f'`{stand_in}`' if stand_in else 'none known'} |")
    return "\n".join(shown)


def model_table() -> str:
    """Judges and teachers."""
    shown = ["| model | what it does | licence | access | nearest public |", "|---|---|---|---|---|"]
    for name, row in table().models.items():
        called = f"`{name}`" if "/" in name else name
        shown.append(f"| {called} | {row.use} | {row.licence or NOT_READ} | {row.access or NOT_READ} | {near(row)} |")
    return "\n".join(shown)


def near(row: Published) -> str:
    """What takes the place of something that is not public."""
    if row.access not in ("gated", "unreleased"):
        return ""
    return f"`{row.stand_in}`" if row.stand_in else "none known"


def blends_by_repository() -> dict[str, list[str]]:
    """STAGE/BLEND by data set."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted(STAGES.glob("*/config/blends/*.json")):
        blend = f"{file.parts[-4]}/{file.stem}"
        paths = [entry["path"] for entry in json.loads(file.read_text(encoding="utf-8"))["datasets"]]
        for name in dict.fromkeys("/".join(path.removeprefix(HUB).split("/")[:2]) for path in paths):
            found[name].append(blend)
    return found


def missing_by_name() -> dict[str, list[str]]:
    """STAGE/BLEND by what the blend says that it lacks."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted(STAGES.glob("*/config/blends/*.json")):
        for name in json.loads(file.read_text(encoding="utf-8")).get("_missing_categories", {}):
            found[name].append(f"{file.parts[-4]}/{file.stem}")
    return found
