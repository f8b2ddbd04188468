"""What a data preparation reads: synthetic rows, the user's files, or a blend of several data sets.

    {"datasets": [{"name": "web", "path": "web/*.jsonl.zst", "weight": 3},
                  {"name": "math", "path": "hf://org/name", "subset": "4plus", "split": "train", "weight": 1}]}
    data_prep.source=blend.json  ->  Part("web", 3.0, settings with source=web/*.jsonl.zst), Part("math", 1.0, ...)

Or, already split by their owner, {"train": [...], "valid": [...], "test": [...]}. Weights are relative: 3 and 1 mean
three quarters and one quarter of the tokens that training sees. Keys that begin with "_" are comments.
`blend:NAME` refers to a blend that a stage ships in config/blends/NAME.json.
"""

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from nemotron_data.chat.loss_marks import WITHOUT_MEDIA, media_of
from nemotron_data.formats import fast_json
from nemotron_data.formats.json_lines import is_missing, is_number, spoken, text_of, with_numbers_as_written
from nemotron_data.rejects import Refused
from nemotron_data.sources.files import expand
from nemotron_data.sources.input_file import InputFile, Reading, identity, is_remote, local_file
from nemotron_data.sources.text import is_rows, with_choice
from nemotron_data.split import SPLITS
from nemotron_data.tokenizers.folder import FILES, TINY, TokenizerFolder
from nemotron_shared.artifacts import Source
from nemotron_shared.config.data import SourceSection, TokenizerSection
from nemotron_shared.system.atomic import open_atomic, read_json, write_bytes
from nemotron_shared.system.digest import file_digest, json_digest, tree_files
from nemotron_shared.system.errors import UserError, did_you_mean

SHIPPED = "blend:"
LONGEST_NAME = 200
LARGEST_WEIGHT = 1e18
"""Weights may be token counts; with this limit sums, and products with tokens, stay finite."""
MOST_BLEND_BYTES = 16 << 20  # a larger .json file is data; do not read it all to find out


class BlendEntry(BaseModel):
    """One data set of a blend."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    name: str = Field(min_length=1)
    """Unique in its list; also the folder name of the prepared data set."""
    path: str = Field(min_length=1)
    """A file, folder or glob, relative to the blend file or absolute; or an s3://, gs:// or hf:// address."""
    weight: float = Field(default=1.0, ge=1 / LARGEST_WEIGHT, le=LARGEST_WEIGHT, allow_inf_nan=False)
    split: str | None = Field(default=None, min_length=1)
    """For hf:// paths only, like `subset`."""
    subset: str | None = Field(default=None, min_length=1)
    text_field: str | None = Field(default=None, min_length=1)
    """None: the stage's data_prep.text_field."""

    @field_validator("path")
    @classmethod
    def _is_a_path(cls, path: str, info: ValidationInfo) -> str:
        if "\0" in path:
            raise ValueError("must not hold a zero byte")
        if is_remote(path) or not info.context:
            return path
        # here, because copying ten thousand entries with another path takes as long as reading them
        return str(Path(info.context, os.path.expanduser(path)))  # noqa: PTH111 (Path's own fails where a name only begins with ~)

    @field_validator("name")
    @classmethod
    def _is_a_file_name(cls, name: str) -> str:
        if (
            name.startswith(".")
            or any(sign in name for sign in "/\\\0")
            or name != name.strip()
            or len(name.encode("utf-8", "replace")) > LONGEST_NAME
        ):
            raise ValueError(f"'{name}' cannot be the name of a folder")
        return name


