"""The `engine` sections of NeMo Evaluator: on this machine, and through its launcher on a cluster.

The launcher takes a misspelt key in three of its own sections without a word; here every key is declared, so that
a typo stops before anything is submitted. Defaults are in `config/engine/*.yaml` only.
"""

import re
from pathlib import PurePosixPath
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from nemotron_shared.config.schema import EngineSection, How, ModelLoadingEngine, Section

ENV_PREFIXES = ("host:", "lit:", "runtime:")


class NemoEvaluatorEngine(ModelLoadingEngine):
    """`nemo-evaluator run_eval` in an environment of its own, asking a server on this machine or elsewhere."""

    name: Literal["nemo_evaluator"]
    evaluator: How[str | None]
    """The program nemo-evaluator, as a path. null: the one of this environment."""
    endpoint: str | None
    """Base URL of a server that already runs, such as http://host:8000. null: one is started for the run."""
    served_model_name: str = Field(pattern=r"^[\w./:-]+$")
    """What the server calls the model."""
    api_key_name: How[str | None] = Field(pattern=r"^[A-Z_][A-Z0-9_]*$")
    """Environment variable that holds the endpoint's key."""
    parallelism: How[int] = Field(ge=1)
    """Requests under way at the same time."""
    request_timeout: How[int] = Field(ge=1)
    """Seconds for one request."""
    max_retries: How[int] = Field(ge=1)
    """Attempts at one request."""
    telemetry: How[bool]
    """Let NeMo Evaluator report its use to NVIDIA."""

    @field_validator("endpoint")
    @classmethod
    def base_url(cls, value: str | None) -> str | None:
        """Only the part before `/v1`: the rest is added for each kind of task."""
        if value is not None and not re.fullmatch(r"https?://[^/\s]+(/[^\s?#]*)?", value):
            raise ValueError("not a URL; write it like http://host:8000")
        if value is not None and re.search(r"/v1(/|$)", value):
            raise ValueError(f"leave out /v1 and what follows: {value[: value.index('/v1')]}")
        return value


class Mounts(Section):
    """Folders that a container sees: {/on/the/host: /in/the/container}."""

    deployment: dict[str, str]
    evaluation: dict[str, str]
    mount_home: bool
    """Show it the user's home too."""


class Execution(Section):
    """Where the jobs run: a Slurm cluster reached by ssh, or this machine with Docker."""

    type: Literal["slurm", "local"]
    output_dir: str
    """Folder of the results. On a cluster: absolute, and visible to the compute nodes."""
    hostname: str | None
    """Login node. This and what follows is of Slurm only."""
    username: str | None
    account: str | None
    partition: str | None
    walltime: str = Field(pattern=r"^\d+:[0-5]\d:[0-5]\d$")
    num_nodes: int = Field(ge=1)
    num_instances: int = Field(ge=1)
    """Servers of the model; num_nodes is a multiple."""
    ntasks_per_node: int = Field(ge=1)
    gres: str | None
    subproject: str
    sbatch_comment: str | None
    mounts: Mounts
    proxy_image: str
    """HAProxy, in front of several instances."""
    proxy_port: int = Field(ge=1, le=65535)

    @model_validator(mode="after")
    def whole_instances(self) -> "Execution":
        """Every instance has the same number of nodes."""
        if self.num_nodes % self.num_instances:
            raise ValueError(f"num_nodes {self.num_nodes} is not a multiple of num_instances {self.num_instances}")
        return self

    @model_validator(mode="after")
    def absolute_output(self) -> "Execution":
        """A relative path would be looked for on the login node."""
        if self.type == "slurm" and not PurePosixPath(self.output_dir).is_absolute():
            raise ValueError(f"engine.execution.output_dir must be absolute on a cluster, not {self.output_dir}")
        return self


class Endpoints(Section):
    """Paths of the server."""

    chat: str
    completions: str
    health: str


class Deployment(Section):
    """How the model is served."""

    type: Literal["generic", "vllm", "none"]
    """`generic` runs `command`; `vllm` serves a Hugging Face folder; `none` asks the server at `url`."""
    checkpoint_path: str | None
    """Model folder as the machine that serves it sees it. null: that of run.model, its `megatron/` for generic."""
    served_model_name: str
    port: int = Field(ge=1, le=65535)
    endpoints: Endpoints
    command: str | None
    """Starts the server; of `generic` only."""
    tensor_parallel_size: int = Field(ge=1)
    """This and the next three are of vllm; a generic `command` states its own."""
    pipeline_parallel_size: int = Field(ge=1)
    data_parallel_size: int = Field(ge=1)
    gpu_memory_utilization: float = Field(gt=0, le=1)
    extra_args: str
    """More arguments of the server."""
    env_vars: dict[str, str]
    url: str | None
    """Full URL that is asked, with its path; of `none` only."""
    api_key_name: str | None
    """Environment variable that holds the key; of `none` only."""

    @field_validator("env_vars")
    @classmethod
    def sourced(cls, value: dict[str, str]) -> dict[str, str]:
        """Where each value comes from."""
        return require_prefixes(value)


