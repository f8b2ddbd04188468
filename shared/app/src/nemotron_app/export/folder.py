"""Write the exported folder: the model's files, without paths of the machine that made them."""

import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from nemotron_shared.artifacts import Artifact
from nemotron_shared.artifacts.names import is_path
from nemotron_shared.atomic import read_json, sync, write_text
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.disk import full_disk_explained
from nemotron_shared.runtime.models.code import config_of, generation_of, needs_code
from nemotron_shared.runtime.models.hub import TOKENIZER_FILES
from nemotron_shared.runtime.models.weights import (
    ADAPTER,
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    INDICES,
    SINGLES,
    weight_files,
)

README = "README.md"
NAMES_OF_PLACES = ("_name_or_path", "name_or_path", "tokenizer_file", "special_tokens_map_file")
SETTINGS = ("config.json", "generation_config.json", ADAPTER_CONFIG)
READ_TOO = re.compile(
    rf".*\.safetensors.*|(?:pytorch|adapter)_model.*\.bin.*|{re.escape(ADAPTER_CONFIG)}|{TOKENIZER_FILES.pattern}"
)
"""Files that would change how the exported model loads: other weights (also pickles), an adapter config, or parts of a
tokenizer.
"""


def exported_files(artifact: Artifact, *, adapter: bool) -> dict[str, Path]:
    """Files to export, by their exported name.

    Raises:
        UserError: the model has no exportable weights, or no adapter.
    """
    return _adapter_files(artifact) if adapter else _model_files(artifact)


def write_folder(artifact: Artifact, folder: Path, readme: str, *, adapter: bool, force: bool) -> list[str]:
    """Write the folder atomically; returns the names of its files.

    Raises:
        UserError: the folder is not empty, or the model has no adapter.
    """
    require_room(folder, force)
    folder = folder.resolve()  # keep a link to a folder
    wanted = exported_files(artifact, adapter=adapter)
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = folder if folder.is_dir() else folder.parent  # an existing folder may be a mount point
    with (
        full_disk_explained(beside),
        tempfile.TemporaryDirectory(prefix=".export.", dir=beside, ignore_cleanup_errors=True) as staged,
    ):
        made = Path(staged) / "made"
        made.mkdir()
        for name, source in wanted.items():
            if source.suffix == ".json" and name not in INDICES and not name.startswith(("tokenizer.", "vocab")):
                write_text(made / name, _settings(source, texts=name in SETTINGS))
            else:
                shutil.copyfile(source, made / name)
                sync(made / name)
        if not adapter and "generation_config.json" not in wanted:
            write_text(made / "generation_config.json", json.dumps(generation_of(artifact.path), indent=2) + "\n")
        write_text(made / README, readme)
        names = sorted(path.name for path in made.iterdir())
        _take_place(made, folder, names)
    return names


def require_room(folder: Path, force: bool, kept: tuple[Path, ...] = ()) -> None:
    """Refuse to mix an export with existing files.

    Args:
        kept: folders that must not be written into: the store, and the model itself.

    Raises:
        UserError: not a folder, not empty, or inside one of `kept`.
    """
    wrong = next((path for path in (folder, *folder.parents) if path.is_symlink() or path.exists()), folder)
    if not wrong.is_dir():
        raise UserError(f"{wrong}: not a folder", "give the name of a new folder")
    if inside := next((path for path in kept if folder.resolve().is_relative_to(path.resolve())), None):
        raise UserError(f"{folder}: lies in {inside}, which an export would damage", "give a folder outside of it")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise UserError(f"{folder}: holds something already", "give a new folder, or --force to write into this one")


def _take_place(made: Path, folder: Path, names: list[str]) -> None:
    """Move the finished files into place, and remove files that a loader would pick up with them."""
    if not folder.is_dir():
        made.rename(folder)
        sync(folder.parent)
        return
    others = sorted(path.name for path in folder.iterdir() if READ_TOO.fullmatch(path.name) and path.name not in names)
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        what = f"{folder}: holds files that would be read with these: {', '.join(others[:3])}{more}"
        raise UserError(what, "remove them, or give a new folder")
    for name in names:
        os.replace(made / name, folder / name)  # noqa: PTH105 - one rename each, also over a file that is there
    sync(folder)


def _model_files(artifact: Artifact) -> dict[str, Path]:
    """Files of the whole model, by exported name."""
    folder = artifact.path
    there = {path.name: path for path in sorted(folder.iterdir()) if path.is_file()}
    weights = weight_files(artifact.reference, folder, there)
    if not weights:
        raise UserError(f"{artifact.reference}: holds no weights", "give another model")
    if any(name.endswith(".bin") for name in weights):
        what = f"{artifact.reference}: its weights are pickles, and an export holds safetensors only"
        raise UserError(what, "convert them with transformers: save_pretrained writes safetensors")
    wanted = [*weights, "config.json", "generation_config.json", *(name for name in INDICES if name not in SINGLES)]
    wanted += [name for name in there if TOKENIZER_FILES.fullmatch(name) or name.startswith(("LICENSE", "NOTICE"))]
    if needs_code(config_of(folder)):
        wanted += [name for name in there if name.endswith(".py")]
    return {name: there[name] for name in dict.fromkeys(wanted) if name in there}


def _adapter_files(artifact: Artifact) -> dict[str, Path]:
    """Files of the adapter and its tokenizer."""
    folder = artifact.path / ADAPTER
    own = [folder / name for name in (ADAPTER_WEIGHTS, ADAPTER_CONFIG)]
    if not all(path.is_file() for path in own):
        what = f"{artifact.reference}: has no adapter; all of its weights were trained, or it was not made here"
        raise UserError(what, "leave --adapter out, which exports the whole weights")
    beside = [path for path in sorted(artifact.path.iterdir()) if TOKENIZER_FILES.fullmatch(path.name)]
    return {path.name: path for path in (*own, *beside)}


def _settings(file: Path, *, texts: bool) -> str:
    """The exported text of a settings file; see `_without_places`."""
    try:
        return json.dumps(_without_places(read_json(file), texts=texts), indent=2, ensure_ascii=False) + "\n"
    except RecursionError as error:
        raise UserError(f"{file}: nested too deep for a model's settings", "correct the file") from error


def _without_places(settings: Any, *, texts: bool) -> Any:
    """Remove local paths from settings.

    Args:
        texts: check every string; in tokenizer files a string may be a token instead.
    """
    if isinstance(settings, dict):
        kept = {}
        for name, value in settings.items():
            if isinstance(value, str) and (name in NAMES_OF_PLACES or (texts and is_path(value))):
                if name == "base_model_name_or_path":  # required by PEFT
                    kept[name] = None
                continue
            kept[name] = _without_places(value, texts=texts)
        return kept
    return [_without_places(value, texts=texts) for value in settings] if isinstance(settings, list) else settings
