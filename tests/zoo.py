"""Tiny models of other architectures than ours, each with random weights and a tokenizer that is trained on the spot.

python tests/zoo.py qwen3 FOLDER        writes the folder of one; the names are those of ZOO and ONLY_CONFIGS
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedTokenizerFast

PEOPLE = ("Ada", "Bo", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal", "Ida", "Jo")
THINGS = ("boat", "cart", "drum", "kite", "lamp", "map")
PLACES = ("Oslo", "Lima", "Rome", "Bonn")
CHATML = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{%- for m in messages %}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"
)
GEMMA = (
    "{{ bos_token }}{%- for m in messages %}{%- if m.role == 'system' %}{{ raise_exception('No system role') }}"
    "{%- endif %}{%- set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<start_of_turn>' + role + '\\n' + m.content | trim + '<end_of_turn>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{%- endif %}"
)
INST = (
    "{{ bos_token }}{%- for m in messages %}{%- if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{%- elif m.role == 'assistant' %}{{ ' ' + m.content + eos_token }}"
    "{%- else %}{{ raise_exception('Only user and assistant roles are supported!') }}{%- endif %}{%- endfor %}"
)


def questions() -> Iterator[tuple[str, str]]:
    """A question of each person and thing, and its answer."""
    for number, person in enumerate(PEOPLE):
        for other, thing in enumerate(THINGS):
            yield f"Where does {person} keep the {thing}?", f"In {PLACES[(number + other) % len(PLACES)]}."


def texts() -> list[str]:
    """What a tokenizer is trained on: all that the questions and the templates need."""
    roles = "user\n assistant\n [INST] [/INST] system\n User: Assistant: "
    return [*(f"{asked} {answered}" for asked, answered in questions()), roles, roles]


def of_bytes(special: list[str], size: int = 380) -> Tokenizer:
    """Byte-level BPE, as of GPT-2 and most models since."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(texts(), trainer)
    return made


def of_pieces(special: list[str], *, bos: bool) -> Tokenizer:
    """Unigram pieces whose spaces are part of them, as of SentencePiece; with bytes for what has no piece."""
    special = [*special, *(f"<0x{number:02X}>" for number in range(256))]
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.UnigramTrainer(vocab_size=380, special_tokens=special, unk_token="<unk>", show_progress=False)
    made.train_from_iterator(texts(), trainer)
    vocabulary = [(piece, score) for piece, score in json.loads(made.to_str())["model"]["vocab"]]
    made.model = models.Unigram(vocabulary, unk_id=special.index("<unk>"), byte_fallback=True)
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    if bos:
        number = made.token_to_id("<s>")
        made.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", number)]
        )
    return made


def of_merged_pieces(special: list[str], *, bos: bool) -> Tokenizer:
    """BPE over text whose spaces became a letter, with bytes for what has none: as of Llama 2, Mistral and Gemma."""
    bytes_ = [f"<0x{number:02X}>" for number in range(256)]
    made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=[*special, *bytes_], show_progress=False)
    made.pre_tokenizer = pre_tokenizers.Split(
        "▁", "merged_with_next"
    )  # while it learns, so that no sentence is a token
    made.train_from_iterator(texts(), trainer)
    made.pre_tokenizer = None  # ty: ignore[invalid-assignment]
    vocabulary = made.get_vocab()
    made.model = models.BPE(
        vocabulary, every_merge(vocabulary, [*special, *bytes_]), unk_token="<unk>", byte_fallback=True, fuse_unk=True
    )
    if bos:
        number = made.token_to_id("<s>")
        made.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", number)]
        )
    return made


def every_merge(vocabulary: dict[str, int], special: list[str]) -> list[tuple[str, str]]:
    """Each pair of pieces that is a piece, in the order of ids: how transformers writes SentencePiece's BPE."""
    pieces = sorted(vocabulary.keys() - set(special), key=vocabulary.__getitem__)
    splits = ((piece[:at], piece[at:]) for piece in pieces for at in range(1, len(piece)))
    return [(left, right) for left, right in splits if left in vocabulary and right in vocabulary]


