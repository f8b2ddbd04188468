"""Run a step as a job: show (--dry-run), submit and follow (--run), submit (--batch), or only prepare it (--stage)."""

import json
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from nemotron_app.help import PIPELINE
from nemotron_app.jobs import follow, where
from nemotron_app.launch import run_process, step_process
from nemotron_app.pipeline import for_stage, require_configs
from nemotron_app.remote.place import Place, described, is_elsewhere, place_of
from nemotron_app.remote.prepare import job_of, make_folder, removed_on_error, submit, taken_from_shell, travel_problems
from nemotron_app.request import Request
from nemotron_cluster.backends import backend_of
from nemotron_cluster.backends.local import TORCHRUN
from nemotron_cluster.job import SCRIPT, Job, Record
from nemotron_cluster.profiles import Profile, Slurm, load_profile
from nemotron_cluster.slurm.script import SAME_IN_EVERY_JOB, choose_resources
from nemotron_shared.families import families
from nemotron_shared.step.dry_run import Preview, as_text
from nemotron_shared.system.console import say, tell, tell_json
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.process import as_typed


def run_remote(stage: str, verb: str, request: Request) -> int:
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


def hand_over(job: Job, place: Place, request: Request) -> Record:
    """Submit or prepare the job; returns its record."""
    assert request.remote is not None
    _say_unused(place)
    record = make_folder(job, place, shlex.join(["nemotron", *sys.argv[1:]]))
    backend = backend_of(place.profile)
    if request.remote.mode == "stage":
        with removed_on_error(record):
            backend.lay_out(job, Path(record.folder))
        return record
    return submit(job, record, place.profile)


def _say_unused(place: Place) -> None:
    if place.unused:
        say(place.unused)


def tell_submitted(request: Request, records: list[Record]) -> None:
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
        tell(as_typed(f"state: nemotron jobs{at}\nlog: nemotron jobs logs {last.id} --follow{at}"))
        tell(as_typed(f"end it: nemotron jobs cancel {first.id}{at}"))  # and the jobs that depend on it


def problems(stage: str, verb: str, place: Place, job: Job) -> list[str]:
    """Problems that would keep the step from starting there, judging by its profile; says its notes."""
    found = _preview(stage, verb, place, job)
    for line in found["notes"]:
        say(line)
    return found["problems"]


def show(stage: str, verb: str, place: Place, job: Job) -> int:
    """Show the step's own dry run, then the job and what would be submitted. Leaves no files behind.

    An input may still have to be made, or a key to be set. Such problems are listed as what to do before the job is
    submitted, and do not change the exit code.
    """
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
    certain = [text for text in preview["problems"] if text not in preview["pending"]]
    preview["problems"] = [*certain, refused] if refused else certain
    preview["notes"] = [*([place.unused] if place.unused else []), *preview["notes"]]
    if place.request.json:
        more = {
            "profile": place.loaded.name,
            "job": dict(_facts(job, place.profile)),
            "script": rendered,
            "scheduler": judged or refused,
        }
        tell_json(preview | more)
    else:
        tell(as_text(Preview(**preview), [*_about(job, place, rendered), *_judgement(judged, refused)]))
    return 1 if preview["problems"] else 0


def _about(job: Job, place: Place, script: str) -> Iterator[str]:
    """Lines about a job and its machine."""
    loaded = place.loaded
    yield from ("", f"# profile {loaded.name}, {loaded.file}")
    for key, value in loaded.profile.model_dump(exclude_unset=True).items():
        yield f"{f'{key}: {value}':<56}  # {loaded.origins.get(key, 'default')}"
    yield from ("", "# job", *(f"{key}: {value}" for key, value in _facts(job, place.profile)))
    own, mark, same = script.rstrip().partition(SAME_IN_EVERY_JOB)
    yield from ("", f"# what {place.profile.executor} would be given", own.rstrip())
    if mark:
        lines = len(same.splitlines())
        yield f"# and {lines} lines that are the same in every job; --stage {loaded.name} lays the whole script out"


def _judgement(judged: str | None, refused: str | None) -> Iterator[str]:
    if judged or refused:
        yield from ("", "# what the scheduler says", judged or f"refused: {refused}")


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
    if taken := taken_from_shell(profile):
        yield "taken from this shell", ", ".join(f"{name}={text}" for name, text in taken.items())
    if job.secrets:
        yield "secrets", f"{', '.join(job.secrets)} (in a file for you alone)"