class Blend(BaseModel):
    """Data sets to be split by us (`datasets`), or already split by their owner (the other three)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    datasets: list[BlendEntry] = []
    train: list[BlendEntry] = []
    valid: list[BlendEntry] = []
    test: list[BlendEntry] = []


def load_blend(path: Path) -> Blend:
    """Read a blend file. Drops comments, keeps weights as written, and makes relative local paths complete.

    Raises:
        UserError: an unknown key, a wrong value, both forms or neither, a duplicate name, or a subset or split for a
            path that is not on the hub.
    """
    try:
        blend = Blend.model_validate(_without_comments(read_json(path)), context=path.parent)
    except ValidationError as error:
        raise _blend_error(path, error) from error
    if bool(blend.datasets) == bool(blend.train) or (blend.datasets and (blend.valid or blend.test)):
        raise UserError(f"{path}: needs either 'datasets' or 'train', 'valid' and 'test'", "fill one of the two forms")
    for key in Blend.model_fields:
        _check_entries(path, key, getattr(blend, key))
    return blend


def find_blend(source: str | list[str] | None, stage_config: Path) -> Path | None:
    """The blend file that a data source refers to, or None if it refers to data.

    Args:
        source: `data_prep.source`: "blend:NAME", a path, or a list of paths (never a blend). A `.json` file is a blend
            if it holds one object with a blend's keys, or with entries that have only those of a blend's entry.
        stage_config: the stage's folder of configs; its subfolder `blends` holds the shipped ones.

    Raises:
        UserError: no shipped blend has that name.
    """
    if not isinstance(source, str):
        return None
    if source.startswith(SHIPPED):
        name, folder = source.removeprefix(SHIPPED), stage_config / "blends"
        known = sorted(path.stem for path in folder.glob("*.json"))
        if name not in known:
            listed = f"shipped are {', '.join(known)}" if known else "this stage ships none"
            near = did_you_mean(name, known)
            raise UserError(f"{source}: no such blend", f"{near} {listed}" if near else listed)
        return folder / f"{name}.json"
    path = Path(source).expanduser()
    if not source.lower().endswith(".json") or not path.is_file() or path.stat().st_size > MOST_BLEND_BYTES:
        return None
    try:
        text = path.read_text(encoding="utf-8-sig")
        content = json.loads(text)
    except (UnicodeDecodeError, RecursionError):  # not a blend but rows, so leave the error to their reader
        return None
    except ValueError as error:
        if isinstance(error, json.JSONDecodeError) and _begins_a_blend(text):
            what = f"{path}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}"
            raise UserError(what, "correct the file: it begins as a blend does") from error
        return None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}", "check its permissions") from error
    return path if isinstance(content, dict) and _looks_like_a_blend(content) else None


def _looks_like_a_blend(content: dict[str, Any]) -> bool:
    """Whether an object has a blend's keys, or entries like a blend's; a list named "train" may also contain rows."""
    lists = [value for value in content.values() if is_rows(value)]
    if lists and "datasets" not in content and not any("path" in item for value in lists for item in value):
        return False
    known = Blend.model_fields.keys() & content.keys()
    return bool(known) or any(
        {"name", "path"} <= item.keys() <= BlendEntry.model_fields.keys() for item in chain(*lists)
    )


def _begins_a_blend(text: str) -> bool:
    """Whether broken JSON was meant as a blend: it starts as one object, not one per line, and has a blend's keys."""
    if not any(f'"{key}"' in text for key in Blend.model_fields):
        return False
    lines = [line for line in text.splitlines() if line.strip()][:2]
    if not lines or not lines[0].lstrip().startswith("{"):
        return False
    return not any(map(_is_object, lines)) and not (len(lines) == 2 and lines[1].startswith("{"))


def _is_object(line: str) -> bool:
    with suppress(ValueError, RecursionError):
        return line.startswith("{") and isinstance(json.loads(line), dict)
    return False


def realised_weights(
    asked: Mapping[str, float], tokens: Mapping[str, int], budget: int | None = None
) -> list[dict[str, Any]]:
    """What the weights of a blend mean for the available tokens, one row per data set in the order of `asked`.

    Args:
        asked: weight by data set, on any scale.
        tokens: tokens by data set after preparation; 0 if missing.
        budget: tokens that training will see; None: as many as available.

    Returns:
        Rows of `name`; `weight` as written; `asked_share` of the tokens that training sees; available `tokens`;
        `available_share` of all prepared tokens; `realised_share` that training can see, which is 0 for an empty data
        set and spreads its part over the others; `epochs`, how often training sees the data set within the budget
        (None for an empty one). Shares add up to 1.
    """
    total, scale = sum(tokens.get(name, 0) for name in asked), sum(asked.values())
    filled = sum(weight for name, weight in asked.items() if tokens.get(name))
    rows = []
    for name, weight in asked.items():
        own = tokens.get(name, 0)
        realised = weight / filled if own else 0.0
        rows.append(
            {
                "name": name,
                "weight": weight,
                "asked_share": weight / scale,
                "tokens": own,
                "available_share": own / total if total else 0.0,
                "realised_share": realised,
                "epochs": realised * (total if budget is None else budget) / own if own else None,
            }
        )
    return rows


def _check_entries(path: Path, key: str, entries: list[BlendEntry]) -> None:
    names: set[str] = set()
    for entry in entries:
        if entry.name in names:
            raise UserError(f"{path}: {key}: '{entry.name}' comes twice", "give every data set its own name")
        if not entry.path.startswith("hf://") and (entry.subset or entry.split):
            wrong = "subset" if entry.subset else "split"
            remedy = f"leave '{wrong}' out and let the path name the files"
            raise UserError(f"{path}: {key}: '{entry.name}': '{wrong}' only belongs to an hf:// path", remedy)
        names.add(entry.name)


def _without_comments(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _without_comments(value) for key, value in content.items() if not key.startswith("_")}
    return [_without_comments(item) for item in content] if isinstance(content, list) else content


