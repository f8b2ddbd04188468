"""Generation settings of a model folder: its generation_config.json, and the stop tokens in its config.json."""

from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from nemotron_shared.atomic import read_json
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.models.folder import FILE, config_of

HOTTEST = 100.0
"""Beyond this temperature, all tokens are practically equally likely."""
MOST = {"temperature": HOTTEST, "top_p": 1.0, "min_p": 1.0, "top_k": 1e9, "repetition_penalty": 100.0}
"""The settings that we read, with the largest meaningful value."""
UNUSED = (
    *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "diversity_penalty"),
    *("suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "sequence_bias", "stop_strings", "typical_p"),
    *("min_length", "min_new_tokens", "epsilon_cutoff", "eta_cutoff", "top_h", "penalty_alpha", "num_beams"),
    *("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty", "guidance_scale"),
    *("watermarking_config", "remove_invalid_values"),
)
"""Settings that change answers in transformers' own `generate` but that our server does not support."""
REMEDY = "correct the value, or remove the key"


def require_generation(folder: Path) -> None:
    """Check the settings in both files that affect a model's answers.

    Raises:
        UserError: a bad value; the message gives file and key.
    """
    _require_ids(folder / "config.json", config_of(folder))
    file = folder / FILE
    if not file.is_file():
        return
    values = read_json(file)
    if not isinstance(values, dict):
        raise UserError(f"{file}: not a mapping of settings", "correct the file, or remove it")
    _require_ids(file, values)
    if not isinstance(values.get("do_sample"), bool | None):
        raise UserError(f"{file}: do_sample must be true or false", REMEDY)
    for key, most in MOST.items():
        value = values.get(key)
        if value is not None and (type(value) not in (int, float) or not 0 <= value <= most):
            raise UserError(f"{file}: {key} must be a number from 0 to {most:g}", REMEDY)
    if type(values.get("top_k")) is float:
        raise UserError(f"{file}: top_k must be a whole number", REMEDY)
    try:
        GenerationConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the library checks few of its settings before using them
        raise UserError(f"{file}: unusable: {type(error).__name__}: {error}", REMEDY) from error


def unused(values: dict[str, Any]) -> list[str]:
    """Settings of a generation_config.json that our server does not support."""
    return [key for key in UNUSED if values.get(key) not in (None, False, 0, 1, [], {})]


def ends_of(model: Any, tokenizer: Any) -> set[int]:
    """Stop token ids from all config files."""
    found: set[int] = set()
    for source in (getattr(model, "generation_config", None), model.config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        found |= set(ids) if isinstance(ids, list | tuple) else set() if ids is None else {ids}
    return found


def embeddings_of(model: Any) -> int | None:
    """Number of token embeddings; None where the model does not tell."""
    try:
        return int(model.get_input_embeddings().weight.shape[0])
    except (AttributeError, NotImplementedError):
        return None


def _require_ids(file: Path, values: dict[str, Any]) -> None:
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = values.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(number) is int for number in ids):
            raise UserError(f"{file}: {key} must be a token id or a list of token ids", REMEDY)
