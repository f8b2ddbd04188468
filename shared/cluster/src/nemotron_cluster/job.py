"""A job, independent of any backend, and its folder. Each backend turns a job into its own script or request.

.nemotron/jobs/20261123-101500-super3-sft/
    job.json      what it is and where it was submitted
    config.yaml   the resolved settings, for people
    own/          your own config files
    files/        of your working folder, if the nodes cannot see it
    code/         the packages that it runs
    job.sh        the script
    secrets/env   readable only by its owner; removed when the job has ended
    log.txt       its output
    exit_code     its exit code
"""

import importlib.util
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from nemotron_cluster.profiles import Remote
from nemotron_shared.artifacts import Store
from nemotron_shared.system import atomic
from nemotron_shared.system.errors import UserError

Start = Literal["torchrun", "srun", "single", "ray"]
"""How processes start: torchrun on each node, one Slurm task per process, a single process, or a driver on Ray."""
FOLDER = "FOLDER"
"""Placeholder in a job's arguments for the path of its folder."""
CONFIG = f"{FOLDER}/config.yaml"
RECORD, LOG, EXIT_CODE, SCRIPT, CONFIG_FILE = "job.json", "log.txt", "exit_code", "job.sh", "config.yaml"
OWN, FILES, CODE = "own", "files", "code"
NOT_COPIED = ("__pycache__", "tests", "*.pyc", "*.egg-info", ".*", "node_modules")
STORE = ".nemotron"
"""Never packed: it contains artifacts and other jobs."""


@dataclass(frozen=True)
class Job:
    """A job to run.

    Attributes:
        name: for queues and lists, such as "super3-sft".
        python: the interpreter, as the nodes see it.
        workdir: the working folder there, such as FOLDER/files; without it, the job's own.
        command: arguments of python, such as ("-m", "stages.sft.train", "-c", CONFIG).
        cpus_per_node: CPUs that the step uses if it does not have whole nodes.
        whole_nodes: whether it uses all resources of its nodes.
        environment: variables without secrets.
        secrets: names of variables whose values are passed in a separate file.
        after: ids of jobs that must have succeeded.
        mounts: absolute paths that the settings name, which a container must mount.
        force: `--force`, which applies only to the first start: a requeued job continues.
    """

    name: str
    command: tuple[str, ...]
    python: str = "python3"
    workdir: str | None = None
    start: Start = "single"
    nodes: int = 1
    processes_per_node: int = 1
    gpus_per_node: int = 0
    cpus_per_node: int | None = None
    whole_nodes: bool = False
    container: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    force: bool = False

    @property
    def tasks_per_node(self) -> int:
        """Slurm tasks on each node: torchrun's processes share one."""
        return self.processes_per_node if self.start == "srun" else 1


def add_mounts(paths: Iterable[str], mounts: Iterable[str]) -> list[str]:
    """Mounts, FROM:TO, for paths that are not covered by the existing mounts."""
    ends = [mount.split(":")[:2] for mount in mounts]  # FROM, or FROM:TO; more are options
    same = [Path(source) for source, *target in ends if target in ([], [source])]
    return [f"{path}:{path}" for path in paths if not any(map(Path(path).is_relative_to, same))]


def in_folder(word: str, folder: str) -> str:
    """Replace the placeholder by the job's folder."""
    return f"{folder}/{word.removeprefix(f'{FOLDER}/')}" if word.startswith(f"{FOLDER}/") else word


@dataclass(frozen=True)
class Record:
    """Record of a submitted job.

    Attributes:
        id: assigned by the backend; None until it is submitted, and for a job that was only staged.
        folder: on this machine; contains this record.
        there: the job's folder as the nodes see it.
        host: the machine that the command ran on.
        line: the command line, for people.
    """

    name: str
    profile: str
    executor: str
    folder: str
    there: str
    host: str
    submitted: str
    line: str
    id: str | None = None
    after: tuple[str, ...] = ()
    commit: str | None = None
    more: dict[str, Any] = field(default_factory=dict)

    def write(self) -> None:
        """Write it into the job's folder."""
        atomic.write_json(Path(self.folder) / RECORD, asdict(self))


def jobs_folder(home: str | None = None) -> Path:
    """The folder of all jobs, next to the artifact store of local commands."""
    return Store.open(home).home / "jobs"


def new_folder(name: str, within: Path) -> Path:
    """Create a unique folder for a job, accessible only to its owner."""
    within.mkdir(parents=True, exist_ok=True)
    while True:
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        folder = within / f"{stamp}-{name}-{secrets.token_hex(2)}"
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return folder


def records(within: Path) -> Iterator[Record]:
    """Records of all jobs, oldest first; damaged ones are skipped."""
    if not within.is_dir():
        return
    found = (read_record(Path(entry.path) / RECORD) for entry in os.scandir(within) if entry.is_dir())
    yield from sorted((one for one in found if one is not None), key=lambda one: one.submitted)


def read_record(path: Path) -> Record | None:
    """Read a record; None if it is not valid."""
    try:
        values = atomic.read_json(path)
        return Record(**values | {"after": tuple(values.get("after", ())), "folder": str(path.parent)})
    except (UserError, TypeError, AttributeError, OSError):
        return None


def copy_packages(names: Iterable[str], to: Path) -> list[str]:
    """Copy packages, by import name, into a folder for PYTHONPATH; returns those found.

    Changes to the checkout while a job waits therefore do not affect it. Only our own packages are copied; torch and
    other dependencies come from the job's environment.

    Raises:
        UserError: none of them is installed.
    """
    found = []
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            place = to.joinpath(*name.split("."))
            shutil.copytree(Path(spec.origin).parent, place, ignore=shutil.ignore_patterns(*NOT_COPIED))
            found.append(name)
    if not found:
        raise UserError("none of the packages that the job runs is installed here", "uv sync --all-packages")
    return found


def pack(profile: Remote, start: Path, folder: Path) -> int:
    """Copy files of the user's working folder into `folder`/files, for another file system; returns how many.

        packager = "git"        files tracked by git below the working folder, in their current state
        packager = "pattern"    files that match packager_include_pattern
        packager = "hybrid"     both
        packager = "none"       nothing

    On the nodes, they are the job's working folder, so that relative paths of the command line keep their meaning.

    Raises:
        UserError: a pattern that matches nothing, or leads out of the working folder.
    """
    chosen = dict.fromkeys([*_tracked_files(profile, start), *_matching_files(profile, start)])
    (folder / FILES).mkdir()
    for path in chosen:
        if not (start / path).resolve().is_relative_to(start.resolve()):
            raise UserError(f"{path} is a link out of {start}", "copy the file here, or leave it out")
        target = folder / FILES / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(start / path, target)
    return len(chosen)


def _tracked_files(profile: Remote, start: Path) -> Iterator[Path]:
    if profile.packager not in ("git", "hybrid"):
        return
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=start, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return  # not a git repository, so no tracked files
    yield from (Path(name) for name in listed.stdout.split("\0") if name and (start / name).is_file())


def _matching_files(profile: Remote, start: Path) -> Iterator[Path]:
    if profile.packager not in ("pattern", "hybrid"):
        return
    for pattern in profile.packager_include_pattern:
        if pattern.startswith(("/", "~")) or ".." in Path(pattern).parts:
            raise UserError(f"packager_include_pattern: '{pattern}' leads out of {start}", "name files below it")
        found = [path for path in sorted(start.glob(pattern)) if path.is_file() and STORE not in path.parts]
        if not found:
            raise UserError(f"packager_include_pattern: '{pattern}' fits nothing in {start}", "correct or remove it")
        yield from (path.relative_to(start) for path in found)
