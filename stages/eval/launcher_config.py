"""Our `engine` section as the config file of nemo-evaluator-launcher 0.2.6, in the form that version takes.

    rendered_config(config, "/models/rl")

Older configs of NVIDIA's have two keys that this version refuses, `execution.env_vars` (now `env_vars`,
`deployment.env_vars` and `export.env_vars`) and `deployment.multiple_instances` (now `execution.num_instances`).
"""

import shlex
from collections.abc import Sequence
from typing import Any

from nemotron_shared.errors import UserError, did_you_mean
from stages.eval.evaluator_section import Deployment, Execution, LauncherTask, NemoEvaluatorLauncherEngine
from stages.eval.schema import EvalConfig

VLLM = {"tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "gpu_memory_utilization"}


def chosen(engine: NemoEvaluatorLauncherEngine, names: Sequence[str] | None) -> list[LauncherTask]:
    """The tasks that are asked for, in the config's order; all where `names` is None.

    Raises:
        UserError: a name that the config does not have.
    """
    known = [task.name for task in engine.tasks]
    for name in names or ():
        if name not in known:
            raise UserError(f"no task named '{name}'", did_you_mean(name, known, f"there are: {', '.join(known)}"))
    return [task for task in engine.tasks if names is None or task.name in names]


def rendered_config(config: EvalConfig[NemoEvaluatorLauncherEngine], model: str | None) -> dict[str, Any]:
    """The launcher's whole config.

    Args:
        model: folder of run.model; None where nothing of it is needed.

    Raises:
        UserError: there is no model to serve, or no such task.
    """
    engine, deployment = config.engine, config.engine.deployment
    params = engine.params.model_dump(exclude={"tokenizer", "tokenizer_backend"}, exclude_none=True)
    if config.evaluation.limit is not None:
        params["limit_samples"] = config.evaluation.limit
    tokenizer = engine.params.tokenizer or model
    backend = {"tokenizer_backend": engine.params.tokenizer_backend}
    params["extra"] = backend | ({"tokenizer": tokenizer} if tokenizer else {})
    tasks: list[dict[str, Any]] = []
    for task in chosen(engine, config.evaluation.tasks):
        tasks.append({"name": task.name})
        if own := task.params.model_dump(exclude_none=True):
            tasks[-1]["nemo_evaluator_config"] = {"config": {"params": own}}
        if task.container:
            tasks[-1]["container"] = task.container
    rendered: dict[str, Any] = {
        "defaults": [
            {"execution": "slurm/default" if engine.execution.type == "slurm" else "local"},
            {"deployment": deployment.type},
            "_self_",
        ],
        "env_vars": engine.env_vars,
        "execution": _execution(engine.execution, deployment.endpoints.health),
        "deployment": {} if deployment.type == "none" else _deployment(deployment, engine.container, model),
        "evaluation": {
            "nemo_evaluator_config": {
                "config": {"params": params},
                "target": {"api_endpoint": {"adapter_config": engine.adapter.rendered}},
            },
            "tasks": tasks,
        },
    }
    if deployment.type == "none":
        asked = {"url": deployment.url, "model_id": deployment.served_model_name}
        rendered["target"] = {"api_endpoint": asked | {"api_key_name": deployment.api_key_name}}
    if engine.wandb.project:
        rendered["execution"]["auto_export"] = {"destinations": ["wandb"]}
        # the job that exports the scores needs the key of whoever submits
        rendered["export"] = {
            "wandb": engine.wandb.model_dump(),
            "env_vars": {"WANDB_API_KEY": "host:WANDB_API_KEY"},
        }
    return rendered


def _execution(section: Execution, health_path: str) -> dict[str, Any]:
    if section.type == "local":
        # The local executor knows no mounts of the evaluation, only arguments that both containers get.
        both, more = section.mounts.seen_by("evaluation"), section.mounts.seen_by("deployment")
        return {
            "output_dir": section.output_dir,
            "extra_docker_args": " ".join(
                f"--volume {shlex.quote(f'{host}:{inside}')}" for host, inside in both.items()
            ),
            "mounts": {"deployment": {host: inside for host, inside in more.items() if both.get(host) != inside}},
        }
    health = {"health_check_path": health_path, "health_check_status": 200}
    return {
        **section.model_dump(exclude={"type", "proxy_image", "proxy_port", "mounts"}),
        "mounts": {
            "deployment": section.mounts.seen_by("deployment"),
            "evaluation": section.mounts.seen_by("evaluation"),
            "mount_home": section.mounts.mount_home,
        },
        "deployment": {"n_tasks": section.num_nodes},
        "proxy": {
            "type": "haproxy",
            "image": section.proxy_image,
            "config": {"haproxy_port": section.proxy_port, **health},
        },
    }


def _deployment(section: Deployment, image: str | None, model: str | None) -> dict[str, Any]:
    """The server. Of run.model vllm serves the Hugging Face folder, generic the Megatron checkpoint in it."""
    if section.checkpoint_path is None and model is None:
        raise UserError("there is no model to serve", "give run.model, or engine.deployment.checkpoint_path")
    own = {"command"} if section.type == "generic" else VLLM
    common = {"served_model_name", "port", "endpoints", "extra_args", "env_vars"}
    return {
        "image": image,
        "checkpoint_path": section.checkpoint_path or (f"{model}/megatron" if section.type == "generic" else model),
        **section.model_dump(include=common | own),
    }
