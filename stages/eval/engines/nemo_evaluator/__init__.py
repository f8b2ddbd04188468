"""NVIDIA's NeMo Evaluator, which runs in a separate environment and sends its questions over HTTP."""

from collections.abc import Iterator
from dataclasses import replace

from nemotron_engines.checks import local_needs
from nemotron_shared.engine.engine import Engine, Inputs
from nemotron_shared.engine.needs import Needs
from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.machine.machine import Machine
from nemotron_shared.system.errors import Finding, problem
from stages.eval.evaluator_section import NemoEvaluatorEngine
from stages.eval.harness import TESTED_VERSIONS, program_problems
from stages.eval.schema import EvalConfig

Config = EvalConfig[NemoEvaluatorEngine]


class NemoEvaluator(Engine[Config]):
    """Evaluate one model after the other with NeMo Evaluator."""

    settings = NemoEvaluatorEngine

    def check(self, config: Config, inputs: Inputs, machine: Machine) -> Iterator[Finding]:
        """Report settings that NeMo Evaluator cannot honour: it asks each question once, greedily, and a user's
        server holds one model."""
        if config.evaluation.temperature:
            what = "NeMo Evaluator asks each question once, and greedily"
            remedy = "set engine=lm_eval, or evaluation.temperature=0 evaluation.num_samples=1"
            yield problem(what, remedy, "evaluation.temperature")
        others = [role for role in ("base", "sft") if inputs.get(role) is not None]
        if config.engine.endpoint is not None and (others or config.evaluation.random_baseline):
            what = "engine.endpoint serves one model, but this run compares several"
            remedy = "add run.base=null run.sft=null evaluation.random_baseline=false; set run.model to the served one"
            yield problem(what, remedy)

    def needs(self, config: Config, inputs: Inputs, machine: Machine) -> Needs:
        """The other environment's program and, unless a server is already running, memory for the largest model."""
        program = program_problems(
            machine, "nemo-evaluator", config.engine.evaluator, "engine.evaluator", TESTED_VERSIONS
        )
        here = local_needs(config, inputs, machine) if config.engine.endpoint is None else Needs()
        return replace(here, others=(*here.others, *program))

    def run(self, task: Task[Config]) -> Outcome:
        """Score and compare the models."""
        from stages.eval.engines.nemo_evaluator.ask import evaluate_model
        from stages.eval.evaluate import evaluate

        return evaluate(task, lambda model, tasks: evaluate_model(task, model, tasks))
