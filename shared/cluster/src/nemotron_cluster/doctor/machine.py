"""Check this machine, and a profile of env.toml: its values, and what it names on the machine that takes its jobs."""

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from nemotron_cluster import secrets
from nemotron_cluster.doctor import probe
from nemotron_cluster.doctor.report import Check, Checks, Group
from nemotron_cluster.profiles import Docker, Loaded, Local, Profile, Slurm
from nemotron_cluster.transport import Transport, last_line
from nemotron_shared.system.disk import size
from nemotron_shared.system.errors import UserError

MACHINE, PROFILE = Group("this machine"), Group("profile")
FILES_WANTED = 4096
"""Required limit of open files: Ray and data loaders open thousands."""
HF_TOKEN = re.compile(r"hf_[A-Za-z0-9]{30,}")
WANDB_KEY = re.compile(r"[0-9a-f]{40}|wandb_v\d_\w{40,}|local-[0-9a-f]{40}")
WHO = "from huggingface_hub import whoami; print(whoami()['name'])"
ONLINE_PATIENCE = 60.0
LOOK = """
for path; do
    place=$path
    while [ ! -e "$place" ]; do place=$(dirname -- "$place"); done
    [ -e "$path" ] && exists=yes || exists=no
    [ -d "$place" ] && [ -w "$place" ] && writable=yes || writable=no
    [ -x "$path" ] && runs=yes || runs=no
    printf '%s %s %s %s\\n' "$exists" "$writable" "$runs" "$place"
done
"""
"""One command for all paths, because each command over ssh takes a second or two."""


def check_machine(
    profile: Profile | None, home: Path, wanted_bytes: int, *, online: bool, environment: Mapping[str, str] = os.environ
) -> Iterator[Check]:
    """Check programs, limits, disk, tokens, proxies, and the store.

    Args:
        wanted_bytes: required free space; 0 if unknown.
    """
    yield from _programs(profile)
    files = probe.resource.getrlimit(probe.resource.RLIMIT_NOFILE)[0]
    if files < FILES_WANTED:
        yield MACHINE.warn("open files", f"at most {files}; Ray needs thousands", f"ulimit -n {FILES_WANTED}")
    else:
        yield MACHINE.ok("open files", str(files))
    near = profile is None or profile.runs_here or (isinstance(profile, Slurm) and profile.tunnel == "local")
    jobs_write_here = near and not (profile and profile.home)
    yield from _store(home, wanted_bytes if jobs_write_here else 0)
    yield _token(environment)
    if online:
        yield _hub(environment)
    key = environment.get("WANDB_API_KEY", "")
    if not key:
        yield MACHINE.skip("WANDB_API_KEY", "is not set; it is optional, and TensorBoard needs none")
    elif not WANDB_KEY.fullmatch(key):
        yield MACHINE.warn("WANDB_API_KEY", "has not the form of a key: 40 hexadecimal digits", "set it again")
    else:
        yield MACHINE.ok("WANDB_API_KEY", "has the form of a key")
    yield from _proxies(environment)


def _programs(profile: Profile | None) -> Iterator[Check]:
    wanted = {"uv": "it makes environments from the lock", "git": "it tells the commit of a run"}
    needed: list[str] = []
    if isinstance(profile, Slurm):
        needed = ["ssh", "rsync"] if profile.tunnel == "ssh" else ["sbatch", "srun", "squeue", "scontrol", "sinfo"]
    elif isinstance(profile, Docker):
        needed = ["docker"]
    there = [name for name in (*wanted, *needed) if shutil.which(name)]
    for name in needed:
        if name not in there:
            remedy = 'ask for the profile where it is, or set tunnel = "ssh" with the login node as host in the profile'
            on_cluster = isinstance(profile, Slurm) and profile.tunnel == "local"
            yield MACHINE.fail(name, "is not on PATH", remedy if on_cluster else f"install {name}")
    for name, why in wanted.items():
        if name not in there:
            yield MACHINE.warn(name, "is not on PATH", f"install it: {why}")
    if there:
        yield MACHINE.ok("programs", ", ".join(there))


def _store(home: Path, wanted_bytes: int) -> Iterator[Check]:
    facts = probe.folder(str(home))
    if "error" in facts or not facts["writable"]:
        why = facts.get("error") or f"{facts['at']} cannot be written"
        yield MACHINE.fail("store", f"{home}: {why}", "set NEMOTRON_HOME, or --home, to a folder that is yours")
        return
    yield MACHINE.ok("store", str(home) if facts["exists"] else f"{home} (not there yet, and can be made)")
    free = f"{size(facts['free'])} free in {facts['at']}"
    yield check_room(MACHINE, free, facts["free"], wanted_bytes) if wanted_bytes else MACHINE.ok("disk", free)


def check_room(group: Group, said: str, free: int, wanted: int) -> Check:
    """Check that a disk has enough space for a recipe."""
    if free < wanted:
        return group.fail("disk", f"{said}; {size(wanted)} are wanted", "free some space, or take a larger disk")
    return group.ok("disk", f"{said}; {size(wanted)} are wanted")


def _token(environment: Mapping[str, str]) -> Check:
    token, where = environment.get("HF_TOKEN", ""), "HF_TOKEN"
    if not token:
        cache = environment.get("HF_HOME") or "~/.cache/huggingface"
        file = Path(environment.get("HF_TOKEN_PATH") or f"{cache}/token").expanduser()
        where = str(file)
        if not file.is_file():
            what = "is not set: gated models and data cannot be fetched"
            return MACHINE.warn("HF_TOKEN", what, "set HF_TOKEN to a token of the hub")
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            return MACHINE.warn("HF_TOKEN", f"{file} can be read by others", f"chmod 600 {file}")
        token = file.read_text(encoding="utf-8", errors="replace").strip()
    if not HF_TOKEN.fullmatch(token):
        return MACHINE.fail("HF_TOKEN", f"{where} holds no token of the hub: those begin with hf_", "set it again")
    return MACHINE.ok("HF_TOKEN", f"has the form of a token ({where})")


