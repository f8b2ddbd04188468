"""`pipeline --batch`: each step is a job that depends on the previous one; the last job writes the report."""

import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from nemotron_app.pipeline import for_stage, require_configs
from nemotron_app.remote.command import problems, show, tell_submitted
from nemotron_app.remote.follow import follow
from nemotron_app.remote.place import Place, place_of
from nemotron_app.remote.prepare import job_of, make_folder, submit
from nemotron_app.table import PIPELINE
from nemotron_cluster.backends import backend_of
from nemotron_cluster.job import Job, Record
from nemotron_cluster.profiles import load_profile
from nemotron_shared.errors import UserError
from nemotron_shared.families import families

if TYPE_CHECKING:
    from nemotron_app.main import Request


def run_chain(request: "Request") -> int:
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
    places = {work: _place(*work, request) for work in works}
    if launched := [stage for (stage, _), place in places.items() if place.here]:
        what = f"{launched[0]}: its launcher runs on this machine, and cannot wait for the jobs before it"
        raise UserError(what, "run the pipeline there step by step, or with a config whose engine is lm_eval")
    require_configs(steps, replace(request, overrides=_of_steps(request)))
    first = works[0]
    if wrong := problems(*first, places[first], job_of(*first, places[first])):
        raise UserError("\n".join(["the first step could not run:", *wrong]))
    done: list[Record] = []
    for work in works:
        job = replace(job_of(*work, places[work]), after=tuple(str(record.id) for record in done[-1:]))
        done.append(_submit(job, places[work], done))
    last = places[works[-1]]
    done.append(
        _submit(_report(request, job_of(*works[-1], last), str(last.composed.tree.run.home), done[-1]), last, done)
    )
    if request.remote.mode == "batch":
        tell_submitted(request, done)
        return 0
    return next((code for record in done if (code := follow(backend_of(last.profile), record))), 0)


def _place(stage: str, verb: str, request: "Request") -> Place:
    try:
        return place_of(stage, verb, for_stage(request, stage))
    except UserError as error:
        raise UserError(f"{stage}: {error.message}", error.remedy) from error


def _of_steps(request: "Request") -> tuple[str, ...]:
    """Overrides that are settings of steps, excluding those about machines."""
    return tuple(text for text in request.overrides if not text.lstrip("+~").startswith("run.env."))


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


def _report(request: "Request", model: Job, home: str, after: Record) -> Job:
    """The job that writes the report."""
    words = ("-m", "nemotron_app.main", "report", "--family", request.family, "--home", home)
    return replace(
        model,
        name=f"{request.family}-report",
        command=words,
        start="single",
        nodes=1,
        processes_per_node=1,
        gpus_per_node=0,
        cpus_per_node=1,
        whole_nodes=False,
        secrets=(),
        force=False,
        after=(str(after.id),),
    )