def _preview(stage: str, verb: str, place: Place, job: Job) -> dict[str, Any]:
    """The step's own dry run on the job's machine, as JSON."""
    with (
        tempfile.NamedTemporaryFile("w", suffix=".yaml", prefix="machine-") as machine,
        tempfile.TemporaryFile() as answer,
    ):
        yaml.safe_dump(dict(described(place, job)), machine)
        machine.flush()
        file = None if place.here else Path(machine.name)
        request = replace(place.request, dry_run=True, json=True, machine=file)
        with step_process(stage, verb, request) as command:
            run_process(command, stdout=answer)
        answer.seek(0)
        with suppress(ValueError):
            preview = json.loads(answer.read())
            refused = map(str, travel_problems(place) if is_elsewhere(place.profile) else ())
            return preview | {"problems": [*preview["problems"], *refused]}
    raise UserError(f"the settings of {stage} are not right; see above")


# `pipeline --batch`: each step is a job that depends on the previous one; the last job writes the report.


def run_chain(request: Request) -> int:
    """Submit all steps; with --run, follow them. Returns the exit code of the first that failed, or 0."""
    assert request.remote is not None
    executor = load_profile(request.remote.profile).profile.executor
    if executor != "slurm":
        raise UserError(f"jobs of {executor} cannot wait for each other", "run the pipeline there step by step")
    if request.remote.mode == "stage":
        raise UserError("--stage lays one step out, and a pipeline has many", "give it to the command of a step")
    steps = [step for step in PIPELINE if step.stage in families()[request.family].stages]
    works = [(step.stage, verb) for step in steps for verb in step.verbs]
    if request.dry_run:
        codes = []
        for stage, verb in works:
            place = place_of(stage, verb, for_stage(request, stage))
            codes.append(show(stage, verb, place, job_of(stage, verb, place)))
        return max(codes)
    places: dict[tuple[str, str], Place] = {}
    for stage, verb in works:
        try:
            places[stage, verb] = place_of(stage, verb, for_stage(request, stage))
        except UserError as error:
            raise UserError(f"{stage}: {error.message}", error.remedy) from error
    if launched := [stage for (stage, _), place in places.items() if place.here]:
        what = f"{launched[0]}: its launcher runs on this machine, and cannot wait for the jobs before it"
        raise UserError(what, "run the pipeline there step by step, or with a config whose engine is lm_eval")
    require_configs(steps, request.without_machine())
    first = works[0]
    if wrong := problems(*first, places[first], job_of(*first, places[first])):
        raise UserError("\n".join(["the first step could not run:", *wrong]))
    done: list[Record] = []
    for work in works:
        _say_unused(places[work])
        job = replace(job_of(*work, places[work]), after=tuple(str(record.id) for record in done[-1:]))
        done.append(_submit(job, places[work], done))
    last = places[works[-1]]
    run = last.composed.tree.run
    report = replace(
        job_of(*works[-1], last),
        name=f"{run.name}-report",
        command=("-m", "nemotron_app.main", "report", "--family", str(run.name), "--home", str(run.home)),
        start="single",
        nodes=1,
        processes_per_node=1,
        gpus_per_node=0,
        cpus_per_node=1,
        whole_nodes=False,
        secrets=(),
        force=False,
        after=(str(done[-1].id),),
    )
    done.append(_submit(report, last, done))
    if request.remote.mode == "batch":
        tell_submitted(request, done)
        return 0
    return next((code for record in done if (code := follow(backend_of(last.profile), record))), 0)


def _submit(job: Job, place: Place, before: list[Record]) -> Record:
    """Submit one job of the chain. If it is refused, the error names the earlier jobs, which are already submitted."""
    try:
        return submit(job, make_folder(job, place, shlex.join(["nemotron", *sys.argv[1:]])), place.profile)
    except UserError as error:
        if not before:
            raise
        ids = " ".join(str(record.id) for record in before)
        raise UserError(
            f"{job.name}: {error.message}", f"{error.remedy or ''}\n  submitted before it: {ids}".strip()
        ) from error
