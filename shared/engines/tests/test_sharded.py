"""Checkpoints in shards: read whole, and set aside where damaged. Several processes: tests/test_attempts.py."""

import dataclasses
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from kinds_of_models import without_weights
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import distributed, nn
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, NemotronHConfig
from zoo import MATRIX

from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_engines.modeling import sharded
from nemotron_engines.modeling.build import random_like, save_model
from nemotron_engines.modeling.packed import keep_apart, packed_inputs
from nemotron_engines.transformers.checkpoints import LAYOUT
from nemotron_shared.config.schema import ModelLoadingEngine, TransformersEngine
from nemotron_shared.engine.checkpoints import mark_complete, resume_point
from nemotron_shared.families import architecture

ENGINE = ModelLoadingEngine(name="test", device="cpu", attn_implementation="sdpa", allow_reference_kernels=False)


def stepped(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer after one step."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_a_sharded_checkpoint_is_read_into_a_whole_model(tmp_path: Path) -> None:
    (model, optimizer), (other, others) = stepped(1), stepped(2)
    sharded.save_state(tmp_path, model, optimizer)
    wanted, moments = model.state_dict(), [state["exp_avg"] for state in optimizer.state.values()]
    found = sharded.weights_in(tmp_path, other)
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
    sharded.load_weights(tmp_path, other)
    sharded.load_optimizer(tmp_path, other, others)
    assert all(torch.equal(value, wanted[name]) for name, value in other.state_dict().items())
    assert all(torch.equal(a["exp_avg"], b) for a, b in zip(others.state.values(), moments, strict=True))
    assert sharded.weights_of(other) is None


def test_a_damaged_one_is_set_aside(tmp_path: Path) -> None:
    for step in (2, 4, 6):
        folder = tmp_path / f"checkpoint-{step}"
        sharded.save_state(folder, *stepped(step))
        for name in ("scheduler.pt", "rng_state.pth"):
            (folder / name).write_bytes(b"state")
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        mark_complete(folder, LAYOUT, world_size=1)
    shard = tmp_path / "checkpoint-4" / "sharded" / "__0_0.distcp"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    (tmp_path / "checkpoint-6" / "sharded" / "__0_0.distcp").unlink()
    said: list[str] = []
    assert resume_point(tmp_path, LAYOUT, said.append) == tmp_path / "checkpoint-2"
    assert [line.partition(" is damaged")[0] for line in said] == ["checkpoint-6", "checkpoint-4"]


def test_a_sharded_model_is_published_as_a_whole_one(tmp_path: Path) -> None:
    for name in ("base", "tokenizer"):
        (tmp_path / name).mkdir()
    NemotronHConfig(**architecture("super3_tiny"), vocab_size=64).save_pretrained(tmp_path / "base")
    save_tokenizer(tmp_path / "tokenizer")
    model = random_like(tmp_path / "base", 7, ENGINE)
    save_model(model, tmp_path / "tokenizer", tmp_path / "whole")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        sharded.cut(model, "cpu", bfloat16=False)
        save_model(model, tmp_path / "tokenizer", tmp_path / "gathered", sharded.weights_of(model))
    finally:
        distributed.destroy_process_group()
    whole, gathered = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "gathered"))
    assert whole.keys() == gathered.keys()
    assert all(torch.equal(whole[name], gathered[name]) for name in whole)
    assert (tmp_path / "whole/config.json").read_text() == (tmp_path / "gathered/config.json").read_text()


def test_a_tied_head_is_published_once() -> None:
    model = without_weights("llama_tied").to_empty(device="cpu")
    model.tie_weights()
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        sharded.cut(model, "cpu", bfloat16=False)
        weights = sharded.weights_of(model)
    finally:
        distributed.destroy_process_group()
    assert weights is not None
    assert weights.keys() == {name for name, _ in without_weights("llama_tied").named_parameters()}
    assert "model.embed_tokens.weight" in weights and "lm_head.weight" not in weights


@pytest.mark.parametrize("name", ["qwen3_next", "granite_moe_hybrid"])
def test_a_sharded_hybrid_trains_after_it_has_refused_packed_rows(name: str) -> None:
    """A pass that ends with an error leaves the shards gathered, where the next move between devices fails."""
    model: Any = without_weights(name).to_empty(device="cpu")
    for tensor in (*model.parameters(), *model.buffers()):
        nn.init.constant_(tensor, 0.01)
    model.tie_weights()
    ids = torch.arange(3, 13)[None]
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        sharded.cut(model, "cpu", bfloat16=True)
        assert "refuses packed rows" in str(keep_apart(model))
        moved = model.to("cpu")  # as the Trainer does
        loss = moved(
            input_ids=ids, labels=ids, shift_labels=ids, attention_mask=None, **packed_inputs([[0, 4]], 10)
        ).loss
        loss.backward()
        assert all(isinstance(one, DTensor) for one in moved.parameters())
        assert moved.get_input_embeddings().weight.grad is not None
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"peft": {"dim": 8, "alpha": 16, "dropout": 0.0, "layers": None, "target_modules": [], "exclude_modules": []}},
         "trains all weights: set engine.peft=null"),
        ({"optimizer": "adamw_8bit"}, "shards the float32 moments: set engine.optimizer=adamw"),
    ],
)  # fmt: skip
def test_what_cannot_be_sharded_is_refused(changed: dict, says: str) -> None:
    plain = {"name": "transformers", "device": "cpu", "attn_implementation": "sdpa", "allow_reference_kernels": False,
             "dtype": "float32", "save_dtype": None, "gradient_checkpointing": False, "optimizer": "adamw",
             "peft": None,
             "moe_router_bias_update_rate": 0.0, "moe_aux_loss_coeff": 0.0, "mtp_num_layers": 0,
             "mtp_loss_scaling_factor": 0.0}  # fmt: skip
    assert TransformersEngine(**(plain | changed), strategy="ddp")
    with pytest.raises(ValidationError, match=says):
        TransformersEngine(**(plain | changed), strategy="fsdp2")


def test_layers_that_share_weights_are_not_sharded_by_torch() -> None:
    """Which is why `checks` refuses them; a model whose layers share nothing is sharded."""
    for blocks, refused in ((1, True), (2, False)):
        more = {"layers_block_type": ["mamba", "hybrid"] * 2, "num_hidden_layers": 4, "num_mem_blocks": blocks}
        kind = dataclasses.replace(MATRIX["zamba2"], more=MATRIX["zamba2"].more | more)
        model: Any = AutoModelForCausalLM.from_config(kind.config(kind.tokenizer()))
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        try:
            sharded.cut(model, "cpu", bfloat16=False)
            with pytest.raises(ValueError, match="shared with a parameter") if refused else nullcontext():
                model(torch.arange(3, 13)[None], use_cache=False)
        finally:
            distributed.destroy_process_group()
