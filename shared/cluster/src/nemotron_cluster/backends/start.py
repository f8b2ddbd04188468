"""The start script of a job on one machine, in a container or on each cloud node, and its exit state.

It locates its folder relative to itself, because a container mounts the folder elsewhere. Secrets come from
`secrets/env` next to it and are never part of its text.
"""

import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from nemotron_cluster.backends import State
from nemotron_cluster.folder import CONFIG_FILE, FILES, OWN
from nemotron_cluster.job import FOLDER, Job
from nemotron_cluster.profiles.schema import Profile
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.stop import STOPPED_EXIT_CODE

PACKED = "code.txz"
"""The packages as one archive, for services that charge per file."""
TORCHRUN = ("-m", "nemotron_shared.runtime.torchrun")
SAVING_SECONDS = 300
ONE_MACHINE = ("--standalone",)

TEMPLATE = """\
#!/usr/bin/env bash
# {name}
here=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
{variables}
# The packages of this job come before those that lie in the working folder.
code=$here/code
export PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${{TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-{saving}}} # seconds in which torchrun's save

leave() {{
    code=$?
    rm -rf "$here/secrets"
    printf '%s\\n' "$code" >"$here/.exit_code" && mv -f "$here/.exit_code" "$here/exit_code"
}}
trap leave EXIT
trap 'exit {stopped}' TERM INT USR1 # nothing has begun that could be saved
set -e
if [ -r "$here/secrets/env" ]; then
    {{ set +x; }} 2>/dev/null
    . "$here/secrets/env"
fi
{setup}
cd {folder}
if [ -f "$here/{packed}" ]; then
    code=$(mktemp -d)
    {python} -m tarfile -e "$here/{packed}" "$code"
fi
export PYTHONPATH="$code${{PYTHONPATH:+:$PYTHONPATH}}"
set +e

{command} &
child=$!
printf '%s\\n' "$$" >"$here/pid"
# Whoever ends the job asks the step to save; it answers with {stopped}.
trap 'asked=1; kill -TERM "$child" 2>/dev/null' TERM INT USR1
asked=1
while [ "$asked" ]; do
    asked=
    wait "$child"
    code=$?
done
exit "$code"
"""
PLAIN = re.compile(r"[\w./-]+")
ONCE = """\
again=$here/started.${NODE_RANK:-${PET_NODE_RANK:-0}}
[ -e "$again" ] || force=--force
: >"$again\""""
"""Apply --force only on the first start, so that the job continues if the service restarts it."""


def start_script(job: Job, profile: Profile, nodes: Sequence[str] = ONE_MACHINE) -> str:
    """The text of the script.

    Args:
        nodes: torchrun's options for the node rank, quoted for a shell.
    """
    words = [shlex.quote(job.python)]
    if job.start == "torchrun":
        words += [*TORCHRUN, *nodes, f"--nproc-per-node={job.processes_per_node}"]
    words += map(_word, job.command)
    return TEMPLATE.format(
        name=job.name,
        variables="".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(job.environment.items())),
        setup="\n".join([*profile.setup_lines, *([ONCE] if job.force else [])]),
        folder=_word(job.workdir) if job.workdir else '"$here"',
        packed=PACKED,
        python=words[0],
        command=" ".join(words + (["$force"] if job.force else [])),
        stopped=STOPPED_EXIT_CODE,
        saving=SAVING_SECONDS,
    )


def send_own_files(folder: Path, place: Path) -> None:
    """Copy a user's own settings and files from a job's folder."""
    shutil.copy(folder / CONFIG_FILE, place)
    for name in (OWN, FILES):
        if (folder / name).is_dir():
            shutil.copytree(folder / name, place / name)


def _word(word: str) -> str:
    """Quote for the shell, replacing the job's folder by the script's variable."""
    inside = word.removeprefix(f"{FOLDER}/")
    if inside == word:
        return shlex.quote(word)
    return f'"$here/{inside}"' if PLAIN.fullmatch(inside) else f'"$here"/{shlex.quote(inside)}'


def refuse_what_needs_slurm(job: Job, executor: str, one_node: bool = False) -> None:
    """Refuse what this executor cannot do.

    Raises:
        UserError: the job requires it.
    """
    if job.after:
        wait = "submit it when they are done, or use a profile of Slurm"
        raise UserError(f"executor '{executor}' cannot hold a job back until others are done", wait)
    if one_node and job.nodes > 1:
        raise UserError(f"executor '{executor}' has one node, and the job asks for {job.nodes}", "set nodes = 1")
    if job.start == "srun" or (job.start == "ray" and job.nodes > 1):
        what = "starts its processes with srun" if job.start == "srun" else "wants Ray on several nodes"
        raise UserError(f"executor '{executor}' cannot take a job that {what}", "use a profile of Slurm")


def state_of(code: int, source: str) -> State:
    """The state for an exit code."""
    if code == 0:
        return State("done", "done", code, source)
    if code == STOPPED_EXIT_CODE:
        return State("cancelled", "was stopped, and saved what it had", code, source)
    killed = f": ended by signal {code - 128}" if 128 < code < 160 else ""
    return State("failed", f"failed with exit code {code}{killed}", code, source)
