"""Run llama.cpp's converter on a model folder: `python gguf_convert.py FOLDER FILE F32|BF16|F16 PRE`.

`gguf_file.convert` starts it with this Python and the packages `conversion` and `gguf` of the environment llama_cpp.
The converter is used as it is, but for four things that it gets wrong with transformers' NemotronH:

* a list of layer kinds hides dense layers from it, so it is given the pattern that the published models have;
* keys of experts, which every such config has, make it take a model without experts for one with them;
* our tokenizers are not in its list of digests, so we name the pre-tokenizer (PRE; "" if it is
  to know itself);
* it writes 1,048,576 as the context of every hybrid model, regardless of the model's own length.
"""

import sys
from pathlib import Path
from typing import Any

KINDS = {"linear_attention": "M", "mamba": "M", "moe": "E", "full_attention": "*", "attention": "*", "mlp": "-"}

QUANTIZED = {"Q8_0": 34 / 32, "Q4_K_M": 0.61}
"""Types that llama.cpp's tools make of a converted file, and bytes of a value."""
EXPERTS = ("num_experts_per_tok", "n_routed_experts", "n_group", "topk_group")
"""Settings that only a model with experts may have, for llama.cpp."""


def main(folder: Path, file: Path, dtype: str, pre: str) -> None:
    """Write the file."""
    import gguf
    from conversion import (  # ty: ignore[import-not-found]
        ModelBase,
        ModelType,
        TextModel,
        get_model_architecture,
        get_model_class,
    )

    settings: dict[str, Any] = ModelBase.load_hparams(folder, False)
    kinds = settings.get("layers_block_type")
    if settings.get("model_type") == "nemotron_h" and isinstance(kinds, list):
        settings["hybrid_override_pattern"] = "".join(KINDS[kind] for kind in kinds)
        settings["num_hidden_layers"] = len(kinds)
        if "moe" not in kinds:
            for name in (*EXPERTS, "layers_block_type"):
                settings.pop(name, None)
    converter: Any = get_model_class(get_model_architecture(settings, ModelType.TEXT))
    converter.no_mtp = True
    known = TextModel.get_vocab_base_pre

    def pre_of(self: Any, tokenizer: Any) -> str:
        try:
            return known(self, tokenizer)
        except NotImplementedError:
            if not pre:
                raise
            return pre

    def no_sentencepiece(self: Any) -> None:
        raise FileNotFoundError("tokenizer.model")  # what makes the converter read tokenizer.json

    TextModel.get_vocab_base_pre = pre_of
    if not (folder / "tokenizer.model").is_file():  # else it imports a library first, only to find that out
        TextModel._set_vocab_sentencepiece = no_sentencepiece
    told = converter.set_gguf_parameters

    def with_context(self: Any) -> None:
        told(self)
        if context := settings.get("max_position_embeddings"):
            self.gguf_writer.add_context_length(context)

    converter.set_gguf_parameters = with_context
    kind = {"F32": "ALL_F32", "BF16": "MOSTLY_BF16", "F16": "MOSTLY_F16"}[dtype]
    converter(folder, getattr(gguf.LlamaFileType, kind), file, hparams=settings, model_name=file.stem).write()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:5])
