"""Build a job from a step, and the folder that is sent with it: resolved config, code, secrets, record."""

import os
import platform
import re
import shutil
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from glob import has_magic
from itertools import takewhile
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from nemotron_app.launch import config_of, stage_directory
from nemotron_app.remote.place import ALONE, DRIVERS, Place, is_elsewhere, last_save
from nemotron_cluster import secrets
from nemotron_cluster.backends import backend_of
from nemotron_cluster.job import (
    CODE,
    CONFIG_FILE,
    FILES,
    FOLDER,
    LOG,
    OWN,
    Job,
    Record,
    Start,
    copy_packages,
    jobs_folder,
    new_folder,
    pack,
)
from nemotron_cluster.profiles import Docker, Profile, Remote, Slurm
from nemotron_cluster.slurm.script import CPUS_OF_A_PROCESS, WHOLE_FROM
from nemotron_cluster.transport import NoAnswer
from nemotron_shared.artifacts.store import HOME_VARIABLE
from nemotron_shared.config.compose import Composed, find_config, shared_groups
from nemotron_shared.config.overrides import COMMAND_LINE, Said, override_key
from nemotron_shared.config.references import engine_of, resolve_section, setting
from nemotron_shared.machine.environments import FOLDER_VARIABLE, environment_of
from nemotron_shared.stages import STAGES
from nemotron_shared.step.own_code import SECTIONS, OwnFunction, functions_in
from nemotron_shared.step.records import TRAVELLED, git_commit
from nemotron_shared.system import atomic
from nemotron_shared.system.errors import Finding, UserError, problem
from nemotron_shared.system.process import MUST_SAVE_BY
from nemotron_shared.system.redaction import redact, with_references

FORCE = "run.force"
NAMING = ("run", "data_prep", "model", "evaluation", "engine")
"""Sections of settings that contain paths."""
OF_THE_IMAGE = {"home", "env", "container", "python"}
"""Keys of them whose paths are mounted anyway, or have a different meaning inside a container."""
PACKAGES = ("nemotron_shared", "nemotron_data", "nemotron_engines", "nemotron_cluster", "nemotron_app")


def job_of(stage: str, verb: str, place: Place) -> Job:
    """Build the job of one step."""
    profile, tree = place.profile, place.composed.tree
    engine = engine_of(tree) if verb == "train" else None
    start = _start(profile, verb, engine, place.composed)
    many = start == "ray" or (verb == "train" and engine not in ALONE)
    run = resolve_section(tree, "run")
    processes = run["nproc_per_node"] if start in ("torchrun", "srun") else 1
    trust = ("--trust-code",) if place.request.trust_code else ()
    in_image = not place.here and (verb == "train" or profile.container_image)
    container = None
    if in_image and not (isinstance(profile, Slurm) and profile.container_runtime == "none"):
        container = setting(tree, "engine.container") or profile.container_image
    gpus = profile.gpus_per_node if verb == "train" else 0
    # a config of ours is part of the code; of a user's config there is a copy in the job's folder
    ours = stage_directory(stage).resolve() / "config"
    config = find_config(ours, config_of(place.request, stage), place.request.family)
    config_word = config.stem if config.parent == ours else f"{FOLDER}/{OWN}/{config.name}"
    sees_our_paths = isinstance(profile, Docker) or not is_elsewhere(profile)
    return Job(
        name=f"{run['name']}-{stage}{'-data' if verb == 'data_prep' else ''}",
        command=("-m", f"stages.{stage}.{verb}", "-c", config_word, *_settings(place), *trust),
        python=profile.python or ("python3" if container or is_elsewhere(profile) else python_here(engine)),
        workdir=f"{FOLDER}/{FILES}" if is_elsewhere(profile) else str(Path.cwd()),
        start=start,
        nodes=profile.nodes if many and start != "single" else 1,
        processes_per_node=processes,
        gpus_per_node=gpus,
        **_cpus(place, verb, gpus, processes),
        container=container,
        environment=_environment(place, engine, run["home"]),
        secrets=secrets.names_of(profile, place.loaded.origins),
        mounts=tuple(_named_paths(place)) if container and sees_our_paths else (),
        force=bool(run["force"]),
    )


def _named_paths(place: Place) -> Iterator[str]:
    """Existing absolute paths among the settings; for a glob pattern, the folder before its first wildcard.

    In the hub's cache, snapshots consist of symlinks, so yield the folder of the whole model. Of a file with a reward
    or a task, which may import its neighbours, yield the folder.
    """
    yield from {str(one.file.parent) for one in _own_functions(place) if one.written.startswith("/")}
    for key, text in secrets.texts_in(OmegaConf.to_container(place.composed.tree, resolve=False)):
        section, *below = key.split(".")
        if section not in NAMING or OF_THE_IMAGE & {*below} or not text.startswith("/"):
            continue
        path = Path(*takewhile(lambda part: not has_magic(part), Path(text).parts))
        path = next((above.parent for above in path.parents if above.name == "snapshots"), path)
        if path.exists() and path != Path("/"):
            yield str(path)


