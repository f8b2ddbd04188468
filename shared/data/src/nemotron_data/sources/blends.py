"""Blend files: which data sets to read, and in what proportions.

    {"datasets": [{"name": "web", "path": "web/*.jsonl.zst", "weight": 3},
                  {"name": "math", "path": "hf://org/name", "subset": "4plus", "split": "train", "weight": 1}]}

Or, already split by their owner, {"train": [...], "valid": [...], "test": [...]}. Weights are relative: 3 and 1 mean
three quarters and one quarter of the tokens that training sees. Keys that begin with "_" are comments.
`blend:NAME` refers to a blend that a stage ships in config/blends/NAME.json.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from nemotron_data.sources.encoding import is_rows
from nemotron_data.sources.remote import is_remote
from nemotron_shared.atomic import read_json
from nemotron_shared.errors import UserError, did_you_mean

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
        return str(Path(info.context, os.path.expanduser(path)))  # noqa: PTH111 - see files.py

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
