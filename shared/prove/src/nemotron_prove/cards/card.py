"""One card: what a run measured of one item of one family, as `docs/cards/FAMILY/ITEM.yaml`.

    status: verified
    command: nemotron prove cards --family nano3 --item packing
    figures: {relative distance of logits: 4.1e-07}
    tolerance: 1.0e-05
    commit: 4b3dafae8a15...        date: 2026-01-31        machine: AMD EPYC, 2 cores
    code: 9c1f...                  digest of the code and of the family's shape that it was measured on

A card is written by a run and by nothing else. Whether it is stale is asked of the code each time.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import yaml

from nemotron_prove.cards.items import Item
from nemotron_shared import families
from nemotron_shared.atomic import write_text
from nemotron_shared.config.files import parsed, read_text
from nemotron_shared.digest import file_digest, json_digest
from nemotron_shared.errors import UserError
from nemotron_shared.file_cache import FileCache
from nemotron_shared.runtime.code import PRESENTATION, modules_of

ROOT = Path(__file__).resolve().parents[5]
FOLDER = Path("docs", "cards")
PACKAGES = (
    "nemotron_shared",
    "nemotron_data",
    "nemotron_engines",
    "nemotron_app",
    "nemotron_serving",
    "nemotron_prove",
)
STAGES = ("stages.pretrain", "stages.sft", "stages.rl", "stages.eval")
PARSED = FileCache(None)


@dataclass(frozen=True)
class Card:
    """See the module's example; `status` is one of `STATUSES`, `notes` is for people."""

    status: str
    command: str
    commit: str | None
    date: str
    machine: str
    code: str
    figures: dict[str, float] = field(default_factory=dict)
    tolerance: float | None = None
    notes: list[str] = field(default_factory=list)


def command_of(family: str, item: str) -> str:
    """The command that measures it."""
    return f"nemotron prove cards --family {family} --item {item}"


def place(root: Path, family: str, item: str) -> Path:
    """Where a card lies."""
    return root / FOLDER / family / f"{item}.yaml"


def write_card(root: Path, family: str, item: str, card: Card) -> None:
    """Replace a card by what was measured now."""
    content = yaml.safe_dump(asdict(card), sort_keys=False, allow_unicode=True, width=120)
    write_text(place(root, family, item), content)


def read_card(root: Path, family: str, item: str) -> Card | None:
    """A card; None where nothing was measured yet.

    Raises:
        UserError: the file is not a card.
    """
    path = place(root, family, item)
    if not path.is_file():
        return None
    try:
        return Card(**parsed(path, read_text(path)))
    except TypeError as error:
        raise UserError(f"{path}: not a card", f"measure it again: {command_of(family, item)}") from error


def is_stale(card: Card, family: str, item: Item) -> bool:
    """Whether the code that was measured, or the family's tiny shape, has changed since."""
    return card.code != code_digest(family, item)


def code_digest(family: str, item: Item) -> str:
    """The code that an item depends on, with everything that it imports, and the family's description."""
    described = Path(str(families.__file__)).with_name(f"{family}.yaml")
    shape = file_digest(described) if described.is_file() else ""
    return json_digest({"modules": _closure(item.entries), "family": shape})


@cache
def _closure(entries: tuple[str, ...]) -> Mapping[str, str]:
    roots = {}
    for package in (*PACKAGES, *STAGES):
        found = importlib.util.find_spec(package)
        if found and found.submodule_search_locations:
            roots[package] = Path(next(iter(found.submodule_search_locations)))
    return modules_of(entries, roots, PARSED, PRESENTATION - set(entries))