def _settings(place: Place) -> Iterator[str]:
    """The overrides, both typed and derived from the profile, so that the step has the same meaning as here.

    Raises:
        UserError: an override contains a secret, which would end up in the script.
    """
    for text in place.request.overrides:
        if redact(text) != text:
            origin = text.origin if isinstance(text, Said) else COMMAND_LINE
            what = f"{origin}: {override_key(text)} holds a secret, which would stand in the job's script"
            raise UserError(what, "put it into a variable that the profile's secrets name, and say ${oc.env:NAME}")
        if override_key(text) == FORCE:
            continue  # set by the job itself, because it applies only to the first start
        yield from ("--setting", text.origin, text) if isinstance(text, Said) else (text,)


def _start(profile: Profile, verb: str, engine: str | None, composed: Composed) -> Start:
    if engine in DRIVERS or (verb == "data_prep" and setting(composed.tree, "data_prep.executor") == "ray"):
        return "ray" if isinstance(profile, Slurm) else "single"
    each = resolve_section(composed.tree, "run")["nproc_per_node"]
    if not isinstance(each, int):
        raise UserError(f"run.nproc_per_node: {each!r} is not a process count", "write: run.nproc_per_node=8")
    processes = profile.nodes * each
    if verb == "data_prep" or engine in ALONE or processes == 1:
        return "single"
    return profile.launcher if isinstance(profile, Slurm) else "torchrun"


