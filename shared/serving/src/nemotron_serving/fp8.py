"""Quantise an exported folder with NVIDIA's ModelOpt, for servers that multiply in 8 bits.

    quantise(model, made, rows)     the folder `made`, which holds that model, in FP8

ModelOpt chooses what is quantised, and computes the scales. All other tensors stay those of the folder, bit for bit.
Its list of modules that keep their type is damaged for NemotronH, whose names it changes: each entry ends in a mark
that was to be removed. It is written again, with the name of each such module.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors.torch import save_file

from nemotron_engines.modeling.stored import Stored, renew_index, stored, stored_in
from nemotron_serving.passport.few_bits import HEAD, TOLD
from nemotron_serving.programs import MODELOPT
from nemotron_shared.models.folder import config_of, known_types, needs_code
from nemotron_shared.models.scales import FLOATS, QUANTIZED, small_in
from nemotron_shared.system.atomic import read_json, sync, write_text
from nemotron_shared.system.errors import UserError, printable

RECIPES = {
    "nemotron_h": ("MAMBA_MOE_FP8_CONSERVATIVE_CFG", re.compile(r"\.(shared_)?experts\.|\.mixer\.(up|down)_proj\."))
}
"""By type of model, NVIDIA's recipe in ModelOpt, and the names of what it quantises."""
ANY = ("FP8_DEFAULT_CFG", re.compile(r"\.\w+_proj\.weight$"))
ROWS = 64
"""Trained rows that are run through the model; NVIDIA's own example takes 512 texts."""
ENDS = ("weight", "weight_scale", "input_scale")
"""Of the names of a quantised module's tensors."""
REPORT = "report this with the versions of nvidia-modelopt and transformers"
MARK = re.compile(r"\.\x00.*_name_sentinel")
"""What ModelOpt 0.47 leaves in each entry."""


def require(folder: Path) -> None:
    """Refuse what ModelOpt cannot be given.

    Raises:
        UserError: with a remedy.
    """
    config = config_of(folder)
    if config.get("model_type") not in known_types() or needs_code(config):
        what = f"{folder}: ModelOpt loads models with transformers, which does not know this one without custom code"
        raise UserError(what, "leave --quantize out")
    MODELOPT.require()


def recipe_of(folder: Path) -> tuple[str, "re.Pattern[str]"]:
    """The recipe for a model, and the names of what it quantises."""
    return RECIPES.get(str(config_of(folder).get("model_type")), ANY)


def quantise(model: Path, made: Path, rows: Sequence[list[int]]) -> str:
    """Quantise the folder `made`; returns what was done with the list of excluded modules.

    Raises:
        UserError: ModelOpt failed, or did not do what its recipe says.
    """
    recipe = recipe_of(model)[0]
    with TemporaryDirectory() as work:
        target, asked = Path(work) / "made", Path(work) / "rows.json"
        asked.write_text(json.dumps(rows))
        words = (model.absolute(), target, recipe, asked)
        MODELOPT.run(*words, failed="ModelOpt failed: ", remedy="export without --quantize")
        small = _put(made, stored_in(target), recipe)
        quantization, told = config_of(target)[QUANTIZED[0]], read_json(target / TOLD)
    modules = [
        name.removesuffix(".weight")
        for name, one in stored_in(made).items()
        if name.endswith(".weight") and len(one.shape) > 1 and one.dtype in FLOATS
    ]
    entries = told["quantization"]["exclude_modules"]
    modules += [HEAD] if HEAD in entries and HEAD not in modules else []
    _require_meant(entries, modules, small)
    told["quantization"]["exclude_modules"] = modules
    config = config_of(made) | {QUANTIZED[0]: quantization | {"ignore": modules}}
    for name, settings in (("config.json", config), (TOLD, told)):
        write_text(made / name, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
    damaged = [entry for entry in entries if MARK.search(entry)]
    such = f", such as '{printable(damaged[0])}'" if damaged else ""
    return (
        f"{len(small)} matrices by {recipe}. Its list of excluded modules had {len(damaged)} damaged entries of "
        f"{len(entries)}{such}; it now names {len(modules)} modules, each of the model and of more than 8 bits"
    )


def _put(made: Path, found: Mapping[str, Stored], recipe: str) -> set[str]:
    """Replace matrices of a folder by quantised ones and their scales, one file at a time; returns their modules.

    Args:
        found: what ModelOpt wrote.
    """
    small = {name.removesuffix(".weight") for name in small_in(found)}
    placed = set[str]()
    for file in sorted(made.glob("*.safetensors")):
        tensors = stored(file)
        for module in [name.removesuffix(".weight") for name in tensors if name.removesuffix(".weight") in small]:
            tensors |= {name: found[name] for end in ENDS if (name := f"{module}.{end}") in found}
        mode = file.stat().st_mode
        save_file({name: one.values() for name, one in tensors.items()}, file, metadata={"format": "pt"})
        file.chmod(mode)  # save_file leaves it to its owner alone
        sync(file)
        placed |= tensors.keys()
    if lost := [name for name in found if name not in placed]:
        raise UserError(f"ModelOpt wrote {lost[0]}, for which the model has no place ({len(lost)} like it)", REPORT)
    if not small:
        raise UserError(f"ModelOpt quantised nothing of this model by {recipe}", "export without --quantize")
    renew_index(made)
    return small


def _require_meant(entries: Sequence[str], kept: Sequence[str], small: set[str]) -> None:
    """Refuse to write a list of our own where it would say something else than ModelOpt's.

    Raises:
        UserError: an entry means a quantised module, or none of the model; or a module is in no entry.
    """
    meant = set[str]()
    for entry in entries:
        stem = MARK.sub("", entry).removesuffix("*").removesuffix(".")
        named = {one for one in (*kept, *small) if f"{one}.".startswith(f"{stem}.")}
        if not named or named & small:
            what = "names no module of the model" if not named else f"means {min(named & small)}, which is quantised"
            raise UserError(f"ModelOpt's list of excluded modules: {printable(entry)} {what}", REPORT)
        meant |= named
    for one in kept:
        if one not in meant and not one.startswith("mtp."):
            raise UserError(f"ModelOpt left {one} as it is, and does not say so", REPORT)