class Params(Section):
    """Parameters of all tasks. null: what the task itself says."""

    max_retries: int = Field(ge=0)
    parallelism: int = Field(ge=1)
    request_timeout: int = Field(ge=1)
    max_new_tokens: int | None = Field(ge=1)
    temperature: float | None = Field(ge=0)
    top_p: float | None = Field(ge=0, le=1)
    tokenizer: str | None
    """Tokenizer folder as the evaluation's container sees it; scoring by likelihood needs it. null: run.model."""
    tokenizer_backend: Literal["huggingface", "tiktoken", "None"]


class Adapter(Section):
    """What stands between the harness and the server: cache and logs of requests."""

    output_dir: str
    use_progress_tracking: bool
    use_caching: bool
    caching_dir: str
    use_request_logging: bool
    max_logged_requests: int = Field(ge=0)
    use_response_logging: bool
    max_logged_responses: int = Field(ge=0)


class TaskParams(Section):
    """What one task changes of the parameters. A key that is left out changes nothing: the exception to the rule."""

    max_new_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, ge=0, le=1)
    parallelism: int | None = Field(default=None, ge=1)
    request_timeout: int | None = Field(default=None, ge=1)
    extra: dict[str, Any] | None = None
    """Of the harness, such as {num_fewshot: 5}."""


class LauncherTask(Section):
    """A task of NeMo Evaluator's own list."""

    name: str
    params: TaskParams
    container: str | None = None
    """Image of the harness. null: the launcher's own."""


class WandbExport(Section):
    """Where the scores go besides the results. project null: W&B is not used."""

    entity: str | None
    project: str | None


class NemoEvaluatorLauncherEngine(EngineSection):
    """nemo-evaluator-launcher: NVIDIA's tasks in containers, on a cluster or with Docker."""

    name: Literal["nemo_evaluator_launcher"]
    launcher: How[str | None]
    """The program nemo-evaluator-launcher, as a path. null: the one of this environment."""
    container: str | None
    """Image that serves the model, with its tag."""
    execution: How[Execution]
    deployment: Deployment
    params: Params
    adapter: Adapter
    tasks: list[LauncherTask] = Field(min_length=1)
    """What is run; `-t NAME` picks some of them."""
    env_vars: dict[str, str]
    """Environment of all containers; values begin with host:, lit: or runtime:."""
    wandb: How[WandbExport]
    poll_interval: How[int] = Field(ge=1)
    """Seconds between two looks at the jobs."""
    telemetry: How[bool]
    """Let the launcher report its use to NVIDIA."""

    @field_validator("env_vars")
    @classmethod
    def sourced(cls, value: dict[str, str]) -> dict[str, str]:
        """Where each value comes from."""
        return require_prefixes(value)

    @field_validator("container")
    @classmethod
    def tagged(cls, value: str | None) -> str | None:
        """An image without a tag is another one tomorrow."""
        if value is not None and ":" not in value.rpartition("/")[2] and not value.startswith("/"):
            raise ValueError("give the image a tag, such as image:26.02")
        return value

    @model_validator(mode="after")
    def complete(self) -> "NemoEvaluatorLauncherEngine":
        """What each kind of deployment cannot do without."""
        needed = {
            "generic": {"container": self.container, "deployment.command": self.deployment.command},
            "vllm": {"container": self.container},
            "none": {"deployment.url": self.deployment.url},
        }[self.deployment.type]
        for key, value in needed.items():
            if not value:
                raise ValueError(f"engine.deployment.type {self.deployment.type} needs engine.{key}")
        if self.deployment.type == "none" and self.execution.type == "slurm":
            raise ValueError("engine.deployment.type none needs engine.execution.type local")
        names = [task.name for task in self.tasks]
        if len(set(names)) < len(names):
            raise ValueError(f"engine.tasks: a task stands there twice: {', '.join(names)}")
        return self


def require_prefixes(variables: dict[str, str]) -> dict[str, str]:
    """The launcher's values say where they come from."""
    for name, value in variables.items():
        if not value.startswith(ENV_PREFIXES):
            raise ValueError(f"{name}: begin the value with {', '.join(ENV_PREFIXES)}: lit:{value}, or host:{name}")
    return variables
