"""The minimum that lets Automodel 0.7.0 run without a GPU. Never active if CUDA is available.

1. Three unguarded calls of torch.cuda become harmless, and models are built on the CPU although the code says "cuda".
2. `mamba_ssm` and `causal_conv1d` become modules over our reference kernels (kernels/mamba_ops.py), which keep the
   documents of a packed row apart. Automodel's Mamba layers import them inside `forward` and have no fallback.

environment.py has already checked the versions; a function that has moved raises here.
"""

import importlib
from functools import wraps
from typing import Any

import torch

from nemotron_engines.kernels import mamba_ops
from nemotron_engines.stand_ins.modules import add_module

LINE = "automodel on a CPU: torch.cuda calls are stubbed, Mamba runs on our pure-torch kernels (correct; slow)"
STUB_MODULES = {
    "mamba_ssm": {},
    "mamba_ssm.ops": {},
    "mamba_ssm.ops.triton": {},
    "mamba_ssm.ops.triton.ssd_combined": {
        "mamba_split_conv1d_scan_combined": mamba_ops.mamba_split_conv1d_scan_combined,
        "mamba_chunk_scan_combined": mamba_ops.mamba_chunk_scan_combined,
    },
    "mamba_ssm.ops.triton.layernorm_gated": {"rmsnorm_fn": mamba_ops.rmsnorm_fn},
    "mamba_ssm.ops.triton.selective_state_update": {"selective_state_update": mamba_ops.selective_state_update},
    "causal_conv1d": {
        "causal_conv1d_fn": mamba_ops.causal_conv1d_fn,
        "causal_conv1d_update": mamba_ops.causal_conv1d_update,
    },
}


def install() -> str | None:
    """Install the shim; returns the notice to print, or None if there is a GPU and nothing was changed.

    Call it before importing Automodel's recipe. A second call has no effect.
    """
    if torch.cuda.is_available():
        return None

    def nothing(*args: Any, **kwargs: Any) -> None:
        """Replaces a call that only concerns GPU memory."""

    cuda: Any = torch.cuda
    cuda.reset_peak_memory_stats = cuda.synchronize = nothing
    cuda.current_device = lambda: 0  # an int, because it is passed to torch.device("cuda", ...)
    # transformers chooses its own kernels when its module is imported, and must not find the stubs.
    importlib.import_module("transformers.models.nemotron_h.modeling_nemotron_h")
    stub_packages()
    _build_on_cpu()
    return LINE


def stub_packages() -> None:
    """Create the modules, or patch installed packages, which fail without a GPU."""
    for name, members in STUB_MODULES.items():
        add_module(name, None, **members).__dict__.update(members)


def _build_on_cpu() -> None:
    auto_model: Any = importlib.import_module("nemo_automodel._transformers.auto_model")
    original = auto_model.apply_model_infrastructure
    if getattr(original, "on_cpu", False):
        return

    @wraps(original)
    def on_cpu(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs | {"device": torch.device("cpu")})

    on_cpu.on_cpu = True  # ty: ignore[missing-attribute]
    auto_model.apply_model_infrastructure = on_cpu
