"""The `engine` sections of NeMo Evaluator: on this machine, and through its launcher on a cluster.

The launcher silently accepts misspelt keys in three of its sections. Every key is declared here, so a typo is an error
before anything is submitted. Defaults are in `config/engine/*.yaml` only.
"""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from nemotron_shared.config.environments import EnvironmentsSection
from nemotron_shared.config.schema import EngineSection, How, ModelLoadingEngine, Section

ENV_PREFIXES = ("host:", "lit:", "runtime:")
_OF_ENVIRONMENTS = {
    f"evaluation.environments.{name}": "only engine lm_eval plays episodes" for name in EnvironmentsSection.model_fields
}


def _require_prefixes(variables: dict[str, str]) -> dict[str, str]:
    """Require a source prefix for each value, as the launcher does."""
    for name, value in variables.items():
        if not value.startswith(ENV_PREFIXES):
            raise ValueError(f"{name}: start the value with {', '.join(ENV_PREFIXES)}: lit:{value}, or host:{name}")
    return variables


EnvVars = Annotated[dict[str, str], AfterValidator(_require_prefixes)]


class NemoEvaluatorEngine(ModelLoadingEngine):
    """`nemo-evaluator run_eval` in a separate environment, asking a server on this machine or elsewhere."""

    unused: ClassVar[Mapping[str, str]] = {
        "evaluation.taught": "only engine lm_eval reads training data",
        "evaluation.sample_answers": "NeMo Evaluator saves exactly the answers that it scores",
        "evaluation.run_generated_code": "NeMo Evaluator's own tasks score programs",
        **_OF_ENVIRONMENTS,
    }

    name: Literal["nemo_evaluator"]
    evaluator: How[str | None]
    """Path of the program `nemo-evaluator`. `null`: the one next to this Python, else that of
    `nemotron engine install evaluator`."""
    endpoint: str | None
    """Base URL of a running server, without `/v1`. `null`: start one for the run."""
    served_model_name: str = Field(pattern=r"^[\w./:-]+$")
    """What the server calls the model."""
    api_key_name: How[str | None] = Field(pattern=r"^[A-Z_][A-Z0-9_]*$")
    """Environment variable that holds the server's key."""
    parallelism: How[int] = Field(ge=1)
    """Concurrent requests. Requests that wait together form a batch of at most `evaluation.batch_size`."""
    request_timeout: How[int] = Field(ge=1)
    """Seconds for one request."""
    max_retries: How[int] = Field(ge=1)
    """Attempts at one request."""
    telemetry: How[bool]
    """Let NeMo Evaluator send usage data to NVIDIA."""

    @field_validator("endpoint")
    @classmethod
    def base_url(cls, value: str | None) -> str | None:
        """Accept only the part before `/v1`; each kind of task adds the rest."""
        if value is not None and not re.fullmatch(r"https?://[^/\s]+(/[^\s?#]*)?", value):
            raise ValueError("not a URL: write it like http://host:8000")
        if value is not None and re.search(r"/v1(/|$)", value):
            raise ValueError(f"drop /v1 and everything after it: {value[: value.index('/v1')]}")
        return value


class Mounts(Section):
    """Folders mounted into containers: {/on/the/host: /in/the/container}."""

    deployment: dict[str, str]
    """Folders mounted into the server's container: `{/on/the/host: /inside}`."""
    evaluation: dict[str, str]
    """Folders mounted into the harness's container."""
    both: list[str] | None
    """Folders mounted into both, as `/on/the/host:/inside`, instead of the two lists above. `null`: use those."""
    mount_home: bool
    """Also mount the user's home."""

    def seen_by(self, container: Literal["deployment", "evaluation"]) -> dict[str, str]:
        """Mounts of a container: path inside by path on the host."""
        if self.both is None:
            return getattr(self, container)
        return {source: inside for source, _, inside in (mount.partition(":") for mount in self.both)}


class Execution(Section):
    """Where the jobs run: a Slurm cluster over ssh, or Docker on this machine."""

    type: Literal["slurm", "local"]
    """`slurm`, or `local`: Docker on this machine."""
    output_dir: str
    """Folder of the results; on a cluster an absolute path that the compute nodes can see."""
    hostname: str | None
    """Login node. This and the following keys are for Slurm only."""
    username: str | None
    """User there."""
    account: str | None
    """Account to charge. Required for Slurm."""
    partition: str | None
    """Partition. Required for Slurm; `nano3` sets `batch`."""
    walltime: str = Field(pattern=r"^\d+:[0-5]\d:[0-5]\d$")
    """Time limit of a job."""
    num_nodes: int = Field(ge=1)
    """Nodes of a job."""
    num_instances: int = Field(ge=1)
    """Servers of the model; `num_nodes` must be a multiple."""
    ntasks_per_node: int = Field(ge=1)
    """Slurm tasks per node."""
    gres: str | None
    """Generic resources."""
    subproject: str
    """Part of the jobs' names."""
    sbatch_comment: str | None
    """Comment of the jobs; `super3` asks the cluster not to end a job whose GPUs wait for data."""
    sbatch_extra_flags: dict[str, str | int | bool]
    """More sbatch options, by name. `true`: an option without a value; `false`: leave it out. The launcher itself
    sets `exclusive`."""
    mounts: Mounts
    proxy_image: str
    """HAProxy, in front of several instances."""
    proxy_port: int = Field(ge=1, le=65535)
    """Its port."""

    @model_validator(mode="after")
    def possible(self) -> "Execution":
        """Require equal numbers of nodes per instance, and an absolute path: a relative one would be resolved on the
        login node."""
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
    """Path that responds when the server is ready."""


