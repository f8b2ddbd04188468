"""The Mamba operators against step-by-step references in float64, and the isolation of packed documents."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.nemotron_h import modeling_nemotron_h

from nemotron_engines.kernels import mamba_ops as ops
from nemotron_engines.kernels import mamba_scan

torch.set_num_threads(1)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def scan_inputs(
    batch: int, length: int, heads: int, channels: int, groups: int, size: int, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    return {
        "x": numbers(batch, length, heads, channels, seed=1, dtype=dtype),
        "dt": numbers(batch, length, heads, seed=2, dtype=dtype),
        "A": -torch.exp(numbers(heads, seed=3, dtype=dtype)),
        "B": numbers(batch, length, groups, size, seed=4, dtype=dtype),
        "C": numbers(batch, length, groups, size, seed=5, dtype=dtype),
        "D": numbers(heads, seed=6, dtype=dtype),
        "dt_bias": numbers(heads, seed=7, dtype=dtype),
    }


def step_by_step(
    x, dt, A, B, C, D, dt_bias, initial=None, seq_idx=None, z=None, limit=(0.0, math.inf)
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The definition of the scan: one step after the other."""
    heads_per_group = x.shape[2] // B.shape[2]
    B, C = (t.repeat_interleave(heads_per_group, 2) for t in (B, C))
    dt = F.softplus(dt + dt_bias).clamp(*limit)
    state = torch.zeros(*x.shape[:1], *x.shape[2:], B.shape[-1], dtype=x.dtype) if initial is None else initial
    outputs = []
    for t in range(x.shape[1]):
        if seq_idx is not None and t > 0:
            state = state * (seq_idx[:, t] == seq_idx[:, t - 1])[:, None, None, None]
        decay = torch.exp(dt[:, t] * A)[..., None, None]
        state = state * decay + (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
        outputs.append((state * C[:, t, :, None]).sum(-1) + x[:, t] * D.view(x.shape[2], -1))
    y = torch.stack(outputs, 1)
    return (y if z is None else y * F.silu(z)), state


def documents(rows: list[list[int]]) -> Tensor:
    """seq_idx from the sizes of each row's documents."""
    return torch.stack([torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)) for sizes in rows])


