"""Estimates of work, memory and time, against what is known in other ways."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, NemotronHConfig, NemotronHForCausalLM

from nemotron_engines.estimate import memory
from nemotron_engines.estimate.counted import counted
from nemotron_engines.estimate.lengths import TURN_TOKENS, pair_tokens, rows_of
from nemotron_engines.estimate.memory import Layout, memory_parts
from nemotron_engines.estimate.micro_batch import PASS_OPERATIONS, fitted
from nemotron_engines.estimate.speed import active_parameters, core_seconds, step_seconds, work_of
from nemotron_engines.kernels.experts import register_cpu_experts
from nemotron_engines.kernels.mamba_install import install_cpu_ops
from nemotron_engines.modeling import head_loss
from nemotron_engines.modeling.architecture import Parameters, load_architecture, parameters_of
from nemotron_shared.machine.machine import CORE_OPERATIONS, DEVICES, device_named

VOCABULARY = 131_072


# Operations per token that published runs imply: their TFLOP/s over their tokens/s.
@pytest.mark.parametrize(
    ("name", "seq", "predictions", "published"),
    [
        ("nano3", 8192, 0, 901e12 / 39936),
        ("nano3", 4096, 0, 328e12 / 16789),
        ("lightning35", 8192, 2, 807e12 / 28672),
        ("super3", 8192, 2, 831e12 / 9856),
        ("super3", 4096, 0, 334e12 / 4497),
        ("ultra3", 8192, 2, 1281e12 / 3552),
    ],
)
def test_operations_of_a_token_are_those_of_published_runs(
    name: str, seq: int, predictions: int, published: float
) -> None:
    work = work_of(load_architecture(name, {}), VOCABULARY, seq, predictions=predictions)
    assert work.operations == pytest.approx(published, rel=0.08)


def test_frozen_weights_save_their_gradients() -> None:
    fields = load_architecture("nano3", {})
    whole, frozen = (work_of(fields, VOCABULARY, 4096, frozen=frozen).operations for frozen in (False, True))
    assert frozen == pytest.approx(whole * 2 / 3)


@pytest.mark.parametrize(("name", "billions"), [("nano3", 3.5), ("super3", 12.5), ("ultra3", 55)])
def test_active_parameters_are_those_in_the_names_of_the_models(name: str, billions: float) -> None:
    fields = load_architecture(name, {})
    known = parameters_of(fields, VOCABULARY)
    assert active_parameters(fields, known.total, known.experts) / 1e9 == pytest.approx(billions, rel=0.08)


def test_a_plain_mlp_has_parameters_and_work() -> None:
    fields = load_architecture("nano3_tiny", {"hybrid_override_pattern": "M*", "intermediate_size": 256})
    more = fields | {"hybrid_override_pattern": "M*-"}
    hidden = fields["hidden_size"]
    assert parameters_of(more, 512).total - parameters_of(fields, 512).total == 2 * hidden * 256 + hidden
    added = work_of(more, 512, 128).operations - work_of(fields, 512, 128).operations
    assert added == 3 * 2 * 2 * hidden * 256


def test_a_model_on_one_gpu_holds_everything_and_shards_share_it() -> None:
    fields = load_architecture("super3_small", {})
    known = parameters_of(fields, VOCABULARY)
    one = Layout(devices=1, rows=8, row_tokens=128, micro_rows=2, weight=4, gradient=4, optimizer=8, activation=4)
    parts = memory_parts(fields, VOCABULARY, known, one, on_gpu=True)
    assert sum(parts[name] for name in ("weights", "gradients", "optimizer")) == 16 * known.total
    eight = memory_parts(fields, VOCABULARY, known, replace(one, devices=8, shards=True), on_gpu=True)
    assert eight["gradients"] == parts["gradients"] / 8
    assert eight["activations"] == parts["activations"]


def test_experts_are_shared_out_and_the_rest_is_not() -> None:
    fields = load_architecture("nano3", {})
    known = parameters_of(fields, VOCABULARY)
    layout = Layout(devices=8, rows=8, row_tokens=128, micro_rows=1, expert=8)
    weights = memory_parts(fields, VOCABULARY, known, layout, on_gpu=True)["weights"]
    assert weights == pytest.approx(2 * (known.total - known.experts + known.experts / 8))


def test_rows_are_as_large_as_the_longest_one_to_which_they_are_padded(tmp_path: Path) -> None:
    rows = [{"prompt": "q" * 10, "chosen": "a" * 10, "rejected": "b" * length} for length in (10, 10, 1000)]
    (tmp_path / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    found = pair_tokens(rows_of(tmp_path), 2**16)
    alike = pair_tokens(rows_of(tmp_path), 2**8)  # twice as many tokens for the text
    assert found is not None and alike is not None
    template = 2 * TURN_TOKENS
    assert found.longest == 2 * (1010 / 4 + template)
    assert found.mean == pytest.approx((40 + 40 + 1030) / 4 / 3 + 2 * template)
    assert alike.longest - 2 * template == 2 * (found.longest - 2 * template)
    fields = load_architecture("nano3_tiny", {})
    layout = Layout(devices=1, rows=8, row_tokens=100, micro_rows=4)
    for on_gpu in (False, True):
        parts = [
            memory_parts(fields, 512, parameters_of(fields, 512), one, on_gpu=on_gpu)["activations"]
            for one in (layout, replace(layout, longest=50), replace(layout, longest=300))
        ]
        assert parts == pytest.approx([parts[0], parts[0], 3 * parts[0]])


def test_logits_are_counted_in_the_chunks_of_the_loss() -> None:
    assert (head_loss.LARGE["cpu"], head_loss.CHUNK["cpu"]) == (memory.CHUNKED, memory.CHUNK)


def test_logits_that_take_no_chunks_are_counted_whole() -> None:
    """A row of 512 tokens and a vocabulary of 256 thousand: half a gigabyte for each of these tensors."""
    fields = load_architecture("nano3_tiny", {})
    layout = Layout(devices=1, rows=1, row_tokens=512, micro_rows=1, activation=4)
    logits = [
        memory_parts(fields, 2**18, Parameters(0), replace(layout, all_logits=count), on_gpu=False)["logits"]
        for count in (0, *memory.ALL_LOGITS.values())
    ]
    assert logits[1:] == [3 * 2**29, 4 * 2**29] and logits[0] < 2**29 / 4


def test_recomputing_keeps_less() -> None:
    fields = load_architecture("nano3", {})
    known = parameters_of(fields, VOCABULARY)
    layout = Layout(devices=1, rows=1, row_tokens=4096, micro_rows=1)
    kept = [
        memory_parts(fields, VOCABULARY, known, replace(layout, recomputed=what), on_gpu=True)["activations"]
        for what in ("nothing", "experts", "everything")
    ]
    assert kept[0] > kept[1] > kept[2] > 0


KINDS: dict[str, dict[str, Any]] = {
    "llama": {"intermediate_size": 160},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "num_key_value_heads": 2,
                  "head_dim": 16},
}  # fmt: skip


def kept(model: Any, tokens: int) -> int:
    """Bytes that a pass keeps for the backward pass, weights and logits left out; each piece of memory counts once."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found: dict[int, torch.UntypedStorage] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage  # held, or its place would be taken again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        hidden = model.base_model(input_ids=torch.randint(0, 512, (1, tokens)), use_cache=False).last_hidden_state
    assert hidden.requires_grad
    return sum(storage.nbytes() for storage in found.values())


