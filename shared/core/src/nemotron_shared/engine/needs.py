"""An engine's requirements for a config, and the checks common to all engines.

    Needs(packages=extra("nemotron-engines", "megatron"), container="nvcr.io/...",
          shared=[{"engine.tensor_model_parallel_size": 8}], rows=64, process_bytes=30 * GB, ...)

Nothing is imported or allocated. Estimates of memory and disk are lower bounds, over what every run of the config keeps
(weights, gradients, optimizer), so nothing that would fit is refused. A step whose stage has an estimator also gives an
`Estimate` of everything else to `--dry-run` and `nemotron plan`: arithmetic, so every number has its assumptions.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import metadata
from typing import Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from nemotron_shared.machine.environments import how_to_get
from nemotron_shared.machine.machine import Machine
from nemotron_shared.system.disk import size
from nemotron_shared.system.errors import Finding, lacking

PROCESS_BYTES = 100_000_000
"""Minimum memory of a process that has imported torch."""
Device = Literal["cpu", "auto", "gpu"]


@dataclass(frozen=True)
class Needs:
    """Requirements of a config.

    Attributes:
        packages: with the versions the engine accepts; the image `container` has them, too.
        python: Python versions those packages exist for.
        device: `auto` uses GPUs if there are any, `gpu` requires one.
        shared: sizes by key; the product of each mapping must divide the number of processes. The first mapping gives
            the processes per copy of the model, which all read the same rows.
        rows: of a step, over all processes; `micro` those of one forward pass.
        process_bytes: minimum memory of one process; `kept` names what takes it.
        checkpoint_bytes, result_bytes: size of a checkpoint and of the final model; disk_bytes: what a run writes at
            least, of both.
        others: further findings of the engine; another layout of the recipe would fix `others_of_layout`.
    """

    packages: tuple[Requirement, ...] = ()
    container: str | None = None
    python: SpecifierSet = field(default_factory=SpecifierSet)
    device: Device = "auto"
    made_for: int | None = None
    shared: Sequence[Mapping[str, int]] = ()
    rows: int | None = None
    micro: int = 1
    process_bytes: int = 0
    kept: str = ""
    checkpoint_bytes: int = 0
    result_bytes: int = 0
    disk_bytes: int = 0
    others: tuple[Finding, ...] = ()
    others_of_layout: tuple[Finding, ...] = ()


@cache
def requirements(distribution: str, extra: str | None = None) -> tuple[Requirement, ...]:
    """Requirements one of our packages, or one of its extras, declares; none if it runs without being installed."""
    try:
        declared = map(Requirement, metadata.requires(distribution) or ())
    except metadata.PackageNotFoundError:
        return ()
    if extra is None:
        return tuple(one for one in declared if "extra" not in str(one.marker))
    return tuple(one for one in declared if f'extra == "{extra}"' in str(one.marker))


def missing(engine: str, needs: Needs, machine: Machine, layout: str | None = None) -> Iterator[Finding]:
    """Everything the machine lacks for an engine.

    Args:
        layout: the engine file with the recipe's layout for a machine of this size.
    """

    def with_layout(finding: Finding) -> Finding:
        return replace(finding, remedy=f"take its layout for this size: engine={layout}") if layout else finding

    yield from (replace(finding, level="lacking") for finding in needs.others)
    yield from (replace(with_layout(finding), level="lacking") for finding in needs.others_of_layout)
    yield from _packages(engine, needs, machine)
    unfit = [*map(with_layout, _undivided(needs, machine)), *_processes(needs, machine)]
    yield from unfit or _memory(needs, machine)  # memory per process is known only if they fit the layout
    if machine.free_disk < needs.disk_bytes:
        yield lacking(
            f"a checkpoint, the next one and the result take about {size(needs.disk_bytes)}; {size(machine.free_disk)} "
            "are free on the disk of the artifact store",
            "free some space, or set run.home to a folder on a larger disk",
        )


def _packages(engine: str, needs: Needs, machine: Machine) -> Iterator[Finding]:
    if not machine.knows_packages:
        return
    remedy = how_to_get(engine) + (f"; or use the container {needs.container}" if needs.container else "")
    if machine.python and not needs.python.contains(f"{machine.python}.0"):
        python = str(needs.python).removesuffix(".*").lstrip("=")
        what = f"engine '{engine}' has packages for Python {python} only, and this is Python {machine.python}"
        yield lacking(what, remedy)
    absent = []
    for wanted in needs.packages:
        found = machine.version_of(wanted.name)
        # ignoring a local label such as +cpu
        if found is None or not wanted.specifier.contains(found.partition("+")[0], prereleases=True):
            absent.append(f"{f'{wanted.name} {wanted.specifier}'.strip()} ({found or 'not installed'})")
    if absent:
        what = f"engine '{engine}' needs the package{'s' if len(absent) > 1 else ''} {', '.join(absent)}"
        yield lacking(what, remedy)


def _undivided(needs: Needs, machine: Machine) -> Iterator[Finding]:
    """Sizes of the layout that the processes cannot be shared out by."""
    count = machine.processes
    given = f"{count} process{'es' if count > 1 else ''}"
    made_for = f"; the recipe is made for {needs.made_for} (engine.world_size)" if needs.made_for else ""
    nodes = _nodes(needs, machine)
    start = "start it on as many as the layout needs: run.nproc_per_node=N on one machine, torchrun on several"
    start += f", {nodes}" if nodes else ""
    for sizes in needs.shared:
        if count % math.prod(sizes.values()):
            layout = " x ".join(f"{key} {value}" for key, value in sizes.items() if value > 1)
            yield lacking(f"{given} cannot be shared out by {layout} = {math.prod(sizes.values())}{made_for}", start)


def _nodes(needs: Needs, machine: Machine) -> str:
    """The setting for the nodes that the recipe is made for; empty where it is for no whole number of them."""
    fitting = needs.made_for is not None and needs.made_for % machine.processes_per_node == 0
    return (
        f"run.env.nodes={needs.made_for // machine.processes_per_node} with --run" if needs.made_for and fitting else ""
    )


def _processes(needs: Needs, machine: Machine) -> Iterator[Finding]:
    """Rows that the processes cannot share, and GPUs that they do not have."""
    count, per_node, nodes = machine.processes, machine.processes_per_node, _nodes(needs, machine)
    if needs.rows is not None:
        replicas = max(1, count // math.prod(needs.shared[0].values() if needs.shared else ()))
        if needs.rows % (needs.micro * replicas):
            each = f"a micro batch of {needs.micro} x {replicas} processes"
            what = f"{needs.rows} rows per step are not a multiple of {each}"
            remedy = "change the batch, train.micro_batch_size, or the number of processes"
            remedy += f" ({nodes})" if nodes else ""
            yield lacking(f"{what} that read different rows" if needs.shared else what, remedy)
    if needs.device == "gpu" and not machine.gpus:
        yield lacking(
            "the engine needs a GPU for this config, but this machine has none", "run it on a machine with a GPU"
        )
    elif needs.device != "cpu" and machine.gpus and per_node > len(machine.gpus):
        what = f"{per_node} processes on a machine with {len(machine.gpus)} GPUs: each needs its own GPU"
        yield lacking(
            what, f"start {len(machine.gpus)} per machine, or set engine.device=cpu if the engine supports it"
        )


def _memory(needs: Needs, machine: Machine) -> Iterator[Finding]:
    if needs.device != "cpu" and machine.gpus:
        smallest = min(machine.gpus, key=lambda gpu: gpu.memory)
        needed, there, where = needs.process_bytes, smallest.memory, f"a GPU ({smallest.name}) has"
        each = "each process needs"
    else:
        several = machine.processes_per_node > 1
        each_bytes = needs.process_bytes + (PROCESS_BYTES if several else 0)
        needed, there, where = each_bytes * machine.processes_per_node, machine.memory, "the machine has"
        each = f"{machine.processes_per_node} processes need" if several else "the process needs"
    if needed > there:
        what = f"{each} at least {size(needed)} for {needs.kept or 'themselves'}; {where} {size(there)}"
        yield lacking(what, "use -c tiny, a smaller model, or more or larger GPUs")


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


NOT_ESTIMATED = "no estimate: "
"""Beginning of the note of a dry run without an estimate, which says why."""


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
