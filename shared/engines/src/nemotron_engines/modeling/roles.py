"""The role of each parameter, by the module that holds it and its own name: which ones weight decay may pull to zero.

    backbone.embeddings.weight              (512, 64)      decayed: a table of nn.Embedding
    backbone.layers.0.norm.weight           (64,)          not: one-dimensional
    backbone.layers.0.mixer.conv1d.weight   (176, 1, 4)    decayed: a kernel
    backbone.layers.0.mixer.A_log           (4,)           not: state space, where 0 is not a small weight but exp(0)
    layers.0.mlp.experts.gate_up_proj       (4, 32, 32)    decayed: matrices of all experts
    layers.0.mlp.experts.gate_up_proj_bias  (4, 32)        not: biases of all experts

Like megatron-core 0.19.2 (`get_standard_config_overrides` in `megatron/core/optimizer/__init__.py`), for which the
recipes' `optimizer.weight_decay` is written: it decays everything, embeddings and the head included, but parameters of
one dimension and those whose name ends in `.bias`. Its `A_log`, `D`, `dt_bias`, norms and biases of experts all have
one dimension. In transformers they may have more; here they are treated alike, regardless of their shape.

transformers 5.23 goes by other names (`Trainer.get_decay_parameter_names`: "bias", "layernorm", "rmsnorm", "norm"):
it decays `A_log`, `D`, `norm_f`, the norms `enorm` and `hnorm` of multi-token prediction, and gpt-oss's `sinks`.
"""

import re
from collections.abc import Iterator

from torch import nn
from transformers.pytorch_utils import Conv1D

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
MATRICES = (nn.Linear, nn.Bilinear, nn.Embedding, nn.EmbeddingBag, *CONVOLUTIONS, Conv1D, nn.ParameterDict)
"""Modules whose parameters, but biases, are matrices even where a side is 1 long: a gate or a head with one output.
PEFT keeps an embedding's adapters in a ParameterDict."""
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, *BATCH_NORMS, *INSTANCE_NORMS)
NORM_CLASS = re.compile(r"norm(gated|\dd)?$", re.IGNORECASE)
"""Every architecture has its own norm classes, such as Zamba2RMSNormGated. Cohere's has a row for each head."""
BIAS = re.compile(r"(^|_)bias$")
"""`bias`, `dt_bias`, `down_proj_bias`, `e_score_correction_bias`."""
ELEMENTWISE = frozenset({"A_log", "D", "scale", "gain", "gamma", "beta"})
"""What is multiplied element by element. Mamba's `A_log` is (channels, states), Zamba's `D` (heads, channels)."""
MARK = "_no_weight_decay"
"""Attribute with which mamba_ssm marks parameters. transformers 5.23 loses it where it loads weights."""


def decayed(model: nn.Module) -> list[str]:
    """Names of the parameters that weight decay applies to, as in `model.named_parameters()`; of tied ones the first.

    Adapters count like other matrices. A sharded parameter (DTensor) counts by its whole shape.
    """
    return [name for name, owner, own_name in _parameters(model) if is_decayed(owner, own_name)]


def is_decayed(owner: nn.Module, name: str) -> bool:
    """Whether a module's own parameter is a matrix, a kernel or a table, and not a vector, bias, gain or decay rate.

    Args:
        name: without the module's, such as `weight`.
    """
    parameter = owner.get_parameter(name)
    if parameter.dim() < 2 or getattr(parameter, MARK, False):
        return False
    if BIAS.search(name) or name in ELEMENTWISE:
        return False
    if isinstance(owner, MATRICES):
        return True
    if isinstance(owner, NORMS) or NORM_CLASS.search(type(owner).__name__):
        return False
    return sum(size > 1 for size in parameter.shape) > 1  # (1, 1, hidden) is a vector, too


def _parameters(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Full name, module and own name of each parameter, tied ones once."""
    owners = dict(model.named_modules())
    for name, _ in model.named_parameters():
        above, _, own = name.rpartition(".")
        yield name, owners[above], own
