"""Put the reference kernels of mamba_ops.py where transformers' NemotronH looks for its Mamba functions.

transformers 5.23 falls back to slow code where `mamba_ssm` and `causal_conv1d` are missing, and that code refuses
packed rows. After `install_cpu_ops()` a CUDA tensor still goes to the packages where both can be imported; everything
else goes to the reference kernels:

    mamba: pure-torch reference kernels (correct; slower than mamba-ssm on a GPU)

transformers 5.12 to 5.22 differ: each mixer looks the kernels up when it is made, uses them for weights on a GPU only,
and never sees packed rows. `install_into_older()` sends weights on a CPU through the reference kernels, passes
`seq_idx` to the mixer, and renames the embedding of a checkpoint, which those versions write under a name of their own.
"""

import importlib
import inspect
import logging
import math
from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from transformers import PreTrainedModel, conversion_mapping
from transformers.models.nemotron_h import modeling_nemotron_h

from nemotron_engines.kernels import HOW_TO_COMPILE, LARGEST_REFERENCE_MODEL, mamba_ops
from nemotron_shared.system.errors import UserError

PACKAGES = ("mamba_ssm", "causal_conv1d")
REFERENCE_LINE = "mamba: pure-torch reference kernels (correct; slower than mamba-ssm on a GPU)"
KERNEL_LINE = "mamba: mamba-ssm and causal-conv1d kernels (pure-torch reference for tensors on the CPU)"


def decline_fused(first: Tensor, *args: Any, **kwargs: Any) -> None:
    """Disable the fused mixer, so that the model calls the single functions and masks padding between them.

    The fused call does not get the attention mask, so in a left-padded batch the convolution's bias would leak from
    the padding into the state.
    """


def never_fuse() -> None:
    """Call the single functions on a GPU as well, because the fused mixer would bypass an adapter on `out_proj`.

    It gets the weight of `out_proj` and never calls the module.
    """
    if not is_older():
        modeling_nemotron_h.mamba2_split_conv1d_scan_combined = decline_fused


def fuse_norms() -> None:
    """Compute each of Nemotron's norms in one kernel; transformers' takes six passes over the tensor."""
    modeling_nemotron_h.NemotronHRMSNorm.forward = fused_norm


def fused_norm(self: Any, hidden_states: Tensor) -> Tensor:
    """Root-mean-square norm of (..., d), computed in float32 like transformers' own."""
    weight = self.weight.to(hidden_states.dtype)
    return F.rms_norm(hidden_states, weight.shape, weight, self.variance_epsilon)


# Global of transformers' module -> its replacement if the packages are not used.
REFERENCE_KERNELS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": mamba_ops.causal_conv1d_fn,
    "causal_conv1d_update": mamba_ops.causal_conv1d_update,
    "mamba2_chunk_scan": mamba_ops.mamba_chunk_scan_combined,
    "mamba2_selective_state_update": mamba_ops.selective_state_update,
    "mamba2_split_conv1d_scan_combined": decline_fused,
}
STOCK: dict[str, Callable[..., Any]] = {}  # the originals, saved at the first installation


def install_cpu_ops() -> str:
    """Replace the functions once; log once and return which implementation runs.

    Raises:
        UserError: this version of transformers lacks the functions.
    """
    if is_older():
        install_into_older()
        return _told()
    for name, reference in REFERENCE_KERNELS.items():
        current = getattr(modeling_nemotron_h, name, None)
        if current is None:
            raise UserError(
                f"transformers {transformers.__version__}: modeling_nemotron_h has no '{name}'",
                "install the version that uv.lock names: uv sync --all-packages",
            )
        if STOCK.setdefault(name, current) is current:
            setattr(modeling_nemotron_h, name, dispatcher(current, reference))
    return _told()


def _told() -> str:
    """Which kernels run; not printed without a GPU, where there is no choice."""
    line = KERNEL_LINE if kernels_importable() else REFERENCE_LINE
    return say_once(line) if torch.cuda.is_available() else line


