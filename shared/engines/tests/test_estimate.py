"""Estimates of work, memory and time, against what is known in other ways."""

from dataclasses import replace

import pytest
import torch
from transformers import NemotronHConfig, NemotronHForCausalLM

from nemotron_engines.estimate.memory import Layout, memory_parts
from nemotron_engines.estimate.speed import active_parameters, core_seconds, step_seconds, work_of
from nemotron_engines.kernels.experts import register_cpu_experts
from nemotron_engines.kernels.mamba_install import install_cpu_ops
from nemotron_engines.modeling.architecture import load_architecture, parameters_of
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


def test_recomputing_keeps_less() -> None:
    fields = load_architecture("nano3", {})
    known = parameters_of(fields, VOCABULARY)
    layout = Layout(devices=1, rows=1, row_tokens=4096, micro_rows=1)
    kept = [
        memory_parts(fields, VOCABULARY, known, replace(layout, recomputed=what), on_gpu=True)["activations"]
        for what in ("nothing", "experts", "everything")
    ]
    assert kept[0] > kept[1] > kept[2] > 0


def test_activations_of_the_reference_are_of_the_estimated_size() -> None:
    install_cpu_ops()
    fields = load_architecture("nano3_tiny", {})
    config = NemotronHConfig(**fields, vocab_size=512)
    model = NemotronHForCausalLM._from_config(config, experts_implementation=register_cpu_experts())
    saved = 0

    def count(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal saved
        saved += tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        model(input_ids=torch.randint(0, 512, (2, 128)))
    layout = Layout(devices=1, rows=2, row_tokens=128, micro_rows=2, activation=4)
    estimated = memory_parts(fields, 512, parameters_of(fields, 512), layout, on_gpu=False)
    # the reference keeps more than the fused kernels that the estimate stands for
    assert 0.2 < (estimated["activations"] + estimated["logits"]) / saved < 1.2


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
