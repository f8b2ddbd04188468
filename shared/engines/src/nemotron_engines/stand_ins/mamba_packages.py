"""Module `mamba_ssm` for megatron-core on a machine without a GPU: our pure-torch Mamba under its import names.

megatron-core looks the functions up when `megatron.core.ssm.mamba_mixer` is imported, so this comes first:

    install_mamba_stand_in()
    from megatron.core.ssm.mamba_mixer import MambaMixer

Every argument of `MambaMixer` is honoured (even `seq_idx` of packed rows) or refused; see kernels/mamba_ops.py.
"""

from typing import Any

import torch
from torch import Tensor, nn

from nemotron_engines.kernels.mamba_ops import (
    causal_conv1d_fn,
    mamba_chunk_scan_combined,
    mamba_split_conv1d_scan_combined,
    rmsnorm_fn,
)
from nemotron_engines.stand_ins.modules import add_module

# megatron-core compares this with its minimum versions before it accepts packed rows.
MAMBA_VERSION = "2.3.2"
CONV_VERSION = "1.6.0"


class RMSNorm(nn.Module):
    """The gated norm of `mamba_ssm.ops.triton.layernorm_gated`, by groups of channels."""

    def __init__(
        self, hidden_size: int, eps: float = 1e-5, group_size: int | None = None, norm_before_gate: bool = True,
        device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.eps, self.group_size, self.norm_before_gate = eps, group_size, norm_before_gate

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """x and the gate z are (..., hidden_size)."""
        return rmsnorm_fn(x, self.weight, None, z, self.eps, self.group_size, self.norm_before_gate)


def install_mamba_stand_in() -> None:
    """Put the modules into `sys.modules`; a second call changes nothing."""
    add_module("mamba_ssm", version=MAMBA_VERSION)
    add_module("mamba_ssm.ops")
    add_module("mamba_ssm.ops.triton")
    add_module("mamba_ssm.ops.triton.layernorm_gated", RMSNorm=RMSNorm)
    add_module(
        "mamba_ssm.ops.triton.ssd_combined",
        mamba_chunk_scan_combined=mamba_chunk_scan_combined,
        mamba_split_conv1d_scan_combined=split_conv1d_scan,
    )
    add_module("mamba_ssm.ops.triton.selective_state_update", selective_state_update=None)  # generation only
    add_module("causal_conv1d", version=CONV_VERSION, causal_conv1d_fn=causal_conv1d_fn, causal_conv1d_update=None)
    add_module("causal_conv1d.causal_conv1d_varlen", causal_conv1d_varlen_states=None)


def split_conv1d_scan(
    zxbcdt: Tensor, conv1d_weight: Tensor, conv1d_bias: Tensor | None, dt_bias: Tensor, A: Tensor, D: Tensor,
    chunk_size: int, *, activation: str = "silu", headdim: int | None = None, ngroups: int = 1,
    norm_before_gate: bool = True, seq_idx: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """`mamba_split_conv1d_scan_combined` with exactly the keywords of `MambaMixer`; the norm comes after it.

    `state_dtype` is missing because states are always computed in float32; megatron-core refuses a setting
    that the signature does not have.
    """
    result = mamba_split_conv1d_scan_combined(
        zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, chunk_size, seq_idx=seq_idx, activation=activation,
        headdim=headdim, ngroups=ngroups, norm_before_gate=norm_before_gate,
    )  # fmt: skip
    assert isinstance(result, Tensor)
    return result
