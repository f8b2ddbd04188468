"""Render a job as a readable sbatch script: directives, variables, the start of processes, then body.sh.

script = render(job, profile, PurePosixPath("/lustre/me/.nemotron/jobs/20261123-101500-super3-sft-1f0c"))

Every user-provided value is quoted for its context. Scripts contain no secrets: body.sh reads them from a file.
"""

import re
import shlex
import subprocess
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any

from nemotron_cluster.job import LOG, Job, add_mounts, in_folder
from nemotron_cluster.limits import seconds_of
from nemotron_cluster.profiles import Slurm
from nemotron_shared.system.errors import UserError

REGISTRY = re.compile(r"(?![/.])[^/#]*[.:][^/#]*/")
PLAIN = re.compile(r"[\w./,:=@%+\[\]-]+", re.ASCII)
LEAST_LEAD = 10
SAME_IN_EVERY_JOB = "\n# ---- From here on the same in every job"
"""The beginning of body.sh in a script."""
CPUS_OF_A_PROCESS = 8
"""CPUs of a GPU process on a shared node, or of a process with an unlimited number of threads."""
WHOLE_FROM = 4
"""A single-node job that uses all GPUs of a node counts as filling it if the node has at least this many."""


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


def lead_of(wanted: int, limit: str) -> int:
    """Seconds before the limit at which a step saves: at most a quarter of the limit, so that short jobs still do some
    work.
    """
    whole = seconds_of(limit)
    return wanted if whole is None else max(LEAST_LEAD, min(wanted, whole // 4))


@dataclass(frozen=True)
class Resources:
    """CPUs, memory and whole nodes that a job requests. None: omitted, so that the partition's default applies."""

    exclusive: bool
    cpus_per_task: int | None
    mem: str | None
    why: str

    def describe(self, tasks_per_node: int) -> Iterator[tuple[str, Any]]:
        """The resources, for people."""
        whole = "all" if self.exclusive else "the partition's default"
        yield "CPUs per node", self.cpus_per_task * tasks_per_node if self.cpus_per_task else whole
        yield "memory per node", "all" if self.mem == "0" else self.mem or "the partition's default"
        yield "whole nodes", f"{'yes' if self.exclusive else 'no'} ({self.why})"


def choose_resources(job: Job, profile: Slurm) -> Resources:
    """The profile's settings take precedence; its `extra_directives` replace the options that they name."""
    exclusive, why = _choose_exclusive(job, profile)
    mem = profile.mem
    if mem is None and exclusive and not _has_directive(profile, "--mem", "--mem-per-cpu", "--mem-per-gpu"):
        mem = "0"
    return Resources(exclusive, _choose_cpus(job, profile, exclusive=exclusive), mem, why)


def _choose_exclusive(job: Job, profile: Slurm) -> tuple[bool, str]:
    if profile.exclusive is not None:
        return profile.exclusive, "the profile sets it"
    if _has_directive(profile, "--exclusive", "--oversubscribe", "-s"):
        return False, "extra_directives decide"
    if uses_ray_sub(job, profile):
        return True, "ray.sub asks for them"
    if not job.whole_nodes:
        return False, "the job uses a part of its node"
    if job.gpus_per_node:
        return True, "the job uses all GPUs of its nodes"
    if profile.cpus_per_task or _has_directive(profile, "--cpus-per-task", "-c"):
        return False, "the profile says how many CPUs"
    return True, "the job uses all CPUs that it finds"


def _choose_cpus(job: Job, profile: Slurm, *, exclusive: bool) -> int | None:
    """CPUs per task. With `ntasks_per_node`, `cpus_per_task` is per process, but torchrun's processes share a task."""
    if profile.cpus_per_task is not None:
        several = job.start != "srun" and profile.ntasks_per_node is not None
        return profile.cpus_per_task * (job.processes_per_node if several else 1)
    if exclusive or job.cpus_per_node is None or _has_directive(profile, "--cpus-per-task", "--cpus-per-gpu", "-c"):
        return None
    return -(-job.cpus_per_node // job.tasks_per_node)


def _has_directive(profile: Slurm, *names: str) -> bool:
    """Whether the profile's own directives contain one of these options."""
    return any(option.partition("=")[0].split()[0] in names for option in profile.extra_directives)


def uses_ray_sub(job: Job, profile: Slurm) -> bool:
    """Whether NeMo-RL's ray.sub launches a job's Ray instead of our own launcher. It requires a container and GPUs.

    It is run by the job's script, not submitted by sbatch, because its directives contain placeholders (ACCOUNT,
    PARTITION). Signals, requeueing, secrets and exit code therefore work as in every job. The script adopts two of its
    directives: nodes are not shared with other jobs (--exclusive), and a job waits for earlier ones of its name
    (--dependency=singleton).
    """
    return bool(profile.ray_sub and job.start == "ray" and job.container and job.gpus_per_node)


def site_options(
    profile: Slurm, name: str, nodes: int, *, tasks: int, gpus: int, cpus: int | None
) -> dict[str, object]:
    """The site's options by name, in conventional order; None: omitted.

    Args:
        tasks, gpus: per node.
        cpus: per task.
    """
    shown = f"gpu:{gpus}" if profile.gpus_option == "gres" else gpus
    return {
        "job-name": name,
        "account": profile.account,
        "partition": profile.partition,
        "qos": profile.qos,
        "reservation": profile.reservation,
        "constraint": profile.constraint,
        "nodes": nodes,
        "ntasks-per-node": tasks,
        profile.gpus_option: shown if gpus and profile.gpus_option != "none" else None,
        "cpus-per-task": cpus,
        "mem": profile.mem,
        "time": profile.time,
    }


def directives(options: Mapping[str, object], profile: Slurm) -> Iterator[str]:
    """The #SBATCH lines of a script. True: an option without a value; None: omitted.

    Raises:
        UserError: a value contains a line break, after which the rest would run as a command of the script.
    """
    for name, value in options.items():
        text = str(value)
        if any(unicodedata.category(char) == "Cc" for char in text):
            what = f"--{name}={text!r}: a line break or another control character in an option of sbatch"
            raise UserError(what, "rename the folder, or correct the setting or the profile that it comes from")
        if not PLAIN.fullmatch(text):  # sbatch supports quotes with backslash escapes, but not the whole shell syntax
            text = '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
        if value is not None:
            yield f"#SBATCH --{name}" + ("" if value is True else f"={text}")
    yield from (f"#SBATCH {option}" for option in profile.extra_directives)


def _directives(job: Job, profile: Slurm, folder: PurePosixPath, lead: int) -> Iterator[str]:
    """sbatch options in conventional order."""
    chosen = choose_resources(job, profile)
    per_node = {"tasks": job.tasks_per_node, "gpus": job.gpus_per_node}
    after = [":".join(["afterok", *job.after])] if job.after else []
    options = site_options(profile, job.name, job.nodes, **per_node, cpus=chosen.cpus_per_task) | {
        "mem": chosen.mem,
        "chdir": folder,
        "output": str(folder / LOG).replace("%", "%%"),  # in file names, % starts a Slurm pattern
        "open-mode": "append",
        "signal": f"B:USR1@{lead}",
        "dependency": ",".join([*after, *(["singleton"] if uses_ray_sub(job, profile) else [])]) or None,
        "kill-on-invalid-dep": "yes" if job.after else None,
        "requeue" if profile.requeue else "no-requeue": True,
        "exclusive": chosen.exclusive or None,
    }
    return directives(options, profile)


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
    chosen = choose_resources(job, profile)
    if chosen.cpus_per_task:
        # since Slurm 22.05, srun does not inherit it from sbatch
        srun.append(f"--cpus-per-task={chosen.cpus_per_task}")
    elif chosen.exclusive:
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
            error = read.stderr.strip().splitlines()[0].removeprefix("bash: ")
            raise UserError(f"setup_lines: bash cannot read them: {error}", "correct them in the profile of env.toml")
    return f"# The profile's setup_lines.\n{function}"


def _mounts(job: Job, profile: Slurm, folder: PurePosixPath) -> list[str]:
    """Container mounts: the job's folder, artifacts, and paths from the profile and the settings."""
    own = [str(folder), job.workdir, job.environment.get("NEMOTRON_HOME") or profile.home]
    own = [path and in_folder(path, str(folder)) for path in own]
    mounts = [*(f"{path}:{path}" for path in own if path), *profile.mounts]
    return list(dict.fromkeys([*mounts, *add_mounts(job.mounts, mounts)]))


def _pyxis(job: Job, profile: Slurm, folder: PurePosixPath) -> list[str]:
    # By default a variable of the image takes precedence over the job's.
    own = ["PYTHONPATH", *(["NEMOTRON_HOME"] if profile.home else []), *(["HF_HOME"] if job.start == "ray" else [])]
    names = dict.fromkeys([*own, *job.environment, *job.secrets])
    shared = ["/tmp:/tmp"] if job.start == "ray" else []  # for connecting the driver to Ray's head in another container
    return [
        f"--container-image={enroot_name(job.container or '')}",
        f"--container-mounts={','.join([*_mounts(job, profile, folder), *shared])}",
        f"--container-workdir={in_folder(job.workdir or str(folder), str(folder))}",
        f"--container-env={','.join(names)}",
        "--no-container-mount-home",
    ]


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
    if uses_ray_sub(job, profile):
        lines = [
            f"ray_sub={shlex.quote(profile.ray_sub or '')}",
            f"export CONTAINER={shlex.quote(enroot_name(job.container or ''))}",
            f"export MOUNTS={shlex.quote(','.join(_mounts(job, profile, folder)))}",
        ]
        return "\n".join(lines) + f"\n\n{_text('ray_sub.sh').rstrip()}"
    if job.start == "ray":
        return _text("ray.sh").rstrip()
    several = " --kill-on-bad-exit=1 --label"
    if job.start == "torchrun":
        labels = several if job.nodes > 1 else ""
        title = "One task on each node, which starts that node's processes."
        lines = [
            f'"${{srun[@]}}" --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1{labels} \\',
            '    "${inside[@]}" "$python" -m nemotron_shared.engine.torchrun \\',
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
    return "\n".join([f"# {title}", "run_step() {", *(f"    {line}" for line in lines), "}"])


def _array(name: str, title: str, words: list[str]) -> str:
    return "\n".join([f"{name}=( # {title}", *(f"    {shlex.quote(word)}" for word in words), ")"])


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _text(name: str) -> str:
    return files("nemotron_cluster.slurm").joinpath(name).read_text(encoding="utf-8")
