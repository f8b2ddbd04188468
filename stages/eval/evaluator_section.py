"""The `engine` sections of NeMo Evaluator: on this machine, and through its launcher on a cluster.

The launcher takes a misspelt key in three of its own sections without a word; here every key is declared, so that
a typo stops before anything is submitted. Defaults are in `config/engine/*.yaml` only.
"""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from nemotron_shared.config.schema import EngineSection, How, ModelLoadingEngine, Section

ENV_PREFIXES = ("host:", "lit:", "runtime:")


def _require_prefixes(variables: dict[str, str]) -> dict[str, str]:
    """The launcher's values say where they come from."""
    for name, value in variables.items():
        if not value.startswith(ENV_PREFIXES):
            raise ValueError(f"{name}: begin the value with {', '.join(ENV_PREFIXES)}: lit:{value}, or host:{name}")
    return variables


EnvVars = Annotated[dict[str, str], AfterValidator(_require_prefixes)]


class NemoEvaluatorEngine(ModelLoadingEngine):
    """`nemo-evaluator run_eval` in an environment of its own, asking a server on this machine or elsewhere."""

    unused: ClassVar[Mapping[str, str]] = {
        "evaluation.sample_answers": "NeMo Evaluator writes out every answer it scores, and asks for no others",
        "evaluation.run_generated_code": "NeMo Evaluator's own tasks score programs",
    }

    name: Literal["nemo_evaluator"]
    evaluator: How[str | None]
    """Path of the program `nemo-evaluator`. `null`: the one beside this Python, else that of
    `nemotron engine install evaluator`."""
    endpoint: str | None
    """Base URL of a server that already runs, without `/v1`. `null`: one is started for the run."""
    served_model_name: str = Field(pattern=r"^[\w./:-]+$")
    """What the server calls the model."""
    api_key_name: How[str | None] = Field(pattern=r"^[A-Z_][A-Z0-9_]*$")
    """Environment variable that holds the server's key."""
    parallelism: How[int] = Field(ge=1)
    """Requests under way at the same time. Those that wait together are one batch of at most
    `evaluation.batch_size`."""
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
    """Folders that the server's container sees: `{/on/the/host: /inside}`."""
    evaluation: dict[str, str]
    """Folders that the harness's container sees."""
    both: list[str] | None
    """Folders that both see, as `/on/the/host:/inside`, in place of the two lists above. `null`: those hold."""
    mount_home: bool
    """Also the user's home."""

    def seen_by(self, container: Literal["deployment", "evaluation"]) -> dict[str, str]:
        """What a container sees: path inside by path on the host."""
        if self.both is None:
            return getattr(self, container)
        return {source: inside for source, _, inside in (mount.partition(":") for mount in self.both)}


class Execution(Section):
    """Where the jobs run: a Slurm cluster reached by ssh, or this machine with Docker."""

    type: Literal["slurm", "local"]
    """`slurm`, or `local`: Docker on this machine."""
    output_dir: str
    """Folder of the results; on a cluster absolute, and seen by the compute nodes."""
    hostname: str | None
    """Login node. This and what follows is of Slurm only."""
    username: str | None
    """User there."""
    account: str | None
    """Account that is charged. Slurm needs it."""
    partition: str | None
    """Partition. Slurm needs it; `nano3` sets `batch`."""
    walltime: str = Field(pattern=r"^\d+:[0-5]\d:[0-5]\d$")
    """Longest time of a job."""
    num_nodes: int = Field(ge=1)
    """Nodes of a job."""
    num_instances: int = Field(ge=1)
    """Servers of the model; `num_nodes` is a multiple."""
    ntasks_per_node: int = Field(ge=1)
    """Slurm tasks per node."""
    gres: str | None
    """Generic resources."""
    subproject: str
    """Part of the jobs' names."""
    sbatch_comment: str | None
    """Comment of the jobs; `super3` asks the cluster not to end it while its GPUs wait for data."""
    sbatch_extra_flags: dict[str, str | int | bool]
    """Further options of sbatch, by name. One without a value is `true`; `false` leaves it out. The launcher itself
    asks for `exclusive`."""
    mounts: Mounts
    proxy_image: str
    """HAProxy, in front of several instances."""
    proxy_port: int = Field(ge=1, le=65535)
    """Its port."""

    @model_validator(mode="after")
    def possible(self) -> "Execution":
        """Every instance has the same number of nodes; a relative path would be looked for on the login node."""
        if self.num_nodes % self.num_instances:
            raise ValueError(f"num_nodes {self.num_nodes} is not a multiple of num_instances {self.num_instances}")
        if self.type == "slurm" and not PurePosixPath(self.output_dir).is_absolute():
            raise ValueError(f"engine.execution.output_dir must be absolute on a cluster, not {self.output_dir}")
        return self


class Endpoints(Section):
    """Paths of the server."""

    chat: str
    """Path of chat completions."""
    completions: str
    """Path of completions."""
    health: str
    """Path that answers when the server is ready."""


