"""Every setting of the evaluation stage. Defaults are written in `config/default.yaml` only."""

from typing import Generic, Literal

from pydantic import Field, model_validator

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
from stages.eval.engines import ENGINES


class EvalRun(RunSection):
    """Besides the model in question, the ones it is compared with."""

    base: How[str | None]
    """Base model to compare with; left out where it does not exist."""
    sft: How[str | None]
    """Instruct model to compare with; left out where it does not exist."""


class BenchmarkPlaces(Section):
    """Public benchmarks to add: where the data of each is."""

    gsm8k: str | None
    """Folder of GSM8K's data, or `hub`; see [Benchmarks](#benchmarks). `null`: it is not asked."""
    mmlu: str | None
    """The same for MMLU."""
    ifeval: str | None
    """The same for IFEval."""
    humaneval: str | None
    """The same for HumanEval, which needs `evaluation.run_generated_code` besides."""

    @property
    def chosen(self) -> dict[str, str]:
        """Place by name of those that are asked."""
        return {name: place for name, place in self.model_dump().items() if place is not None}


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
    """Field of the text, where the rows are texts and no questions: those of the test split, for bits per byte."""
    text_template: str | None
    r"""Text for bits per byte, made of fields: `"{question}\n{answer}"`. `null`: no such task."""
    tasks: list[str]
    """Tasks of installed packages to add, by name."""
    benchmarks: BenchmarkPlaces
    most_questions: int | None = Field(ge=1)
    """Keep at most this many questions of the test split. `null`: all."""


class LMEvalEngine(ModelLoadingEngine):
    """lm-eval in this process, over transformers' model classes."""

    name: Literal["lm_eval"]


class EvaluationSection(Section):
    """What is asked, and how."""

    tasks: list[str] | None = Field(min_length=1)
    """List of tasks to run; `-t NAME` sets it. `null`: all that the data has."""
    limit: int | None = Field(ge=1)
    """Use only the first rows of each task. `null`: all."""
    batch_size: How[int] = Field(ge=1)
    """Rows per forward pass."""
    max_new_tokens: int = Field(ge=1)
    """Longest answer, in tokens; of benchmarks, too."""
    num_samples: int = Field(ge=1)
    """Answers to each question. More than one need a `temperature`, and give pass@k."""
    temperature: float = Field(ge=0, le=100)
    """`0`: answers are greedy. Else they are drawn at this temperature, from the whole vocabulary."""
    verdict: Literal["strict", "lenient"]
    """Which answers score: `strict`, those of the right value in a clean form; `lenient`, of the right value in any."""
    random_baseline: bool
    """Also score the architecture with random weights."""
    held_out: bool
    """Also ask for the rows that the training data of `run.model` held back; `run.data` may then be `null`."""
    sample_answers: int = Field(ge=0)
    """Answers that are written out for a task which needs none for its score, such as that of held-out rows."""
    check_overlap: bool
    """Look for every held-out row in all data that the models were trained on."""
    environments: Extra[EnvironmentsSection | None]
    """What plays the episodes of tasks that have some: [Environments](../../docs/environments.md). `null`: none."""
    run_generated_code: bool
    """Let `humaneval` run the programs that the model writes, with your rights and without a sandbox."""

    @model_validator(mode="after")
    def drawn(self) -> "EvaluationSection":
        """Greedy answers to one question are all the same."""
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
