"""Run llama.cpp's converter on a model folder: `python gguf_convert.py FOLDER FILE F32|BF16|F16 PRE`.

`gguf_file.convert` starts it with this Python and the packages `conversion` and `gguf` of the environment llama_cpp.
Without FILE (`-`), it does all but write: what the converter refuses, it refuses then, too. The converter is used as it
is, but for what it gets wrong with folders that transformers 5 writes:

* a list of layer kinds hides dense layers of NemotronH from it, so it is given the pattern that the published models
  have; keys of experts, which every such config has, make it take a model without experts for one with them;
* it does not know the names that kinds of layers of GraniteMoeHybrid have now;
* our tokenizers are not in its list of digests, so we name the pre-tokenizer (PRE; "" if it is
  to know itself);
* the architecture tells it what kind of tokenizer to expect; we go by tokenizer.json;
* pieces of SentencePiece that are in a tokenizer.json alone get no scores from it, without which llama.cpp joins
  letters in another order; and their special tokens are marked as text;
* it adds tokens without embeddings to Mamba2's vocabulary;
* it writes 1,048,576 as the context of every hybrid model, regardless of the model's own length.
"""

import json
import re
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

KINDS = {"linear_attention": "M", "mamba": "M", "moe": "E", "full_attention": "*", "attention": "*", "mlp": "-"}
OLD_NAMES = {"linear_attention": "mamba", "full_attention": "attention"}
"""Of GraniteMoeHybrid's layers."""
QUANTIZED = {"Q8_0": 34 / 32, "Q4_K_M": 0.61}
"""Types that llama.cpp's tools make of a converted file, and bytes of a value."""
EXPERTS = ("num_experts_per_tok", "n_routed_experts", "n_group", "topk_group")
"""Settings that only a model with experts may have, for llama.cpp."""
NOTHING = "-"
"""In place of a file: nothing is written."""
NORMAL, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 3, 4, 5, 6
"""Kinds of tokens in a GGUF file."""
NO_SCORE = -1e6


def main(folder: Path, file: str, dtype: str, pre: str) -> None:
    """Write the file."""
    import gguf
    from conversion import (  # ty: ignore[import-not-found]
        ModelBase,
        ModelType,
        TextModel,
        get_model_architecture,
        get_model_class,
    )

    settings = understood(ModelBase.load_hparams(folder, False))
    converter: Any = get_model_class(get_model_architecture(settings, ModelType.TEXT))
    converter.no_mtp = True
    read_tokenizer(TextModel, folder, settings.get("vocab_size"), pre)
    told = converter.set_gguf_parameters

    def with_context(self: Any) -> None:
        told(self)
        if context := settings.get("max_position_embeddings"):
            self.gguf_writer.add_context_length(context)

    converter.set_gguf_parameters = with_context
    kind = {"F32": "ALL_F32", "BF16": "MOSTLY_BF16", "F16": "MOSTLY_F16"}[dtype]
    place = folder / "none.gguf" if file == NOTHING else Path(file)
    made = converter(folder, getattr(gguf.LlamaFileType, kind), place, hparams=settings, model_name=place.stem)
    if file == NOTHING:
        made.prepare_tensors()
        made.prepare_metadata(vocab_only=False)
    else:
        made.write()


def understood(settings: dict[str, Any]) -> dict[str, Any]:
    """The model's settings, as the converter reads them right."""
    kinds = settings.get("layers_block_type")
    if settings.get("model_type") == "nemotron_h" and isinstance(kinds, list):
        settings["hybrid_override_pattern"] = "".join(KINDS[kind] for kind in kinds)
        settings["num_hidden_layers"] = len(kinds)
        if "moe" not in kinds:
            for name in (*EXPERTS, "layers_block_type"):
                settings.pop(name, None)
    if settings.get("model_type") == "granitemoehybrid" and isinstance(names := settings.get("layer_types"), list):
        settings["layer_types"] = [OLD_NAMES.get(name, name) for name in names]
    return settings


# Tokens


