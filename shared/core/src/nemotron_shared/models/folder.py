"""A model's folder, which others may have made: its settings, the code that it needs, links and sizes to refuse."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nemotron_shared.stages import ArtifactType
from nemotron_shared.system.atomic import LARGEST_JSON, read_json, require_size, write_text
from nemotron_shared.system.errors import UserError, printable

# Code that comes with a model: whether it is needed, and refusing to run it without permission.
#
# A model whose `model_type` the installed transformers knows needs none, even if its `auto_map` has some; but an
# `auto_map` in one of its parts (`text_config` in a composite model) counts, because transformers decides for each part
# separately. Other models need `--trust-code`, which is a command-line option so that no file can set it.

OPTION = "--trust-code"
IMPLEMENTATIONS = ("attn_implementation", "experts_implementation")
"""Endings of config keys that choose the code of layers; ORG/NAME is fetched from the hub and run."""
MACHINERY = ("attribute_map", "sub_configs")
"""Attributes of transformers' classes: in a file, they would redefine other keys."""


@cache
def known_types() -> frozenset[str]:
    """Model types of the installed transformers, read from its tables: importing them takes ten seconds."""
    spec = find_spec("transformers")
    if spec is None or spec.origin is None:
        return frozenset()
    tables = Path(spec.origin).parent / "models" / "auto"
    text = "".join(
        (tables / name).read_text(encoding="utf-8")
        for name in ("auto_mappings.py", "configuration_auto.py")
        if (tables / name).is_file()
    )
    return frozenset(re.findall(r'"([\w.-]+)"[,:]\s*"\w+Config"', text))


def needs_code(config: dict[str, Any]) -> bool:
    """Whether a model, or a part of it, can only be loaded by running the Python files that come with it."""
    own = config.get("auto_map") and config.get("model_type") not in known_types()
    return bool(own) or bool(_auto_maps([*config.values()]))


def all_in(tree: Any) -> Iterator[Any]:
    """Every value of a tree, at any depth."""
    left = [tree]
    while left:
        value = left.pop()
        yield value
        if isinstance(value, dict | list):
            left += value.values() if isinstance(value, dict) else value


def _auto_maps(tree: Any) -> list[Any]:
    return [value["auto_map"] for value in all_in(tree) if isinstance(value, dict) and value.get("auto_map")]


def require_loadable(label: str, config: dict[str, Any], *, trusted: bool) -> None:
    """Refuse a model that needs untrusted code, or that nothing here can load.

    Args:
        label: the model's name in messages.

    Raises:
        UserError: with a remedy.
    """
    kind, known = config.get("model_type"), known_types()
    if not known:
        return
    if not needs_code(config):
        if kind in known or kind is None:
            return  # a config without a type is left to the loader
        what = f"{label}: its model_type '{kind}' is not known to the installed transformers, and it brings no code"
        raise UserError(what, "give another model: run.model=FOLDER or run.model=hf://org/name")
    classes = [value for value in all_in(_auto_maps(config)) if isinstance(value, str)]
    elsewhere = sorted({name.split("--")[0] for name in classes if "--" in name})
    if elsewhere:
        what = f"{label}: its code is in another repository ({', '.join(elsewhere)}), whose revision is not pinned"
        raise UserError(what, "download both, put the Python files into the model's folder, and set run.model=./FOLDER")
    if not trusted:
        whose = "a part of it (auto_map)" if kind in known else f"its model_type '{kind}'"
        what = f"{label}: {whose} needs the Python files that come with the model"
        raise UserError(what, f"read them, then add {OPTION} to the command")


def settings_in(file: Path, most: int | None = LARGEST_JSON) -> dict[str, Any]:
    """A JSON file of settings by name.

    Raises:
        UserError: it is damaged, or no mapping.
    """
    values = read_json(file, most=most)
    if not isinstance(values, dict):
        raise UserError(f"{printable(str(file))}: not a mapping of settings", "correct the file, or make it again")
    return values


