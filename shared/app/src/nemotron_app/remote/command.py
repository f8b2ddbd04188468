"""Run a step as a job: show (--dry-run), submit and follow (--run), submit (--batch), or only prepare it (--stage)."""

import json
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from nemotron_app.launch import run_process, step_command
from nemotron_app.remote.follow import follow, where
from nemotron_app.remote.place import Place, described, place_of
from nemotron_app.remote.prepare import job_of, make_folder, removed_on_error, submit
from nemotron_cluster.backends import backend_of
from nemotron_cluster.backends.local import TORCHRUN
from nemotron_cluster.job import SCRIPT, Job, Record
from nemotron_cluster.profiles import Profile, Slurm
from nemotron_cluster.slurm.script import choose_resources
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.console import tell, tell_json
from nemotron_shared.runtime.dry_run import Preview, as_text

if TYPE_CHECKING:
    from nemotron_app.main import Request


def run_remote(stage: str, verb: str, request: "Request") -> int:
    """Run one step remotely, in the requested mode; returns the exit code."""
    place = place_of(stage, verb, request)
    job = job_of(stage, verb, place)
    if request.dry_run:
        return show(stage, verb, place, job)
    if wrong := problems(stage, verb, place, job):
        raise UserError("\n".join([f"{job.name} could not run on {place.loaded.name}:", *wrong]))
    assert request.remote is not None
    record = hand_over(job, place, request)
    if request.remote.mode == "run":
        return follow(backend_of(place.profile), record)
    tell_submitted(request, [record])
    return 0


def hand_over(job: Job, place: Place, request: "Request") -> Record:
    """Submit or prepare the job; returns its record."""
    assert request.remote is not None
    record = make_folder(job, place, shlex.join(["nemotron", *sys.argv[1:]]))
    backend = backend_of(place.profile)
    if request.remote.mode == "stage":
        with removed_on_error(record):
            backend.lay_out(job, Path(record.folder))
        return record
    return submit(job, record, place.profile)


def tell_submitted(request: "Request", records: list[Record]) -> None:
    """Print what was submitted, and the commands to manage it."""
    assert request.remote is not None
    if request.json:
        tell_json([asdict(record) for record in records], indent=None)
        return
    for record in records:
        if record.id is None:
            script = shlex.quote(f"{record.there}/{SCRIPT}")
            tell(f"laid out: {record.there}\nstart it, on Slurm within an allocation (salloc): bash {script}")
        else:
            tell(f"submitted job {record.id} ({record.name}) to {record.profile}: {record.folder}")
    first, last = records[0], records[-1]
    if last.id is not None:
        at = where(last)
        tell(f"state: nemotron jobs{at}\nlog: nemotron jobs logs {last.id} --follow{at}")
        tell(f"end it: nemotron jobs cancel {first.id}{at}")  # and the jobs that depend on it


def problems(stage: str, verb: str, place: Place, job: Job) -> list[str]:
    """Problems that would keep the step from starting there, judging by its profile."""
    return _preview(stage, verb, place, job)["problems"]


def show(stage: str, verb: str, place: Place, job: Job) -> int:
    """Show the step's own dry run, then the job and what would be submitted. Leaves no files behind."""
    backend = backend_of(place.profile)
    with tempfile.TemporaryDirectory(prefix="nemotron-job-") as scratch:
        folder = Path(scratch) / job.name
        folder.mkdir()
        rendered = backend.render(job, folder)
        try:
            judged, refused = backend.test_submit(job, folder), None
        except UserError as error:
            judged, refused = None, str(error)
    preview: dict[str, Any] = _preview(stage, verb, place, job) | {"command": shlex.join(_started(job))}
    if place.request.json:
        more = {
            "profile": place.loaded.name,
            "job": dict(_facts(job, place.profile)),
            "script": rendered,
            "scheduler": judged or refused,
        }
        problems = [*preview["problems"], *([refused] if refused else [])]
        tell_json(preview | more | {"problems": problems})
        return 1 if problems else 0
    tell(as_text(Preview(**preview)))
    tell(
        "\n".join(
            ["", *_about_profile(place), "", "# job", *(f"{key}: {value}" for key, value in _facts(job, place.profile))]
        )
    )
    tell("\n".join(["", f"# what {place.profile.executor} would be given", rendered.rstrip()]))
    if judged or refused:
        tell("\n".join(["", "# what the scheduler says", judged or f"refused: {refused}"]))
    return 1 if preview["problems"] or refused else 0


def _started(job: Job) -> list[str]:
    """The command that the job's script starts; on each node, if there are several."""
    command = [job.python, *job.command]
    if job.start == "srun":
        return ["srun", f"--ntasks={job.nodes * job.processes_per_node}", *command]
    if job.start != "torchrun":
        return command
    return [job.python, *TORCHRUN, f"--nnodes={job.nodes}", f"--nproc-per-node={job.processes_per_node}", *command[1:]]


def _facts(job: Job, profile: Profile) -> Iterator[tuple[str, Any]]:
    """Description of a job for people."""
    yield "name", job.name
    yield "start", job.start
    yield "nodes", job.nodes
    yield "processes per node", job.processes_per_node
    if job.gpus_per_node:
        yield "GPUs per node", job.gpus_per_node
    if isinstance(profile, Slurm):
        yield from choose_resources(job, profile).describe(job.tasks_per_node)
    if job.container:
        yield "container", job.container
    yield "python", job.python
    if job.secrets:
        yield "secrets", f"{', '.join(job.secrets)} (in a file for you alone)"


def _about_profile(place: Place) -> list[str]:
    said = place.loaded.profile.model_dump(exclude_unset=True)
    lines = [f"{f'{key}: {value}':<56}  # {place.loaded.origins.get(key, 'default')}" for key, value in said.items()]
    return [f"# profile {place.loaded.name}, {place.loaded.file}", *lines]


def _machine(place: Place, job: Job) -> "tempfile._TemporaryFileWrapper[str]":
    """A file that describes the machine of the job, for `--machine`."""
    file = tempfile.NamedTemporaryFile("w", suffix=".yaml", prefix="machine-")  # noqa: SIM115 - its user closes it
    yaml.safe_dump(dict(described(place, job)), file)
    file.flush()
    return file


def _preview(stage: str, verb: str, place: Place, job: Job) -> dict[str, Any]:
    """The step's own dry run on the job's machine, as JSON."""
    with _machine(place, job) as machine, tempfile.TemporaryFile() as answer:
        described = None if place.here else Path(machine.name)
        request = replace(place.request, dry_run=True, json=True, machine=described)
        run_process(step_command(stage, verb, request), stdout=answer)
        answer.seek(0)
        with suppress(ValueError):
            return json.loads(answer.read())
    raise UserError(f"the settings of {stage} are not right; see above")
