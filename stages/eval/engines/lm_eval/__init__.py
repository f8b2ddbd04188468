"""EleutherAI's lm-eval, in this process, offline."""

from collections.abc import Iterator

from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_engines.checks import local_needs, own_packages
from nemotron_shared.engine.engine import Engine, Inputs
from nemotron_shared.engine.needs import Needs
from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.machine.machine import Machine
from nemotron_shared.models.folder import config_of, left_out
from nemotron_shared.system.errors import Finding, note
from stages.eval.schema import EvalConfig, LMEvalEngine


class LMEval(Engine[EvalConfig[LMEvalEngine]]):
    """Evaluate one model after the other with lm-eval."""

    settings = LMEvalEngine
    libraries = "stages.eval.engines.lm_eval.ask"  # it also takes the hub's libraries offline
    begins_with = ("datasets", "lm_eval", "lm_eval.models.huggingface", "lm_eval.tasks")

    def notes(self, config: EvalConfig[LMEvalEngine], inputs: Inputs) -> Iterator[Finding]:
        """What the models' folders have that does not count: chat templates, and generation settings."""
        decides = {"temperature": config.evaluation.temperature, "top_p": 1.0}
        for model in {one.path: one for role, one in inputs.items() if role != "data" and one is not None}.values():
            if told := TokenizerFolder(model.path).templates_left_out():
                yield note(f"{model.reference}: {told}")
            if asked := left_out(model.path, **decides):
                yield note(f"{model.reference}: its generation_config.json asks for {asked}: left out in evaluation")

    def needs(self, config: EvalConfig[LMEvalEngine], inputs: Inputs, machine: Machine) -> Needs:
        """Packages, and memory for the largest model."""
        return local_needs(config, inputs, machine, own_packages("nemotron-eval"))

    def run(self, task: Task[EvalConfig[LMEvalEngine]]) -> Outcome:
        """Score and compare the models."""
        from nemotron_engines.modeling.build import NEMOTRON_H, install_kernels
        from stages.eval.engines.lm_eval.ask import evaluate_model
        from stages.eval.evaluate import evaluate, models_to_score

        # before the fork that may run half of them, so it is reported once
        for model in models_to_score(task).values():
            install_kernels(NEMOTRON_H if model is None else config_of(model.path).get("model_type"))
        return evaluate(task, lambda model, tasks: evaluate_model(task, model, tasks))
