"""The three steps of a fine-tuning, each run as the stage's own process."""

from importlib import import_module

from nemotron_app.finetune.plan import Plan, choose_training
from nemotron_app.launch import ask_step
from nemotron_app.request import Request
from nemotron_shared.artifacts import Artifact
from nemotron_shared.config.overrides import override
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.arguments import Arguments
from nemotron_shared.runtime.console import say
from nemotron_shared.runtime.estimate import lines
from nemotron_shared.runtime.preflight import preflight
from nemotron_shared.runtime.stop import STOPPED_EXIT_CODE


def prepare(plan: Plan) -> Artifact:
    """The prepared rows."""
    return _run(plan, plan.stage, "data_prep", plan.request(plan.stage, str(plan.file()), *plan.overrides))


def train(plan: Plan, prepared: Artifact) -> Artifact:
    """The fine-tuned model."""
    data = override("run.data", prepared.reference)
    request = plan.request(plan.stage, str(choose_training(plan, prepared)), *plan.overrides, data)
    _say_what_it_takes(plan, request)
    return _run(plan, plan.stage, "train", request)


def _say_what_it_takes(plan: Plan, request: Request) -> None:
    """Memory and time of the training, estimated; what keeps it from starting, it says itself."""
    asked = Arguments(str(request.config), request.overrides, dry_run=True, json=False, trust_code=plan.trust_code)
    estimate = preflight(import_module(f"stages.{plan.stage}.train").STEP, asked).estimate
    for name, said in lines(estimate) if estimate else ():
        if name.startswith(("memory", "all steps")):
            say(f"[finetune] the training, estimated: {name} {said}")


def evaluate(plan: Plan, tuned: Artifact) -> Artifact:
    """Scores of both models on the rows that were held out."""
    models = override("run.model", tuned.reference), override("run.base", plan.reference)
    return _run(plan, "eval", "train", plan.request("eval", "held_out", *models))


def _run(plan: Plan, stage: str, verb: str, request: Request) -> Artifact:
    code, answer = ask_step(stage, verb, request)
    if code == STOPPED_EXIT_CODE:
        raise SystemExit(code)
    if code:
        what = "the data preparation" if verb == "data_prep" else f"the {stage} stage"
        raise UserError(f"{what} ended with exit code {code}", "see above; what is finished is kept")
    return plan.look.store.resolve(answer["artifact"], family=plan.family)
