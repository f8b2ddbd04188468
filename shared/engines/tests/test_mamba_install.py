"""The reference kernels inside transformers' NemotronH: same model, packed rows apart, caches and padding right."""

import copy
import importlib
import logging
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import transformers
from transformers import NemotronHForCausalLM, PreTrainedModel
from transformers.models.nemotron_h import modeling_nemotron_h
from twins import TWINS, distance, logits_of, tokens, twin_model

from nemotron_engines.kernels import mamba_install
from nemotron_engines.kernels.experts import register_cpu_experts
from nemotron_engines.kernels.mamba_install import (
    REFERENCE_KERNELS,
    REFERENCE_LINE,
    STOCK,
    announce,
    dispatcher,
    fused_norm,
    install_cpu_ops,
    lift_time_step_limit,
)
from nemotron_engines.modeling import build
from nemotron_engines.modeling.packed import packed_inputs
from nemotron_engines.stand_ins.automodel import STUB_MODULES, stub_packages
from nemotron_shared.system.errors import UserError

torch.set_num_threads(1)

STARTS = [[0, 5, 6, 23], [0, 19]]
LENGTH = 31


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_a_fused_norm_and_its_gradients_are_those_of_transformers(dtype: torch.dtype, rounding: float) -> None:
    norm = modeling_nemotron_h.NemotronHRMSNorm(24, eps=1e-5).to(dtype)
    norm.weight.data.uniform_(0.5, 2, generator=torch.Generator().manual_seed(0))
    hidden = (3 * torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(1))).to(dtype).requires_grad_()
    made = [forward(norm, hidden) for forward in (type(norm).forward, fused_norm)]
    upstream = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(2)).to(dtype)
    stock, ours = ([one, *torch.autograd.grad(one, [hidden, norm.weight], upstream)] for one in made)
    for expected, found in zip(stock, ours, strict=True):
        assert found.dtype == dtype
        assert distance(found, expected) < rounding


