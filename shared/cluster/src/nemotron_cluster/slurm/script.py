"""Render a job as a readable sbatch script: directives, variables, the start of processes, then body.sh.

script = render(job, profile, PurePosixPath("/lustre/me/.nemotron/jobs/20261123-101500-super3-sft-1f0c"))

Every user-provided value is quoted for its context. Scripts contain no secrets: body.sh reads them from a file.
"""

import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import PurePosixPath

from nemotron_cluster.folder import LOG
from nemotron_cluster.job import Job, in_folder, unseen
from nemotron_cluster.profiles.schema import TIME, Slurm
from nemotron_cluster.slurm import ray_sub
from nemotron_cluster.slurm.directives import directives, site_options
from nemotron_cluster.slurm.resources import asked_of
from nemotron_shared.errors import UserError

REGISTRY = re.compile(r"(?![/.])[^/#]*[.:][^/#]*/")
LEAST_LEAD = 10


def render(job: Job, profile: Slurm, folder: PurePosixPath) -> str:
    """The script of a job.

    Args:
        folder: the job's, as the nodes see it.

    Raises:
        UserError: the profile's setup_lines are not valid shell code.
    """
    lead = lead_of(profile.signal_lead, profile.time)
    parts = [
        # A login shell: sites define `module` and the PATH of Slurm's own programs there.
        "\n".join(["#!/bin/bash -l", *_directives(job, profile, folder, lead)]),
        # Intended: unused variables of other start methods, literal $, and functions called only by a trap.
        "# shellcheck disable=SC2016,SC2034,SC2054,SC2317\n" + "\n".join(_variables(job, profile, folder, lead)),
        _setup(profile.setup_lines),
        _run_step(job, profile, folder),
        _text("body.sh").rstrip(),
    ]
    return "\n\n".join(parts) + "\n"