def _cpus(place: Place, verb: str, gpus: int, processes: int) -> dict[str, Any]:
    """Resources per node: the whole node if all of its GPUs are used, otherwise CPUs for the step's processes."""
    profile, tree = place.profile, place.composed.tree
    if gpus:
        fills = gpus >= place.loaded.gpus_of_node and (gpus >= WHOLE_FROM or profile.nodes > 1)
        return {"cpus_per_node": CPUS_OF_A_PROCESS * max(gpus, processes), "whole_nodes": fills}
    if verb == "data_prep":  # without a limit it starts as many workers as it finds CPUs
        workers = setting(tree, "data_prep.workers")
        shared = profile.nodes if setting(tree, "data_prep.executor") == "ray" else 1
        return {"cpus_per_node": -(-workers // shared)} if isinstance(workers, int) else {"whole_nodes": True}
    threads = setting(tree, "run.threads")
    return {"cpus_per_node": processes * (threads if isinstance(threads, int) else CPUS_OF_A_PROCESS)}


def python_here(engine: str | None) -> str:
    """The Python that runs steps with this engine on this machine."""
    environment = environment_of(engine) if engine else None
    own = environment is not None and environment.runs_step and not environment.is_here and environment.programs
    return str(own / "python") if own else sys.executable


def _environment(place: Place, engine: str | None, home: str) -> dict[str, str]:
    """Environment of a job's processes. A `stages` folder in the working folder must not shadow the code of the job."""
    profile = place.profile
    found = {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", HOME_VARIABLE: home}
    environment = environment_of(engine) if engine else None
    if environment is not None and environment.folder and not is_elsewhere(profile):
        found[FOLDER_VARIABLE] = str(environment.folder.parent)
    if engine in DRIVERS and isinstance(profile, Slurm) and (by := last_save(profile)):
        found[MUST_SAVE_BY] = by
    if wandb := place.loaded.wandb:
        told = {"RUN_GROUP": wandb.group, "JOB_TYPE": wandb.job_type, "TAGS": ",".join(wandb.tags)}
        found |= {f"WANDB_{name}": text for name, text in told.items() if text}
    return found | taken_from_shell(profile) | profile.env_vars


def taken_from_shell(profile: Profile) -> dict[str, str]:
    """Variables of this shell that a job gets where the profile does not set them."""
    # W&B's mode belongs to the run, the others to machines with the same files
    names = ("WANDB_MODE", *(() if is_elsewhere(profile) else ("HF_HUB_OFFLINE", "HF_HOME", "OMP_NUM_THREADS")))
    known = {name: os.environ[name] for name in names if os.environ.get(name)}
    return {name: text for name, text in known.items() if name not in profile.env_vars}


def make_folder(job: Job, place: Place, line: str) -> Record:
    """Create the job's folder with everything except what its backend adds, and the record, still without a job id."""
    folder = new_folder(job.name, jobs_folder(str(place.store)))
    there = backend_of(place.profile).there(folder)
    try:
        if is_elsewhere(place.profile):
            _take_files_along(place, folder)
            _take_own_code_along(place, folder)
        _copy_own_configs(place, folder)
        # the resolved settings, with references to artifacts and variables kept
        tree = with_references(OmegaConf.to_container(place.composed.tree, resolve=False))
        merged = ", ".join(file.name for file in place.composed.files)
        head = f"# {place.request.family}: {merged}, then [{place.loaded.name}] of {place.loaded.file}"
        atomic.write_text(folder / CONFIG_FILE, f"{head}\n{OmegaConf.to_yaml(OmegaConf.create(tree))}")
        copy_packages((*PACKAGES, *(f"stages.{name}" for name in STAGES)), folder / CODE)
        commit = git_commit(Path(__file__).parent)
        atomic.write_text(folder / CODE / TRAVELLED.name, f"{commit or ''}\n")
        (folder / LOG).touch(mode=0o600)
        secrets.write_secrets(folder, job.secrets)
        record = Record(
            name=job.name,
            profile=place.loaded.name,
            executor=place.profile.executor,
            folder=str(folder),
            there=str(there),
            host=platform.node(),
            submitted=datetime.now(UTC).isoformat(timespec="microseconds"),
            line=line,
            after=job.after,
            commit=commit,
            more={
                "profile": place.profile.model_dump(mode="json", exclude_unset=True),
                "submits_jobs": place.here is not None,
            },
        )
        record.write()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return record


def _take_files_along(place: Place, folder: Path) -> None:
    """Copy the files of the working folder that the profile selects.

    Raises:
        UserError: the command names a file of this folder that is not selected.
    """
    if isinstance(place.profile, Remote):
        pack(place.profile, Path.cwd(), folder)
    source = setting(place.composed.tree, "data_prep.source")
    for name in [source] if isinstance(source, str) else source or ():
        if name != "synthetic" and not re.match(r"/|~|\w+:", name) and not list((folder / FILES).glob(name)):
            remedy = 'commit it, or write in the profile: packager = "pattern", packager_include_pattern = ["*.jsonl"]'
            raise UserError(f"data_prep.source: {name} does not travel to {place.loaded.name}", remedy)


def _own_functions(place: Place) -> list[OwnFunction]:
    """Functions in the user's own files that the config names."""
    tree: Any = OmegaConf.to_container(place.composed.tree, resolve=False)
    return [one for found in functions_in(tree, SECTIONS).values() for one in found]


def travel_problems(place: Place) -> Iterator[Finding]:
    """Files with rewards and tasks whose paths mean nothing on the job's machine."""
    for written in dict.fromkeys(function.written for function in _own_functions(place)):
        if written.startswith(("/", "~")) or ".." in Path(written).parts:
            what = f"{written} does not travel to {place.loaded.name}: it is not below the working folder"
            yield problem(what, "put it there, and name it by its path from there")


def _take_own_code_along(place: Place, folder: Path) -> None:
    """Copy the user's files with rewards and tasks, whatever the profile selects, with all that they import of theirs.

    Raises:
        UserError: one is missing, or is named by a path that means nothing on another machine.
    """
    for found in travel_problems(place):
        raise UserError(found.message, found.remedy)
    for function in _own_functions(place):
        for name, file in function.modules().items():
            target = folder / FILES / Path(function.written).parent / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)


def _copy_own_configs(place: Place, folder: Path) -> None:
    """Copy the user's config files, each together with its base configs."""
    ours = list(shared_groups())
    for name in STAGES:
        with suppress(UserError):  # other stages may not be installed
            ours.append(stage_directory(name).resolve() / "config")
    own = [file.resolve() for file in place.composed.files if not any(map(file.resolve().is_relative_to, ours))]
    for file in own:
        start = own[-1].parent
        if not file.is_relative_to(start):
            raise UserError(f"{file} lies above {own[-1]}, which builds on it", "put them into one folder")
        target = folder / OWN / file.relative_to(start)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)


def submit(job: Job, record: Record, profile: Profile) -> Record:
    """Submit a job. Ctrl-C is deferred until the job id is known.

    Raises:
        UserError: the job was refused, and its folder has been removed.
        NoAnswer: unknown whether the job was accepted; its folder is kept.
    """
    with removed_on_error(record), uninterrupted():
        record = replace(record, id=backend_of(profile).submit(job, Path(record.folder)))
        record.write()
    return record


@contextmanager
def removed_on_error(record: Record) -> Generator[None]:
    """Remove the folder of a job that could not be submitted, including its secrets."""
    try:
        yield
    except NoAnswer as error:
        raise NoAnswer(f"{error.message}; whether the job runs is not known: {record.folder}", error.remedy) from error
    except Exception:
        shutil.rmtree(record.folder, ignore_errors=True)
        raise


@contextmanager
def uninterrupted() -> Generator[None]:
    """Defer signals until the end of the block."""
    heard: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: heard.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if heard:
        signal.raise_signal(heard[0])
