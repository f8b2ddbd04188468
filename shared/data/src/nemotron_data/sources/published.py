"""Which data of the published recipes anybody can have: its licence, whether it is gated, and the nearest that is not.

    published()["nvidia/Nemotron-CC-v2"].access                     # "gated"
    list(availability(values, config_folder))                       # notes for a dry run, on data_prep.source

`published.yaml` holds what was read of each; docs/families.md shows it as tables.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, model_validator

from nemotron_data.sources.datasets import SHIPPED, Blend, find_blend, load_blend
from nemotron_shared.system.atomic import read_json
from nemotron_shared.system.errors import Finding, note

TABLE = Path(__file__).with_name("published.yaml")
HUB = "hf://"


class Published(BaseModel):
    """What is known of a data set or model.

    Attributes:
        licence: None: nothing that states one was read.
        access: None: nothing that tells was read.
        stand_in: the nearest public one for what is not public; None: none that we know of.
        use: what a model does in the recipes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    licence: str | None
    access: Literal["public", "gated", "unreleased"] | None
    seen: Literal["page", "copy", "report", "named"]
    stand_in: str | None = None
    use: str | None = None


class Table(BaseModel):
    """Contents of `published.yaml`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    read_in: str
    data: dict[str, Published]
    missing: dict[str, str | None]
    models: dict[str, Published]

    @model_validator(mode="after")
    def stand_ins_are_public(self) -> "Table":
        """A stand-in that is not public itself would be none."""
        rows = {**self.data, **self.models}
        for name in (*self.missing.values(), *(row.stand_in for row in rows.values())):
            if name is not None and (name not in rows or rows[name].access != "public"):
                raise ValueError(f"{name} is a stand-in, and not a public row of the table")
        return self


@cache
def table() -> Table:
    """The whole table."""
    return Table.model_validate(yaml.safe_load(TABLE.read_text(encoding="utf-8")))


def published() -> Mapping[str, Published]:
    """Data sets by their name on the hub."""
    return table().data


def availability(values: Mapping[str, Any], stage_config: Path) -> Iterator[Finding]:
    """Notes on data that not everybody can read: gated sets by name, and what a shipped blend lacks.

    Args:
        values: a composed config, which need not be valid.
        stage_config: the stage's folder of configs.

    Raises:
        UserError: the blend does not exist, or is malformed.
    """
    section = values.get("data_prep")
    source = section.get("source") if isinstance(section, Mapping) else None
    named = [one for one in (source if isinstance(source, list) else [source]) if isinstance(one, str)]
    file = find_blend(source, stage_config) if isinstance(source, str) else None
    paths = named if file is None else _paths(load_blend(file))
    for name in dict.fromkeys(_repository(path) for path in paths):
        row = published().get(name)
        if row is not None and row.access == "gated":
            terms = f" under the {row.licence}" if row.licence else ""
            how = "ask for access on its page, then set HF_TOKEN"
            yield note(f"{name} is gated{terms}: {how}; the nearest public data: {row.stand_in or 'none known'}")
    # only in our own blends: in others, a key that begins with "_" may hold anything
    if file is not None and str(source).startswith(SHIPPED) and (lacks := _missing(file)):
        yield note(f"not released, by weight in the blend: {', '.join(lacks)}")


def _paths(blend: Blend) -> list[str]:
    return [entry.path for key in Blend.model_fields for entry in getattr(blend, key)]


def _repository(path: str) -> str:
    """ORG/NAME of a path on the hub; empty for other paths."""
    parts = path.removeprefix(HUB).split("@")[0].split("/") if path.startswith(HUB) else []
    return "/".join(parts[:2])


def _missing(file: Path) -> list[str]:
    nearest = table().missing
    return [
        f"{name} {about['weight']:g} ({nearest[name] or 'nothing near'})"
        for name, about in read_json(file).get("_missing_categories", {}).items()
    ]
