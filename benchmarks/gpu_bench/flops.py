"""Count the floating-point operations of a training step, and which share of a GPU's peak it reaches.

Model FLOPs utilisation (MFU) as in the PaLM paper (arXiv 2204.02311, appendix B): operations that the model's
mathematics requires, over seconds times the peak; recomputed activations do not count, and the backward pass counts
twice the forward pass. Forward operations of one token:

- matrices: 2 for each weight applied to the token. In a mixture of experts these are the router, the latent
  projections, the shared expert, and `num_experts_per_tok` of the `n_routed_experts`. The output layer counts, the
  look-up in the embedding table does not.
- attention: 4 x heads x head_dim x keys, for scores and weighted values. `keys` is the average number visible to causal
  attention within the token's own document, so that masked work does not count as useful.
- Mamba-2 scan: 7 x heads x channels x state, as Megatron-LM counts it (`num_floating_point_operations` in
  megatron/training/training.py): the recurrence, however it is computed. Its convolution is among the weights.

Norms, softmax and other elementwise work are left out, as in both sources.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, NemotronHConfig

FORWARD_AND_BACKWARD = 3
SCAN_OPERATIONS = 7

# Dense bfloat16 peak in TFLOP/s, without sparsity, from NVIDIA's data sheets. The first entry contained in the GPU's
# name is used.
PEAKS = (
    ("GB200", 2500.0),
    ("B200", 2250.0),
    ("H200", 989.4),
    ("H20", 148.0),
    ("H100 NVL", 835.5),
    ("H100 PCIe", 756.5),
    ("H100", 989.4),
    ("A100", 312.0),
    ("L40S", 362.0),
    ("L4", 121.0),
    ("A10G", 70.0),
    ("A10", 125.0),
    ("RTX 4090", 165.2),
)


@dataclass(frozen=True)
class Operations:
    """Forward operations of one token, by layer type."""

    matrices: float
    attention: float
    scan: float

    def per_training_token(self) -> float:
        """Forward and backward together."""
        return FORWARD_AND_BACKWARD * (self.matrices + self.attention + self.scan)


@dataclass(frozen=True)
class Sizes:
    """Parameters of a model: all, and those active for one token (embedding table included)."""

    parameters: int
    active: int
    vocabulary: int
    operations: Operations

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "training_flops_per_token": self.operations.per_training_token()}


def sizes_of(config: NemotronHConfig, keys_per_token: float) -> Sizes:
    """Count a model's parameters and operations without allocating it."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    share = config.num_experts_per_tok / config.n_routed_experts
    matrices = active = 0.0
    for name, parameter in model.named_parameters():
        met = parameter.numel() * (share if ".experts." in name else 1)
        active += met
        if parameter.dim() > 1 and "embeddings" not in name:
            matrices += 2 * met
    kinds = list(config.layers_block_type)
    attention_layers, mamba_layers = count(kinds, "attention"), count(kinds, "mamba")
    operations = Operations(
        matrices,
        attention_layers * 4.0 * config.num_attention_heads * config.head_dim * keys_per_token,
        mamba_layers * float(SCAN_OPERATIONS * config.mamba_num_heads * config.mamba_head_dim * config.ssm_state_size),
    )
    return Sizes(model.num_parameters(), round(active), config.vocab_size, operations)


# transformers has named the kinds of layers differently over time.
KINDS = {"attention": {"attention", "full_attention"}, "mamba": {"mamba", "linear_attention"}}


def count(layers: Sequence[str], kind: str) -> int:
    """Number of layers of a kind.

    Raises:
        ValueError: none found, so the names must have changed.
    """
    found = sum(layer in KINDS[kind] for layer in layers)
    if not found:
        raise ValueError(f"no {kind} layer among {sorted(set(layers))}: add this transformers' name to KINDS")
    return found


def keys_per_token(document_lengths: Iterable[int]) -> float:
    """Average number of keys that a token of these documents attends to, including itself, with causal attention."""
    lengths = list(document_lengths)
    return sum(length * (length + 1) / 2 for length in lengths) / sum(lengths)


def packed_document_lengths(file: Path) -> list[int]:
    """Lengths of all documents in a file of packed rows."""
    from nemotron_data.formats.packed import read_packed

    lengths: list[int] = []
    for row in read_packed(file):
        bounds = [*row.seq_start_id.tolist(), len(row.input_ids)]
        lengths += [end - start for start, end in pairwise(bounds)]
    return lengths


def peak_of(gpu: str) -> float | None:
    """Dense bfloat16 peak of a GPU in operations per second, or None if unknown."""
    return next((1e12 * peak for name, peak in PEAKS if name in gpu), None)


def utilisation(tokens_per_second: float, operations: Operations, peak: float | None) -> float | None:
    """MFU between 0 and 1, or None if the peak is unknown."""
    return None if peak is None else tokens_per_second * operations.per_training_token() / peak