def _hub(environment: Mapping[str, str]) -> Check:
    if environment.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return MACHINE.skip("hub", "HF_HUB_OFFLINE is set")
    command = [sys.executable, "-c", WHO]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ONLINE_PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return MACHINE.fail("hub", f"no answer within {ONLINE_PATIENCE:.0f} s", "look at the network and its proxy")
    if done.returncode:
        what = f"the token was not taken: {last_line(done.stderr)[:300]}"
        return MACHINE.fail("hub", what, "look at the token and the network")
    return MACHINE.ok("hub", f"knows the token: {done.stdout.strip()}")


def _proxies(environment: Mapping[str, str]) -> Iterator[Check]:
    lower = {name.lower(): value for name, value in environment.items() if value}
    used = [f"{name}={lower[name]}" for name in ("all_proxy", "http_proxy", "https_proxy") if name in lower]
    if not used:
        return
    excluded = re.split(r"[,\s]+", lower.get("no_proxy", ""))
    if not {"localhost", "127.0.0.1", "*"} & set(excluded):
        remedy = "add localhost,127.0.0.1 and the cluster's nodes to no_proxy"
        yield MACHINE.warn("proxy", f"{', '.join(used)}: requests to this machine go through it, too", remedy)
    else:
        yield MACHINE.ok("proxy", ", ".join(used))


def check_profile(loaded: Loaded, there: Transport, environment: Mapping[str, str] = os.environ) -> Iterator[Check]:
    """Check the profile itself, then what it names on the machine that takes its jobs."""
    profile = loaded.profile
    yield PROFILE.ok(loaded.name, f"{profile.executor}, in {loaded.file}")
    for key, value in _paths(profile).items():
        if "$" in value or value.startswith("~"):
            at = loaded.origins.get(key, str(loaded.file))
            yield PROFILE.warn(key, f"{at}: '{value}' is taken as it stands: no shell expands it", "write the path out")
    try:
        given = secrets.names_of(profile, loaded.origins, environment)
    except UserError as error:
        yield PROFILE.fail("env_vars", error.message, error.remedy)
    else:
        if given:
            yield PROFILE.ok("secrets", f"handed over: {', '.join(given)}")
        if unset := [name for name in profile.secrets if name not in given]:
            yield PROFILE.skip("secrets", f"not set here, so not handed over: {', '.join(unset)}")
    if isinstance(profile, Slurm) and profile.identity:
        yield _identity(Path(profile.identity).expanduser())
    if isinstance(profile, Slurm | Docker | Local):
        yield from PROFILE.guarded(there.place, lambda: _on_machine(loaded, there))
    else:
        yield PROFILE.skip(profile.executor, "nothing asks the cloud: a first small job is the test")


def _paths(profile: Profile) -> dict[str, str]:
    found = {"home": profile.home, "python": profile.python}
    if isinstance(profile, Slurm):
        found |= {"remote_job_dir": profile.remote_job_dir, "ray_sub": profile.ray_sub}
    sources = [mount.split(":")[0] for mount in profile.mounts if isinstance(mount, str)]
    return {key: value for key, value in found.items() if value} | {f"mounts {path}": path for path in sources}


def _identity(path: Path) -> Check:
    if not path.is_file():
        remedy = "name the private key, or leave it to ~/.ssh/config"
        return PROFILE.fail("identity", f"{path} does not exist", remedy)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        return PROFILE.fail("identity", f"{path} can be read by others: ssh refuses it", f"chmod 600 {path}")
    return PROFILE.ok("identity", str(path))


def _on_machine(loaded: Loaded, there: Transport) -> Checks:
    if isinstance(loaded.profile, Docker):
        answer = there.run(["docker", "version", "--format", "{{.Server.Version}}"])
        if answer.returncode:
            yield PROFILE.fail("docker", last_line(answer.stderr), "start the daemon, or set DOCKER_HOST")
        else:
            yield PROFILE.ok("docker", f"server {answer.stdout.strip()}")
    paths = {key: value for key, value in _paths(loaded.profile).items() if value.startswith("/")}
    answer = there.run(["sh", "-c", LOOK, "sh", *paths.values()])
    lines = answer.stdout.splitlines()
    if answer.returncode or len(lines) != len(paths):
        what = last_line(answer.stderr, f"sh answered with {answer.stdout!r}"[:200])
        yield PROFILE.fail(there.place, what, "try a command there yourself: its shell prints or does something else")
        return
    yield PROFILE.ok("machine", f"{there.place} answers")
    for (key, path), line in zip(paths.items(), lines, strict=True):
        exists, writable, runs, nearest = line.split(" ", 3)
        where = there.place if there.place == "here" else f"on {there.place}"
        if key in ("home", "remote_job_dir"):
            if writable == "no":
                yield PROFILE.fail(key, f"{nearest} cannot be written", f"make {path}, or name a folder that is yours")
            else:
                yield PROFILE.ok(key, path if exists == "yes" else f"{path} (not there yet, and can be made)")
        elif exists == "no" or (key == "python" and runs == "no"):
            at = loaded.origins.get(key.split()[0], str(loaded.file))
            said, remedy = f"{at}: {path} does not exist {where}", "correct it, unless the nodes alone have it"
            yield PROFILE.fail(key, said, remedy) if key == "ray_sub" else PROFILE.warn(key, said, remedy)
        else:
            yield PROFILE.ok(key, path)
