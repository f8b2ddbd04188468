"""The causal convolution against torch's own, in rows, packed rows and step by step."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nemotron_engines.kernels import mamba_ops as ops

torch.set_num_threads(1)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def documents(rows: list[list[int]]) -> Tensor:
    """seq_idx from the sizes of each row's documents."""
    return torch.stack([torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)) for sizes in rows])


def test_convolution_is_the_one_of_torch():
    x, weight, bias = numbers(2, 6, 9), numbers(6, 4, seed=1), numbers(6, seed=2)
    for layout in (x, x.mT.contiguous().mT):
        got = ops.causal_conv1d_fn(layout, weight, bias, activation="silu")
        torch.testing.assert_close(got, F.silu(F.conv1d(F.pad(x, (3, 0)), weight[:, None], bias, groups=6)))
    alone = ops.causal_conv1d_fn(x[..., :2], weight)  # shorter than the filter
    torch.testing.assert_close(alone, F.conv1d(F.pad(x[..., :2], (3, 0)), weight[:, None], groups=6))


@pytest.mark.parametrize("activation", [None, "swish"])
def test_convolution_gradients_are_those_of_finite_differences(activation):
    seq_idx = documents([[2, 5, 1], [8]])
    inputs = [t.requires_grad_() for t in (numbers(2, 3, 8), numbers(3, 4, seed=1), numbers(3, seed=2))]
    assert torch.autograd.gradcheck(lambda *t: ops.causal_conv1d_fn(*t, seq_idx, activation=activation), inputs)
    assert torch.autograd.gradcheck(lambda *t: ops.causal_conv1d_fn(*t, activation=activation), inputs[:2])


def test_convolution_of_packed_rows_is_that_of_each_document():
    x, weight, bias = numbers(1, 3, 12), numbers(3, 4, seed=1), numbers(3, seed=2)
    got = ops.causal_conv1d_fn(x, weight, bias, documents([[2, 6, 1, 3]]), activation="silu")
    alone = [ops.causal_conv1d_fn(part, weight, bias, activation="silu") for part in x.split([2, 6, 1, 3], -1)]
    assert torch.equal(got, torch.cat(alone, -1))


@pytest.mark.parametrize("first", [1, 2, 7])
def test_convolution_can_be_continued_from_its_final_state(first):
    x, weight = numbers(2, 3, 12), numbers(3, 4, seed=1)
    out, state = ops.causal_conv1d_fn(x[..., :first], weight, return_final_states=True)
    room = torch.empty(2, 3, 3, dtype=x.dtype)
    rest, final = ops.causal_conv1d_fn(
        x[..., first:], weight, initial_states=state, return_final_states=True, final_states_out=room
    )
    torch.testing.assert_close(torch.cat([out, rest], -1), ops.causal_conv1d_fn(x, weight))
    assert final is room
    assert torch.equal(final, x[..., -3:])


@pytest.mark.parametrize("kept", [3, 4, 6])
@pytest.mark.parametrize("at_once", [1, 3])
def test_convolution_step_by_step(kept, at_once):
    x, weight, bias = numbers(2, 3, 12), numbers(3, 4, seed=1), numbers(3, seed=2)
    state, outputs = torch.zeros(2, 3, kept, dtype=x.dtype), []
    for part in x.split(at_once, -1):
        outputs.append(ops.causal_conv1d_update(part, state, weight, bias, "silu"))
    want = ops.causal_conv1d_fn(x, weight, bias, activation="silu")
    torch.testing.assert_close(torch.cat(outputs, -1), want)
    assert torch.equal(state, x[..., -kept:])
    flat = ops.causal_conv1d_update(x[..., 0], torch.zeros_like(state), weight, bias, "silu")
    torch.testing.assert_close(flat, want[..., 0])
