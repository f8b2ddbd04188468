"""Input of a data preparation: synthetic data, or the user's files."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nemotron_data.formats import fast_json
from nemotron_data.rejects import Refused
from nemotron_data.sources.documents import with_choice
from nemotron_data.sources.files import InputFile, expand, identity, local_file
from nemotron_data.sources.remote import Reading
from nemotron_data.tokenizers.folder import FILES, TINY, TokenizerFolder
from nemotron_shared.artifacts import Source
from nemotron_shared.atomic import open_atomic, write_bytes
from nemotron_shared.config.data import SourceSection, TokenizerSection
from nemotron_shared.digest import file_digest, json_digest, tree_files
from nemotron_shared.errors import UserError

SYNTHETIC = "synthetic"
SyntheticRows = Callable[[int, int], Iterable[dict[str, Any]]]


def input_files(section: SourceSection, made: Path, synthetic: SyntheticRows, count: int) -> list[InputFile]:
    """Files to prepare. `count` synthetic rows are first written to `made`, unless they are there and intact."""
    if section.source != SYNTHETIC:
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
        return str(row.get("key", otherwise)) if section.source == SYNTHETIC else otherwise
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
    if section.source != SYNTHETIC:
        return [*file_sources(section), *own]
    made = {"synthetic": kind, "seed": section.seed, "rows": count}
    return [Source(f"{SYNTHETIC}:{kind}", json_digest(made), made), *own]


def file_sources(section: SourceSection) -> list[Source]:
    """Manifest entries for the user's rows only."""
    return [Source(file.path, *identity(file)) for file in _expand(section)]


def _expand(section: SourceSection) -> list[InputFile]:
    named = [section.source] if isinstance(section.source, str) else section.source or []
    return expand(named, subset=section.subset, split=section.hub_split)
