"""Our `engine` section as the config file of nemo-evaluator-launcher 0.2.6, in the form that version takes.

    render(config.engine, "/models/rl", names=["adlr_mmlu"], limit=10)

Older configs of NVIDIA's have two keys that this version refuses, `execution.env_vars` (now `env_vars`,
`deployment.env_vars` and `export.env_vars`) and `deployment.multiple_instances` (now `execution.num_instances`).
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from nemotron_shared.errors import UserError, did_you_mean
from stages.eval.evaluator_section import Deployment, Execution, LauncherTask, NemoEvaluatorLauncherEngine
from stages.eval.schema import EvalConfig

# The job that exports the scores needs the key of whoever submits.
WANDB_KEY = {"WANDB_API_KEY": "host:WANDB_API_KEY"}


def rendered_config(config: EvalConfig[NemoEvaluatorLauncherEngine], model: str | None) -> dict[str, Any]:
    """The launcher's whole config, of the stage's config.

    Args:
        model: folder of run.model.
    """
    return render(config.engine, model, config.evaluation.tasks, config.evaluation.limit)


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


def render(
    engine: NemoEvaluatorLauncherEngine, model: str | None, names: Sequence[str] | None, limit: int | None
) -> dict[str, Any]:
    """The launcher's whole config.

    Args:
        model: folder of run.model; None where nothing of it is needed.
        names: the tasks to run; None: all.
        limit: samples per task; None: all.
    """
    where = "slurm/default" if engine.execution.type == "slurm" else "local"
    exports = bool(engine.wandb.project)
    return {
        "defaults": [{"execution": where}, {"deployment": engine.deployment.type}, "_self_"],
        "env_vars": engine.env_vars,
        "execution": _execution(engine.execution, engine.deployment, exports),
        "deployment": _deployment(engine, model),
        **({"target": _target(engine.deployment)} if engine.deployment.type == "none" else {}),
        "evaluation": {
            "nemo_evaluator_config": _all_tasks(engine, model, limit),
            "tasks": [_task(task) for task in chosen(engine, names)],
        },
        **({"export": {"wandb": engine.wandb.model_dump(), "env_vars": WANDB_KEY}} if exports else {}),
    }


def _execution(section: Execution, deployment: Deployment, exports: bool) -> dict[str, Any]:
    automatic = {"auto_export": {"destinations": ["wandb"]}} if exports else {}
    if section.type == "local":
        return {"output_dir": section.output_dir, **_docker_mounts(section), **automatic}
    return {
        **section.model_dump(exclude={"type", "mounts", "proxy_image", "proxy_port"}),
        "deployment": {"n_tasks": section.num_nodes},
        "mounts": section.mounts.model_dump(),
        "proxy": {
            "type": "haproxy",
            "image": section.proxy_image,
            "config": {
                "haproxy_port": section.proxy_port,
                "health_check_path": deployment.endpoints.health,
                "health_check_status": 200,
            },
        },
        **automatic,
    }


def _docker_mounts(section: Execution) -> dict[str, Any]:
    """The local executor knows no mounts of the evaluation, only arguments that both containers get."""
    both, more = section.mounts.evaluation, section.mounts.deployment
    arguments = " ".join(f"--volume {shlex.quote(f'{host}:{inside}')}" for host, inside in both.items())
    rest = {host: inside for host, inside in more.items() if both.get(host) != inside}
    return {"extra_docker_args": arguments, "mounts": {"deployment": rest}}


def _deployment(engine: NemoEvaluatorLauncherEngine, model: str | None) -> dict[str, Any]:
    section = engine.deployment
    if section.type == "none":
        return {}
    common = {
        "image": engine.container,
        "checkpoint_path": section.checkpoint_path or served_folder(section, model),
        "served_model_name": section.served_model_name,
        "port": section.port,
        "endpoints": section.endpoints.model_dump(),
        "extra_args": section.extra_args,
        "env_vars": section.env_vars,
    }
    if section.type == "generic":
        return common | {"command": section.command}
    return common | {
        "tensor_parallel_size": section.tensor_parallel_size,
        "pipeline_parallel_size": section.pipeline_parallel_size,
        "data_parallel_size": section.data_parallel_size,
        "gpu_memory_utilization": section.gpu_memory_utilization,
    }


def served_folder(section: Deployment, model: str | None) -> str:
    """What is served of run.model: the Hugging Face folder by vllm, the Megatron checkpoint in it by generic.

    Raises:
        UserError: there is no run.model.
    """
    if model is None:
        raise UserError("there is no model to serve", "give run.model, or engine.deployment.checkpoint_path")
    return f"{model}/megatron" if section.type == "generic" else model


def _target(section: Deployment) -> dict[str, Any]:
    key = {"api_key_name": section.api_key_name}
    return {"api_endpoint": {"url": section.url, "model_id": section.served_model_name, **key}}


def _all_tasks(engine: NemoEvaluatorLauncherEngine, model: str | None, limit: int | None) -> dict[str, Any]:
    section = engine.params
    params: dict[str, Any] = {
        "max_retries": section.max_retries,
        "parallelism": section.parallelism,
        "request_timeout": section.request_timeout,
        "extra": {"tokenizer_backend": section.tokenizer_backend},
    }
    optional = {
        "max_new_tokens": section.max_new_tokens,
        "temperature": section.temperature,
        "top_p": section.top_p,
    }
    params |= _without_none(optional | {"limit_samples": limit})
    tokenizer = section.tokenizer or model
    if tokenizer:
        params["extra"]["tokenizer"] = tokenizer
    return {
        "config": {"params": params},
        "target": {"api_endpoint": {"adapter_config": engine.adapter.model_dump()}},
    }


def _task(task: LauncherTask) -> dict[str, Any]:
    params = _without_none(task.params.model_dump())
    config = {"nemo_evaluator_config": {"config": {"params": params}}} if params else {}
    return {"name": task.name, **config, **({"container": task.container} if task.container else {})}


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
