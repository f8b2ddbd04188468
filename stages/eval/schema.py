"""Every setting of the evaluation stage. Defaults are written in `config/default.yaml` only."""

from typing import Annotated, Literal

from pydantic import Field

from nemotron_shared.config.schema import EngineSection, How, PreparedSection, RandomModelSection, RunSection, Section
from stages.eval.evaluator_section import NemoEvaluatorEngine, NemoEvaluatorLauncherEngine


class EvalRun(RunSection):
    """Besides the model in question, the ones it is compared with."""

    base: str | None
    """Base model to compare with; left out where it does not exist."""
    sft: str | None
    """Instruct model to compare with; left out where it does not exist."""


class EvalData(PreparedSection):
    """How held-out rows become tasks."""

    synthetic_problems: int = Field(ge=1)
    """Held-out sums of the synthetic data."""
    synthetic_choices: int = Field(ge=1)
    """Multiple-choice questions about its people."""
    synthetic_texts: int = Field(ge=1)
    """Held-out texts for bits per byte."""
    question_field: str
    """Field of the question, in the user's own rows."""
    answer_field: str
    """Field of the expected answer."""
    answer_pattern: str | None
    """Regular expression whose first group is the answer inside the field; GSM8K: `#### (.+)`."""
    text_template: str | None
    """Text for bits per byte, made of fields: `"{question}\\n{answer}"`. null: no such task."""
    most_questions: int | None = Field(ge=1)
    """Keep at most this many questions of the test split."""


class LMEvalEngine(EngineSection):
    """lm-eval in this process, over transformers' model classes."""

    name: Literal["lm_eval"]
    device: How[Literal["auto", "cpu"]]
    """`auto` takes a GPU where there is one."""
    attn_implementation: How[Literal["sdpa", "eager", "flash_attention_2"]]
    allow_reference_kernels: How[bool]
    """Let a model above a billion parameters run on the slow pure-torch Mamba kernels."""


class EvaluationSection(Section):
    """What is asked, and how."""

    tasks: list[str] | None
    """Tasks to run. null: all that the data has."""
    limit: int | None = Field(ge=1)
    """Use only the first rows of each task."""
    batch_size: How[int] = Field(ge=1)
    max_new_tokens: int = Field(ge=1)
    """Longest answer."""
    answer_pattern: str | None
    """Regular expression whose first group is the answer in what the model wrote. null: all after its thinking."""
    random_baseline: bool
    """Also score the architecture with random weights."""
    check_overlap: bool
    """Look for every held-out question in all data that the models were trained on."""


class EvalConfig(Section):
    """The whole configuration of the stage."""

    run: EvalRun
    data_prep: EvalData
    engine: Annotated[LMEvalEngine | NemoEvaluatorEngine | NemoEvaluatorLauncherEngine, Field(discriminator="name")]
    model: RandomModelSection
    evaluation: EvaluationSection
