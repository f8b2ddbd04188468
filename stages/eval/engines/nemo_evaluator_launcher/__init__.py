"""NVIDIA's tasks in containers, on a Slurm cluster or with Docker, through nemo-evaluator-launcher."""

from collections.abc import Iterator

import yaml

from nemotron_shared.runtime.engine import Engine, Inputs, Problem
from nemotron_shared.runtime.machine import Machine
from nemotron_shared.runtime.task import Outcome, Task
from stages.eval.evaluator_section import NemoEvaluatorLauncherEngine
from stages.eval.launcher_config import chosen, rendered_config
from stages.eval.schema import EvalConfig

Config = EvalConfig[NemoEvaluatorLauncherEngine]


class NemoEvaluatorLauncher(Engine[Config]):
    """The launcher serves the model and runs the tasks; this process submits, waits and reads the results."""

    settings = NemoEvaluatorLauncherEngine

    def check(self, config: Config, inputs: Inputs, machine: Machine) -> Iterator[Problem]:
        """Refuse what cannot be submitted: an unknown task, or a cluster without an account."""
        chosen(config.engine, config.evaluation.tasks)
        where = config.engine.execution
        needed = {
            "hostname": where.hostname,
            "username": where.username,
            "account": where.account,
            "partition": where.partition,
        }
        for name, value in needed.items():
            if where.type == "slurm" and not value:
                yield Problem(f"engine.execution.{name} is not set", "the cluster's jobs need it")

    def render(self, config: Config, model: str | None) -> str:
        """The launcher's config."""
        return yaml.safe_dump(rendered_config(config, model), sort_keys=False, allow_unicode=True, width=1000)

    def run(self, task: Task[Config]) -> Outcome:
        """Submit, wait, and write the results."""
        from stages.eval.engines.nemo_evaluator_launcher.submit import evaluate

        return evaluate(task)
