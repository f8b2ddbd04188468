"""Compare two implementations of the same Mamba function on the same inputs: differences and speed.

    inputs = scan_inputs(SHAPES["tiny"], torch.bfloat16, "cuda", packed=True)
    differences(results(kernel, inputs), results(reference, inputs))     {"output": 0.002, "x": 0.003, "A": ...}

A difference is the norm of the difference over the norm of the reference's result, for the output and for the gradient
of every input. Types are those of a model in mixed precision: activations in `dtype`, A, D and dt_bias in float32.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

# mamba-ssm multiplies float32 in TF32 (10 bits of mantissa); bfloat16 has 7, and the kernels keep states in it.
TOLERANCES = {torch.float32: 5e-3, torch.bfloat16: 3e-2}
DOCUMENTS = (0, 37, 100, 101, 190)
"""Starts of documents in a packed row: inside chunks, and one document of a single token."""


class Shape(NamedTuple):
    """Sizes of one Mamba layer's scan."""

    batch: int
    length: int
    heads: int
    channels: int
    """Per head."""
    groups: int
    state: int
    chunk: int

    @property
    def width(self) -> int:
        """Channels of the convolution: x, B and C concatenated."""
        return self.heads * self.channels + 2 * self.groups * self.state


SHAPES = {
    "tiny": Shape(4, 256, 8, 16, 2, 16, 32),
    "super3-1b": Shape(2, 1024, 32, 64, 8, 128, 128),
}


@dataclass
class Inputs:
    """Arguments of a function: tensors by name, including those to differentiate by, and the rest."""

    positional: dict[str, Tensor]
    keywords: dict[str, Tensor] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def leaves(self) -> dict[str, Tensor]:
        """Tensors that get a gradient."""
        return {name: t for name, t in (self.positional | self.keywords).items() if t.requires_grad}

    def call(self, function: Callable[..., Any]) -> Any:
        """Result of calling the function."""
        return function(*self.positional.values(), **self.keywords, **self.options)


def document_numbers(batch: int, length: int, device: str) -> Tensor:
    """`seq_idx` (batch, length) int32 of rows that hold several documents each."""
    starts = torch.zeros(length, dtype=torch.int32)
    starts[[start for start in DOCUMENTS if 0 < start < length]] = 1
    return starts.cumsum(0).to(torch.int32).expand(batch, -1).contiguous().to(device)


def scan_inputs(shape: Shape, dtype: torch.dtype, device: str, *, packed: bool) -> Inputs:
    """Inputs of `mamba_chunk_scan_combined`, the same numbers on every device."""
    draw = _drawer(device)
    batch, length, heads, channels, groups, state, chunk = shape
    inputs = {
        "x": draw(batch, length, heads, channels).to(dtype),
        "dt": draw(batch, length, heads).to(dtype),
        "A": -torch.arange(1.0, heads + 1, device=device),
        "B": draw(batch, length, groups, state).to(dtype),
        "C": draw(batch, length, groups, state).to(dtype),
    }
    keywords = {"D": torch.ones(heads, device=device), "dt_bias": draw(heads) / 2 - 3}
    for tensor in (*inputs.values(), *keywords.values()):
        tensor.requires_grad_()
    if packed:
        keywords["seq_idx"] = document_numbers(batch, length, device)
    return Inputs(inputs, keywords, {"chunk_size": chunk, "dt_softplus": True, "dt_limit": (0.0, math.inf)})


def convolution_inputs(shape: Shape, dtype: torch.dtype, device: str, *, packed: bool) -> Inputs:
    """Inputs of `causal_conv1d_fn` in the memory order that the model uses: channels adjacent."""
    draw = _drawer(device)
    x = draw(shape.batch, shape.length, shape.width).to(dtype).transpose(1, 2).requires_grad_()
    weights = {"weight": draw(shape.width, 4), "bias": draw(shape.width)}
    positional = {"x": x, **{name: t.to(dtype).requires_grad_() for name, t in weights.items()}}
    keywords = {"seq_idx": document_numbers(shape.batch, shape.length, device)} if packed else {}
    return Inputs(positional, keywords, {"activation": "silu"})


def step_inputs(shape: Shape, dtype: torch.dtype, device: str) -> Inputs:
    """Inputs of `selective_state_update`, for one generated token; the first tensor is the state, which it updates."""
    draw = _drawer(device)
    batch, _, heads, channels, groups, state, _ = shape
    per_head = (-1, channels)
    positional = {
        "state": draw(batch, heads, channels, state),
        "x": draw(batch, heads, channels).to(dtype),
        "dt": draw(batch, heads)[..., None].expand(-1, *per_head).to(dtype),
        "A": -torch.arange(1.0, heads + 1, device=device)[:, None, None].expand(-1, channels, state),
        "B": draw(batch, groups, state).to(dtype),
        "C": draw(batch, groups, state).to(dtype),
    }
    keywords = {
        "D": torch.ones(heads, device=device)[:, None].expand(*per_head),
        "dt_bias": (draw(heads) / 2 - 3)[:, None].expand(*per_head),
    }
    return Inputs(positional, keywords, {"dt_softplus": True})


def convolution_step_inputs(shape: Shape, dtype: torch.dtype, device: str) -> Inputs:
    """Inputs of `causal_conv1d_update`; the second tensor is the state, which it updates."""
    draw = _drawer(device)
    sizes = {"x": (shape.batch, shape.width), "conv_state": (shape.batch, shape.width, 4)}
    sizes |= {"weight": (shape.width, 4), "bias": (shape.width,)}
    return Inputs({name: draw(*size).to(dtype) for name, size in sizes.items()}, options={"activation": "silu"})


def _drawer(device: str) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(0)
    return lambda *size: torch.randn(*size, generator=generator).to(device)


def results(function: Callable[..., Any], inputs: Inputs) -> dict[str, Tensor]:
    """The output, and the gradient of every leaf for one fixed gradient of the output."""
    output = inputs.call(function)
    leaves = inputs.leaves()
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
    gradients = torch.autograd.grad(output, list(leaves.values()), upstream)
    return {"output": output.detach(), **dict(zip(leaves, gradients, strict=True))}


def step_results(function: Callable[..., Any], inputs: Inputs, state: str) -> dict[str, Tensor]:
    """The output for one generated token, and the new state; `inputs` stay unchanged."""
    own = {name: t.clone() if name == state else t for name, t in inputs.positional.items()}
    output = Inputs(own, inputs.keywords, inputs.options).call(function)
    return {"output": output, state: own[state]}


def differences(found: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """Relative differences by name; infinite if a value is not finite.

    Raises:
        ValueError: the two have different names or shapes.
    """
    described = [{name: tuple(t.shape) for name, t in one.items()} for one in (found, expected)]
    if described[0] != described[1]:
        raise ValueError(f"results of different shapes: {described[0]} and {described[1]}")
    return {name: _relative(found[name].double(), expected[name].double()) for name in expected}


def _relative(found: Tensor, expected: Tensor) -> float:
    difference = ((found - expected).norm() / expected.norm().clamp_min(1e-12)).item()
    return difference if math.isfinite(difference) else math.inf


def worst(found: dict[str, float]) -> tuple[str, float]:
    """The name with the largest difference, and that difference."""
    name = max(found, key=found.__getitem__)
    return name, found[name]


def milliseconds(run: Callable[[], Any], rounds: int = 20) -> float:
    """Median wall time of a call, including the device's work; three warm-up calls are not counted."""
    for _ in range(3):
        run()
    times = []
    for _ in range(rounds):
        _wait()
        start = time.perf_counter()
        run()
        _wait()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