def _blend_error(path: Path, error: ValidationError) -> UserError:
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"])) or "the top level"
    if first["type"] != "extra_forbidden":
        remedy = "an entry needs a name and a path, the rest is optional"
        if first["loc"][-1:] == ("weight",):
            bounds = f"{1 / LARGEST_WEIGHT:g} to {LARGEST_WEIGHT:g}"
            remedy = f"a weight is a number from {bounds}; only its ratio to the others counts"
        return UserError(f"{path}: {where}: {first['msg']}", remedy)
    known = Blend.model_fields if len(first["loc"]) == 1 else BlendEntry.model_fields
    remedy = did_you_mean(str(first["loc"][-1]), known, f"known are {', '.join(known)}; a comment begins with '_'")
    return UserError(f"{path}: unknown key '{where}'", remedy)


SYNTHETIC = "synthetic"
"""Rows that this project makes itself; `synthetic:NAME` are others, which a stage names."""
SyntheticRows = Callable[[int, int], Iterable[dict[str, Any]]]


def is_synthetic(source: str | list[str] | None) -> bool:
    """Whether `data_prep.source` names rows that this project makes itself."""
    return isinstance(source, str) and source.partition(":")[0] == SYNTHETIC


def input_files(section: SourceSection, made: Path, synthetic: SyntheticRows, count: int) -> list[InputFile]:
    """Files to prepare. `count` synthetic rows are first written to `made`, unless they are there and intact."""
    if not is_synthetic(section.source):
        return own_rows(section)
    mark = made.with_suffix(".sha256")
    if not (made.is_file() and mark.is_file() and mark.read_bytes() == file_digest(made).encode()):
        with open_atomic(made, "wb") as file:
            for row in synthetic(section.seed, count):
                file.write(fast_json.dumps(row) + b"\n")
        write_bytes(mark, file_digest(made).encode())
    return [local_file(made)]


def own_rows(section: SourceSection) -> list[InputFile]:
    """The user's files, and how to read them."""
    reading = Reading(section.encoding, getattr(section, "documents", "whole"))
    return with_choice([replace(file, reading=reading) for file in _expand(section)])


def own_files(*named: str | None) -> list[Source]:
    """Manifest entries for the user's own files that a config names: a template, an architecture, a tokenizer."""
    # leave other names to their reader to report; os.path has no error for names that no file can have
    there = [name for name in named if name is not None and (os.path.isfile(name) or os.path.isdir(name))]  # noqa: PTH112, PTH113
    files = [Path(name) for name in there]
    inside = [path for file in files for path in (tree_files(file) if file.is_dir() else [file])]
    return [Source(str(path), file_digest(path), {}) for path in inside]


