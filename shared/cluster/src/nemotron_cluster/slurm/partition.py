"""What a partition gives to jobs: node sizes, and defaults and limits of CPUs and memory."""

import re

from nemotron_cluster.transport import Transport

SIZE = re.compile(r"^(\d+)\+?\|(\d+)\+?$", re.MULTILINE)
MEMORY = ("DefMemPerCPU", "DefMemPerNode", "DefMemPerGPU", "MaxMemPerCPU", "MaxMemPerNode")
CPUS = ("MaxCPUsPerNode",)
NO_LIMIT = ("UNLIMITED", "0", "NONE", "(null)", "N/A")


def gives(there: Transport, name: str | None) -> str | None:
    """For people: "nodes of 64 CPUs and 515 GB; DefMemPerCPU=8000 MB; OverSubscribe=EXCLUSIVE: jobs get whole nodes".

    None if Slurm does not answer.
    """
    of_it = [f"--partition={name}"] if name else []
    sizes = SIZE.findall(there.run(["sinfo", "--noheader", *of_it, "--format=%c|%m"]).stdout)
    shown = there.run(["scontrol", "show", "partition", *([name] if name else [])]).stdout
    own = dict(re.findall(r"(\w+)=(\S+)", shown))
    if not sizes or not own:
        return None
    site = dict(re.findall(r"^(\w+) *= *(\S+)", there.run(["scontrol", "show", "config"]).stdout, re.MULTILINE))
    facts = site | {key: value for key, value in own.items() if value not in NO_LIMIT}  # the site's defaults apply, too
    cpus, memory = (_range([int(size[index]) for size in sizes]) for index in (0, 1))
    said = [f"nodes of {cpus} CPUs and {memory} MB"]
    said += [f"{key}={facts[key]} MB" for key in MEMORY if facts.get(key, "0") not in NO_LIMIT]
    said += [f"{key}={facts[key]}" for key in CPUS if facts.get(key, "0") not in NO_LIMIT]
    if sharing := facts.get("OverSubscribe"):
        said.append(f"OverSubscribe={sharing}" + (": every job gets whole nodes" if sharing == "EXCLUSIVE" else ""))
    if facts.get("JobDefaults", "(null)") not in NO_LIMIT:
        said.append(f"JobDefaults={facts['JobDefaults']}")
    return "; ".join(said)


def _range(numbers: list[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
