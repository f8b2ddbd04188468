"""What a training will take: parameters, memory, disk, tokens and time, estimated before anything runs.

A step whose stage estimates hands an `Estimate` to `--dry-run` and to `nemotron plan`. It is arithmetic on the config:
nothing is imported and nothing is measured, so every number stands with the assumptions that it rests on.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nemotron_shared.runtime.disk import size

HOUR, DAY = 3600, 86400
MARGIN = 0.1
"""Of a device's memory, to be left free: activations are an estimate, and an allocator loses some to gaps."""
FEW_STEPS = 100
"""For which the time is said where nobody knows how many there will be."""


@dataclass(frozen=True)
class Estimate:
    """Sizes are bytes and times seconds.

    Attributes:
        architecture: which was taken, and why, for people.
        parameters: of the model; `active` those that one token passes through.
        device: a GPU's name, or what stands for a core; `devices` how many work.
        layout: how the model and its rows are shared out, for people.
        memory: of one device, by part, at its fullest; `memory_there` what it has, None where nobody said.
        checkpoint, result: size of one checkpoint, and of the model at the end; `disk` of all that is kept at once.
        tokens_per_step, steps: optimizer steps from the first to the last, or as many as there may be at most where
            `steps_are_a_limit`: then the time of all is unknown.
        step_seconds: of one step, by part; empty where nothing is known of the device.
        assumptions: what the numbers rest on.
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
        """Of all steps; None where the device or their number is unknown."""
        known = self.step_seconds and not self.steps_are_a_limit
        return self.steps * sum(self.step_seconds.values()) if known else None

    @property
    def fits(self) -> bool | None:
        """Whether the memory of a device is enough; None where nobody said how much it has."""
        return None if self.memory_there is None else sum(self.memory.values()) <= self.memory_there

    @property
    def is_tight(self) -> bool:
        """Whether it fits with less than the margin left."""
        there = self.memory_there
        return bool(self.fits and there and sum(self.memory.values()) > (1 - MARGIN) * there)

    def as_json(self) -> dict[str, object]:
        """For programs; sizes in bytes, times in seconds."""
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
    """What there is to say about the room that is left."""
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