def config_of(folder: Path) -> dict[str, Any]:
    """The `config.json` of a model folder; empty if it has no such file.

    Raises:
        UserError: not a regular file, not a mapping, its model_type is not a string, or it names code on the hub.
    """
    file = folder / "config.json"
    if not os.path.lexists(file):
        return {}
    if not file.is_file():
        raise UserError(f"{printable(str(file))}: not a regular file", "give a model in Hugging Face's layout")
    values = read_json(file)
    if not isinstance(values, dict) or not isinstance(values.get("model_type", ""), str | None):
        wrong = "its model_type is not text" if isinstance(values, dict) else "not a mapping of a model's settings"
        raise UserError(f"{printable(str(file))}: {wrong}", "give a model in Hugging Face's layout")
    for part in filter(lambda value: isinstance(value, dict), all_in(values)):
        _require_own_kernels(file, part)
    return values


CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "model_max_length", "context_length")
"""Names of the longest text in config.json: the second is that of GPT-2 and GPT-J, the third of MPT and DBRX, the last
two of Kimi Linear and RWKV (transformers 5.23)."""


def context_of(folder: Path) -> int | None:
    """The longest text of the model in a folder, in tokens; None where no config.json says.

    Raises:
        UserError: as `config_of`.
    """
    config = config_of(folder)
    text = config.get("text_config")
    known = [one.get(name) for one in (config, text) if isinstance(one, dict) for name in CONTEXT]
    return next((length for length in known if isinstance(length, int) and length > 0), None)


def _require_own_kernels(file: Path, part: dict[str, Any]) -> None:
    """Refuse kernels from a hub repository: `--trust-code` covers the folder's files, and those are not pinned."""
    for key, value in part.items():
        names = [name for name in all_in(value) if isinstance(name, str) and "/" in name]
        if key in MACHINERY or (key.endswith(IMPLEMENTATIONS) and names):
            said = f"{key} '{names[0]}' is code of another repository" if names else f"{key} is not a model setting"
            raise UserError(f"{printable(str(file))}: {printable(said)}", f"remove {printable(key)} from the file")


# Two kinds of models: those that write, and those that give an answer a number.

SCORING = re.compile(r"\w*ForSequenceClassification")
"""Names of transformers' classes with one head for a whole text."""


def model_type(config: dict[str, Any]) -> ArtifactType:
    """What a model of this config.json is: a reward model, if its class scores whole texts; else a language model."""
    classes = config.get("architectures")
    names = classes if isinstance(classes, list) else []
    scores = any(isinstance(name, str) and SCORING.fullmatch(name) for name in names)
    return "RewardModelArtifact" if scores else "ModelArtifact"


# Size limits for config and tokenizer files: libraries read them whole, and a sparse file of any size costs nothing.
#
# require_small(Path("./model"))     before transformers or tokenizers reads it

VOCABULARIES = ("tokenizer.json", "vocab.json")
LARGEST_VOCABULARY = 1024 * 2**20
"""In bytes; a vocabulary of a million tokens takes a hundredth to a tenth of it."""
LARGEST_TEMPLATE = 2**20
"""In bytes; templates of published models are a hundred times smaller."""
MORE_TEMPLATES = "additional_chat_templates"
AGAIN = "download or copy the file again"


def require_small(folder: Path) -> None:
    """Refuse settings, vocabularies and chat templates larger than any real model's.

    Raises:
        UserError: with the file.
    """
    for file in sorted([*folder.iterdir(), *folder.glob(f"{MORE_TEMPLATES}/*")]):
        if file.suffix == ".jinja":
            require_size(file, LARGEST_TEMPLATE, AGAIN)
        elif file.suffix == ".json":
            require_size(file, LARGEST_VOCABULARY if file.name in VOCABULARIES else LARGEST_JSON, AGAIN)


# Refuse symlinks out of an untrusted folder: they would import other files of the user.

MOST_FILES = 100_000
"""Far more than any model has, to bound the search for links."""


def require_inside(path: Path, folder: Path) -> None:
    """Refuse a link out of the folder, unless it stays in the hub-cache repository the folder belongs to.

    Raises:
        UserError: with the link.
    """
    target = path.resolve()
    if not target.is_relative_to(folder.resolve()) and not is_blob(path, folder):
        what = f"{printable(str(path))}: a link out of the folder, to {printable(str(target))}"
        raise UserError(what, "copy the file into the folder")


