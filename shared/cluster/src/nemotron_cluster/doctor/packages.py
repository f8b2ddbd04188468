"""Check the packages of a local or remote environment: our version pins, their own requirements, and the GPU driver."""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemotron_cluster.doctor import probe
from nemotron_cluster.doctor.report import Check, Group
from nemotron_cluster.transport import last_line
from nemotron_shared.engine.needs import requirements
from nemotron_shared.machine.environments import environment_of, how_to_get

if TYPE_CHECKING:
    from packaging.requirements import Requirement

Facts = Mapping[str, Any]
SOURCE = Path(probe.__file__).read_text(encoding="utf-8")
KERNELS = {"mamba-ssm": "mamba_ssm", "causal-conv1d": "causal_conv1d"}
DRIVERS = {11: 450, 12: 525, 13: 580}
"""Minimum driver major version by CUDA major version."""
SHARED_KINDS = re.compile(r"nfs|lustre|gpfs|beegfs|ceph|weka|panfs|pvfs|orangefs|glusterfs|fhgfs|daos", re.IGNORECASE)
PATIENCE = 900.0


def probe_here(python: str, question: Mapping[str, Any], *, isolated: bool = False) -> Facts:
    """Probe facts about this machine and one of its Pythons; {"error": ...} if the probe failed.

    Args:
        isolated: import nothing but what is installed there.
    """
    apart = ["env", "-u", "PYTHONPATH", "-u", "PYTHONHOME", "PYTHONSAFEPATH=1"] if isolated else []
    _, output, error = probe.run([*apart, python, "-c", SOURCE, json.dumps(question)], PATIENCE)
    found = facts_in(output)
    return found[0] if found else {"error": last_line(error, "it printed nothing")}


def facts_in(text: str) -> list[Facts]:
    """Reassemble the probes' answers from their lines, ignoring other output in between."""
    pieces: dict[str, str] = {}
    for line in text.splitlines():
        words = line.partition(f"{probe.MARK} ")[2].split(" ", 1)
        if len(words) == 2:
            pieces[words[0]] = pieces.get(words[0], "") + words[1]
    found = []
    for whole in pieces.values():
        with contextlib.suppress(ValueError):
            facts = json.loads(whole)
            found += [facts] if isinstance(facts, dict) else []
    return found


def pins(engine: str | None) -> "list[Requirement]":
    """Requirements of our installed packages, plus those of an engine's extra.

    An engine's environment has only those of our packages that its steps need, not those of other stages.
    """
    environment = environment_of(engine) if engine else None
    if environment and environment.members:
        names = _with_dependencies(environment.members)
    else:
        names = {str(each.metadata["Name"]) for each in metadata.distributions() if each.metadata}
    wanted = [one for name in sorted(names) if name.startswith("nemotron-") for one in requirements(name)]
    unlocked: set[str] = set()  # packages whose locked version does not apply in the engine's environment
    if environment is not None:
        wanted += requirements("nemotron-engines", environment.name.replace("_", "-"))
        unlocked = {text.split("==")[0] for text in environment.unlocked}
    return [one for one in wanted if not one.name.startswith("nemotron-") and one.name not in unlocked]


def _with_dependencies(members: Iterable[str]) -> set[str]:
    """Our packages among `members`, and our packages that they depend on."""
    found = {name for name in members if name.startswith("nemotron-")}
    below = {one.name for name in found for one in requirements(name) if one.name.startswith("nemotron-")}
    return found if below <= found else _with_dependencies(found | below)


def modules(engine: str | None, *, ray: bool) -> list[str]:
    """Modules to import: torch, the Mamba kernels, an engine's own modules, and Ray if used."""
    environment = environment_of(engine) if engine else None
    own = list(environment.packages.values()) if environment and environment.runs_step else ["nemo_automodel"]
    return list(dict.fromkeys(["torch", *KERNELS.values(), *own, *(["ray", "aiohttp_cors"] if ray else [])]))


def check_packages(group: Group, facts: Facts, wanted: "Sequence[Requirement]", engine: str | None) -> Iterator[Check]:
    """Check the packages of one machine."""
    yield _python(group, facts)
    yield _versions(group, facts, wanted, engine)
    yield from _torch(group, facts)
    yield from _imports(group, facts, engine)
    if (compiled := facts.get("bytecode")) and compiled["missing"] > compiled["looked"] // 2:
        where = " on a shared file system" if is_shared(compiled["kind"]) else ""
        what = f"{compiled['missing']} of {compiled['looked']} modules of {compiled['package']}{where} are not compiled"
        what += ", so every process compiles them again: minutes, where the file system is slow"
        remedy = "compile them once: uv sync --compile-bytecode, or Python's module compileall over site-packages"
        yield group.warn("bytecode", what, remedy)


def is_shared(kind: str | None) -> bool:
    """Whether a file system type is shared between machines."""
    return bool(kind and SHARED_KINDS.search(kind))


def _python(group: Group, facts: Facts) -> Check:
    version = facts["python"]
    if tuple(map(int, re.findall(r"\d+", version)[:2])) in {(3, 11), (3, 12), (3, 13)}:
        return group.ok("Python", version)
    return group.fail("Python", f"{version}: the packages are for 3.11, 3.12 and 3.13", "use one of these")


