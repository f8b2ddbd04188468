"""The data sets that a preparation reads: those of a blend, or the one source.

data_prep.source=blend.json  ->  Part("web", 3.0, settings with source=web/*.jsonl), Part("books", 1.0, ...)
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from nemotron_data.sources.blends import BlendEntry, find_blend, load_blend
from nemotron_data.sources.rows import describe_sources
from nemotron_shared.artifacts import Source
from nemotron_shared.config.schema import SourceSection
from nemotron_shared.errors import UserError

SPLITS = ("train", "valid", "test")
Settings = TypeVar("Settings", bound=SourceSection)


@dataclass(frozen=True)
class Part(Generic[Settings]):
    """One data set of a blend; without a blend there is one.

    Attributes:
        settings: `data_prep` with this data set's own source and, where it names one, text field.
        only: the split that all its rows belong to; None: each row by its hash.
    """

    name: str
    weight: float
    settings: Settings
    only: str | None = None


def blend_file(settings: SourceSection, stage_config: Path) -> Path | None:
    """The source, where it is a blend: one that the stage ships, by name, or a JSON file of that form."""
    return find_blend(settings.source, stage_config) if isinstance(settings.source, str) else None


def parts_of(settings: Settings, stage_config: Path, otherwise: str) -> list[Part[Settings]]:
    """The data sets to read; `otherwise` is the name of the only one where no blend gives names.

    Raises:
        UserError: the blend file is not of its form.
    """
    file = blend_file(settings, stage_config)
    if file is None:
        return [Part(otherwise, 1.0, settings)]
    blend = load_blend(file)
    parts = [_part(entry, settings, None, otherwise) for entry in blend.datasets]
    for split in SPLITS:
        parts += [_part(entry, settings, split, otherwise) for entry in getattr(blend, split)]
    return parts


def _part(entry: BlendEntry, settings: Settings, only: str | None, rows: str) -> Part[Settings]:
    changed: dict[str, Any] = {"source": entry.path, "subset": entry.subset, "hub_split": entry.split}
    if entry.text_field is not None:
        if "text_field" not in type(settings).model_fields:
            raise UserError(f"'{entry.name}': 'text_field' means nothing for {rows}", "remove it from the blend file")
        changed["text_field"] = entry.text_field
    return Part(entry.name, entry.weight, settings.model_copy(update=changed), only)


def describe_parts(
    settings: SourceSection, stage_config: Path, kind: str, count: int, parts: list[Part[Any]]
) -> list[Source]:
    """Manifest entries for what is read, the blend file included; raises UserError where a file is missing."""
    file = blend_file(settings, stage_config)
    if file is None:
        return describe_sources(settings, kind, count)
    own = settings.model_copy(update={"source": str(file)})
    every = [describe_sources(part.settings, kind, 0) for part in parts]
    return [*describe_sources(own, "blend", 0), *(source for part in every for source in part)]
