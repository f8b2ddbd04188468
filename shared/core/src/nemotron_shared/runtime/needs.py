"""An engine's requirements for a config, and the checks common to all engines.

    Needs(packages=extra("nemotron-engines", "megatron"), container="nvcr.io/...",
          shared=[{"engine.tensor_model_parallel_size": 8}], rows=64, process_bytes=30 * GB, ...)

Nothing is imported or allocated. Estimates of memory and disk are lower bounds, over what every run of the config keeps
(weights, gradients, optimizer), so nothing that would fit is refused.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from typing import Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from nemotron_shared.runtime.disk import size
from nemotron_shared.runtime.environments import how_to_get
from nemotron_shared.runtime.machine import Machine

PROCESS_BYTES = 100_000_000
"""Minimum memory of a process that has imported torch."""
Device = Literal["cpu", "auto", "gpu"]


@dataclass(frozen=True)
class Problem:
    """A reason a config cannot run.

    Attributes:
        key: the setting at fault, if there is one.
        of_layout: another layout of the recipe would work.
    """

    message: str
    remedy: str | None = None
    key: str | None = None
    of_layout: bool = False


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
        others: further problems found by the engine.
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
    others: tuple[Problem, ...] = ()


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


def missing(engine: str, needs: Needs, machine: Machine) -> Iterator[Problem]:
    """Everything the machine lacks for an engine."""
    yield from needs.others
    yield from _packages(engine, needs, machine)
    unfit = list(_processes(needs, machine))
    yield from unfit or _memory(needs, machine)  # memory per process is known only if they fit the layout
    if machine.free_disk < needs.disk_bytes:
        yield Problem(
            f"a checkpoint, the next one and the result take about {size(needs.disk_bytes)}; {size(machine.free_disk)} "
            "are free on the disk of the artifact store",
            "free some space, or set run.home to a folder on a larger disk",
        )


def _packages(engine: str, needs: Needs, machine: Machine) -> Iterator[Problem]:
    if not machine.knows_packages:
        return
    remedy = how_to_get(engine) + (f"; or use the container {needs.container}" if needs.container else "")
    if machine.python and not needs.python.contains(f"{machine.python}.0"):
        python = str(needs.python).removesuffix(".*").lstrip("=")
        what = f"engine '{engine}' has packages for Python {python} only, and this is Python {machine.python}"
        yield Problem(what, remedy)
    lacking = []
    for wanted in needs.packages:
        found = machine.version_of(wanted.name)
        # ignoring a local label such as +cpu
        if found is None or not wanted.specifier.contains(found.partition("+")[0], prereleases=True):
            lacking.append(f"{f'{wanted.name} {wanted.specifier}'.strip()} ({found or 'not installed'})")
    if lacking:
        what = f"engine '{engine}' needs the package{'s' if len(lacking) > 1 else ''} {', '.join(lacking)}"
        yield Problem(what, remedy)


def _processes(needs: Needs, machine: Machine) -> Iterator[Problem]:
    count, per_node = machine.processes, machine.processes_per_node
    given = f"{count} process{'es' if count > 1 else ''}"
    made_for = f"; the recipe is made for {needs.made_for} (engine.world_size)" if needs.made_for else ""
    fitting = needs.made_for is not None and needs.made_for % per_node == 0
    nodes = f"run.env.nodes={needs.made_for // per_node} with --run" if needs.made_for and fitting else ""
    start = "start it on as many as the layout needs: run.nproc_per_node=N on one machine, torchrun on several"
    start += f", {nodes}" if nodes else ""
    for sizes in needs.shared:
        if count % math.prod(sizes.values()):
            layout = " x ".join(f"{key} {value}" for key, value in sizes.items() if value > 1)
            what = f"{given} cannot be shared out by {layout} = {math.prod(sizes.values())}{made_for}"
            yield Problem(what, start, of_layout=True)
    if needs.rows is not None:
        replicas = max(1, count // math.prod(needs.shared[0].values() if needs.shared else ()))
        if needs.rows % (needs.micro * replicas):
            each = f"a micro batch of {needs.micro} x {replicas} processes"
            what = f"{needs.rows} rows per step are not a multiple of {each}"
            remedy = "change the batch, train.micro_batch_size, or the number of processes"
            remedy += f" ({nodes})" if nodes else ""
            yield Problem(f"{what} that read different rows" if needs.shared else what, remedy)
    if needs.device == "gpu" and not machine.gpus:
        yield Problem("the engine needs a GPU for this config, and there is none", "run it where there is one")
    elif needs.device != "cpu" and machine.gpus and per_node > len(machine.gpus):
        what = f"{per_node} processes on a machine with {len(machine.gpus)} GPUs: each needs one of its own"
        yield Problem(what, f"start {len(machine.gpus)} on each, or set engine.device=cpu where the engine has it")


def _memory(needs: Needs, machine: Machine) -> Iterator[Problem]:
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
        yield Problem(what, "use -c tiny, a smaller model, or more or larger GPUs")
