"""`nemotron MODEL pipeline`: the seven steps in order, then the report.

    1/7 pretrain data prep   2/7 pretrain   3/7 sft data prep   4/7 sft   5/7 rl data prep   6/7 rl   7/7 eval

Each step reuses a finished result that nothing has changed, continues one that was cut off, or runs. An
override may be meant for one stage: `sft.train.train_iters=100`; without a stage's name it goes to all.
"""

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nemotron_shared.cli.launch import run_step, stage_directory
from nemotron_shared.cli.table import FAMILIES, PIPELINE, STAGES, PipelineStep
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.run import say

if TYPE_CHECKING:
    from nemotron_shared.cli.main import Request


def run_pipeline(request: "Request") -> int:
    """Run the steps of the family's stages until one fails; returns its exit code, or 0."""
    steps = [step for step in PIPELINE if step.stage in FAMILIES[request.family].stages]
    for step in steps:
        stage_directory(step.stage)
    began, timings = time.monotonic(), []
    for number, step in enumerate(steps, start=1):
        say(f"\n── {number}/{len(steps)}  {step.title} ──")
        step_began = time.monotonic()
        _run(step, request, number, len(steps))
        timings.append({"name": step.title, "seconds": round(time.monotonic() - step_began, 1)})
    if request.dry_run:
        return 0
    return _report(request, {"steps": timings, "seconds": round(time.monotonic() - began, 1), "config": request.config})


def _run(step: PipelineStep, request: "Request", number: int, total: int) -> None:
    for verb in step.verbs:
        code = run_step(step.stage, verb, for_stage(request, step.stage))
        if code and not request.dry_run:
            raise UserError(
                f"step {number} of {total} ({step.title}) ended with exit code {code}",
                "what is finished is kept: correct the cause and run the same command again",
            )


def for_stage(request: "Request", stage: str) -> "Request":
    """The request with the overrides that are meant for a stage, their stage's name cut off."""
    return replace(request, overrides=tuple(filter(None, (_for_stage(text, stage) for text in request.overrides))))


def _for_stage(override: str, stage: str) -> str | None:
    sign = override[: len(override) - len(override.lstrip("+~"))]
    first, dot, rest = override[len(sign) :].partition(".")
    if not dot or first not in STAGES:
        return override
    return f"{sign}{rest}" if first == stage else None


def _report(request: "Request", pipeline: dict[str, Any]) -> int:
    from nemotron_shared.artifacts import Store
    from nemotron_shared.report.build import build_report

    home = next((text.partition("=")[2] for text in request.overrides if text.startswith("run.home=")), None)
    report = build_report(Store.open(home), request.family, pipeline=pipeline)
    report.print(as_json=request.json)
    return 0
