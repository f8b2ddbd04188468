"""NVIDIA's NeMo Evaluator, which runs in an environment of its own and asks over HTTP."""

from nemotron_shared.runtime.engine import Engine
from nemotron_shared.runtime.task import Outcome, Task
from stages.eval.evaluator_section import NemoEvaluatorEngine
from stages.eval.schema import EvalConfig


class NemoEvaluator(Engine[EvalConfig[NemoEvaluatorEngine]]):
    """NeMo Evaluator asks one model after the other."""

    settings = NemoEvaluatorEngine

    def run(self, task: Task[EvalConfig[NemoEvaluatorEngine]]) -> Outcome:
        """Score and compare the models."""
        from stages.eval.engines.nemo_evaluator.ask import evaluate_model
        from stages.eval.evaluate import evaluate

        return evaluate(task, lambda model, tasks: evaluate_model(task, model, tasks))
