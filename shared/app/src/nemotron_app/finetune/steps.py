"""The three steps of a fine-tuning, each run as the stage's own process."""

import json
import tempfile

from nemotron_app.finetune.plan import Plan, choose_training
from nemotron_app.launch import run_process, step_command
from nemotron_app.main import Request
from nemotron_shared.artifacts import Artifact
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.stop import STOPPED_EXIT_CODE


def prepare(plan: Plan) -> Artifact:
    """The prepared rows."""
    return _run(plan, plan.stage, "data_prep", plan.request(str(plan.file()), "data", "prep", plan.stage))


def train(plan: Plan, prepared: Artifact) -> Artifact:
    """The fine-tuned model."""
    config = str(choose_training(plan, prepared))
    return _run(plan, plan.stage, "train", plan.request(config, plan.stage, run__data=prepared.reference))


def evaluate(plan: Plan, tuned: Artifact) -> Artifact:
    """Scores of both models on the rows that were held out."""
    request = plan.request("held_out", "eval", run__model=tuned.reference, run__base=plan.reference)
    return _run(plan, "eval", "train", request)


def _run(plan: Plan, stage: str, verb: str, request: Request) -> Artifact:
    with tempfile.TemporaryFile() as answer:
        code = run_process(step_command(stage, verb, request), stdout=answer)
        if code == STOPPED_EXIT_CODE:
            raise SystemExit(code)
        if code:
            what = "the data preparation" if verb == "data_prep" else f"the {stage} stage"
            raise UserError(f"{what} ended with exit code {code}", "see above; what is finished is kept")
        answer.seek(0)
        return plan.look.store.resolve(json.loads(answer.read())["artifact"], family=plan.family)
