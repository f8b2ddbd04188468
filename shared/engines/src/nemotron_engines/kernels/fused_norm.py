"""Nemotron's norms in one kernel each, where transformers has six that each read and write the whole tensor."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from transformers.models.nemotron_h import modeling_nemotron_h


def fuse_norms() -> None:
    """Replace the forward of all norms of NemotronH, of models that exist as well."""
    modeling_nemotron_h.NemotronHRMSNorm.forward = fused_norm


def fused_norm(self: Any, hidden_states: Tensor) -> Tensor:
    """The root-mean-square norm of (..., d), computed in float32 as transformers' own."""
    weight = self.weight.to(hidden_states.dtype)
    return F.rms_norm(hidden_states, weight.shape, weight, self.variance_epsilon)
