"""NVIDIA's tasks in containers, on a Slurm cluster or with Docker, through nemo-evaluator-launcher."""

import os
from collections.abc import Iterator
from pathlib import Path

import yaml

from nemotron_shared.engine.engine import Engine, Inputs
from nemotron_shared.engine.needs import Needs
from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.machine.machine import Machine
from nemotron_shared.system.errors import Finding, pending, problem
from stages.eval.engines.nemo_evaluator_launcher.launcher import TESTED_VERSIONS, chosen, rendered_config
from stages.eval.evaluator_section import NemoEvaluatorLauncherEngine
from stages.eval.harness import program_problems
from stages.eval.schema import EvalConfig

Config = EvalConfig[NemoEvaluatorLauncherEngine]


def _unset(config: Config) -> Iterator[Finding]:
    """Report unset variables that the launcher would pass to its containers; it refuses to start without them."""
    engine = config.engine
    handed = {"engine.env_vars": engine.env_vars, "engine.deployment.env_vars": engine.deployment.env_vars}
    for section, variables in handed.items():
        for inside, value in variables.items():
            name = value.removeprefix("host:")
            if value.startswith("host:") and name not in os.environ:
                remedy = f"set {name}, or leave it out: ~{section}.{inside}"
                yield pending(problem(f"{section}.{inside} is {value}, but {name} is not set here", remedy))
    if engine.wandb.project and not os.environ.get("WANDB_API_KEY"):  # an empty variable is not a key
        what = f"engine.wandb.project={engine.wandb.project}: the job that exports the scores needs a key"
        yield pending(problem(what, "set WANDB_API_KEY, or turn the export off: engine.wandb.project=null"))


class NemoEvaluatorLauncher(Engine[Config]):
    """The launcher serves the model and runs the tasks; this process submits, waits and reads the results."""

    settings = NemoEvaluatorLauncherEngine

    def check(self, config: Config, inputs: Inputs, machine: Machine) -> Iterator[Finding]:
        """Refuse what cannot be submitted: an unknown task, a scorer, or a cluster without an account."""
        chosen(config.engine, config.evaluation.tasks)
        if config.evaluation.scorers:
            what = "the launcher's tasks judge answers by their own rules"
            yield problem(what, "leave it out, or set engine=lm_eval", "evaluation.scorers")
        where = config.engine.execution
        needed = {
            "hostname": where.hostname,
            "username": where.username,
            "account": where.account,
            "partition": where.partition,
        }
        for name, value in needed.items():
            if where.type == "slurm" and not value:
                remedy = "set it, or choose a profile of env.toml that does: --run PROFILE"
                yield problem(f"engine.execution.{name} is not set, but the cluster's jobs need it", remedy)
        if machine.is_here:
            yield from _unset(config)

        model = inputs.get("model")
        if model is None and config.run.model is not None:
            return  # a missing folder is reported elsewhere
        path = rendered_config(config, str(model.path) if model else None)["deployment"].get("checkpoint_path")
        # a folder in our own store can be checked before hours of queueing
        if model is not None and config.engine.deployment.checkpoint_path is None and path and not Path(path).is_dir():
            yield problem(
                f"{path}: this model has no Megatron checkpoint",
                "train with engine=megatron_bridge, or serve the Hugging Face folder: engine.deployment.type=vllm "
                "and engine.container with vllm's image, or set engine.deployment.checkpoint_path",
            )

    def needs(self, config: Config, inputs: Inputs, machine: Machine) -> Needs:
        """The launcher alone; the GPUs belong to its jobs."""
        launcher = config.engine.launcher
        return Needs(
            device="cpu",
            others=tuple(
                program_problems(machine, "nemo-evaluator-launcher", launcher, "engine.launcher", TESTED_VERSIONS)
            ),
        )

    def render(self, config: Config, model: str | None) -> str:
        """The launcher's config."""
        return yaml.safe_dump(rendered_config(config, model), sort_keys=False, allow_unicode=True, width=1000)

    def run(self, task: Task[Config]) -> Outcome:
        """Submit, wait, and write the results."""
        from stages.eval.engines.nemo_evaluator_launcher.launcher import evaluate

        return evaluate(task)