def gradients(model: PreTrainedModel, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    found = torch.autograd.grad(loss, [one for _, one in named], retain_graph=True)
    return {name: one for (name, _), one in zip(named, found, strict=True)}


def largest_distance(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> float:
    """Of a parameter's gradient, relative to it; where it is truly zero (of A, in a single step), to its rounding."""
    noise = 1e-2 * max(one.norm().item() for one in want.values())
    assert len(want) > 30
    return max(float((got[name] - one).norm()) / max(one.norm().item(), noise) for name, one in want.items())


@pytest.fixture
def model(request: pytest.FixtureRequest, tmp_path: Path) -> PreTrainedModel:
    """The twin that the test names as a parameter, or Super's."""
    given = getattr(getattr(request.node, "callspec", None), "params", {})
    return twin_model(given.get("twin", "super3"), tmp_path / "model")


@pytest.fixture
def stock(monkeypatch):
    """A call that puts transformers' own functions back for the rest of the test."""

    def restore() -> None:
        for name in REFERENCE_KERNELS:
            monkeypatch.setattr(modeling_nemotron_h, name, STOCK[name])

    install_cpu_ops()
    return restore


@pytest.mark.parametrize("twin", TWINS)
def test_the_model_is_the_same_as_before(model, stock, twin, measure):
    ids = tokens()
    outputs = []
    for prepare in (install_cpu_ops, stock):
        prepare()
        result = model.train()(ids, labels=ids, use_cache=False)
        outputs.append((result.logits.detach(), gradients(model, result.loss)))
    (ours, our_gradients), (theirs, their_gradients) = outputs
    measure("logits: our kernels against transformers' own", distance(ours, theirs), 1e-5)
    measure("gradients: our kernels against transformers' own", largest_distance(our_gradients, their_gradients), 1e-5)


@pytest.mark.parametrize("twin", TWINS)
def test_the_model_is_its_recurrence_in_float64(model, twin, measure):
    ids, found = tokens(), []
    ours, exact, cache = logits_of(model, ids), copy.deepcopy(model).double(), {}
    for step in range(LENGTH):
        with torch.no_grad():
            output = exact(input_ids=ids[:, step : step + 1], use_cache=True, **cache)
        cache = {"past_key_values": output.past_key_values}
        found.append(output.logits)
    measure("logits: our kernels against the recurrence in float64", distance(ours, torch.cat(found, 1)), 1e-5)


@pytest.mark.skipif(
    tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 23),
    reason="older versions do not refuse: they let the documents of a row leak into each other",
)
def test_stock_refuses_packed_rows(model, stock):
    stock()
    with pytest.raises(ValueError, match="packed sequences"):
        model(tokens(), **packed_inputs(STARTS, LENGTH), use_cache=False)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("twin", TWINS)
def test_a_packed_row_is_its_documents(model, training, attention, twin, measure):
    model.set_attn_implementation(attention)
    model, ids, furthest = model.train(training), tokens(), [0.0, 0.0]
    logits = model(ids, **packed_inputs(STARTS, LENGTH), attention_mask=None, use_cache=False).logits
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
    for row, starts in enumerate(STARTS):
        for start, end in zip(starts, [*starts[1:], LENGTH], strict=True):
            alone = model(ids[row : row + 1, start:end], use_cache=False).logits
            packed, weight = logits[row : row + 1, start:end], weights[row : row + 1, start:end]
            want = gradients(model, (alone * weight).sum())
            got = gradients(model, (packed * weight).sum())
            furthest = [*map(max, furthest, (distance(packed, alone), largest_distance(got, want)))]
    measure("logits: a packed row against its documents alone", furthest[0], 1e-5)
    measure("gradients: a packed row against its documents alone", furthest[1], 1e-5)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_changing_one_document_changes_no_other(model, attention):
    model.set_attn_implementation(attention)
    ids = tokens()
    packed = packed_inputs(STARTS, LENGTH)
    other = ids.clone()
    other[0, 6:23] = tokens(1, 17, seed=9)
    with torch.no_grad():
        one, two = (model(i, **packed, use_cache=False).logits for i in (ids, other))
    assert torch.equal(one[1], two[1])
    for part in (slice(0, 6), slice(23, LENGTH)):
        torch.testing.assert_close(one[0, part], two[0, part], rtol=1e-6, atol=1e-6)
    assert not torch.allclose(one[0, 6:23], two[0, 6:23])


@pytest.mark.parametrize("twin", TWINS)
def test_greedy_decoding_with_a_cache_gives_what_it_gives_without(model, twin, measure):
    prompt = tokens(3, 9)
    options = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    cached = model.generate(prompt, attention_mask=torch.ones_like(prompt), use_cache=True, **options)
    ids = prompt
    with torch.no_grad():
        for _ in range(20):
            ids = torch.cat([ids, model(ids, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    measure("greedy tokens that differ: with a cache and without", int((cached != ids).sum()), 0)


def test_generated_tokens_are_scored_as_they_were_generated(model, tmp_path):
    ids = tokens()
    for name, parameter in model.named_parameters():
        if name.endswith("dt_bias"):
            parameter.data -= 4  # most steps are now below config.time_step_min
    lift_time_step_limit(model)
    model.save_pretrained(tmp_path)
    again = NemotronHForCausalLM.from_pretrained(tmp_path, experts_implementation=register_cpu_experts()).eval()
    with torch.no_grad():
        scored = again(ids, use_cache=False).logits
        torch.testing.assert_close(model(ids, use_cache=False).logits, scored)
        output = model(ids[:, :7], use_cache=True)
        for step in range(7, LENGTH):
            output = model(ids[:, step : step + 1], past_key_values=output.past_key_values, use_cache=True)
            torch.testing.assert_close(output.logits[:, 0], scored[:, step], rtol=1e-4, atol=1e-5)


def test_zamba2_bounds_its_time_steps_with_a_cache_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.zamba2 import modeling_zamba2

    for name in ("Zamba2MambaMixer.forward", "mamba2_selective_state_update"):  # to be put back
        owner, _, last = name.rpartition(".")
        holder = getattr(modeling_zamba2, owner) if owner else modeling_zamba2
        monkeypatch.setattr(holder, last, getattr(holder, last))
    config = transformers.Zamba2Config(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, layers_block_type=["mamba", "hybrid"],
        num_attention_heads=4, num_key_value_heads=4, mamba_d_state=16, mamba_headdim=8, n_mamba_heads=8,
        num_mem_blocks=1, chunk_size=16, time_step_min=0.1, initializer_range=0.3,
        use_shared_attention_adapter=False,
    )  # fmt: skip
    torch.manual_seed(0)
    zamba = transformers.Zamba2ForCausalLM(config).eval()
    for name, parameter in zamba.named_parameters():
        if name.endswith("dt_bias"):
            parameter.data -= 4  # most steps are now below config.time_step_min
    mamba_install.bound_cached_steps()
    ids = tokens(1, 12) % 64
    with torch.no_grad():
        scored = zamba(ids, use_cache=False).logits
        output = zamba(ids[:, :5], use_cache=True)
        for step in range(5, 12):
            output = zamba(ids[:, step : step + 1], past_key_values=output.past_key_values, use_cache=True)
            torch.testing.assert_close(output.logits[:, 0], scored[:, step], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_left_padding_changes_nothing(model, training):
    model.train(training)
    prompts = [tokens(1, length, seed=length) for length in (12, 5, 1)]
    padded = torch.cat([torch.nn.functional.pad(p, (12 - p.shape[1], 0)) for p in prompts])
    mask = torch.cat([torch.nn.functional.pad(torch.ones_like(p), (12 - p.shape[1], 0)) for p in prompts])
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    with torch.no_grad():
        together = model(padded, attention_mask=mask, position_ids=positions, use_cache=False).logits
        for row, prompt in enumerate(prompts):
            alone = model(prompt, use_cache=False).logits[0]
            torch.testing.assert_close(together[row, -prompt.shape[1] :], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("twin", TWINS)
def test_generation_of_a_left_padded_batch_is_that_of_each_prompt(model, twin, measure):
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    prompts = [tokens(1, length, seed=length) for length in (12, 5, 1)]
    padded = torch.cat([torch.nn.functional.pad(p, (12 - p.shape[1], 0)) for p in prompts])
    together = model.generate(padded, attention_mask=(padded != 0).long(), **options)
    differing = 0
    for row, prompt in enumerate(prompts):
        alone = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
        differing += int((together[row, 12:] != alone[0, prompt.shape[1] :]).sum())
    measure("greedy tokens that differ: in a padded batch and alone", differing, 0)


@pytest.mark.parametrize("has_gpu", [False, True])
def test_installing_twice_changes_nothing_more(caplog, capsys, monkeypatch, has_gpu: bool):
    mamba_install.say_once.cache_clear()
    monkeypatch.setattr("torch.cuda.is_available", lambda: has_gpu)
    with caplog.at_level(logging.INFO, logger="nemotron"):
        assert install_cpu_ops() == install_cpu_ops() == REFERENCE_LINE
    assert caplog.messages == ([REFERENCE_LINE] if has_gpu else []), "no advice about GPUs on a laptop"
    monkeypatch.setattr(build, "fuse_norms", lambda: None)
    build.install_kernels.__wrapped__("nemotron_h")
    assert capsys.readouterr().err == (f"{REFERENCE_LINE}\n" if has_gpu else "")
    functions = [getattr(modeling_nemotron_h, name) for name in REFERENCE_KERNELS]
    install_cpu_ops()
    assert functions == [getattr(modeling_nemotron_h, name) for name in REFERENCE_KERNELS]
    assert not set(functions) & set(STOCK.values())
    assert capsys.readouterr() == ("", "")


def test_transformers_says_nothing_of_a_fallback(model):
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        model.generate(tokens(1, 4), max_new_tokens=3, eos_token_id=None, pad_token_id=0)
    finally:
        logger.removeHandler(handler)
    assert not [record for record in records if "falling back" in record.getMessage()]


def test_a_renamed_function_is_an_error_that_names_the_version(monkeypatch):
    monkeypatch.delattr(modeling_nemotron_h, "mamba2_chunk_scan")
    with pytest.raises(UserError, match=rf"transformers {transformers.__version__}.*mamba2_chunk_scan"):
        install_cpu_ops()


class OnGPU:
    is_cuda = True


@pytest.mark.parametrize(("importable", "expected"), [(True, "stock"), (False, "reference")])
def test_cuda_tensors_go_to_the_packages_where_there_are_any(importable, expected, monkeypatch):
    monkeypatch.setattr(mamba_install, "kernels_importable", lambda: importable)
    call = dispatcher(lambda x, **_: "stock", lambda x, seq_idx=None: "reference")
    assert call(OnGPU(), seq_idx=None, unknown=1) == expected
    assert call(torch.zeros(1), unknown=1) == "reference"


def test_a_large_model_needs_a_word_before_it_runs_on_reference_code():
    announce(999_000_000, allow_reference=False)
    announce(31_600_000_000, allow_reference=True)
    if not mamba_install.kernels_importable():
        with pytest.raises(UserError, match=r"31\.6B parameters"):
            announce(31_600_000_000, allow_reference=False)


def test_packed_inputs_count_documents_and_restart_positions():
    inputs = packed_inputs([[0, 3], [0, 1, 2]], 5)
    assert inputs["position_ids"].tolist() == [[0, 1, 2, 0, 1], [0, 0, 0, 1, 2]]
    assert inputs["seq_idx"].tolist() == [[0, 0, 0, 1, 1], [0, 1, 2, 2, 2]]
    assert inputs["seq_idx"].dtype == torch.int32


@pytest.mark.parametrize("starts", [[], [1], [0, 3, 3], [0, 4, 2], [0, 5], [0, -1]])
def test_packed_inputs_refuse_starts_that_divide_nothing(starts):
    with pytest.raises(UserError, match="packed row 1: seq_start_id"):
        packed_inputs([[0], starts], 5)


@pytest.mark.parametrize("installed", [(), ("causal_conv1d",), ("mamba_ssm", "causal_conv1d")], ids=str)
def test_automodel_without_a_gpu_meets_our_kernels_though_the_packages_are_installed(
    installed: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installed packages import without a GPU, and fail only when they are called."""
    for name in STUB_MODULES:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))  # so that it is gone afterwards
        if name not in installed:
            del sys.modules[name]
    if "causal_conv1d" in installed:
        vars(sys.modules["causal_conv1d"])["causal_conv1d_fn"] = None
    stub_packages()
    for name, members in STUB_MODULES.items():
        module = importlib.import_module(name)
        assert {member: getattr(module, member) for member in members} == members