def read_tokenizer(models: Any, folder: Path, size: int | None, pre: str) -> None:
    """Let the converter's models read tokenizer.json as what it is, unless SentencePiece's own file is there.

    Args:
        models: the class of all converters of language models.
        size: of the vocabulary.
        pre: what llama.cpp calls the pre-tokenizer; "" if the converter is to know itself.
    """
    known, by_words, base = models.get_vocab_base_pre, models._set_vocab_gpt2, models.get_vocab_base

    def pre_of(self: Any, tokenizer: Any) -> str:
        try:
            return known(self, tokenizer)
        except NotImplementedError:
            if not pre:
                raise
            return pre

    def of_its_size(self: Any) -> Any:
        if size:
            self.hparams["vocab_size"] = size
        return base(self)

    def no_sentencepiece(self: Any) -> None:
        raise FileNotFoundError("tokenizer.model")  # what makes the converter read tokenizer.json

    models.get_vocab_base_pre, models.get_vocab_base = pre_of, of_its_size
    if (folder / "tokenizer.model").is_file():
        return
    models._set_vocab_sentencepiece = no_sentencepiece  # else it imports a library first, only to find that out
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))

    def by_pieces(self: Any) -> None:
        write_pieces(self, tokenizer, size)

    chosen = by_pieces if is_of_pieces(tokenizer) else by_words
    models._set_vocab_gpt2 = models._set_vocab_llama_hf = chosen


def is_of_pieces(tokenizer: dict[str, Any]) -> bool:
    """Whether a tokenizer.json is SentencePiece's BPE: merges of text, and bytes for text without a piece."""
    return tokenizer["model"]["type"] == "BPE" and bool(tokenizer["model"].get("byte_fallback"))


def write_pieces(converter: Any, tokenizer: dict[str, Any], size: int | None) -> None:
    """The keys of a GGUF file that SentencePiece's tokens have."""
    import gguf

    model, added = tokenizer["model"], {one["id"]: one for one in tokenizer["added_tokens"]}
    by_id = {number: token for token, number in model["vocab"].items()}
    by_id |= {number: one["content"] for number, one in added.items()}
    scores = scores_of(model["vocab"], model["merges"], {one["content"] for one in added.values()})
    tokens, kinds = [], []
    for number in range(max(size or 0, max(by_id) + 1)):
        token = by_id.get(number)
        tokens.append(f"[PAD{number}]" if token is None else token)
        kinds.append(UNUSED if token is None else _kind_of(token, added.get(number)))
    write = converter.gguf_writer
    write.add_tokenizer_model("llama")
    write.add_tokenizer_pre("default")
    write.add_token_list(tokens)
    write.add_token_scores([scores.get(token, NO_SCORE) for token in tokens])
    write.add_token_types(kinds)
    gguf.SpecialVocab(converter.dir_model, n_vocab=len(tokens)).add_to_gguf(write)
    converter.gguf_writer.add_add_space_prefix(begins_with_space(tokenizer))


def _kind_of(token: str, added: dict[str, Any] | None) -> int:
    if re.fullmatch("<0x[0-9A-F]{2}>", token):
        return BYTE
    return NORMAL if added is None else CONTROL if added["special"] else USER_DEFINED


def scores_of(vocabulary: dict[str, int], merges: Sequence[Any], added: set[str]) -> dict[str, float]:
    """A score for each piece that is made of others: llama.cpp joins the neighbours whose piece has the highest one.

    Args:
        added: tokens that are not pieces.

    Raises:
        ValueError: the merges are others than those that llama.cpp would make.
    """
    pairs = [tuple(one.split(" ")) if isinstance(one, str) else tuple(one) for one in merges]
    made = [piece for piece, _ in groupby(left + right for left, right in pairs)]
    if len(set(made)) < len(made):
        raise ValueError(
            "a piece has merges of several ranks in tokenizer.json, and llama.cpp knows one score for each"
        )
    listed = set(pairs)
    for piece in vocabulary.keys() - added:
        splits = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
        if other := next((one for one in splits if vocabulary.keys() >= set(one) and one not in listed), None):
            raise ValueError(
                f"llama.cpp would join {other[0]!r} and {other[1]!r}, which is not a merge in tokenizer.json"
            )
    return {piece: -float(rank) for rank, piece in enumerate(made)}


def begins_with_space(tokenizer: dict[str, Any]) -> bool:
    """Whether the first word of a text gets a space before it."""
    normalizer, split = tokenizer.get("normalizer") or {}, tokenizer.get("pre_tokenizer") or {}
    steps = [*normalizer.get("normalizers", [normalizer]), *split.get("pretokenizers", [split])]
    return any(one.get("type") == "Prepend" or one.get("prepend_scheme", "never") != "never" for one in steps)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:5])