class Deployment(Section):
    """How the model is served."""

    type: Literal["generic", "vllm", "none"]
    """`generic` runs `command`, `vllm` serves a Hugging Face folder, `none` asks `url`."""
    checkpoint_path: str | None
    """Model folder where it is served. `null`: that of `run.model`, for `generic` its folder `megatron`."""
    served_model_name: str
    """What the server calls the model."""
    port: int = Field(ge=1, le=65535)
    """Port of the server."""
    endpoints: Endpoints
    command: str | None
    """Starts the server of `generic`. The recipes have NVIDIA's: TP 1, EP 8 for Super, TP 2, EP 8 for Nano."""
    tensor_parallel_size: int = Field(ge=1)
    """This and the next three are of vllm; a generic `command` states its own."""
    pipeline_parallel_size: int = Field(ge=1)
    """Of vLLM."""
    data_parallel_size: int = Field(ge=1)
    """Of vLLM."""
    gpu_memory_utilization: float = Field(gt=0, le=1)
    """Of vLLM."""
    extra_args: str
    """More arguments of the server."""
    env_vars: EnvVars
    """Environment of the server's container."""
    url: str | None
    """Full URL that `none` asks, with its path."""
    api_key_name: str | None
    """Environment variable that holds its key."""


class Params(Section):
    """Parameters of all tasks. `null`: what the task itself says."""

    max_retries: int = Field(ge=0)
    """Attempts at one request."""
    parallelism: int = Field(ge=1)
    """Requests under way at the same time."""
    request_timeout: int = Field(ge=1)
    """Seconds for one request."""
    max_new_tokens: int | None = Field(ge=1)
    """Longest answer. `null`: what the task says."""
    temperature: float | None = Field(ge=0)
    """Temperature. `null`: what the task says."""
    top_p: float | None = Field(ge=0, le=1)
    """Nucleus. `null`: what the task says."""
    tokenizer: str | None
    """Tokenizer folder as the evaluation's container sees it. `null`: the folder of `run.model`."""
    tokenizer_backend: Literal["huggingface", "tiktoken", "None"]
    """`huggingface`, `tiktoken` or `None`."""


class Adapter(Section):
    """What stands between the harness and the server: cache and logs of requests."""

    output_dir: str
    """Folder in the container for what stands between harness and server."""
    use_progress_tracking: bool
    """Report progress."""
    use_caching: bool
    """Keep answers, so that a job that starts again does not ask twice."""
    caching_dir: str
    """Where."""
    use_request_logging: bool
    """Log requests."""
    max_logged_requests: int = Field(ge=0)
    """At most so many."""
    use_response_logging: bool
    """Log responses."""
    max_logged_responses: int = Field(ge=0)
    """At most so many."""
    process_reasoning_traces: bool
    """Give the harness only what follows `</think>`, and nothing of an answer without it: for a model that always
    thinks."""

    @property
    def rendered(self) -> dict[str, Any]:
        """As the launcher takes it; a thought that was cut is no answer there either."""
        rest = self.model_dump(exclude={"process_reasoning_traces"})
        traces = {"process_reasoning_traces": True, "include_if_reasoning_not_finished": False}
        return rest | (traces if self.process_reasoning_traces else {})


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
    """Image of the harness. `null`: the launcher's own."""


class WandbExport(Section):
    """Where the scores go besides the results. project `null`: W&B is not used."""

    entity: str | None
    """Account at W&B."""
    project: str | None
    """Project that scores are exported to; the key is taken from `WANDB_API_KEY`. `null`: W&B is not used."""


class NemoEvaluatorLauncherEngine(EngineSection):
    """nemo-evaluator-launcher: NVIDIA's tasks in containers, on a cluster or with Docker."""

    unused: ClassVar[Mapping[str, str]] = {
        "model.architecture": "the launcher serves the model that run.model names",
        "model.overrides": "the launcher serves the model that run.model names",
        "evaluation.batch_size": "the served model batches requests as it likes",
        "evaluation.sample_answers": "the launcher's tasks write out what they are asked",
        "evaluation.run_generated_code": "the launcher's tasks run programs in containers",
    }

    name: Literal["nemo_evaluator_launcher"]
    launcher: How[str | None]
    """Path of the program `nemo-evaluator-launcher`. `null`: the one beside this Python, else that of
    `nemotron engine install evaluator`."""
    container: str | None
    """Image that serves the model, with its tag."""
    execution: How[Execution]
    deployment: Deployment
    params: Params
    adapter: Adapter
    tasks: list[LauncherTask] = Field(min_length=1)
    """Tasks, each with `name` and `params`: `{max_new_tokens, temperature, top_p, parallelism, request_timeout,
    extra}`, and `container` for another harness's image."""
    env_vars: EnvVars
    """Environment of all containers. A value says where it comes from: `host:NAME`, `lit:value` or `runtime:NAME`."""
    wandb: How[WandbExport]
    poll_interval: How[int] = Field(ge=1)
    """Seconds between two looks at the jobs."""
    telemetry: How[bool]
    """Let the launcher report its use to NVIDIA."""

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
