"""Report facts about a machine as JSON. Run as a script, here and on every node of a cluster:

    python -c "$(cat probe.py)" '{"imports": ["torch"], "folders": ["/lustre/me"]}'

Uses only the standard library of Python 3.8 and nothing of this project. Each import runs in a separate process, so
a package that crashes, hangs or is missing is reported like any other fact.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

MARK = "nemotron-doctor"
"""Prefix of each output line, to separate it from output of module systems and shell start files."""
LINE = 400
"""Maximum line length: srun interleaves lines of nodes and splits longer ones."""
TORCH = """
import json, torch
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "available": torch.cuda.is_available(),
                  "abi": bool(torch._C._GLIBCXX_USE_CXX11_ABI)}))
"""
GPU_QUERY = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
MODULES_LOOKED_AT = 300
CANARY_PATIENCE = 60.0
Facts = dict  # any JSON value


def main() -> None:
    asked = json.loads(sys.argv[1])
    # first, because nodes wait for each other's file, and import times differ between nodes
    canary = write_canary(Path(asked["canary"]), asked["nodes"]) if asked.get("canary") else None
    names = ((each.metadata["Name"] or "", each.version) for each in metadata.distributions() if each.metadata)
    facts = {
        "host": socket.gethostname(),
        "canary": canary,
        "python": sys.version.split()[0],
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "packages": {name.lower().replace("_", "-"): version for name, version in names},
        "gpus": gpus(),
        "nvcc": nvcc(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "programs": {name: shutil.which(name) for name in asked.get("programs", [])},
        "folders": {path: folder(path) for path in asked.get("folders", [])},
        "bytecode": bytecode(),
        "imports": {name: try_import(name, asked.get("patience", 120)) for name in asked.get("imports", [])},
    }
    text = json.dumps(facts)
    who = f"{facts['host']}/{os.environ.get('SLURM_PROCID', '0')}"
    for start in range(0, len(text), LINE):
        print(f"{MARK} {who} {text[start : start + LINE]}", flush=True)


def run(command: list[str], patience: float = 60) -> tuple[int | None, str, str]:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=patience, check=False)
    except subprocess.TimeoutExpired:
        return None, "", f"no answer within {patience:.0f} s"
    except OSError as error:
        return None, "", str(error)
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def try_import(name: str, patience: float) -> Facts:
    """Try to import a module: its facts, or "error" and the last line of output."""
    program = TORCH if name == "torch" else f"import {name}; print('{{}}')"
    code, out, error = run([sys.executable, "-c", program], patience)
    last = (error.strip() or f"it ended with exit code {code} and said nothing").splitlines()[-1]
    try:
        facts = json.loads(out.strip().splitlines()[-1]) if code == 0 else None
    except (ValueError, IndexError):
        facts, last = None, f"it printed no facts: {out[-200:]}"
    absent = last == f"ModuleNotFoundError: No module named '{name.split('.')[0]}'"
    return {"error": last, "absent": absent} if facts is None else facts


def gpus() -> Facts:
    code, out, error = run(GPU_QUERY)
    if code != 0:
        absent = code is None and "No such file" in error
        return {"error": "nvidia-smi not found" if absent else (out + error).strip()[-300:], "absent": absent}
    rows = [[field.strip() for field in line.split(",")] for line in out.splitlines() if line.count(",") == 2]
    return {"each": [f"{name}, {mib} MiB" for name, mib, _ in rows], "driver": rows[0][2] if rows else None}


def nvcc() -> str | None:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    for program in [*(f"{home}/bin/nvcc" for home in homes if home), "nvcc"]:
        found = re.search(r"release (\d+\.\d+)", run([program, "--version"])[1])
        if found:
            return found[1]
    return None


def folder(path: str) -> Facts:
    """The nearest existing parent folder, its free space, its file system, and whether it is writable."""
    try:
        there = Path(path).expanduser().absolute()
        nearest = next(each for each in (there, *there.parents) if each.exists())
        free = shutil.disk_usage(nearest).free
    except (OSError, RuntimeError) as error:
        return {"error": str(error)}
    writable = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    return {"at": str(nearest), "exists": nearest == there, "free": free, "writable": writable, "kind": kind(nearest)}


def kind(path: Path) -> str | None:
    """File system type."""
    best, found = "", None
    try:
        lines = Path("/proc/mounts").read_text(errors="replace").splitlines()
    except OSError:
        return None
    for place, name in ((line.split()[1].replace("\\040", " "), line.split()[2]) for line in lines):
        if f"{path}/".startswith(place.rstrip("/") + "/") and len(place) >= len(best):
            best, found = place, name
    return found


def bytecode() -> Facts | None:
    """Number of compiled modules of a large package. Every process compiles the others again."""
    for package in ("ray", "torch"):
        for site in map(Path, sys.path):
            files = sorted((site / package).rglob("*.py"))[:MODULES_LOOKED_AT]
            if files:
                made = (
                    each.parent / "__pycache__" / f"{each.stem}.{sys.implementation.cache_tag}.pyc" for each in files
                )
                missing = sum(not each.exists() for each in made)
                return {"package": package, "looked": len(files), "missing": missing, "kind": kind(site)}
    return None


def write_canary(place: Path, nodes: int) -> Facts:
    """Write a file into the shared folder, wait for those of all nodes, and resolve the names of the first and last."""
    rank = int(os.environ.get("SLURM_PROCID", "0"))
    mine = place / f"node_{rank}.txt"
    began = time.time()
    try:
        with mine.with_suffix(".part").open("w") as file:
            file.write(socket.gethostname())
            file.flush()
            os.fsync(file.fileno())
        mine.with_suffix(".part").rename(mine)
        now = time.time()
        # a file server, if any, sets the modification time, so all nodes compare with the same clock
        facts: dict[str, Any] = {"rank": rank, "wrote": now - began, "ahead": now - mine.stat().st_mtime}
        while len(hosts := read_canaries(place)) < nodes and time.time() - began < CANARY_PATIENCE:
            time.sleep(0.05)
    except OSError as error:
        return {"rank": rank, "error": str(error)}
    ends = dict.fromkeys([hosts[min(hosts)], hosts[max(hosts)]]) if hosts else {}
    return {**facts, "seen": len(hosts), "names": {name: resolve(name) for name in ends}}


def read_canaries(place: Path) -> dict[int, str]:
    files = [(each, re.fullmatch(r"node_(\d+)\.txt", each.name)) for each in place.iterdir()]
    return {int(match[1]): each.read_text() for each, match in files if match}


def resolve(name: str) -> Facts:
    """Resolve a name to its address and back, as torch does when a process joins, and measure the time in seconds."""
    began = time.time()
    try:
        address = str(socket.getaddrinfo(name, None, socket.AF_INET)[0][4][0])
        back = socket.gethostbyaddr(address)[0]
    except OSError as error:
        return {"error": str(error), "seconds": time.time() - began}
    return {"address": address, "back": back, "seconds": time.time() - began}


if __name__ == "__main__":
    main()