def of_words(special: list[str]) -> Tokenizer:
    """A token for each word and mark, and one for all that is unknown."""
    made = Tokenizer(models.WordLevel(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    trainer = trainers.WordLevelTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    made.train_from_iterator(texts(), trainer)
    return made


def _fast(made: Tokenizer, template: str | None = None, **named: str) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, **named)
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer


def chatml() -> PreTrainedTokenizerFast:
    """Bytes, a pad token, ChatML, and its end of turn is the end."""
    made = of_bytes(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    return _fast(made, CHATML, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def chatml_of_a_base() -> PreTrainedTokenizerFast:
    """As the base models of Qwen come: ChatML, and another token is the end."""
    made = of_bytes(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    return _fast(made, CHATML, eos_token="<|endoftext|>", pad_token="<|endoftext|>")


def one_end() -> PreTrainedTokenizerFast:
    """Bytes, and one special token that is begin, end and unknown; no pad, no template: GPT-2, Pythia."""
    end = "<|endoftext|>"
    return _fast(of_bytes([end]), bos_token=end, eos_token=end, unk_token=end)


def pieces() -> PreTrainedTokenizerFast:
    """Pieces, BOS before each text, no pad, a template that takes turns and no system prompt: Llama 2, Mistral."""
    made = of_merged_pieces(["<unk>", "<s>", "</s>"], bos=True)
    return _fast(made, INST, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def pieces_of_a_base() -> PreTrainedTokenizerFast:
    """Unigram pieces with BOS and pad at 0, no template."""
    made = of_pieces(["<pad>", "</s>", "<s>", "<unk>"], bos=True)
    return _fast(made, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def unigram() -> PreTrainedTokenizerFast:
    """Unigram pieces, ChatML, no BOS."""
    made = of_pieces(["<unk>", "</s>", "<|im_start|>", "<|im_end|>"], bos=False)
    return _fast(made, CHATML, unk_token="<unk>", eos_token="<|im_end|>")


def words() -> PreTrainedTokenizerFast:
    """Whole words, a template, a pad token."""
    made = of_words(["<unk>", "<pad>", "</s>", "<s>"])
    return _fast(made, INST, unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>")


def headers() -> PreTrainedTokenizerFast:
    """Bytes, BOS in the template, no pad, and a turn's end that is not the text's end: Llama 3."""
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    return _fast(of_bytes(names), LLAMA3, bos_token=names[0], eos_token=names[4])


def turns() -> PreTrainedTokenizerFast:
    """Merged pieces, BOS in the template, pad, and turns with names of their own: Gemma."""
    made = of_merged_pieces(["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"], bos=False)
    return _fast(made, GEMMA, pad_token="<pad>", eos_token="<end_of_turn>", bos_token="<bos>", unk_token="<unk>")


SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512,
    "initializer_range": 0.3,  # so that answers differ
}  # fmt: skip
SAME_HEADS = {"num_key_value_heads": 4}


@dataclass(frozen=True)
class Kind:
    """An architecture: its `model_type`, its tokenizer, and what its config has besides, or instead of, the sizes.

    Attributes:
        left_out: of the sizes, those that its config does not know.
        saved: what its saved config has instead of that with which the weights were drawn.
    """

    model_type: str
    tokenizer: Callable[[], PreTrainedTokenizerFast]
    more: dict[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    saved: dict[str, Any] = field(default_factory=dict)

    def config(self, tokenizer: PreTrainedTokenizerFast) -> PreTrainedConfig:
        """The config, with the ids of the tokenizer."""
        ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        sizes = {name: value for name, value in SIZES.items() if name not in self.left_out}
        return AutoConfig.for_model(self.model_type, **(sizes | {"vocab_size": len(tokenizer)} | ids | self.more))


NO_HEADS_OF_KEYS = ("num_key_value_heads",)
ZOO = {
    "llama": Kind("llama", one_end),
    "llama_tied": Kind("llama", pieces_of_a_base, {"tie_word_embeddings": True}),
    "mistral": Kind("mistral", pieces, {"sliding_window": 64}),
    "qwen2": Kind("qwen2", chatml_of_a_base, {"tie_word_embeddings": True}),
    "qwen3": Kind("qwen3", chatml_of_a_base, {"head_dim": 8}),
    "qwen3_moe": Kind("qwen3_moe", chatml, {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2,
                                            "moe_intermediate_size": 16}),
    "gemma2": Kind("gemma2", pieces_of_a_base, {"head_dim": 8, "sliding_window": 32}),
    "gemma3_text": Kind("gemma3_text", pieces, {"head_dim": 8, "sliding_window": 32}),
    "phi3": Kind("phi3", unigram),
    "gpt_neox": Kind("gpt_neox", one_end, left_out=NO_HEADS_OF_KEYS),
    "gpt2": Kind("gpt2", one_end, {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512},
                 tuple(SIZES)),
    "olmo2": Kind("olmo2", chatml),
    "falcon": Kind("falcon", words, {"new_decoder_architecture": True, "num_kv_heads": 2},
                   ("intermediate_size", "num_key_value_heads")),
    "stablelm": Kind("stablelm", chatml, {"use_qkv_bias": True}),
    "granite": Kind("granite", chatml),
    "cohere": Kind("cohere", unigram),
    "smollm3": Kind("smollm3", chatml),
    "deepseek_v3": Kind("deepseek_v3", pieces, {
        **SAME_HEADS, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
        "moe_intermediate_size": 16, "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16,
        "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}),
    "mamba2": Kind("mamba2", one_end, {"num_heads": 8, "head_dim": 8, "expand": 2, "state_size": 16, "n_groups": 2,
                                       "chunk_size": 16},
                   ("intermediate_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings")),
    "nemotron_h": Kind("nemotron_h", chatml, {
        "hybrid_override_pattern": "M*E-", "head_dim": 8, "mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2,
        "ssm_state_size": 16, "chunk_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
        "topk_group": 1, "moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 16},
        ("num_hidden_layers",)),
    "mixtral": Kind("mixtral", pieces, {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "bloom": Kind("bloom", words, {"n_layer": 2, "n_head": 4},
                  ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size",
                   "max_position_embeddings")),
    "opt": Kind("opt", one_end, {"ffn_dim": 64, "word_embed_proj_dim": 32, "pad_token_id": 1},
                ("intermediate_size", "num_key_value_heads")),
}  # fmt: skip
"""Architectures that every door is tried with."""


MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_chunk_size": 16}
NEMOTRON_H = {"head_dim": 8, "mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 16,
              "chunk_size": 16}  # fmt: skip
NO_LIMIT = {"time_step_min": 0.0}  # with one, transformers computes otherwise than NVIDIA's code and ours
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MATRIX = {
    "llama": Kind("llama", headers),
    "llama_tied": Kind("llama", pieces, {"tie_word_embeddings": True}),
    "qwen3": ZOO["qwen3"],
    "qwen3_moe": replace(ZOO["qwen3_moe"], more=ZOO["qwen3_moe"].more | {"norm_topk_prob": True}),  # as published
    "gemma3": Kind("gemma3_text", turns, {"head_dim": 8, "sliding_window": 32}),
    "mamba2": replace(ZOO["mamba2"], tokenizer=chatml),
    "nemotron_h": replace(ZOO["nemotron_h"], saved=NO_LIMIT, more=ZOO["nemotron_h"].more | {
        "hybrid_override_pattern": "M*EM"}),  # llama.cpp has no dense layers beside experts
    "nemotron_h_dense": Kind("nemotron_h", chatml, {"hybrid_override_pattern": "M*-", **NEMOTRON_H},
                             ("num_hidden_layers",), NO_LIMIT),
    "granitemoehybrid": Kind("granitemoehybrid", chatml, {
        **MAMBA2, "mamba_expand": 2, "num_hidden_layers": 3, "layer_types": ["mamba", "attention", "mamba"],
        "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 32}),
    "bamba": Kind("bamba", chatml, {**MAMBA2, "mamba_expand": 2, "num_hidden_layers": 3, "attn_layer_indices": [1]}),
    "falcon_h1": Kind("falcon_h1", chatml, {**MAMBA2, "head_dim": 8, "mamba_d_ssm": 64}),
    "lfm2_moe": Kind("lfm2_moe", chatml, {
        **EXPERTS, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1}),
    "qwen3_next": Kind("qwen3_next", chatml, {
        **EXPERTS, "head_dim": 8, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "shared_expert_intermediate_size": 16}),
    "zamba2": Kind("zamba2", chatml, {
        **SAME_HEADS, "num_hidden_layers": 3, "layers_block_type": ["mamba", "hybrid", "mamba"], "mamba_d_state": 16,
        "mamba_headdim": 8, "mamba_ngroups": 1, "n_mamba_heads": 8, "mamba_expand": 2, "chunk_size": 16,
        "num_mem_blocks": 1, "use_shared_attention_adapter": False}),
    "jamba": Kind("jamba", chatml, {
        "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
        "num_experts": 4, "num_experts_per_tok": 2, "mamba_d_state": 16, "mamba_dt_rank": 4}),
    "gpt_oss": Kind("gpt_oss", chatml, {
        "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 32,
        "layer_types": ["sliding_attention", "full_attention"]}),
}  # fmt: skip
"""Models of `tests/matrix`, each with a chat template of its kind's shape."""


def write(name: str, folder: Path, *, dtype: torch.dtype = torch.float32) -> Path:
    """Make the folder of one."""
    return write_kind((ZOO | ONLY_CONFIGS)[name], folder, dtype=dtype)


def write_kind(kind: Kind, folder: Path, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> Path:
    """Make the folder of a kind, with random weights."""
    tokenizer = kind.tokenizer()
    torch.manual_seed(seed)
    model: Any = AutoModelForCausalLM.from_config(kind.config(tokenizer)).to(dtype)
    for name, value in kind.saved.items():
        setattr(model.config, name, value)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


ONLY_CONFIGS: dict[str, Kind] = {}

if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