class Deployment(Section):
    """How the model is served."""

    type: Literal["generic", "vllm", "none"]
    """`generic` runs `command`, `vllm` serves a Hugging Face folder, `none` uses the server at `url`."""
    checkpoint_path: str | None
    """Model folder on the serving machine. `null`: that of `run.model`, for `generic` its subfolder `megatron`."""
    served_model_name: str
    """What the server calls the model."""
    port: int = Field(ge=1, le=65535)
    """Port of the server."""
    endpoints: Endpoints
    command: str | None
    """Command that starts the `generic` server. The recipes use NVIDIA's: TP 1, EP 8 for Super, TP 2, EP 8 for Nano."""
    tensor_parallel_size: int = Field(ge=1)
    """This and the next three keys are for vllm; a generic `command` sets its own."""
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
    """Full URL of the server for `none`, with its path."""
    api_key_name: str | None
    """Environment variable that holds its key."""


class Params(Section):
    """Parameters of all tasks. `null`: the task's own value."""

    max_retries: int = Field(ge=0)
    """Attempts at one request."""
    parallelism: int = Field(ge=1)
    """Requests under way at the same time."""
    request_timeout: int = Field(ge=1)
    """Seconds for one request."""
    max_new_tokens: int | None = Field(ge=1)
    """Longest answer. `null`: the task's own value."""
    temperature: float | None = Field(ge=0)
    """Temperature. `null`: the task's own value."""
    top_p: float | None = Field(ge=0, le=1)
    """Nucleus (top-p). `null`: the task's own value."""
    tokenizer: str | None
    """Tokenizer folder inside the evaluation's container. `null`: the folder of `run.model`."""
    tokenizer_backend: Literal["huggingface", "tiktoken", "None"]
    """`huggingface`, `tiktoken` or `None`."""


class Adapter(Section):
    """Adapter between harness and server: cache and logs of requests."""

    output_dir: str
    """Folder of the adapter inside the container."""
    use_progress_tracking: bool
    """Report progress."""
    use_caching: bool
    """Keep answers, so that a restarted job does not ask twice."""
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
    """Give the harness only the text after `</think>`, and nothing from an answer without it. For models that always
    think."""

    @property
    def rendered(self) -> dict[str, Any]:
        """The launcher's form; there too, a thought that was cut does not count as an answer."""
        rest = self.model_dump(exclude={"process_reasoning_traces"})
        traces = {"process_reasoning_traces": True, "include_if_reasoning_not_finished": False}
        return rest | (traces if self.process_reasoning_traces else {})


class TaskParams(Section):
    """Parameters that one task overrides. Unlike elsewhere, keys may be left out: they change nothing."""

    max_new_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, ge=0, le=1)
    parallelism: int | None = Field(default=None, ge=1)
    request_timeout: int | None = Field(default=None, ge=1)
    extra: dict[str, Any] | None = None
    """Parameters of the harness, such as {num_fewshot: 5}."""


class LauncherTask(Section):
    """A task from NeMo Evaluator's own list."""

    name: str
    params: TaskParams
    container: str | None = None
    """Image of the harness. `null`: the launcher's own."""
    use_caching: bool | None = None
    """Keep this task's answers. `null`: as `adapter.use_caching` says."""


class WandbExport(Section):
    """Where the scores go besides the results. project `null`: do not use W&B."""

    entity: str | None
    """Account at W&B."""
    project: str | None
    """Project to export scores to; the key comes from `WANDB_API_KEY`. `null`: do not use W&B."""


class NemoEvaluatorLauncherEngine(EngineSection):
    """nemo-evaluator-launcher: NVIDIA's tasks in containers, on a cluster or with Docker."""

    unused: ClassVar[Mapping[str, str]] = {
        "model.architecture": "the launcher serves the model that run.model names",
        "model.overrides": "the launcher serves the model that run.model names",
        "evaluation.batch_size": "the server decides how to batch requests",
        "evaluation.verdict": "the launcher's tasks judge answers by their own rules",
        "evaluation.taught": "only engine lm_eval reads training data",
        "evaluation.sample_answers": "the launcher's tasks save every answer",
        "evaluation.run_generated_code": "the launcher's tasks run programs in containers",
        **_OF_ENVIRONMENTS,
    }

    name: Literal["nemo_evaluator_launcher"]
    launcher: How[str | None]
    """Path of the program `nemo-evaluator-launcher`. `null`: the one next to this Python, else that of
    `nemotron engine install evaluator`."""
    container: str | None
    """Image that serves the model, with its tag."""
    execution: How[Execution]
    deployment: Deployment
    params: Params
    adapter: Adapter
    tasks: list[LauncherTask] = Field(min_length=1)
    """Tasks, each with `name` and `params`: `{max_new_tokens, temperature, top_p, parallelism, request_timeout,
    extra}`, `container` for another harness's image, and `use_caching: false` for a task that asks the same twice and
    wants two answers."""
    env_vars: EnvVars
    """Environment of all containers. A value names its source: `host:NAME`, `lit:value` or `runtime:NAME`."""
    wandb: How[WandbExport]
    poll_interval: How[int] = Field(ge=1)
    """Seconds between two checks of the jobs."""
    telemetry: How[bool]
    """Let the launcher send usage data to NVIDIA."""

    @field_validator("container")
    @classmethod
    def tagged(cls, value: str | None) -> str | None:
        """Require a tag: without one, the image may change from day to day."""
        if value is not None and ":" not in value.rpartition("/")[2] and not value.startswith("/"):
            raise ValueError("give the image a tag, such as image:26.02")
        return value

    @model_validator(mode="after")
    def complete(self) -> "NemoEvaluatorLauncherEngine":
        """Require what each kind of deployment needs."""
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
            raise ValueError(f"engine.tasks lists a task twice: {', '.join(names)}")
        return self
