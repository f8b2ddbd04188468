"""Every setting of the evaluation stage. Defaults are written in `config/default.yaml` only."""

from typing import Any, Generic, Literal

from pydantic import Field, field_validator, model_validator

from nemotron_shared.config.data import PreparedSection
from nemotron_shared.config.environments import EnvironmentsSection
from nemotron_shared.config.schema import (
    EngineT,
    Extra,
    How,
    ModelLoadingEngine,
    RandomModelSection,
    RunSection,
    Section,
    StageConfig,
)
from nemotron_shared.config.training import TrackerSection
from nemotron_shared.step.own_code import function_path
from stages.eval.engines import ENGINES


class EvalRun(RunSection):
    """The evaluated model and those it is compared with."""

    base: How[str | None]
    """Base model to compare with; left out if it does not exist."""
    sft: How[str | None]
    """Instruct model to compare with; left out if it does not exist."""


class BenchmarkPlaces(Section):
    """Public benchmarks to add, with the place of their data."""

    gsm8k: str | None
    """Folder of GSM8K's data, or `hub`; see [Benchmarks](#benchmarks). `null`: skip it."""
    mmlu: str | None
    """The same for MMLU."""
    ifeval: str | None
    """The same for IFEval."""
    humaneval: str | None
    """The same for HumanEval, which also needs `evaluation.run_generated_code`."""

    @property
    def chosen(self) -> dict[str, str]:
        """The chosen benchmarks: place of the data by name."""
        return {name: place for name, place in self.model_dump().items() if place is not None}


class AddedTask(Section):
    """A task to add; its name alone may stand in its place."""

    name: str
    """Name of a task of an installed package, or of an environment in ./environments. With `path`, what the task is
    called; left out, the function's name."""
    path: str | None
    """A function of your own that returns rows, `FILE.py:FUNCTION`, which `--trust-code` lets run."""

    @model_validator(mode="before")
    @classmethod
    def completed(cls, values: Any) -> Any:
        """Fill in what an entry of the list need not say."""
        if isinstance(values, str):
            return {"name": values, "path": None}
        if not isinstance(values, dict):
            return values
        path = values.get("path")
        return {"path": None, **({"name": path.rpartition(":")[2]} if isinstance(path, str) else {}), **values}

    @field_validator("path")
    @classmethod
    def is_function(cls, path: str | None) -> str | None:
        """Require the form FILE.py:FUNCTION; what it names is looked at by each start."""
        return path if path is None else function_path(path)


class EvalData(PreparedSection):
    """How held-out rows become tasks."""

    synthetic_problems: int = Field(ge=1)
    """Held-out sums of the synthetic data."""
    synthetic_choices: int = Field(ge=1)
    """Multiple-choice questions about its people."""
    synthetic_texts: int = Field(ge=1)
    """Held-out texts for bits per byte."""
    question_field: str
    """Field of the question, in your own rows."""
    answer_field: str
    """Field of the expected answer."""
    answer_pattern: str | None
    """Regular expression whose first group is the answer inside the field. GSM8K: `#### (.+)`. `null`: the whole
    field."""
    text_field: str | None
    """Field of the text, if the rows are texts instead of questions; bits per byte is measured on the test split."""
    text_template: str | None
    r"""Template of a text for bits per byte: `"{question}\n{answer}"`. `null`: no such task."""
    tasks: list[AddedTask]
    """Tasks to add: names of those of installed packages, and of environments in ./environments, and functions of your
    own, `{path: my_tasks.py:capitals}` ([docs](../../docs/rewards.md#tasks))."""
    benchmarks: BenchmarkPlaces
    most_questions: int | None = Field(ge=1)
    """Keep at most this many questions of the test split. `null`: all."""


class LMEvalEngine(ModelLoadingEngine):
    """lm-eval in this process, over transformers' model classes."""

    name: Literal["lm_eval"]


class Scorer(Section):
    """A function of the user's own that scores the answers to a task."""

    task: str
    """Name of the task."""
    path: str
    """The function, `FILE.py:FUNCTION`, which `--trust-code` lets run."""

    @field_validator("path")
    @classmethod
    def is_function(cls, path: str) -> str:
        """Require the form FILE.py:FUNCTION; what it names is looked at by each start."""
        return function_path(path)


class EvaluationSection(Section):
    """Which tasks to run, and how."""

    tasks: list[str] | None = Field(min_length=1)
    """Tasks to run; `-t NAME` sets it. `null`: all tasks of the data."""
    limit: int | None = Field(ge=1)
    """Use only the first rows of each task. `null`: all."""
    batch_size: How[int] = Field(ge=1)
    """Rows per forward pass."""
    max_new_tokens: int = Field(ge=1)
    """Longest answer, in tokens, also for benchmarks."""
    num_samples: int = Field(ge=1)
    """Answers per question. More than one needs a `temperature`, and gives pass@k."""
    temperature: float = Field(ge=0, le=100)
    """`0`: greedy answers. Otherwise sample at this temperature, from the whole vocabulary."""
    verdict: Literal["strict", "lenient"]
    """Which answers count: `strict`, the right value in a clean form; `lenient`, the right value in any form."""
    scorers: Extra[list[Scorer]]
    """Functions of your own that score the answers to a task, `{task: questions, path: my_rewards.py:right_call}`, in
    the place of the verdict ([docs](../../docs/rewards.md#scores))."""
    random_baseline: bool
    """Also score the architecture with random weights."""
    held_out: bool
    """Also evaluate on rows held out of the training data of `run.model`; `run.data` may then be `null`."""
    taught: Extra[int] = Field(ge=0)
    """With `held_out`, also evaluate on so many rows of chats that `run.model` was trained on."""
    sample_answers: int = Field(ge=0)
    """Sample answers to generate for tasks that need none for their score, such as held-out rows, of which they are
    marked as right or wrong. With `held_out`, also the most rows of a task of tool calls."""
    check_overlap: bool
    """Search the models' training data for every held-out row."""
    environments: Extra[EnvironmentsSection | None]
    """Environments for tasks with episodes ([docs](../../docs/environments.md)). `null`: none."""
    run_generated_code: bool
    """Let `humaneval` run programs that the model writes, with your rights and without a sandbox."""

    @model_validator(mode="after")
    def drawn(self) -> "EvaluationSection":
        """Refuse several greedy answers per question, which would all be the same."""
        if self.num_samples > 1 and not self.temperature:
            raise ValueError(
                f"num_samples {self.num_samples} needs evaluation.temperature above 0, such as 0.7:"
                " greedy answers to one question are all the same"
            )
        if self.environments is not None and self.environments.on_failure != "stop":
            raise ValueError("environments.on_failure: an episode that failed has no score; set it to stop")
        return self


class EvalConfig(StageConfig[EngineT], Generic[EngineT]):
    """The whole configuration of the stage."""

    engines = ENGINES

    run: EvalRun
    data_prep: EvalData
    model: RandomModelSection
    evaluation: EvaluationSection
    logger: TrackerSection
