"""Check a profile of env.toml: its values, and that the paths and the machine that it names exist."""

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from nemotron_cluster import secrets
from nemotron_cluster.doctor.report import Check, Checks, Group
from nemotron_cluster.profiles.find import Loaded
from nemotron_cluster.profiles.schema import Docker, Local, Slurm
from nemotron_cluster.transport import Transport
from nemotron_shared.errors import UserError

PROFILE = Group("profile")
LACKING = """
for path; do
    place=$path
    while [ ! -e "$place" ]; do place=$(dirname -- "$place"); done
    [ -e "$path" ] && exists=yes || exists=no
    [ -d "$place" ] && [ -w "$place" ] && writable=yes || writable=no
    [ -x "$path" ] && runs=yes || runs=no
    printf '%s %s %s %s\\n' "$exists" "$writable" "$runs" "$place"
done
"""


def checks(loaded: Loaded, there: Transport, environment: Mapping[str, str] = os.environ) -> Iterator[Check]:
    """Check the profile itself, then what it names on the machine that takes its jobs."""
    profile = loaded.profile
    yield PROFILE.ok(loaded.name, f"{profile.executor}, in {loaded.file}")
    for key, value in _paths(loaded).items():
        if "$" in value or value.startswith("~"):
            at = loaded.origins.get(key, str(loaded.file))
            yield PROFILE.warn(key, f"{at}: '{value}' is taken as it stands: no shell expands it", "write the path out")
    try:
        given = secrets.names_of(profile, loaded.origins, environment)
    except UserError as error:
        yield PROFILE.fail("env_vars", error.message, error.remedy or "")
    else:
        unset = [name for name in profile.secrets if name not in given]
        if given:
            yield PROFILE.ok("secrets", f"handed over: {', '.join(given)}")
        if unset:
            yield PROFILE.skip("secrets", f"not set here, so not handed over: {', '.join(unset)}")
    if isinstance(profile, Slurm) and profile.identity:
        yield _identity(profile.identity)
    if isinstance(profile, Slurm | Docker | Local):
        yield from PROFILE.guarded(there.place, lambda: _on_machine(loaded, there))
    else:
        yield PROFILE.skip(profile.executor, "nothing asks the cloud: a first small job is the test")


def _paths(loaded: Loaded) -> dict[str, str]:
    profile = loaded.profile
    found = {"home": profile.home, "python": profile.python}
    if isinstance(profile, Slurm):
        found |= {"remote_job_dir": profile.remote_job_dir, "ray_sub": profile.ray_sub}
    sources = [mount.split(":")[0] for mount in profile.mounts if isinstance(mount, str)]
    return {key: value for key, value in found.items() if value} | {f"mounts {path}": path for path in sources}


def _identity(name: str) -> Check:
    path = Path(name).expanduser()
    if not path.is_file():
        return PROFILE.fail(
            "identity", f"there is no file {path}", "name the private key, or leave it to ~/.ssh/config"
        )
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        return PROFILE.fail("identity", f"{path} can be read by others: ssh refuses it", f"chmod 600 {path}")
    return PROFILE.ok("identity", str(path))


def _on_machine(loaded: Loaded, there: Transport) -> Checks:
    """Check everything that the profile names with one command, because each command over ssh takes a second or two."""
    if isinstance(loaded.profile, Docker):
        answer = there.run(["docker", "version", "--format", "{{.Server.Version}}"])
        if answer.returncode:
            what = (answer.stderr.strip() or "no message").splitlines()[-1]
            yield PROFILE.fail("docker", what, "start the daemon, or set DOCKER_HOST")
        else:
            yield PROFILE.ok("docker", f"server {answer.stdout.strip()}")
    paths = {key: value for key, value in _paths(loaded).items() if value.startswith("/")}
    answer = there.run(["sh", "-c", LACKING, "sh", *paths.values()])
    lines = answer.stdout.splitlines()
    if answer.returncode or len(lines) != len(paths):
        what = (answer.stderr.strip() or f"sh answered with {answer.stdout!r}"[:200]).splitlines()[-1]
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
            said, remedy = f"{at}: there is no {path} {where}", "correct it, unless the nodes alone have it"
            yield PROFILE.fail(key, said, remedy) if key == "ray_sub" else PROFILE.warn(key, said, remedy)
        else:
            yield PROFILE.ok(key, path)