def seconds_of(time: str) -> int:
    """A Slurm time limit in seconds: MINUTES, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS."""
    match = TIME.fullmatch(time)
    if match is None:
        raise ValueError(f"'{time}' is no time limit")
    days, *rest = match.groups()
    numbers = [int(part) for part in rest if part is not None]
    if days is not None:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, (minutes, seconds) = 0, [*numbers, 0][:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def lead_of(wanted: int, limit: str) -> int:
    """Seconds before the limit at which a step saves: at most a quarter of the limit, so that short jobs still do some
    work.
    """
    whole = seconds_of(limit)
    return max(LEAST_LEAD, min(wanted, whole // 4)) if whole else wanted


def _directives(job: Job, profile: Slurm, folder: PurePosixPath, lead: int) -> Iterator[str]:
    """sbatch options in conventional order."""
    tasks = job.processes_per_node if job.start == "srun" else 1
    asked = asked_of(job, profile)
    options = site_options(
        profile, job.name, job.nodes, tasks=tasks, gpus=job.gpus_per_node, cpus=asked.cpus_per_task
    ) | {
        "mem": asked.mem,
        "chdir": folder,
        # In file names, % starts a Slurm pattern.
        "output": str(folder / LOG).replace("%", "%%"),
        "open-mode": "append",
        "signal": f"B:USR1@{lead}",
        "dependency": ",".join(_dependencies(job, profile)) or None,
        "kill-on-invalid-dep": "yes" if job.after else None,
    }
    yield from directives(options)
    yield "#SBATCH --requeue" if profile.requeue else "#SBATCH --no-requeue"
    if asked.exclusive:
        yield "#SBATCH --exclusive"
    yield from (f"#SBATCH {option}" for option in profile.extra_directives)


def _dependencies(job: Job, profile: Slurm) -> Iterator[str]:
    """The job's dependencies."""
    if job.after:
        yield ":".join(["afterok", *job.after])
    if ray_sub.is_used(job, profile):
        yield "singleton"


def _variables(job: Job, profile: Slurm, folder: PurePosixPath, lead: int) -> Iterator[str]:
    command = [in_folder(word, str(folder)) for word in job.command]
    yield f"folder={shlex.quote(str(folder))}"
    yield f"workdir={shlex.quote(in_folder(job.workdir or str(folder), str(folder)))}"
    yield f"python={shlex.quote(job.python)}"
    yield f"command=({shlex.join(command)})"
    yield f"nodes={job.nodes}"
    yield f"processes={job.processes_per_node} # on each node"
    yield f"gpus={job.gpus_per_node} # on each node"
    yield f"lead={lead} # seconds before the end in which the step saves"
    yield f"force={_truth(job.force)} # at the first attempt only: later ones continue"
    yield f"requeue={_truth(profile.requeue)}"
    yield f"has_secrets={_truth(bool(job.secrets))}"
    home = {"NEMOTRON_HOME": profile.home} if profile.home else {}
    yield from (f"export {name}={shlex.quote(value)}" for name, value in (home | dict(job.environment)).items())
    if job.start == "ray" and job.container and "HF_HOME" not in job.environment:
        # Other nodes read models that one node converts, and a container's home folder exists only on one node.
        yield 'export HF_HOME="${NEMOTRON_HOME:-$folder}/huggingface"'
    # sbatch does not export the caller's environment; steps get that of this script.
    srun, inside = ["srun", "--export=ALL"], []
    asked = asked_of(job, profile)
    if asked.cpus_per_task:
        srun.append(f"--cpus-per-task={asked.cpus_per_task}")  # since Slurm 22.05, srun does not inherit it from sbatch
    elif asked.exclusive:
        srun.append("--cpu-bind=none")  # otherwise a task might be bound to a single CPU
    runtime = (profile.container_runtime or "pyxis") if job.container else "none"
    if runtime == "pyxis":
        srun += _pyxis(job, profile, folder)
    elif runtime == "apptainer":
        inside = _apptainer(job, profile, folder)
    yield _array("srun", "how tasks start", srun)
    yield _array("inside", "what stands before a program that runs in a container", inside)


def _setup(lines: list[str]) -> str:
    """The profile's setup lines. A syntax error would keep the whole script from starting, including its cleanup of
    secrets.

    Raises:
        UserError: bash cannot parse them.
    """
    # Not indented, because a line may end a here-document.
    does_something = any(line.strip() and not line.strip().startswith("#") for line in lines)
    function = "\n".join(["setup() {", *lines, *([] if does_something else [":"]), "}"])
    # check both the function and the bare lines: lines may swallow its closing brace, or be valid only with it
    for text in ("\n".join(lines), function):
        read = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
        if read.returncode or read.stderr:
            said = read.stderr.strip().splitlines()[0].removeprefix("bash: ")
            raise UserError(f"setup_lines: bash cannot read them: {said}", "correct them in the profile of env.toml")
    return f"# The profile's setup_lines.\n{function}"


def _mounts(job: Job, profile: Slurm, folder: PurePosixPath) -> list[str]:
    """Container mounts: the job's folder, artifacts, and paths from the profile and the settings."""
    own = [str(folder), job.workdir, job.environment.get("NEMOTRON_HOME") or profile.home]
    own = [path and in_folder(path, str(folder)) for path in own]
    mounts = [*(f"{path}:{path}" for path in own if path), *profile.mounts]
    return list(dict.fromkeys([*mounts, *unseen(job.mounts, mounts)]))


def _pyxis(job: Job, profile: Slurm, folder: PurePosixPath) -> list[str]:
    # By default a variable of the image takes precedence over the job's.
    own = ["PYTHONPATH", *(["NEMOTRON_HOME"] if profile.home else []), *(["HF_HOME"] if job.start == "ray" else [])]
    names = dict.fromkeys([*own, *job.environment, *job.secrets])
    shared = ["/tmp:/tmp"] if job.start == "ray" else []  # for connecting the driver to Ray's head in another container
    return [
        f"--container-image={_image(job)}",
        f"--container-mounts={','.join([*_mounts(job, profile, folder), *shared])}",
        f"--container-workdir={in_folder(job.workdir or str(folder), str(folder))}",
        f"--container-env={','.join(names)}",
        "--no-container-mount-home",
    ]


def _image(job: Job) -> str:
    return enroot_name(job.container or "")


def enroot_name(image: str) -> str:
    """An image name in enroot's format, with # between registry and path."""
    return REGISTRY.sub(lambda found: found[0][:-1] + "#", image.removeprefix("docker://"), count=1)


def _apptainer(job: Job, profile: Slurm, folder: PurePosixPath) -> list[str]:
    image = job.container or ""
    if "://" not in image and not image.endswith((".sif", "/")) and not image.startswith(("/", ".")):
        image = f"docker://{image}"
    words = ["apptainer", "exec", *(["--nv"] if job.gpus_per_node else []), "--no-home"]
    for mount in _mounts(job, profile, folder):
        words += ["--bind", mount]
    return [*words, "--pwd", in_folder(job.workdir or str(folder), str(folder)), image]


def _run_step(job: Job, profile: Slurm, folder: PurePosixPath) -> str:
    """The script's function that runs the step and returns its exit code."""
    if ray_sub.is_used(job, profile):
        own = ray_sub.variables(profile, _image(job), _mounts(job, profile, folder))
        return f"{own}\n\n{_text('ray_sub.sh').rstrip()}"
    if job.start == "ray":
        return _text("ray.sh").rstrip()
    several = " --kill-on-bad-exit=1 --label"
    if job.start == "torchrun":
        labels = several if job.nodes > 1 else ""
        title = "One task on each node, which starts that node's processes."
        lines = [
            f'"${{srun[@]}}" --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1{labels} \\',
            '    "${inside[@]}" "$python" -m nemotron_shared.runtime.torchrun \\',
            '    --nnodes="$nodes" --nproc-per-node="$processes" --rdzv-id="$SLURM_JOB_ID.$attempt" \\',
            '    --rdzv-backend=c10d --rdzv-endpoint="$head:$port" "${command[@]}"',
        ]
    elif job.start == "srun":
        title = "One task for each process, which takes its number from Slurm."
        lines = [
            "export MASTER_ADDR=$head MASTER_PORT=$port WORLD_SIZE=$((nodes * processes)) LOCAL_WORLD_SIZE=$processes",
            f'"${{srun[@]}}" --nodes="$nodes" --ntasks="$WORLD_SIZE" --ntasks-per-node="$processes"{several} \\',
            '    "${inside[@]}" sh -c \'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID; exec "$@"\' task \\',
            '    "$python" "${command[@]}"',
        ]
    else:
        title = "One process."
        lines = ['"${srun[@]}" --nodes=1 --ntasks=1 "${inside[@]}" "$python" "${command[@]}"']
    return _function("run_step", title, lines)


def _function(name: str, title: str, lines: Iterable[str]) -> str:
    return "\n".join([f"# {title}", f"{name}() {{", *(f"    {line}" for line in lines), "}"])


def _array(name: str, title: str, words: list[str]) -> str:
    return "\n".join([f"{name}=( # {title}", *(f"    {shlex.quote(word)}" for word in words), ")"])


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _text(name: str) -> str:
    return files("nemotron_cluster.slurm").joinpath(name).read_text(encoding="utf-8")