SHAPES = [(2, 11, 4, 3, 2, 5), (1, 16, 2, 4, 1, 3), (2, 7, 3, 2, 3, 4), (1, 3, 4, 2, 2, 2), (2, 1, 2, 3, 1, 2)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("chunk_size", [4, 256])
@pytest.mark.parametrize("block_elements", [1, 1 << 18], ids=["many_blocks", "one_block"])
def test_scan_gives_what_the_steps_give(shape, chunk_size, block_elements, monkeypatch):
    monkeypatch.setattr(mamba_scan, "BLOCK_ELEMENTS", block_elements)
    inputs = scan_inputs(*shape)
    batch, length, heads, channels, _, size = shape
    start, z = numbers(batch, heads, channels, size, seed=8), numbers(batch, length, heads, channels, seed=9)
    leaves = [t.requires_grad_() for t in (*inputs.values(), start, z)]
    limit = (0.2, 2.0)
    want = step_by_step(**inputs, initial=start, z=z, limit=limit)
    got = ops.mamba_chunk_scan_combined(
        **inputs, chunk_size=chunk_size, z=z, initial_states=start, dt_softplus=True, dt_limit=limit,
        return_final_states=True,
    )  # fmt: skip
    upstream = [numbers(*t.shape, seed=10) for t in want]
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)
    gradients = [torch.autograd.grad(pair, leaves, upstream) for pair in (got, want)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("rows", [[[5, 1, 5], [11]], [[1] * 11, [4, 4, 3]]])
def test_scan_of_packed_rows_gives_what_the_steps_give(rows):
    inputs, seq_idx = scan_inputs(2, 11, 4, 3, 2, 5), documents(rows)
    leaves = [t.requires_grad_() for t in inputs.values()]
    want, _ = step_by_step(**inputs, seq_idx=seq_idx)
    got = ops.mamba_chunk_scan_combined(**inputs, chunk_size=4, seq_idx=seq_idx, dt_softplus=True)
    torch.testing.assert_close(got, want)
    upstream = numbers(*want.shape, seed=10)
    gradients = [torch.autograd.grad(one, leaves, upstream) for one in (got, want)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("packed", [False, True])
def test_scan_gradients_are_those_of_finite_differences(packed):
    inputs = scan_inputs(1, 6, 2, 2, 1, 2)
    inputs["D"] = numbers(2, 2, seed=6)
    start = None if packed else numbers(1, 2, 2, 2, seed=8).requires_grad_()
    seq_idx = documents([[2, 4]]) if packed else None

    def scan(x, dt, A, B, C, D, dt_bias, initial):
        return ops.mamba_chunk_scan_combined(
            x, dt, A, B, C, 4, D, None, dt_bias, initial, seq_idx, dt_softplus=True, return_final_states=True
        )

    assert torch.autograd.gradcheck(scan, (*(t.requires_grad_() for t in inputs.values()), start))


def test_a_document_never_reaches_another_by_one_bit():
    inputs = scan_inputs(2, 40, 4, 8, 2, 16, dtype=torch.float32)
    weight, bias = numbers(32, 4, dtype=torch.float32), numbers(32, dtype=torch.float32)
    seq_idx = documents([[13, 20, 7], [30, 9, 1]])
    results = []
    for change in (0.0, 1.0):
        x, dt, B = (inputs[name].clone() for name in ("x", "dt", "B"))
        for tensor in (x, dt, B):
            tensor[0, 13:33] += change  # the middle document of the first row
            tensor[1, :30] += change  # the first of the second row
            tensor.requires_grad_()
        convolved = ops.causal_conv1d_fn(x.flatten(2).mT, weight, bias, seq_idx, activation="silu").mT
        changed = {**inputs, "x": convolved.view(x.shape), "dt": dt, "B": B}
        y = ops.mamba_chunk_scan_combined(**changed, chunk_size=16, seq_idx=seq_idx, dt_softplus=True)
        gradients = torch.autograd.grad((y * y).sum(), (x, dt, B))
        results.append((y.detach(), *gradients))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one[0, :13], other[0, :13])
        assert torch.equal(one[0, 33:], other[0, 33:])
        assert torch.equal(one[1, 30:], other[1, 30:])
        assert not torch.equal(one[0, 13:33], other[0, 13:33])


def test_the_same_number_again_is_another_document():
    inputs = scan_inputs(1, 9, 2, 2, 1, 2)
    again = torch.tensor([[3, 3, 3, 1, 1, 1, 3, 3, 3]])
    results = [
        ops.mamba_chunk_scan_combined(**inputs, chunk_size=4, seq_idx=seq_idx, dt_softplus=True)
        for seq_idx in (again, documents([[3, 3, 3]]))
    ]
    assert torch.equal(*results)


def test_steps_of_any_size_stay_finite_and_accurate():
    inputs = scan_inputs(1, 64, 4, 4, 1, 4)
    inputs["dt"][0, ::7] = 60.0  # forgets everything: the exponent is far below the smallest float32
    inputs["dt"][0, 3::7] = -200.0  # a step that float32 rounds to zero
    want, _ = step_by_step(**inputs)
    single = {name: t.float().requires_grad_() for name, t in inputs.items()}
    got = ops.mamba_chunk_scan_combined(**single, chunk_size=256, dt_softplus=True)
    torch.testing.assert_close(got.double(), want, rtol=1e-3, atol=1e-3)
    assert all(g.isfinite().all() for g in torch.autograd.grad(got.sum(), list(single.values())))


def test_a_document_that_forgets_everything_leaves_the_next_one_finite():
    inputs = scan_inputs(1, 48, 2, 4, 1, 4)
    inputs["dt"][0, :20] = 60.0
    seq_idx = documents([[20, 28]])
    want, _ = step_by_step(**inputs, seq_idx=seq_idx)
    single = {name: t.float().requires_grad_() for name, t in inputs.items()}
    got = ops.mamba_chunk_scan_combined(**single, chunk_size=256, seq_idx=seq_idx, dt_softplus=True)
    torch.testing.assert_close(got.double(), want, rtol=1e-3, atol=1e-3)
    assert all(g.isfinite().all() for g in torch.autograd.grad(got.sum(), list(single.values())))


@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_is_computed_in_float32(autocast):
    inputs = scan_inputs(2, 40, 4, 8, 2, 16, dtype=torch.bfloat16)
    want, _ = step_by_step(**{name: t.double() for name, t in inputs.items()})
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        got = ops.mamba_chunk_scan_combined(**inputs, chunk_size=32, dt_softplus=True)
    assert got.dtype == torch.bfloat16
    assert (got - want).norm() < 4e-3 * want.norm()  # only the rounding of the result


def test_training_works_after_a_scan_in_inference_mode():
    inputs = {name: t.requires_grad_() for name, t in scan_inputs(1, 13, 2, 2, 1, 2).items()}
    mamba_scan.causal.cache_clear()
    with torch.inference_mode():
        before = ops.mamba_chunk_scan_combined(**inputs, chunk_size=13, dt_softplus=True)
    after = ops.mamba_chunk_scan_combined(**inputs, chunk_size=13, dt_softplus=True)
    after.sum().backward()
    assert torch.equal(before, after)
    assert inputs["A"].grad is not None


@pytest.mark.parametrize("state_type", [torch.float64, torch.bfloat16])
def test_state_update_continues_the_scan(state_type):
    inputs, z = scan_inputs(2, 9, 4, 3, 2, 5), numbers(2, 9, 4, 3, seed=8)
    want, _ = step_by_step(**inputs, z=z)
    x, dt, A, B, C, D, dt_bias = inputs.values()
    _, state = ops.mamba_chunk_scan_combined(
        x[:, :4], dt[:, :4], A, B[:, :4], C[:, :4], 4, D, None, dt_bias, dt_softplus=True, return_final_states=True
    )
    state = state.to(state_type)
    per_channel = dt[..., None].expand(2, 9, 4, 3)
    wide_A, wide_D, wide_bias = A[:, None, None].expand(4, 3, 5), D[:, None].expand(4, 3), dt_bias[:, None].expand(4, 3)
    for t in range(4, 9):
        y = ops.selective_state_update(
            state, x[:, t], per_channel[:, t], wide_A, B[:, t], C[:, t], wide_D, z[:, t], wide_bias, True
        )
        tolerance = {"rtol": 1e-7, "atol": 1e-7} if state_type == torch.float64 else {"rtol": 0.1, "atol": 0.1}
        torch.testing.assert_close(y, want[:, t], **tolerance)


def test_state_update_without_heads_and_with_a_rate_per_channel():
    state, x, dt, A = numbers(2, 3, 5), numbers(2, 3, seed=1), numbers(2, 3, seed=2).exp(), -numbers(3, 5, seed=3).exp()
    B, C = numbers(2, 5, seed=4), numbers(2, 5, seed=5)
    new = state * torch.exp(dt[..., None] * A) + (dt * x)[..., None] * B[:, None]
    y = ops.selective_state_update(state, x, dt, A, B, C)
    torch.testing.assert_close(state, new)
    torch.testing.assert_close(y, (new * C[:, None]).sum(-1))


def test_gated_norm_is_the_one_of_the_model():
    # transformers 5.18 shares the class of another model
    norm = getattr(modeling_nemotron_h, "NemotronHRMSNormGated", None) or modeling_nemotron_h.Zamba2RMSNormGated
    module = norm(12, group_size=4, eps=1e-5)
    module.weight.data = numbers(12, dtype=torch.float32)
    x, z = numbers(2, 5, 12, seed=1, dtype=torch.float32), numbers(2, 5, 12, seed=2, dtype=torch.float32)
    got = ops.rmsnorm_fn(x, module.weight, None, z, 1e-5, 4, norm_before_gate=False)
    torch.testing.assert_close(got, module(x, z))


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_gated_norm_gradients_are_those_of_finite_differences(before, gated):
    inputs = [numbers(2, 3, 8), numbers(8, seed=1), numbers(8, seed=2), numbers(2, 3, 8, seed=3) if gated else None]
    leaves = [t if t is None else t.requires_grad_() for t in inputs]
    assert torch.autograd.gradcheck(lambda x, w, b, z: ops.rmsnorm_fn(x, w, b, z, 1e-5, 4, before), leaves)
    x, weight, bias, z = inputs
    gate = 1 if z is None else F.silu(z)
    y = x if before else x * gate
    y = (y.unflatten(-1, (2, 4)) * (y.unflatten(-1, (2, 4)).pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()).flatten(-2)
    want = (y * weight + bias) * (gate if before else 1)
    torch.testing.assert_close(ops.rmsnorm_fn(x, weight, bias, z, 1e-5, 4, before), want)


@pytest.mark.parametrize("norm", [False, True])
def test_the_whole_mixer_is_its_parts(norm):
    heads, channels, groups, size = 4, 3, 2, 5
    inner, mixed = heads * channels, heads * channels + 2 * groups * size
    zxbcdt = numbers(2, 11, inner + mixed + heads)
    conv_weight, conv_bias = numbers(mixed, 4, seed=1), numbers(mixed, seed=2)
    dt_bias, A, D = numbers(heads, seed=3), -numbers(heads, seed=4).exp(), numbers(heads, seed=5)
    weight, projection = numbers(inner, seed=6) if norm else None, numbers(7, inner, seed=7)
    got, state = ops.mamba_split_conv1d_scan_combined(
        zxbcdt, conv_weight, conv_bias, dt_bias, A, D, 4, rmsnorm_weight=weight, outproj_weight=projection,
        headdim=channels, ngroups=groups, norm_before_gate=False, return_final_states=True,
    )  # fmt: skip
    z, xBC, dt = zxbcdt.split([inner, mixed, heads], -1)
    xBC = F.silu(F.conv1d(F.pad(xBC.mT, (3, 0)), conv_weight[:, None], conv_bias, groups=mixed)).mT
    x, B, C = xBC.split([inner, groups * size, groups * size], -1)
    B, C = (t.unflatten(-1, (groups, size)) for t in (B, C))
    y, want_state = step_by_step(x.unflatten(-1, (heads, channels)), dt, A, B, C, D, dt_bias)
    y = y.flatten(2) * F.silu(z)
    if norm:
        y = ops.rmsnorm_fn(y, weight, group_size=inner // groups)
    torch.testing.assert_close(got, y @ projection.T)
    torch.testing.assert_close(state, want_state)


def test_what_has_no_reference_is_refused():
    inputs = scan_inputs(1, 4, 2, 2, 1, 2)
    state, seq_idx, x, weight = numbers(1, 2, 2, 2), documents([[2, 2]]), numbers(1, 3, 4), numbers(3, 4)
    scan = {**inputs, "chunk_size": 4}
    refused = [
        lambda: ops.mamba_chunk_scan_combined(**scan, cu_seqlens=torch.tensor([0, 4])),
        lambda: ops.mamba_chunk_scan_combined(**scan, return_varlen_states=True),
        lambda: ops.mamba_chunk_scan_combined(**scan, state_dtype=torch.float32),
        lambda: ops.mamba_chunk_scan_combined(**scan, seq_idx=seq_idx, initial_states=state),
        lambda: ops.mamba_chunk_scan_combined(**scan, dt_limit=(-1.0, 1.0)),
        lambda: ops.causal_conv1d_fn(x, weight, activation="relu"),
        lambda: ops.causal_conv1d_fn(x, weight, seq_idx=seq_idx, return_final_states=True),
        lambda: ops.causal_conv1d_update(x, x.clone(), weight, cache_seqlens=torch.tensor([1])),
        lambda: ops.causal_conv1d_update(x, x.clone(), weight, conv_state_indices=torch.tensor([0])),
        lambda: ops.rmsnorm_fn(x, weight[0], upcast=False),
    ]
    for call in refused:
        with pytest.raises(ValueError, match=r"."):
            call()
