"""`nemotron MODEL pipeline`: the seven steps in order, then the report.

    1/7 pretrain data prep   2/7 pretrain   3/7 sft data prep   4/7 sft   5/7 rl data prep   6/7 rl   7/7 eval

Each step reuses a finished result whose inputs are unchanged, resumes an interrupted run, or runs. An override can
name a stage, as in `sft.train.train_iters=100`; otherwise it applies to every stage that has the setting.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from nemotron_app.copies import copying
from nemotron_app.help import PIPELINE, PipelineStep
from nemotron_app.launch import ask_step, composed, config_of, for_one_stage, run_step, stage_directory, stages_with
from nemotron_app.request import Request
from nemotron_shared.config.references import resolve, resolve_section
from nemotron_shared.config.validate import validate
from nemotron_shared.families import families
from nemotron_shared.system.console import doing, say
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.stop import STOPPED_EXIT_CODE, end_on_sigterm
from nemotron_shared.tracking.progress import heartbeat


@copying()
def run_pipeline(request: Request) -> int:
    """Run the steps of the family's stages until one fails; returns its exit code, or 0."""
    steps = [step for step in PIPELINE if step.stage in families()[request.family].stages]
    for step in steps:
        stage_directory(step.stage)
    if request.dry_run:
        each = ((step.stage, verb) for step in steps for verb in step.verbs)
        return max(run_step(stage, verb, for_stage(request, stage), "--in-pipeline") for stage, verb in each)
    require_configs(steps, request)
    began, timings = time.monotonic(), []
    end_on_sigterm()
    for number, step in enumerate(steps, start=1):
        say(f"\n── {number}/{len(steps)}  {step.title} ──")
        code, reused, seconds = _run(step, for_stage(request, step.stage))
        if code == STOPPED_EXIT_CODE:
            return code
        if code:
            raise UserError(
                f"step {number} of {len(steps)} ({step.title}) ended with exit code {code}",
                "what is finished is kept: correct the cause and run the same command again",
            )
        timings.append({"name": step.title, "seconds": round(seconds, 1), "reused": reused})
    return _report(
        request,
        {"steps": timings, "seconds": round(time.monotonic() - began, 1), "config": request.config or request.family},
    )


def require_configs(steps: Sequence[PipelineStep], request: Request) -> None:
    """Check the configs of all steps before the first one runs.

    Raises:
        UserError: a stage has no such config, or one of its settings is unknown or of the wrong type.
    """
    for stage in {step.stage: step for step in steps}:
        own = for_stage(request, stage)
        config_of(own, stage)  # raises an error that names no stage
        schema = import_module(f"stages.{stage}.train").STEP.schema
        try:
            found = composed(stage, own)
            # skip values that depend on data which does not exist yet; the step checks them
            validate(schema, resolve(found.tree, lambda role, field: 1), found.origins)
        except UserError as error:
            raise UserError(f"{stage}: {error.message}", error.remedy) from error


def _run(step: PipelineStep, request: Request) -> tuple[int, bool, float]:
    """Run a step. Returns its exit code, whether all results already existed, and the elapsed seconds."""
    all_reused, began = True, time.monotonic()
    for verb in step.verbs:
        code, answer = ask_step(step.stage, verb, request)
        if code:
            return code, False, time.monotonic() - began
        all_reused = all_reused and answer["reused"]
    return 0, all_reused, time.monotonic() - began


def for_stage(request: Request, stage: str) -> Request:
    """The request with only the overrides that apply to a stage, without their stage prefix.

    Raises:
        UserError: no stage has the setting of an override.
    """
    own = [(text, for_one_stage(text, stage)) for text in request.overrides]
    of_all = [text for text, said in own if said == text and stage in stages_with(text, request)]
    of_this = [said for text, said in own if said and said != text]  # wins, wherever it stands
    return replace(request, overrides=(*of_all, *of_this))


def run_of(request: Request) -> Mapping[str, Any]:
    """The `run` section of the last step, whether set on the command line or in a YAML file."""
    stage = [step.stage for step in PIPELINE if step.stage in families()[request.family].stages][-1]
    return resolve_section(composed(stage, for_stage(request, stage)).tree, "run")


def _report(request: Request, pipeline: dict[str, Any]) -> int:
    from nemotron_app.report.command import build_report
    from nemotron_shared.artifacts import Store

    doing("drawing the report")
    with heartbeat("pipeline"):
        run = run_of(request)
        report = build_report(Store.open(run["home"]), run["name"], pipeline=pipeline)
    report.print(as_json=request.json)
    return 0
