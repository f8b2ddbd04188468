"""Models of other kinds are counted from the headers of their tensors."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GraniteMoeHybridConfig,
    LlamaConfig,
    Mamba2Config,
    NemotronHConfig,
    PreTrainedConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from nemotron_engines.estimate.counted import counted
from nemotron_engines.estimate.memory import Layout, memory_parts
from nemotron_engines.estimate.speed import active_parameters, work_of
from nemotron_engines.modeling.architecture import load_architecture, parameters_of
from nemotron_shared.system.errors import UserError

COMMON = {"vocab_size": 320, "hidden_size": 32, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 48}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
MAMBA = {"num_heads": 4, "head_dim": 16, "state_size": 16, "n_groups": 2, "expand": 2}
KINDS: dict[str, tuple[Callable[[], PreTrainedConfig], str]] = {
    "llama": (lambda: LlamaConfig(**COMMON, **HEADS), "**--"),
    "llama, tied": (lambda: LlamaConfig(**COMMON, **HEADS, tie_word_embeddings=True), "**--"),
    "qwen3": (lambda: Qwen3Config(**COMMON, **HEADS), "**--"),
    "qwen3 moe": (lambda: Qwen3MoeConfig(**COMMON, **HEADS, **EXPERTS), "**EE"),
    "gemma3": (lambda: Gemma3TextConfig(**COMMON, **HEADS), "**--"),
    "mamba2": (lambda: Mamba2Config(**COMMON, **MAMBA), "MM"),
    "granite hybrid": (
        lambda: GraniteMoeHybridConfig(
            **COMMON, num_attention_heads=4, num_key_value_heads=2, intermediate_size=24, num_local_experts=6,
            num_experts_per_tok=2, shared_intermediate_size=40, layer_types=["mamba", "attention"], mamba_n_heads=4,
            mamba_d_head=16, mamba_d_state=16, mamba_n_groups=2,
        ), "M*EE"),
}  # fmt: skip


def saved(config: PreTrainedConfig, folder: Path) -> torch.nn.Module:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    return model


def expected_operations(model: torch.nn.Module, share: float) -> float:
    """Twice the parameters of all matrices that a token meets: the head, but not the look-up of embeddings."""
    total = 0.0
    head = model.get_output_embeddings().weight
    for name, weight in model.named_parameters():
        is_matrix = weight.dim() >= 2 and "conv" not in name and weight is not head and "embed" not in name
        routed = ".experts." in name or "block_sparse_moe.input" in name or "block_sparse_moe.output" in name
        total += is_matrix * weight.numel() * (share if routed else 1)
    return 2 * (total + head.numel())


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_and_work_are_those_of_the_loaded_model(kind: str, tmp_path: Path) -> None:
    make, pattern = KINDS[kind]
    model = saved(make(), tmp_path)
    fields, parameters = counted(tmp_path)
    assert parameters.total == sum(weight.numel() for weight in model.parameters())
    assert sorted(fields["hybrid_override_pattern"]) == sorted(pattern)
    assert (fields["hidden_size"], fields["vocab_size"]) == (32, 320)
    experts = sum(
        weight.numel() for name, weight in model.named_parameters()
        if ".experts." in name or "moe.input_linear" in name or "moe.output_linear" in name
    )  # fmt: skip
    assert parameters.experts == experts
    share = 2 / 6 if experts else 1.0
    assert active_parameters(fields, parameters.total, experts) == pytest.approx(
        parameters.total - experts + share * experts, abs=1
    )
    # without the part of attention and scan that grows with the length of a row
    work = work_of(fields | {"chunk_size": 0, "ssm_state_size": 1e-9, "n_groups": fields["n_groups"]
                             * fields["ssm_state_size"] / 1e-9}, 320, 0)  # fmt: skip
    assert work.operations / 3 == pytest.approx(expected_operations(model, share), rel=0.02)
    long, short = (work_of(fields, 320, length).operations for length in (1000, 0))
    heads = fields["num_attention_heads"] * fields["head_dim"]
    assert long - short == pytest.approx(3 * 2 * 1000 * heads * pattern.count("*"))


@pytest.mark.parametrize("name", ["nano3_tiny", "super3_tiny"])
def test_a_nemotron_h_is_counted_as_its_pattern_is(name: str, tmp_path: Path) -> None:
    own = load_architecture(name, {"vocab_size": 512})
    saved(NemotronHConfig(**own), tmp_path)
    fields, parameters = counted(tmp_path)
    known = parameters_of(own, 512)
    assert (parameters.total, parameters.experts) == (pytest.approx(known.total, rel=0.01), known.experts)
    ours, theirs = (work_of(one, 512, 256) for one in (own | {"mtp_hybrid_override_pattern": ""}, fields))
    assert theirs.operations == pytest.approx(ours.operations, rel=0.01)
    assert theirs.layers == ours.layers
    layout = Layout(1, rows=8, row_tokens=256, micro_rows=8)
    parts = [memory_parts(one, 512, known, layout, on_gpu=False) for one in (own, fields)]
    assert parts[1]["activations"] == pytest.approx(parts[0]["activations"], rel=0.05)
    assert parts[1]["logits"] == parts[0]["logits"]


def test_what_cannot_be_counted_is_said(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 8}))
    with pytest.raises(UserError, match="no safetensors, by whose headers"):
        counted(tmp_path)
    save_file({"weight": torch.zeros(4, 4)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="the names of its tensors tell no layers"):
        counted(tmp_path)
    save_file({"model.layers.0.mlp.up_proj.qweight": torch.zeros(4, 4, dtype=torch.int32)},
              tmp_path / "model.safetensors")  # fmt: skip
    with pytest.raises(UserError, match="has few bits a weight"):
        counted(tmp_path)
