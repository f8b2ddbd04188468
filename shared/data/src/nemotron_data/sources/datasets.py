"""Data sets to prepare: those of a blend, or a single source.

data_prep.source=blend.json  ->  Part("web", 3.0, settings with source=web/*.jsonl), Part("books", 1.0, ...)
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from nemotron_data.sources.blends import find_blend, load_blend
from nemotron_data.sources.rows import SyntheticRows, describe_sources, file_sources
from nemotron_data.split import SPLITS
from nemotron_shared.artifacts import Source
from nemotron_shared.config.data import SourceSection
from nemotron_shared.errors import UserError

Settings = TypeVar("Settings", bound=SourceSection)


@dataclass(frozen=True)
class Part(Generic[Settings]):
    """One data set of a blend, or the only one.

    Attributes:
        settings: `data_prep` with this data set's source and, if it names one, text field.
        only: the split of all its rows; None: decide by hash for each row.
    """

    name: str
    weight: float
    settings: Settings
    only: str | None = None


@dataclass(frozen=True)
class RowKind:
    """What a stage reads.

    Attributes:
        name: name of the data set if there is no blend.
        config: the stage's folder of configs, with the blends that it ships.
        synthetic: makes rows from a seed and a count, for the built-in source.
        synthetic_name: name of those rows in the manifest.
        presplit: whether a blend may assign data sets to splits.
    """

    name: str
    config: Path
    synthetic: SyntheticRows
    synthetic_name: str
    presplit: bool = True

    def parts(self, settings: Settings) -> list[Part[Settings]]:
        """Data sets that the config names: those of a blend file, or the one source.

        Raises:
            UserError: the blend file is malformed, or uses a feature that this stage does not support.
        """
        file = find_blend(settings.source, self.config)
        if file is None:
            return [Part(self.name, 1.0, settings)]
        blend = load_blend(file)
        if not self.presplit and not blend.datasets:
            what = f"{settings.source}: has 'train', 'valid' and 'test'"
            raise UserError(what, "list 'datasets'; data_prep.split makes the splits")
        parts = []
        for only in (None, *SPLITS):
            for entry in getattr(blend, only or "datasets"):
                changed: dict[str, Any] = {"source": entry.path, "subset": entry.subset, "hub_split": entry.split}
                if entry.text_field is not None:
                    if "text_field" not in type(settings).model_fields:
                        what = f"'{entry.name}': 'text_field' means nothing for {self.name}"
                        raise UserError(what, "remove it from the blend file")
                    changed["text_field"] = entry.text_field
                parts.append(Part(entry.name, entry.weight, settings.model_copy(update=changed), only))
        return parts

    def sources(self, settings: SourceSection, count: int) -> list[Source]:
        """Manifest entries for every input file, the blend file included.

        Args:
            count: number of rows that the built-in source makes.

        Raises:
            UserError: no input is named, or a file is missing.
        """
        file = find_blend(settings.source, self.config)
        if file is None:
            return describe_sources(settings, self.synthetic_name, count)
        own = describe_sources(settings.model_copy(update={"source": str(file)}), "blend", 0)
        # all of them share the same template and tokenizer
        return [*own, *(source for part in self.parts(settings) for source in file_sources(part.settings))]
