"""The table of stages, their order and their results, used by commands, pipeline, report and lineage.

STAGES["sft"].result.name("super3")     "super3-sft-model"
STAGES["sft"].before                    "pretrain"
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

PACKAGE = "stages"
"""Where the stages of this repository are."""
DEFAULT_FAMILY = "super3"
"""The family whose artifacts `sft-model` and the like mean."""
ArtifactType = Literal[
    "PretrainBlendsArtifact",
    "SFTDataArtifact",
    "SplitJsonlDataArtifact",
    "EvalDataArtifact",
    "ModelArtifact",
    "RewardModelArtifact",
    "TokenizerArtifact",
    "EvalResultsArtifact",
]


@dataclass(frozen=True)
class Product:
    """The result of one step.

    Attributes:
        kind: the artifact's name after the family.
        step: the pipeline step that makes it, in words.
        class_names: how older configs refer to it.
    """

    kind: str
    type: ArtifactType
    step: str
    class_names: tuple[str, ...] = ()

    def name(self, family: str) -> str:
        """The artifact's name without a version."""
        return f"{family}-{self.kind}"


@dataclass(frozen=True)
class Stage:
    """One stage.

    Attributes:
        before: the stage whose model this one starts from; None for the first.
        model: its model's name in evaluation and report; None for a stage without a model.
        label: the model's name for people.
        role: the key in evaluation's `run` section that names its model.
        other_data: what it reads instead with some methods.
        other_results: what it makes instead where the config has a section of that name.
        reads: roles of its inputs, each a key of the config's `run` section.
        optional: roles that are used if they exist.
        extra: roles that only some methods have; they are not part of a result that is made without them.
    """

    name: str
    title: str
    before: str | None
    data: Product
    result: Product
    model: str | None = None
    label: str | None = None
    role: str | None = None
    other_data: tuple[Product, ...] = ()
    other_results: Mapping[str, Product] = field(default_factory=dict)
    reads: tuple[str, ...] = ("data", "model")
    optional: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()


STAGES = {
    stage.name: stage
    for stage in (
        Stage(
            "pretrain",
            "Pretraining",
            before=None,
            data=Product("pretrain-data", "PretrainBlendsArtifact", "pretrain data prep", ("PretrainBlendsArtifact",)),
            result=Product("pretrain-model", "ModelArtifact", "pretrain", ("ModelArtifact-pretrain",)),
            model="base",
            label="base",
            role="base",
        ),
        Stage(
            "sft",
            "Supervised fine-tuning",
            before="pretrain",
            data=Product("sft-data", "SFTDataArtifact", "sft data prep", ("SFTDataArtifact", "SFTDataArtifact-sft")),
            result=Product("sft-model", "ModelArtifact", "sft", ("ModelArtifact-sft",)),
            model="sft",
            label="after SFT",
            role="sft",
        ),
        Stage(
            "rl",
            "Reinforcement learning",
            before="sft",
            data=Product(
                "rl-data",
                "SplitJsonlDataArtifact",
                "rl data prep",
                ("DataBlendsArtifact-rl", "SplitJsonlDataArtifact-rl"),
            ),
            result=Product("rl-model", "ModelArtifact", "rl", ("ModelArtifact-rl",)),
            model="rl",
            label="after RL",
            role="model",
            other_data=(Product("rl-pairs", "SplitJsonlDataArtifact", "rl data prep"),),
            other_results={"reward_modeling": Product("reward-model", "RewardModelArtifact", "rl")},
            extra=("teacher", "reward_model"),
        ),
        Stage(
            "eval",
            "Evaluation",
            before="rl",
            data=Product("eval-data", "EvalDataArtifact", "eval data prep"),
            result=Product("eval-results", "EvalResultsArtifact", "eval"),
            optional=("base", "sft"),
        ),
    )
}
RESULTS = STAGES["eval"].result.kind
TRAINING = tuple(stage for stage in STAGES.values() if stage.model is not None)
"""The stages that produce a model."""


def products() -> Iterator[Product]:
    """All products, in pipeline order."""
    for stage in STAGES.values():
        yield from (stage.data, *stage.other_data, *stage.other_results.values(), stage.result)