def field_of(row: Mapping[str, Any], name: str) -> Any:
    """Value of a field, ignoring the case of its name; None if the row has no such field, or several."""
    if name in row:
        return row[name]
    alike = [value for field, value in row.items() if field.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else None


def no_field(row: Mapping[str, Any], name: str, setting: str) -> Refused:
    """Refuse a row without a field, or with an empty one.

    Args:
        setting: the setting that names the field.
    """
    there = any(field.lower() == name.lower() for field in row)
    detail = f"{'it is null; ' if there else ''}fields here: {', '.join(row)}"
    return Refused(f"no field '{name}'", detail, f"name the field that holds it: {setting}=NAME")


def filled(template: str, row: Mapping[str, Any]) -> str:
    """Fill a template with the values of a row's fields, `{question}\\n{answer}`; null counts as missing.

    Raises:
        Refused: the row lacks a field that the template names, or its values do not fit.
    """
    try:
        return template.format(**{name: value for name, value in row.items() if value is not None})
    except KeyError as error:
        raise Refused(f"no field {error} (data_prep.text_template)", f"fields here: {', '.join(row)}") from error
    except (IndexError, ValueError, AttributeError, TypeError) as error:
        raise Refused("data_prep.text_template does not fit the row", str(error)) from error


def split_key(row: dict[str, Any], section: SourceSection, otherwise: str) -> str:
    """Key that decides the split of a row: the configured field, a `key` as in synthetic rows, or its own text.

    Raises:
        Refused: the row lacks the configured field.
    """
    if section.key_field is None:
        return str(row.get("key", otherwise)) if is_synthetic(section.source) else otherwise
    value = field_of(row, section.key_field)
    if value is None and section.key_field not in row:
        raise Refused(f"no field '{section.key_field}' (data_prep.key_field)", f"fields here: {', '.join(row)}")
    return str(value)


def describe_sources(section: SourceSection, kind: str, count: int) -> list[Source]:
    """Manifest entries for all inputs: rows, chat template and tokenizer.

    Raises:
        UserError: `data_prep.source` or `data_prep.tokenizer.model` is not set, or a file or tokenizer is missing.
    """
    if section.source is None:
        raise UserError(
            "data_prep.source is not set", "give files, folders or globs; or 'synthetic' for the built-in text"
        )
    tokenizer: TokenizerSection | None = getattr(section, "tokenizer", None)
    if tokenizer is not None and tokenizer.model is None:
        raise UserError("data_prep.tokenizer.model is not set", "give a Hugging Face tokenizer folder, or 'tiny'")
    if tokenizer is not None and tokenizer.model != TINY:
        TokenizerFolder(Path(str(tokenizer.model))).require("data_prep.tokenizer.model: ")
    # only the tokenizer files that data preparation copies: the folder may also hold a whole model
    copied = [] if tokenizer is None else [str(Path(str(tokenizer.model)) / name) for name in FILES]
    own = own_files(getattr(section, "chat_template", None), *copied)
    if not is_synthetic(section.source):
        return [*file_sources(section), *own]
    made = {"synthetic": kind, "seed": section.seed, "rows": count}
    return [Source(f"{SYNTHETIC}:{kind}", json_digest(made), made), *own]


def file_sources(section: SourceSection) -> list[Source]:
    """Manifest entries for the user's rows only."""
    return [Source(file.path, *identity(file)) for file in _expand(section)]


def _expand(section: SourceSection) -> list[InputFile]:
    named = [section.source] if isinstance(section.source, str) else section.source or []
    return expand(named, subset=section.subset, split=section.hub_split)


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
        name: name of the data set without a blend.
        config: the stage's folder of configs, with the blends that it ships.
        synthetic: makes rows from a seed and a count, for the built-in source.
        synthetic_name: name of those rows in the manifest.
        presplit: whether a blend may assign data sets to splits.
        more: other synthetic rows, by the NAME in `synthetic:NAME`.
    """

    name: str
    config: Path
    synthetic: SyntheticRows
    synthetic_name: str
    presplit: bool = True
    more: Mapping[str, SyntheticRows] = dataclasses.field(default_factory=dict)

    def synthetic_rows(self, source: str | list[str] | None) -> tuple[SyntheticRows, str]:
        """What makes the rows of a built-in source, and what they are called.

        Raises:
            UserError: there are none of that name.
        """
        name = source.partition(":")[2] if isinstance(source, str) and is_synthetic(source) else ""
        if name and name not in self.more:
            known = [SYNTHETIC, *(f"{SYNTHETIC}:{one}" for one in self.more)]
            raise UserError(f"data_prep.source: no rows named '{source}'", f"there are: {', '.join(known)}")
        return (self.more[name], name) if name else (self.synthetic, self.synthetic_name)

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
            return describe_sources(settings, self.synthetic_rows(settings.source)[1], count)
        own = describe_sources(settings.model_copy(update={"source": str(file)}), "blend", 0)
        # all of them share the same template and tokenizer
        return [*own, *(source for part in self.parts(settings) for source in file_sources(part.settings))]


def read_question(
    row: dict[str, Any],
    question_field: str,
    answer_field: str | None,
    answer_pattern: str | None = None,
    written: bytes | None = None,
) -> tuple[str, str]:
    """Return the question and the expected answer of a row, both as text.

    Args:
        answer_field: None: without an expected answer; an empty text is returned in its place.
        answer_pattern: a regular expression whose first group is the answer inside the field; GSM8K: `#### (.+)`.
        written: JSON text of the row, if there is one: numbers keep their spelling in it.

    Raises:
        Refused: a field is missing or not text, the answer does not match the pattern, or the question has an image.
    """
    fields = [("question_field", question_field)]
    fields += [("answer_field", answer_field)] if answer_field is not None else []
    if media := media_of(row, [field for _, field in fields]):
        raise Refused(*media.split(": ", 1), WITHOUT_MEDIA)
    texts = []
    for setting, field in fields:
        value = spoken(field_of(row, field))
        if value is None:
            raise no_field(row, field, f"data_prep.{setting}")
        if not isinstance(value, str) and not is_number(value):
            raise Refused(f"field '{field}' is not text", type(value).__name__)
        if is_missing(value):
            raise Refused(f"field '{field}' is not a number", str(value))
        texts.append(
            text_of(value if isinstance(value, str) else field_of(with_numbers_as_written(row, written), field))
        )
    if answer_field is None:
        return texts[0], ""
    question, answer = texts
    if answer_pattern is not None:
        found = re.search(answer_pattern, answer)
        # a group that takes no part in the match is None
        said = found and (found[1] if found.groups() else found[0])
        if not said or not said.strip():
            raise Refused("no answer in the field", f"'{answer[:80]}'", "correct data_prep.answer_pattern")
        answer = said.strip()
    return question, answer
