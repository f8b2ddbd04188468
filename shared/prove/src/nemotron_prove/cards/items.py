"""What is measured of every family, and the module that does it.

A measuring function takes the family and an empty folder, and returns `Measured`; or it raises `CannotRun`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from nemotron_prove.cards.measured import NOT_BUILT, CannotRun, Measured
from nemotron_shared.stages import STAGES

MEASURES = "nemotron_prove.cards.measures"


@dataclass(frozen=True)
class Item:
    """One thing that is measured.

    Attributes:
        title: what it asks, for people.
        function: `module:function` in `measures`; None for one that is not built.
        also: modules that a measurement starts as programs, whose code counts too.
        reads: files that are no Python and that it depends on, as `package:glob`.
    """

    title: str
    function: str | None
    also: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()

    @property
    def entries(self) -> tuple[str, ...]:
        """The modules that the code of this item is reached from."""
        own = (f"{MEASURES}.{self.function.partition(':')[0]}",) if self.function else ()
        return (*own, *self.also)

    def measure(self, family: str, folder: Path) -> Measured:
        """Do it.

        Raises:
            CannotRun: not here.
        """
        if self.function is None:
            raise CannotRun(NOT_BUILT, "there is no measurement of it yet")
        module, _, name = self.function.partition(":")
        function: Callable[[str, Path], Measured] = getattr(import_module(f"{MEASURES}.{module}"), name)
        return function(family, folder)


ENGINES = "nemotron_engines:config/engine/*.yaml"
CONFIGS = (*(f"stages.{stage}:config/{part}" for stage in STAGES for part in ("*.yaml", "engine/*.yaml")), ENGINES)
OF_SFT = (
    "stages.sft:config/*.yaml",
    "stages.sft:config/engine/*.yaml",
    ENGINES,
    "nemotron_data:chat/templates/*.jinja",
)
SFT = ("stages.sft.data_prep", "stages.sft.train", "stages.sft.engines.transformers.train")
ITEMS = {
    "import": Item(
        "a folder of Hugging Face brought into the store keeps every byte of its weights",
        "folders:imported",
        (
            "nemotron_app.models",
            "nemotron_shared.runtime.models.importing",
            "nemotron_shared.runtime.models.publishing",
        ),
    ),
    "export_round_trip": Item(
        "an exported model computes the logits of the one that was exported",
        "folders:exported",
        ("nemotron_serving.export",),
    ),
    "logits_across_stacks": Item("our kernels, transformers' own and a float64 recurrence agree", "stacks:logits"),
    "gradients": Item("gradients of our kernels and of transformers' own agree", "stacks:gradients"),
    "packing": Item("a packed row computes what its documents compute alone", "packs:packing"),
    "masks": Item("the loss counts what the assistant wrote, and nothing else", "prepared:masks", SFT[:1], OF_SFT),
    "resume": Item("a training that was killed ends with the bytes of one that was not", "runs:resume", SFT, OF_SFT),
    "data_bytes": Item(
        "prepared data has the same bytes with one worker and with two", "prepared:data_bytes", SFT[:1], OF_SFT
    ),
    "lora_round_trip": Item("adapters saved, loaded and merged compute the same", "adapters:lora_round_trip"),
    "sampling_equals_training": Item(
        "log-probabilities of generation and of training are the same bits", "sampling:same_bits"
    ),
    "generation": Item("greedy answers are the same alone, in a batch, with and without a cache", "answers:generation"),
    "evaluation": Item(
        "scores of a batch are those of each row alone", "answers:evaluation", ("stages.eval.batching",)
    ),
    "data_recipe": Item(
        "every recipe of the family is understood for preparing its data",
        "programs:data_recipe",
        ("stages.pretrain.data_prep", "stages.sft.data_prep", "stages.rl.data_prep", "stages.eval.data_prep"),
        (
            *CONFIGS,
            *(f"stages.{stage}:config/blends/*.json" for stage in ("pretrain", "sft", "rl")),
            "nemotron_data:chat/templates/*.jinja",
        ),
    ),
    "launch_script": Item(
        "the script of a Slurm job for each stage is one that bash can read",
        "programs:launch_script",
        ("nemotron_cluster.slurm.backend", "nemotron_app.remote.command"),
        (*CONFIGS, "nemotron_cluster:slurm/*.sh"),
    ),
}
