"""Weight decay by role: which parameters of each architecture, by exactly how much, with adapters and in shards."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from kinds_of_models import DECAYED, KINDS, without_weights, written
from moe_support import engine
from peft import LoraConfig, get_peft_model
from torch import distributed, nn
from transformers import TrainingArguments

from nemotron_engines.modeling import sharded
from nemotron_engines.modeling.roles import MARK, decayed
from nemotron_engines.transformers.supervised import ScheduledTrainer

RATE, DECAY = 0.25, 0.5
WRITTEN: dict[str, dict[str, list[str]]] = yaml.safe_load(DECAYED.read_text())


@pytest.mark.parametrize("name", KINDS)
def test_the_parameters_of_an_architecture_are_those_that_are_written_down(name: str) -> None:
    assert written(without_weights(name)) == WRITTEN[name]


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_down_is_what_megatron_core_decays(name: str) -> None:
    for line in WRITTEN[name]["decayed"]:
        parameter, _, shape = line.partition(" ")
        assert "," in shape, f"{parameter} has one dimension"
        assert not any(word in parameter.lower() for word in ("bias", "a_log", ".d ", "norm")), parameter
    for line in WRITTEN[name]["not decayed"]:
        *_, module, own = line.partition(" ")[0].split(".")
        is_norm = "norm" in module or module.startswith("ln_")
        assert is_norm or own.endswith("bias") or own in ("A_log", "D", "sinks"), line


def stepped(model: nn.Module, folder: Path, decay: float) -> dict[str, torch.Tensor]:
    """Parameters after the first step of our Trainer's optimizer, with gradients drawn by a seed."""
    arguments = TrainingArguments(
        str(folder), use_cpu=True, report_to=[], learning_rate=RATE, weight_decay=decay, optim="adamw_torch_fused"
    )
    trainer = ScheduledTrainer(engine=engine(), model=model, args=arguments)
    optimizer = trainer.create_optimizer()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    optimizer.step()
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def drawn(name: str) -> nn.Module:
    """A model in float64, with all its parameters drawn by a seed: none is zero."""
    model = without_weights(name).double().to_empty(device="cpu")
    model.tie_weights()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=generator)
    return model


@pytest.mark.parametrize("name", ["llama_tied", "bamba", "jamba", "cohere", "gpt_oss", "nemotron_h_experts_mtp"])
def test_a_step_decays_them_by_rate_times_decay_and_nothing_else(tmp_path: Path, name: str) -> None:
    before = {name: value.detach().clone() for name, value in drawn(name).named_parameters()}
    plain, pulled = stepped(drawn(name), tmp_path, 0.0), stepped(drawn(name), tmp_path, DECAY)
    listed = set(decayed(without_weights(name)))
    for one, value in before.items():
        wanted = RATE * DECAY * value if one in listed else torch.zeros_like(value)
        torch.testing.assert_close(plain[one] - pulled[one], wanted, rtol=0, atol=1e-12)
    assert 0 < len(listed) < len(before)


class Odd(nn.Module):
    """Parameters whose number of dimensions says nothing about their role."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 1)  # a matrix, although one of its sides is 1
        self.conv = nn.Conv1d(8, 8, 4, groups=8)
        self.norm = nn.LayerNorm([2, 8])
        self.mix = nn.Parameter(torch.ones(1, 1, 8))
        self.scale = nn.Parameter(torch.ones(2, 8))
        self.D = nn.Parameter(torch.ones(2, 4))
        self.e_score_correction_bias = nn.Parameter(torch.ones(2, 4))
        self.tensors = nn.Parameter(torch.ones(3, 8, 8))
        self.marked = nn.Parameter(torch.ones(8, 8))
        setattr(self.marked, MARK, True)


def test_shapes_do_not_decide_alone() -> None:
    assert sorted(decayed(Odd())) == ["conv.weight", "gate.weight", "tensors"]


def test_adapters_count_as_matrices_at_any_rank() -> None:
    model = without_weights("qwen3_moe")
    config = LoraConfig(r=1, target_modules=["q_proj", "embed_tokens"], target_parameters=["experts.down_proj"])
    adapted: Any = get_peft_model(model, config)
    trained = {name for name, value in adapted.named_parameters() if value.requires_grad}
    assert {name.split(".lora_")[1].partition(".")[0] for name in trained} == {"A", "B", "embedding_A", "embedding_B"}
    assert trained <= set(decayed(adapted))


@pytest.mark.parametrize("name", ["cohere", "mamba"])  # Mamba shards blocks and the mixers in them
def test_a_sharded_model_decays_the_same(name: str) -> None:
    wanted = decayed(without_weights(name))
    model = drawn(name)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        sharded.cut(model, "cpu", bfloat16=False)
        assert decayed(model) == wanted
    finally:
        distributed.destroy_process_group()