def dispatcher(stock: Callable[..., Any], reference: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls `stock` for CUDA tensors if the packages are installed, else `reference`.

    The model passes all of its keywords on; like stock, we keep those that the function accepts.
    """
    known = frozenset(inspect.signature(reference).parameters)

    @wraps(stock)
    def dispatch(first: Tensor, *args: Any, **kwargs: Any) -> Any:
        if first.is_cuda and kernels_importable():
            return stock(first, *args, **kwargs)
        return reference(first, *args, **{name: value for name, value in kwargs.items() if name in known})

    return dispatch


@cache
def kernels_importable() -> bool:
    """Whether both packages can be imported on this machine, checked like in transformers' own wrappers."""
    if not torch.cuda.is_available():
        return False
    try:
        for package in PACKAGES:
            importlib.import_module(package)
    except ImportError:
        return False
    return True


@cache
def say_once(line: str) -> str:
    """Log a line the first time, and return it every time."""
    logging.getLogger("nemotron").info(line)
    return line


def announce(parameter_count: int, allow_reference: bool) -> None:
    """Refuse to run a large model on the reference code unless the user allows it.

    Raises:
        UserError: more than a billion parameters, no kernels, and `allow_reference` is false.
    """
    if parameter_count > LARGEST_REFERENCE_MODEL and not (allow_reference or kernels_importable()):
        raise UserError(
            f"a model of {parameter_count / 1e9:.1f}B parameters would run on the pure-torch Mamba reference code",
            f"{HOW_TO_COMPILE}, or set allow_reference_kernels=true if slow is fine",
        )


def lift_time_step_limit(model: PreTrainedModel) -> None:
    """Remove the lower limit of time steps, as in NVIDIA's own code; saved with the model's config.

    transformers clamps them to `config.time_step_min` in training and in prompts, but not in generated steps, so the
    same tokens get different probabilities when generated and when scored. Other architectures have that limit
    elsewhere, and would initialise time steps from the logarithm of the saved value.
    """
    for module in model.modules():
        if isinstance(module, modeling_nemotron_h.NemotronHMamba2Mixer):
            module.time_step_limit = (0.0, math.inf)
            model.config.time_step_min = 0.0


def bound_cached_steps() -> None:
    """Bound Zamba2's time steps in a step with the cache as transformers does in a pass over many tokens, once.

    transformers 5.23 clamps them to `config.time_step_min` in that pass alone (`findings/zamba2_cached_steps.sh`), so
    the same tokens get other probabilities when they are sampled than when they are scored.
    """
    from transformers.models.zamba2 import modeling_zamba2

    mixer = modeling_zamba2.Zamba2MambaMixer
    if STOCK.setdefault("Zamba2MambaMixer.forward", mixer.forward) is mixer.forward:
        update = modeling_zamba2.mamba2_selective_state_update
        mixer.forward = _with_bounded_steps(modeling_zamba2, mixer.forward, update)


def _with_bounded_steps(module: Any, stock: Callable[..., Any], update: Callable[..., Any]) -> Callable[..., Any]:
    """A mixer's forward, for which the function of a single step clamps as the mixer's limit says."""

    @wraps(stock)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        def step(state: Tensor, hidden: Tensor, dt: Tensor, *rest: Any, dt_bias: Tensor, **more: Any) -> Tensor:
            one = F.softplus(dt[..., :1] + dt_bias[..., :1].to(dt.dtype)).clamp(*self.time_step_limit)
            return update(state, hidden, one.expand_as(dt), *rest, **more | {"dt_bias": None, "dt_softplus": False})

        module.mamba2_selective_state_update = step
        return stock(self, *args, **kwargs)

    return forward


# For transformers 5.12 to 5.22.


MIXER = modeling_nemotron_h.NemotronHMamba2Mixer
BLOCK = modeling_nemotron_h.NemotronHBlock


def _is_true_here(record: logging.LogRecord) -> bool:
    """Drop the mixers' warning that they fall back to slow code, which is not true here."""
    return "fast path is not available" not in record.getMessage()


# From import on, because counting a model's parameters builds mixers before anything is installed.
logging.getLogger(modeling_nemotron_h.__name__).addFilter(_is_true_here)


def is_older() -> bool:
    """Whether this transformers has the older mixer."""
    return hasattr(MIXER, "cuda_kernels_forward") and hasattr(MIXER, "torch_forward")


def install_into_older() -> None:
    """Replace the two forward functions and the embedding's name, once."""
    if not hasattr(MIXER.forward, "__wrapped__"):
        MIXER.forward = _mixer_on_reference_kernels(MIXER.forward)
        BLOCK.forward = _block_with_seq_idx(BLOCK.forward)
        # Published checkpoints say `backbone.embeddings.weight`; a rule of 5.12 would save `backbone.embedding.weight`.
        rules = conversion_mapping.get_checkpoint_conversion_mapping("nemotron_h")
        kept = [rule for rule in rules if "embedding.weight" not in rule.source_patterns]
        conversion_mapping.register_checkpoint_conversion_mapping("nemotron_h", kept, overwrite=True)


def _mixer_on_reference_kernels(stock: Any) -> Any:
    @wraps(stock)
    def forward(self: Any, hidden_states: Tensor, cache_params: Any = None, attention_mask: Any = None) -> Tensor:
        seq_idx = self.__dict__.pop("packed_seq_idx", None)
        if self.in_proj.weight.is_cuda and getattr(modeling_nemotron_h, "is_fast_path_available", False):
            if seq_idx is not None:
                raise ValueError("this transformers cannot keep packed rows apart on a GPU; transformers 5.23 can")
            return stock(self, hidden_states, cache_params, attention_mask)
        # The fused function does not get the attention mask; see mamba_install.decline_fused.
        self.use_mem_eff_path = False
        modeling_nemotron_h.__dict__.update(_reference_kernels(seq_idx))
        return self.cuda_kernels_forward(hidden_states, cache_params, attention_mask)

    return forward


def _reference_kernels(seq_idx: Tensor | None) -> dict[str, Any]:
    """Replacements by name in transformers' module, whose calls pass no `seq_idx`, or None."""

    def scan(*args: Any, **kwargs: Any) -> Any:
        return mamba_ops.mamba_chunk_scan_combined(*args, **(kwargs | {"seq_idx": seq_idx}))

    return {
        "causal_conv1d_fn": partial(mamba_ops.causal_conv1d_fn, seq_idx=seq_idx),
        "causal_conv1d_update": mamba_ops.causal_conv1d_update,
        "mamba_chunk_scan_combined": scan,
        "selective_state_update": mamba_ops.selective_state_update,
    }


def _block_with_seq_idx(stock: Any) -> Any:
    @wraps(stock)
    def forward(self: Any, *args: Any, seq_idx: Tensor | None = None, **kwargs: Any) -> Any:
        if seq_idx is not None and isinstance(self.mixer, MIXER):
            self.mixer.packed_seq_idx = seq_idx
        return stock(self, *args, **kwargs)

    return forward
