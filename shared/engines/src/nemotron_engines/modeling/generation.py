"""What a model folder says of how it answers: its generation_config.json, and the ends that its config.json names."""

from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from nemotron_shared.atomic import read_json
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.models.folder import FILE, config_of

HOTTEST = 100.0
"""A temperature at which all tokens are as good as equal."""
MOST = {"temperature": HOTTEST, "top_p": 1.0, "min_p": 1.0, "top_k": 1e9, "repetition_penalty": 100.0}
"""What is read, and the largest value that means something."""
UNUSED = (
    *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "diversity_penalty"),
    *("suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "sequence_bias", "stop_strings", "typical_p"),
    *("min_length", "min_new_tokens", "epsilon_cutoff", "eta_cutoff", "top_h", "penalty_alpha", "num_beams"),
    *("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty", "guidance_scale"),
    *("watermarking_config", "remove_invalid_values"),
)
"""What changes answers where transformers' own `generate` makes them, and is not done by our server."""
REMEDY = "correct the file, or take the key out of it"


def require_generation(folder: Path) -> None:
    """Look at what is read of both files when a model answers.

    Raises:
        UserError: naming the file and the key.
    """
    _require_ids(folder / "config.json", config_of(folder))
    file = folder / FILE
    if not file.is_file():
        return
    values = read_json(file)
    if not isinstance(values, dict):
        raise UserError(f"{file}: not a mapping of settings", "correct the file, or take it away")
    _require_ids(file, values)
    if not isinstance(values.get("do_sample"), bool | None):
        raise UserError(f"{file}: do_sample is neither true nor false", REMEDY)
    for key, most in MOST.items():
        value = values.get(key)
        if value is not None and (type(value) not in (int, float) or not 0 <= value <= most):
            raise UserError(f"{file}: {key} is no number from 0 to {most:g}", REMEDY)
    if type(values.get("top_k")) is float:
        raise UserError(f"{file}: top_k is no whole number", REMEDY)
    try:
        GenerationConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the library looks at few of its settings before it uses them
        raise UserError(f"{file}: cannot be used: {type(error).__name__}: {error}", REMEDY) from error


def unused(values: dict[str, Any]) -> list[str]:
    """The settings of a generation_config.json that ask for something which our server does not do."""
    return [key for key in UNUSED if values.get(key) not in (None, False, 0, 1, [], {})]


def ends_of(model: Any, tokenizer: Any) -> set[int]:
    """Ids that end an answer, by all who may say so."""
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
            raise UserError(f"{file}: {key} is neither the id of a token nor a list of ids", REMEDY)