def _versions(group: Group, facts: Facts, wanted: "Sequence[Requirement]", engine: str | None) -> Check:
    found, wrong, looked = facts["packages"], [], 0
    for one in wanted:
        if one.marker and "extra" not in str(one.marker) and not one.marker.evaluate():
            continue
        looked += 1
        version = found.get(one.name.lower().replace("_", "-"))
        if version is None or not one.specifier.contains(version.partition("+")[0], prereleases=True):
            wrong.append(f"{one.name}{one.specifier} ({version or 'not installed'})")
    if not wanted:
        return group.skip("versions", "our packages are not installed here, so nothing says what is pinned")
    if wrong:
        shown = ", ".join(sorted(set(wrong))[:12]) + (f" and {len(wrong) - 12} more" if len(wrong) > 12 else "")
        return group.fail("versions", f"{len(wrong)} of {looked} are not as pinned: {shown}", _reinstall(engine))
    return group.ok("versions", f"{looked} packages are as pinned")


def _torch(group: Group, facts: Facts) -> Iterator[Check]:
    """Checks of torch and its GPUs, the first two of the four lines in the setup guide."""
    torch = facts["imports"].get("torch", {"error": "not asked"})
    if "error" in torch:
        yield group.fail("PyTorch", torch["error"], how_to_get(""))
        yield group.skip("CUDA", "only PyTorch could tell")
        return
    abi = "new" if torch["abi"] else "old"
    cuda = f"CUDA {torch['cuda']}" if torch["cuda"] else "CPUs"
    yield group.ok("PyTorch", f"{torch['version']}, made for {cuda}, {abi} C++ ABI")
    gpus, driver = facts["gpus"], str(facts["gpus"].get("driver") or "")
    least = DRIVERS.get(int(str(torch["cuda"] or "0").split(".")[0]))
    if torch["available"]:
        yield group.ok("CUDA", f"True, with driver {driver or 'unknown'}")
    elif gpus.get("absent"):
        yield group.skip("CUDA", "False: this machine has no NVIDIA driver")
    elif "error" in gpus:
        yield group.fail("CUDA", f"False: nvidia-smi says: {gpus['error']}", "have the driver repaired")
    elif torch["cuda"] is None:
        yield group.fail("CUDA", "False: this PyTorch is made for CPUs only", how_to_get(""))
    elif least and driver.split(".")[0].isdecimal() and int(driver.split(".")[0]) < least:
        what = f"False: driver {driver} is too old for {cuda}, which needs {least} or newer"
        yield group.fail("CUDA", what, "have the driver renewed, or use a PyTorch for an older CUDA, or a container")
    else:
        what = f"False, with driver {driver or 'unknown'} and {len(gpus.get('each', []))} GPUs"
        yield group.fail("CUDA", what, "look at CUDA_VISIBLE_DEVICES, and at what nvidia-smi shows")


def _imports(group: Group, facts: Facts, engine: str | None) -> Iterator[Check]:
    torch, on_gpu = facts["imports"].get("torch", {}), "each" in facts["gpus"]
    environment = environment_of(engine) if engine else None
    needed = {*(environment.packages.values() if environment else ()), *(KERNELS.values() if engine and on_gpu else ())}
    for name, found in facts["imports"].items():
        if name in ("torch", "aiohttp_cors"):
            continue
        version = facts["packages"].get(name.replace("_", "-").replace(".", "-"), "")
        if "error" not in found:
            yield group.ok(name, f"OK {version}".strip())
        elif found["absent"] and name not in needed:
            is_kernel = name in KERNELS.values()
            why = "the torch kernels of this project take their place" if is_kernel else "not needed here"
            yield group.skip(name, f"not installed; {why}")
        elif name in KERNELS.values():
            yield group.fail(name, found["error"], _build(facts, torch))
        else:
            yield group.fail(name, found["error"], _reinstall(engine))
    if "error" in facts["imports"].get("aiohttp_cors", {}) and "ray" in facts["packages"]:
        what = "ray without its dashboard: NeMo-RL's ray.sub asks for one, and its head then does not start"
        yield group.warn("ray[default]", what, "install the extra: ray[default]")
    nvcc, cuda = facts["nvcc"], torch.get("cuda")
    if nvcc and cuda and nvcc != cuda:
        what = f"{nvcc}, and PyTorch is made for {cuda}: what is compiled with it does not fit"
        yield group.warn("nvcc", what, f"set CUDA_HOME to CUDA {cuda} (module load) before anything is compiled")
    elif nvcc or any(name in facts["imports"] for name in needed & set(KERNELS.values())):
        yield group.ok("nvcc", nvcc) if nvcc else group.skip("nvcc", "not found: nothing can be compiled here")


def _reinstall(engine: str | None) -> str:
    """How to recreate the environment that was checked: an engine's own, if it has one."""
    environment = environment_of(engine) if engine else None
    return f"make its environment: {environment.install}" if environment else how_to_get("")


def _build(facts: Facts, torch: Facts) -> str:
    """What a prebuilt kernel wheel must match, and what building one requires."""
    if "version" not in torch:
        return "make PyTorch importable first"
    cuda, abi = str(torch["cuda"]).split(".")[0], str(torch["abi"]).upper()
    python = "".join(facts["python"].split(".")[:2])
    short = ".".join(torch["version"].split(".")[:2])
    build = "build it without isolation from torch, MAMBA_FORCE_BUILD and CAUSAL_CONV1D_FORCE_BUILD set to TRUE"
    if facts["nvcc"] != torch["cuda"]:
        build += f", with nvcc {torch['cuda']} (here: {facts['nvcc'] or 'none'})"
    return f"take a wheel for cu{cuda}torch{short}cxx11abi{abi}-cp{python}, or {build}"
