"""The stand-in for mamba-ssm does what megatron-core's MambaMixer asks of it."""

import inspect

import pytest
import torch

from nemotron_engines.stand_ins.mamba_packages import RMSNorm, split_conv1d_scan

pytestmark = pytest.mark.megatron
HEADS, HEADDIM, GROUPS, STATE, WIDTH = 4, 8, 2, 16, 4
INNER, CONV = HEADS * HEADDIM, HEADS * HEADDIM + 2 * GROUPS * STATE


def parameters() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    return {
        "conv1d_weight": torch.randn(CONV, WIDTH),
        "conv1d_bias": torch.randn(CONV),
        "dt_bias": torch.randn(HEADS),
        "A": -torch.rand(HEADS) - 0.5,
        "D": torch.randn(HEADS),
    }


def scan(zxbcdt: torch.Tensor, seq_idx: torch.Tensor | None = None) -> torch.Tensor:
    """The call of MambaMixer, argument by argument."""
    given = parameters()
    return split_conv1d_scan(
        zxbcdt, given["conv1d_weight"], given["conv1d_bias"], given["dt_bias"], given["A"], D=given["D"],
        chunk_size=32, activation="silu", headdim=HEADDIM, ngroups=GROUPS, norm_before_gate=False, seq_idx=seq_idx,
    )  # fmt: skip


def test_documents_of_a_packed_row_stay_apart() -> None:
    row = torch.randn(1, 40, 2 * INNER + 2 * GROUPS * STATE + HEADS)
    seq_idx = torch.tensor([[0] * 13 + [1] * 27])
    apart = torch.cat([scan(row[:, :13]), scan(row[:, 13:])], 1)
    torch.testing.assert_close(scan(row, seq_idx), apart, rtol=1e-5, atol=1e-4)
    assert not torch.allclose(scan(row), apart, atol=1e-3)


def test_without_a_norm_weight_the_scan_is_gated() -> None:
    row = torch.randn(1, 9, 2 * INNER + 2 * GROUPS * STATE + HEADS)
    closed = row.clone()
    closed[..., :INNER] = 0  # silu(0) = 0
    assert scan(closed).abs().max() == 0
    assert scan(row).shape == (1, 9, INNER)


def test_the_norm_works_by_groups_of_channels() -> None:
    norm = RMSNorm(INNER, eps=1e-5, group_size=INNER // GROUPS, norm_before_gate=False)
    x = torch.randn(2, 3, INNER) * 7
    groups = norm(x).unflatten(-1, (GROUPS, -1))
    torch.testing.assert_close(groups.square().mean(-1), torch.ones(2, 3, GROUPS), rtol=1e-3, atol=1e-3)


def test_a_type_of_states_that_cannot_be_chosen_is_not_offered() -> None:
    """megatron-core looks for this name and refuses `mamba_training_ssm_states_dtype` without it."""
    assert "state_dtype" not in inspect.signature(split_conv1d_scan).parameters
