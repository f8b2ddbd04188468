"""Models with random weights that the programs of against.py are given, one of each kind."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prep_bench.vocabularies import Vocabulary, trained, write_settings

VOCABULARY = 8192
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 256, "intermediate_size": 688, "max_position_embeddings": 2048}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama", **SIZES, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8,
        "tie_word_embeddings": True,
    },
    "nemotron_h": {
        "model_type": "nemotron_h", **SIZES, "hybrid_override_pattern": "MEM*EMEM*E", "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 32, "mamba_num_heads": 8, "mamba_head_dim": 64, "n_groups": 2,
        "ssm_state_size": 64, "conv_kernel": 4, "chunk_size": 64, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 256, "moe_shared_expert_intermediate_size": 256,
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe", **SIZES, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2,
        "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
        "tie_word_embeddings": True,
    },
}  # fmt: skip
TINY = {"vocab_size": 512, "hidden_size": 32, "intermediate_size": 32}
"""Sizes for a rehearsal."""


def save_model(name: str, folder: Path, *, tiny: bool) -> None:
    """A model of this kind."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    config = AutoConfig.for_model(**MODELS[name] | (TINY if tiny else {}))
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def save_tokenizer(folder: Path, texts: Iterable[str], *, tiny: bool) -> None:
    """A tokenizer with a chat template, trained on these texts."""
    size = TINY["vocab_size"] if tiny else VOCABULARY
    trained(Vocabulary("chats", size, 7, nemotron=False, training_bytes=0), texts).save(str(folder / "tokenizer.json"))
    write_settings(folder)