def is_blob(path: Path, folder: Path) -> bool:
    """Whether a file is a blob in a hub's cache, which is named by content and never edited."""
    place = folder.resolve()  # models--org--name/snapshots/<commit>, next to models--org--name/blobs/
    return place.parent.name == "snapshots" and path.resolve().is_relative_to(place.parent.parent / "blobs")


def require_own_files(folder: Path) -> None:
    """Refuse a folder with such a link at any depth; hidden folders are not part of a model and are skipped.

    Raises:
        UserError: with the link, or because there are too many files.
    """
    seen = 0
    for here, folders, files in os.walk(folder):
        names = sorted(folders + files)
        if (seen := seen + len(names)) > MOST_FILES:
            what = f"{printable(str(folder))}: holds more than {MOST_FILES:,} files and folders"
            raise UserError(what, "give the folder of the model or tokenizer alone")
        for path in filter(Path.is_symlink, (Path(here) / name for name in names)):
            require_inside(path, folder)
        folders[:] = [name for name in folders if not name.startswith(".")]


# Tokens that end an answer, from the model's generation_config.json, as transformers, vLLM and we read it.

FILE = "generation_config.json"
IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
LONGEST_TOLD = 60
"""In characters, of a setting in a message."""


def generation_of(folder: Path) -> dict[str, Any]:
    """The folder's generation_config.json, or the equivalent values in its config.json."""
    if (folder / FILE).is_file():
        return settings_in(folder / FILE)
    config = config_of(folder)
    return {name: config[name] for name in IDS if config.get(name) is not None}


ACTING = (
    *("temperature", "top_p", "top_k", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"),
    *("repetition_penalty", "no_repeat_ngram_size", "diversity_penalty", "encoder_repetition_penalty"),
    *("encoder_no_repeat_ngram_size", "suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "sequence_bias"),
    *("min_length", "min_new_tokens", "forced_bos_token_id", "forced_eos_token_id", "stop_strings", "max_time"),
    *("exponential_decay_length_penalty", "num_beams", "num_beam_groups", "length_penalty", "early_stopping"),
    *("guidance_scale", "watermarking_config", "remove_invalid_values", "renormalize_logits", "token_healing"),
    *("penalty_alpha", "dola_layers", "constraints", "force_words_ids", "num_return_sequences"),
)
"""Settings by which `generate` of transformers 5.23 gives other tokens, besides end tokens and the greatest length."""
NONE_AT_ONE = ("temperature", "top_p", "typical_p", "repetition_penalty", "encoder_repetition_penalty", "num_beams",
               "num_beam_groups", "length_penalty", "guidance_scale", "num_return_sequences")  # fmt: skip
"""Those of them that ask for nothing where they are 1."""


def acting(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a generation_config.json that would change which tokens an answer has."""
    asked = {key: values[key] for key in ACTING if values.get(key) not in (None, False, 0, [], {})}
    return {key: value for key, value in asked.items() if value != 1 or key not in NONE_AT_ONE}


def left_out(folder: Path, **decides: float) -> str | None:
    """The settings of a folder's generation_config.json that do not count where others decide, in words.

    Args:
        decides: the settings that count instead; what the file says alike is not named.
    """
    asked = acting(generation_of(folder))
    told = [f"{key} {json.dumps(value)}" for key, value in asked.items() if decides.get(key) != value]
    return ", ".join(one if len(one) <= LONGEST_TOLD else f"{one[:LONGEST_TOLD]} ..." for one in told) or None


def end_answers_at(folder: Path, token: int) -> None:
    """Make `token` end answers of the model in a folder, in addition to those that already do."""
    told = generation_of(folder)
    known = told.get("eos_token_id")
    known = config_of(folder).get("eos_token_id") if known is None else known
    ids = known if isinstance(known, list) else [] if known is None else [known]
    if token not in ids:
        told["eos_token_id"] = [*ids, token]
        write_text(folder / FILE, json.dumps(told, indent=2) + "\n")