def activations(fields: dict[str, Any], tokens: int) -> float:
    layout = Layout(devices=1, rows=1, row_tokens=tokens, micro_rows=1, activation=4)
    return memory_parts(fields, 512, Parameters(0), layout, on_gpu=False)["activations"] / memory.ROOM


@pytest.mark.parametrize("kind", KINDS)
def test_activations_on_a_cpu_are_those_that_autograd_keeps(kind: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": 512} | KINDS[kind]
    config = AutoConfig.for_model(kind, **sizes)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path)
    assert activations(counted(tmp_path)[0], 256) == pytest.approx(kept(model, 256), rel=0.15)


@pytest.mark.parametrize("name", ["nano3_tiny", "super3_tiny"])
def test_activations_of_the_twins_are_those_that_autograd_keeps(name: str) -> None:
    install_cpu_ops()
    fields = load_architecture(name, {})
    config = NemotronHConfig(**fields, vocab_size=512)
    model = NemotronHForCausalLM._from_config(config, experts_implementation=register_cpu_experts())
    assert activations(fields, 256) == pytest.approx(kept(model, 256), rel=0.15)


def test_a_pass_takes_the_fewest_rows_that_are_fast_and_no_more_than_fit() -> None:
    layout = Layout(devices=1, rows=12, row_tokens=100, micro_rows=12)
    enough = PASS_OPERATIONS / 100

    def rows(operations: float, budget: float, *, on_gpu: bool = False) -> int:
        return fitted(layout, operations, lambda one: 10.0 * one.micro_rows, budget, on_gpu=on_gpu).micro_rows

    assert [rows(enough / most, math.inf) for most in (0.5, 1, 2, 5, 12, 50)] == [1, 1, 2, 6, 12, 12]
    assert [rows(enough / 12, budget) for budget in (125, 119, 45, 9)] == [12, 6, 4, 1]
    assert [rows(enough, budget, on_gpu=True) for budget in (125, 60, 9)] == [12, 6, 1]


def test_a_pipeline_has_its_bubble_and_more_rows_shrink_it() -> None:
    work, device = work_of(load_architecture("nano3", {}), VOCABULARY, 4096), DEVICES["H100"]
    layout = Layout(devices=8, rows=8, row_tokens=4096, micro_rows=1, pipeline=4)
    seconds = step_seconds(work, device, layout, 8 * 4096)
    rest = sum(seconds.values()) - seconds["pipeline bubble"]
    assert seconds["pipeline bubble"] == pytest.approx(rest * 3 / 4)
    more = step_seconds(work, device, replace(layout, rows=64), 64 * 4096)
    assert sum(more.values()) < 8 * sum(seconds.values())


def test_cores_share_the_work() -> None:
    work = work_of(load_architecture("nano3_tiny", {}), 512, 128)
    (one,), (two,) = (core_seconds(work, cores, 1024).values() for cores in (1, 2))
    assert one == 2 * two == pytest.approx(1024 * work.operations / CORE_OPERATIONS)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("gb200", "GB200"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100", "A100-80GB"),
        ("rtx4090", "RTX 4090"),
        ("H100-40GB", None),
        ("Tesla T4", None),
    ],
)
def test_a_gpu_is_known_by_the_name_that_its_driver_gives(said: str, name: str | None) -> None:
    found = device_named(said)
    assert (found.name if found else None) == name
