"""One card: what a run measured of one item of one family, as `docs/cards/FAMILY/ITEM.yaml`.

    status: verified
    command: nemotron prove cards --family nano3 --item packing
    figures: {relative distance of logits: 4.1e-07}
    tolerance: 1.0e-05
    commit: 4b3dafae8a15...        date: 2026-01-31        machine: AMD EPYC, 2 cores
    code: 9c1f...                  digest of the code, the files it reads and the family's shape that it was measured on
    content: 07be...               digest of all the rest, by which a change by hand is found out

A card is written by a run and by nothing else. Whether it is stale is asked of the code each time.
"""

import hashlib
import importlib.util
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

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
    "nemotron_cluster",
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
    content: str | None = None


def command_of(family: str, item: str) -> str:
    """The command that measures it."""
    return f"nemotron prove cards --family {family} --item {item}"


def place(root: Path, family: str, item: str) -> Path:
    """Where a card lies."""
    return root / FOLDER / family / f"{item}.yaml"


def write_card(root: Path, family: str, item: str, card: Card) -> None:
    """Replace a card by what was measured now."""
    write_text(place(root, family, item), _text(asdict(card) | {"content": content_digest(card)}))


def content_digest(card: Card) -> str:
    """What a card holds, but for this digest itself."""
    said = {name: value for name, value in asdict(card).items() if name != "content"}
    return hashlib.sha256(_text(said).encode()).hexdigest()


def is_edited(card: Card) -> bool:
    """Whether it is another card than a run has written."""
    return card.content is not None and card.content != content_digest(card)


def _text(values: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True, width=120)


def read_card(root: Path, family: str, item: str) -> Card | None:
    """A card; None where nothing was measured yet.

    Raises:
        UserError: the file is not a card.
    """
    path = place(root, family, item)
    if not path.is_file():
        return None
    again = f"measure it again: {command_of(family, item)}"
    try:
        card = Card(**parsed(path, read_text(path)))
        numbers = [*card.figures.values(), *([] if card.tolerance is None else [card.tolerance])]
        if not all(isinstance(one, int | float) for one in numbers) or not isinstance(card.notes, list):
            raise TypeError("figures are numbers, and notes a list")
    except (TypeError, AttributeError) as error:
        raise UserError(f"{path}: not a card", again) from error
    except UserError as error:
        raise UserError(error.message, again) from error
    return card


def is_stale(card: Card, family: str, item: Item) -> bool:
    """Whether the code that was measured, a file that it reads, or the family's tiny shape has changed since.

    So is a card without a digest of itself, which tells no change by hand.
    """
    return card.content is None or card.code != code_digest(family, item)


def code_digest(family: str, item: Item) -> str:
    """The code that an item depends on, with everything that it imports and reads, and the family's description."""
    described = Path(str(families.__file__)).with_name(f"{family}.yaml")
    shape = file_digest(described) if described.is_file() else ""
    return json_digest({"modules": _closure(item.entries), "files": files_read(item.reads), "family": shape})


def files_read(patterns: tuple[str, ...]) -> Mapping[str, str]:
    """Digests of the files that `package:glob` mean, by their names in the package."""
    found = {}
    for pattern in patterns:
        package, _, glob = pattern.partition(":")
        folder = _roots().get(package)
        if folder is None:  # a stage that is not installed
            continue
        for path in folder.glob(glob):
            found[f"{package}:{path.relative_to(folder).as_posix()}"] = PARSED.get(path, _file_content, "content")
    return found


def _file_content(path: Path) -> str:
    """The digest of a file; comments of YAML do not count."""
    if path.suffix != ".yaml":
        return file_digest(path)
    return hashlib.sha256(_text({"content": parsed(path, read_text(path))}).encode()).hexdigest()


@cache
def _closure(entries: tuple[str, ...]) -> Mapping[str, str]:
    return modules_of(entries, _roots(), PARSED, PRESENTATION - set(entries))


@cache
def _roots() -> Mapping[str, Path]:
    """The folders of our packages that are installed."""
    roots = {}
    for package in (*PACKAGES, *STAGES):
        found = importlib.util.find_spec(package)
        if found and found.submodule_search_locations:
            roots[package] = Path(next(iter(found.submodule_search_locations)))
    return roots
