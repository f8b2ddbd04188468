"""Estimate a training's parameters, memory, disk, tokens and time before anything runs.

A step whose stage has an estimator gives an `Estimate` to `--dry-run` and `nemotron plan`. It is arithmetic on the
config: nothing is imported or measured, so every number comes with its assumptions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nemotron_shared.runtime.disk import size

HOUR, DAY = 3600, 86400
MARGIN = 0.1
"""Share of a device's memory to leave free: activations are an estimate, and allocators fragment."""
FEW_STEPS = 100
"""Steps to give the time for when the total is unknown."""


@dataclass(frozen=True)
class Estimate:
    """Sizes are in bytes and times in seconds.

    Attributes:
        architecture: the one assumed, and why, for people.
        parameters: of the model; `active` of them are used per token.
        device: a GPU's name, or the stand-in for a core; `devices` is their number.
        layout: how the model and its rows are sharded, for people.
        memory: peak on one device, by part; `memory_there` is its capacity, None if unknown.
        checkpoint, result: size of one checkpoint, and of the final model; `disk` is everything kept at once.
        tokens_per_step, steps: optimizer steps in all, or their upper limit if `steps_are_a_limit`: the total time is
            then unknown.
        step_seconds: of one step, by part; empty for an unknown device.
        assumptions: what the numbers are based on.
    """

    architecture: str
    parameters: int
    active: int
    device: str
    devices: int
    layout: str
    memory: Mapping[str, float]
    memory_there: float | None
    checkpoint: int
    result: int
    disk: int
    tokens_per_step: int
    steps: int
    steps_are_a_limit: bool
    step_seconds: Mapping[str, float]
    assumptions: tuple[str, ...]

    @property
    def seconds(self) -> float | None:
        """Time of all steps; None if the device or the number of steps is unknown."""
        known = self.step_seconds and not self.steps_are_a_limit
        return self.steps * sum(self.step_seconds.values()) if known else None

    @property
    def fits(self) -> bool | None:
        """Whether a device has enough memory; None if its capacity is unknown."""
        return None if self.memory_there is None else sum(self.memory.values()) <= self.memory_there

    @property
    def is_tight(self) -> bool:
        """Whether it fits with less than the margin free."""
        there = self.memory_there
        return bool(self.fits and there and sum(self.memory.values()) > (1 - MARGIN) * there)

    def as_json(self) -> dict[str, object]:
        """Values for programs; sizes in bytes, times in seconds."""
        seconds = self.seconds
        hours = None if seconds is None else seconds * self.devices / HOUR
        own = {name: dict(value) if isinstance(value, Mapping) else value for name, value in vars(self).items()}
        return own | {"seconds": seconds, "device_hours": hours, "fits": self.fits, "is_tight": self.is_tight}


def lines(estimate: Estimate) -> Iterator[tuple[str, str]]:
    """Each number with its name, for people."""
    one, several = estimate.device, estimate.devices > 1
    yield "architecture", estimate.architecture
    yield "parameters", f"{count(estimate.parameters)}, {count(estimate.active)} active for a token"
    yield "on", f"{estimate.devices} x {one}" + (f": {estimate.layout}" if estimate.layout else "")
    parts = ", ".join(f"{name} {size(value)}" for name, value in estimate.memory.items() if value)
    has = "" if estimate.memory_there is None else f" of {size(estimate.memory_there)}"
    each = "memory of each" if several else "memory"
    yield each, f"{size(sum(estimate.memory.values()))}{has}{_verdict(estimate)} ({parts})"
    checkpoints = f", a checkpoint {size(estimate.checkpoint)}" if estimate.checkpoint else ""
    yield "disk", f"{size(estimate.disk)} at once{checkpoints}, the model {size(estimate.result)}"
    tokens, per_step = count(estimate.steps * estimate.tokens_per_step), f"{count(estimate.tokens_per_step)} tokens"
    limit = f"{per_step} a step; the config's {estimate.steps:,} steps are an upper limit, not a plan"
    all_steps = f"{tokens}: {estimate.steps:,} step{'s' if estimate.steps != 1 else ''} of {per_step}"
    yield "tokens", limit if estimate.steps_are_a_limit else all_steps
    if not estimate.step_seconds:
        yield "time", "unknown for this device"
        return
    step = sum(estimate.step_seconds.values())
    shares = [f"{name} {100 * value / step:.0f} %" for name, value in estimate.step_seconds.items() if value]
    parts = f" ({', '.join(shares)})" if len(shares) > 1 else ""
    rate = estimate.tokens_per_step / step / estimate.devices
    yield "a step", f"{duration(step)}, {_rate(rate)} tokens/s on each{parts}"
    steps, name = (FEW_STEPS, f"{FEW_STEPS} steps") if estimate.steps_are_a_limit else (estimate.steps, "all steps")
    hours = steps * step * estimate.devices / HOUR
    kind = "core" if one.startswith("CPU") else "GPU"
    used = f"{hours:,.{0 if hours >= 10 else 2}f}" if hours >= 0.01 else "under 0.01"
    yield name, f"{duration(steps * step)}, {used} {kind} hours"


def _rate(tokens: float) -> str:
    return f"{tokens:,.0f}" if tokens >= 10 else f"{tokens:.2g}"


def _verdict(estimate: Estimate) -> str:
    """Comment on the memory left."""
    if estimate.fits is False:
        return ": DOES NOT FIT"
    if not estimate.is_tight or estimate.memory_there is None:
        return ""
    left = size(estimate.memory_there - sum(estimate.memory.values()))
    return f": TIGHT, {left} left; {100 * MARGIN:.0f} % should be free, since activations are only estimated"


def count(number: float) -> str:
    """`350k`, `31.6B`, `6.4T`."""
    for letter, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= factor:
            value = number / factor
            return f"{value:.{0 if value >= 100 else 1}f}{letter}"
    return f"{number:,.0f}"


def duration(seconds: float) -> str:
    """`0.08 s`, `12 min`, `3.4 h`, `57 days`."""
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.{1 if seconds < 10 else 0}f} s"
    if seconds < 2 * HOUR:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / HOUR:.1f} h" if seconds < 3 * DAY else f"{seconds / DAY:,.0f} days"
