"""Keys of NeMo Evaluator's launcher as NVIDIA's recipe writes them, with our equivalents."""

from typing import Any

from nemotron_shared.config.translation import Dialect, Meaning, NoEffect, Settings

PARAMS = "evaluation.nemo_evaluator_config.config.params"
PROFILE = NoEffect("--run and --batch choose the machines")


def tasks(value: Any) -> Settings:
    """Tasks by name, each with its own parameters."""
    found = []
    for task in value:
        own = task.get("nemo_evaluator_config") or {}
        found.append({"name": task["name"], "params": (own.get("config") or {}).get("params") or {}})
    return {"engine.tasks": found}


KEYS: dict[str, Meaning] = {
    "defaults": lambda value: {},
    "execution.auto_export": NoEffect("scores are published as an artifact"),
    "execution": "engine.execution",
    "deployment.image": "engine.container",
    "deployment.checkpoint_path": lambda value: {} if "art:model" in str(value) else {"run.model": value},
    "deployment": "engine.deployment",
    f"{PARAMS}.limit_samples": "evaluation.limit",
    PARAMS: "engine.params",
    "evaluation.tasks": tasks,
    "evaluation.env_vars": "engine.env_vars",
    "export": NoEffect("scores are published as an artifact"),
    "run.model": "run.model",
    "run.env.container": "engine.container",
    "run.env": PROFILE,
    "run.wandb": PROFILE,
}

LAUNCHER = Dialect(
    library="NeMo Evaluator's launcher",
    engine="nemo_evaluator_launcher",
    is_its=lambda content: bool({"execution", "deployment"} & content.keys()),
    keys=KEYS,
    sections=frozenset({"execution", "deployment", "evaluation", "export"}),
    rest=None,
)
