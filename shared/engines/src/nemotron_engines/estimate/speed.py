"""Seconds per step, from the cost of a token and the data sheet of a device.

Three coefficients say how much slower a GPU is than its data sheet: for operations, for bytes moved, and for the fixed
cost of each layer in each pass (kernel launches, routing, synchronisation). `benchmarks/plan.py` fits them to the runs
that NVIDIA publishes for these models. Beyond these three, 8-bit, 4-bit and 16-bit runs show no difference, so
precision has no separate term.
"""

from nemotron_engines.estimate.layouts import Layout
from nemotron_engines.estimate.work import Work
from nemotron_shared.runtime.machine import CORE_OPERATIONS, Device

OPERATIONS, TRAFFIC, LAYER_SECONDS = 1.906, 1.295, 2.666e-3
PARTS = ("operations", "memory traffic", "fixed cost of layers")


def terms(work: Work, device: Device, layout: Layout) -> tuple[float, float, float]:
    """Seconds per token and GPU, before the coefficients.

    `layout.tensor` GPUs wait together for the fixed cost of each layer, and a pass of `layout.micro_tokens` shares it.
    """
    return (
        work.operations / device.operations,
        work.traffic / device.bandwidth,
        work.layers * layout.tensor * layout.context / layout.micro_tokens,
    )


def step_seconds(work: Work, device: Device, layout: Layout, tokens: int) -> dict[str, float]:
    """Seconds of one optimizer step of `tokens` over all GPUs, by part."""
    coefficients = (OPERATIONS, TRAFFIC, LAYER_SECONDS)
    each = tokens / layout.devices
    passed = dict(
        zip(PARTS, (a * b * each for a, b in zip(coefficients, terms(work, device, layout), strict=True)), strict=True)
    )
    idle = (layout.pipeline - 1) / max(1, layout.passes)
    return passed | {"pipeline bubble": idle * sum(passed.values())}


def core_seconds(work: Work, cores: int, tokens: int) -> dict[str, float]:
    """Seconds of one step on a CPU with one process per core."""
    return {"all": work.operations * tokens / cores / CORE_OPERATIONS}
