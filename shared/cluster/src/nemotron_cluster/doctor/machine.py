"""Check this machine: programs, limits, disk, tokens, proxies, and writable folders."""

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from nemotron_cluster.doctor import probe
from nemotron_cluster.doctor.report import Check, Group
from nemotron_cluster.profiles.schema import Docker, Profile, Slurm
from nemotron_shared.runtime.disk import size

MACHINE = Group("this machine")
FILES_WANTED = 4096
"""Required limit of open files: Ray and data loaders open thousands."""
HF_TOKEN = re.compile(r"hf_[A-Za-z0-9]{30,}")
WANDB_KEY = re.compile(r"[0-9a-f]{40}|wandb_v\d_\w{40,}|local-[0-9a-f]{40}")
WHO = """
from huggingface_hub import whoami
print(whoami()["name"])
"""
ONLINE_PATIENCE = 60.0


def checks(
    profile: Profile | None,
    home: Path,
    wanted_bytes: int,
    *,
    online: bool,
    environment: Mapping[str, str] = os.environ,
) -> Iterator[Check]:
    """Args: wanted_bytes: required free space; 0 if unknown."""
    yield from _programs(profile)
    files = probe.resource.getrlimit(probe.resource.RLIMIT_NOFILE)[0]
    if files < FILES_WANTED:
        yield MACHINE.warn("open files", f"at most {files}; Ray needs thousands", f"ulimit -n {FILES_WANTED}")
    else:
        yield MACHINE.ok("open files", str(files))
    yield from _store(home, wanted_bytes, judged=_writes_here(profile))
    yield _token(environment)
    if online:
        yield _hub(environment)
    yield _wandb(environment)
    yield from _proxies(environment)


def _programs(profile: Profile | None) -> Iterator[Check]:
    wanted = {"uv": "it makes environments from the lock", "git": "it tells the commit of a run"}
    needed: list[str] = []
    if isinstance(profile, Slurm):
        needed = ["ssh", "rsync"] if profile.tunnel == "ssh" else ["sbatch", "srun", "squeue", "scontrol", "sinfo"]
    elif isinstance(profile, Docker):
        needed = ["docker"]
    for name in needed:
        if shutil.which(name) is None:
            remedy = 'ask for the profile where it is, or set tunnel = "ssh" with the login node as host in the profile'
            remedy = remedy if isinstance(profile, Slurm) and profile.tunnel == "local" else f"install {name}"
            yield MACHINE.fail(name, "is not on PATH", remedy)
    missing = [name for name in wanted if shutil.which(name) is None]
    for name in missing:
        yield MACHINE.warn(name, "is not on PATH", f"install it: {wanted[name]}")
    there = [name for name in (*wanted, *needed) if shutil.which(name)]
    if there:
        yield MACHINE.ok("programs", ", ".join(there))


def _store(home: Path, wanted_bytes: int, *, judged: bool) -> Iterator[Check]:
    facts = probe.folder(str(home))
    if "error" in facts or not facts["writable"]:
        why = facts.get("error") or f"{facts['at']} cannot be written"
        yield MACHINE.fail("store", f"{home}: {why}", "set NEMOTRON_HOME, or --home, to a folder that is yours")
        return
    yield MACHINE.ok("store", str(home) if facts["exists"] else f"{home} (not there yet, and can be made)")
    free = f"{size(facts['free'])} free in {facts['at']}"
    if not judged or not wanted_bytes:
        yield MACHINE.ok("disk", free)
    else:
        yield room(MACHINE, free, facts["free"], wanted_bytes)


def room(group: Group, said: str, free: int, wanted: int) -> Check:
    """Check that a disk has enough space for a recipe."""
    if free < wanted:
        return group.fail("disk", f"{said}; {size(wanted)} are wanted", "free some space, or take a larger disk")
    return group.ok("disk", f"{said}; {size(wanted)} are wanted")


def _writes_here(profile: Profile | None) -> bool:
    """Whether jobs write to the store of this machine."""
    near = profile is None or profile.runs_here or (isinstance(profile, Slurm) and profile.tunnel == "local")
    return near and not (profile and profile.home)


def _token(environment: Mapping[str, str]) -> Check:
    token, where = environment.get("HF_TOKEN", ""), "HF_TOKEN"
    if not token:
        cache = environment.get("HF_HOME") or "~/.cache/huggingface"
        file = Path(environment.get("HF_TOKEN_PATH") or f"{cache}/token").expanduser()
        where = str(file)
        if not file.is_file():
            return MACHINE.warn(
                "HF_TOKEN", "is not set: gated models and data cannot be fetched", "set HF_TOKEN to a token of the hub"
            )
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            return MACHINE.warn("HF_TOKEN", f"{file} can be read by others", f"chmod 600 {file}")
        token = file.read_text(encoding="utf-8", errors="replace").strip()
    if not HF_TOKEN.fullmatch(token):
        return MACHINE.fail("HF_TOKEN", f"{where} holds no token of the hub: those begin with hf_", "set it again")
    return MACHINE.ok("HF_TOKEN", f"has the form of a token ({where})")


def _hub(environment: Mapping[str, str]) -> Check:
    if environment.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return MACHINE.skip("hub", "HF_HUB_OFFLINE is set")
    try:
        done = subprocess.run(
            [sys.executable, "-c", WHO], capture_output=True, text=True, timeout=ONLINE_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return MACHINE.fail("hub", f"no answer within {ONLINE_PATIENCE:.0f} s", "look at the network and its proxy")
    if done.returncode:
        said = (done.stderr.strip() or "no message").splitlines()[-1]
        return MACHINE.fail("hub", f"the token was not taken: {said[:300]}", "look at the token and the network")
    return MACHINE.ok("hub", f"knows the token: {done.stdout.strip()}")


def _wandb(environment: Mapping[str, str]) -> Check:
    key = environment.get("WANDB_API_KEY", "")
    if not key:
        return MACHINE.skip("WANDB_API_KEY", "is not set; it is optional, and TensorBoard needs none")
    if not WANDB_KEY.fullmatch(key):
        return MACHINE.warn("WANDB_API_KEY", "has not the form of a key: 40 hexadecimal digits", "set it again")
    return MACHINE.ok("WANDB_API_KEY", "has the form of a key")


def _proxies(environment: Mapping[str, str]) -> Iterator[Check]:
    lower = {name.lower(): value for name, value in environment.items() if name.lower().endswith("_proxy") and value}
    used = {name: value for name, value in lower.items() if name in {"http_proxy", "https_proxy", "all_proxy"}}
    if not used:
        return
    said = ", ".join(f"{name}={value}" for name, value in sorted(used.items()))
    spared = re.split(r"[,\s]+", lower.get("no_proxy", ""))
    if not {"localhost", "127.0.0.1", "*"} & set(spared):
        remedy = "add localhost,127.0.0.1 and the cluster's nodes to no_proxy"
        yield MACHINE.warn("proxy", f"{said}: servers of this machine are asked through it, too", remedy)
    else:
        yield MACHINE.ok("proxy", said)
