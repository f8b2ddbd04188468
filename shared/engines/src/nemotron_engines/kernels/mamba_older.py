"""The reference kernels for transformers 5.12 to 5.22, whose NemotronH keeps its Mamba functions elsewhere.

There each mixer looks up the kernels when it is built, uses them for weights on a GPU only, and does not know about
packed rows. After `install_into_older()`, weights on a CPU use the reference kernels, and `seq_idx` reaches the mixer.
These versions also save the embedding under a name that no other program reads; this is corrected too.
"""

import logging
from functools import partial, wraps
from typing import Any

from torch import Tensor
from transformers import conversion_mapping
from transformers.models.nemotron_h import modeling_nemotron_h

from nemotron_engines.kernels import mamba_ops

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
