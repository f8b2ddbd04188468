"""The parts of a campaign: which steps are disturbed, by which kinds of faults, and how often by each."""

import importlib
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_prove.faults import kinds, pieces, processes, surroundings
from nemotron_prove.faults.bench import EMPTY, Bench, Target
from nemotron_prove.faults.child import Command
from nemotron_prove.faults.kinds import Kind
from nemotron_prove.faults.tried import Tried
from nemotron_shared.config.compose import Composed, compose
from nemotron_shared.runtime import start

GOLDEN = 0.6180339887498949
"""Multiples of it, without their whole part, cover 0 to 1 evenly however many there are."""


@dataclass(frozen=True)
class Part:
    """Cases that are tried by processes of one kind.

    Attributes:
        targets: made from the bench's place, in the order in which they are measured.
        kinds: name -> kind and weight.
        libraries: imported before the first case.
        is_tried: whether faults are put into a target; others make what it needs.
    """

    name: str
    targets: Callable[[Path], Sequence[Target]]
    kinds: Mapping[str, tuple[Kind, int]]
    libraries: Sequence[str]
    is_tried: Callable[[Target], bool] = lambda target: True

    def get_ready(self) -> None:
        """Import what the steps import."""
        for module in self.libraries:
            importlib.import_module(module)

    def open_bench(self, place: Path) -> Bench:
        """A bench whose targets have been measured."""
        bench = Bench(place)
        (place / "bases" / EMPTY).mkdir(parents=True)
        save_tokenizer(place / "tokenizer")
        for target in self.targets(place):
            remember_config(target.command)
            bench.measure(target)
            bench.import_what_it_did()
            _know_the_code(bench)
        for target in self.targets(place):  # again, as a case meets it: with what is known by now
            bench.measure(target)
        return bench

    def attempt(self, bench: Bench, seed: int, number: int) -> tuple[str, str, Tried]:
        """Try the case of a number; returns its kind, its target and what became of it."""
        drawn = random.Random(f"{seed}/{self.name}/{number}")
        kind = drawn.choices([*self.kinds], [weight for _, weight in self.kinds.values()])[0]
        target = drawn.choice([one for one in self.targets(bench.place) if self.is_tried(one)])
        share = (random.Random(f"{seed}/{self.name}/{kind}").random() + number * GOLDEN) % 1
        return kind, target.name, self.kinds[kind][0](bench, target, drawn, share)


@cache
def _composed(folder: Path, choice: str, overrides: tuple[str, ...]) -> Composed:
    return compose(folder, choice, overrides)


def _remembered(config_dir: Path, choice: str, overrides: Sequence[str]) -> Composed:
    return _composed(config_dir, choice, tuple(overrides))


def remember_config(command: Command) -> None:
    """Compose a step's config once for all cases: it takes three times as long as all the rest of a short step."""
    setattr(start, "compose", _remembered)  # noqa: B010 - so that its type may stay what it is
    if command.words[:1] == ("-c",):
        step = importlib.import_module(command.module).STEP
        _composed(step.directory / "config", command.words[1], command.words[2:])


def _know_the_code(bench: Bench) -> None:
    """Let every case begin with the digests of our modules, which take most of a second to find out."""
    code = bench.home / "cache" / "code.json"
    if code.is_file():
        target = bench.place / "bases" / EMPTY / "cache"
        target.mkdir(exist_ok=True)
        shutil.copy(code, target)


STAGES = ("pretrain", "sft", "rl", "eval")
PREPARED = {
    "pretrain": ("data_prep.synthetic_documents=60", "data_prep.tokenizer.model={tokenizer}"),
    "sft": ("data_prep.synthetic_chats=60", "data_prep.tokenizer.model={tokenizer}"),
    "rl": ("data_prep.synthetic_problems=60",),
    "eval": ("data_prep.synthetic_problems=24", "data_prep.synthetic_choices=12", "data_prep.synthetic_texts=8"),
}
TRAINED = {
    "pretrain": ("train.train_iters=4", "train.eval_interval=2", "train.eval_rows=4"),
    "sft": ("train.train_iters=4", "train.eval_interval=2", "train.eval_rows=4"),
    "rl": (
        "train.train_iters=3", "train.eval_interval=2", "train.eval_rows=4", "grpo.max_new_tokens=4",
        "grpo.num_prompts_per_step=4", "rewards=[{name: well_formed, weight: 1}]",
    ),
    "eval": ("evaluation.max_new_tokens=4",),
}  # fmt: skip
OFTEN = ("checkpoint.save_interval=1", "logger.tensorboard=false")
"""What makes a step last a second: a few rows, a few steps."""


def _pieces(place: Path) -> list[Target]:
    return [Target(name, Command(pieces.__name__, (name,)), pieces.NAME) for name in ("publish", "checkpoints")]


def _preparations(place: Path) -> list[Target]:
    return [
        Target(
            f"{stage} data prep", Command(f"stages.{stage}.data_prep", tiny_words(stage, place)), f"super3-{stage}-data"
        )
        for stage in STAGES
    ]


def _trainings(place: Path) -> list[Target]:
    """Each stage's preparation and training, on top of what the ones before have made."""
    chain: list[Target] = []
    for stage, preparation in zip(STAGES, _preparations(place), strict=True):
        result = "super3-eval-results" if stage == "eval" else f"super3-{stage}-model"
        words = (*tiny_words(stage, place), *TRAINED[stage], *(() if stage == "eval" else OFTEN))
        chain.append(replace(preparation, base=chain[-1].name if chain else EMPTY))
        train = Command(f"stages.{stage}.train", words)
        chain.append(Target(f"{stage} training", train, result, preparation.name))
    return chain


def tiny_words(stage: str, place: Path) -> tuple[str, ...]:
    """The tiny config of a stage with a few rows of data, as all steps of a stage here are called."""
    return ("-c", "tiny", *(word.format(tokenizer=place / "tokenizer") for word in PREPARED[stage]))


STORE = Part(
    "store",
    _pieces,
    {
        "file system": (kinds.file_system, 50),
        "damaged remains": (kinds.damaged_remains, 25),
        "damaged result": (kinds.damaged_result, 15),
        "race": (surroundings.race, 5),
        "clock": (surroundings.clock, 3),
        "read-only": (surroundings.read_only, 2),
    },
    (pieces.__name__,),
)
PREPARE = Part(
    "prepare",
    _preparations,
    {
        "file system": (kinds.file_system, 46),
        "signals": (kinds.moments, 12),
        "damaged remains": (kinds.damaged_remains, 15),
        "damaged result": (kinds.damaged_result, 15),
        "race": (surroundings.race, 5),
        "clock": (surroundings.clock, 3),
        "read-only": (surroundings.read_only, 3),
        "changed code": (surroundings.changed_code, 1),
    },
    tuple(f"stages.{stage}.data_prep" for stage in STAGES),
)
TRAIN = Part(
    "train",
    _trainings,
    {
        "file system": (kinds.file_system, 42),
        "signals": (kinds.moments, 14),
        "damaged remains": (kinds.damaged_remains, 16),
        "damaged result": (kinds.damaged_result, 8),
        "race": (surroundings.race, 3),
        "clock": (surroundings.clock, 3),
        "read-only": (surroundings.read_only, 3),
        "changed code": (surroundings.changed_code, 2),
        "launcher": (processes.launcher, 4),
        "pipeline": (processes.pipeline, 2),
        "rank": (processes.rank, 3),
    },
    (
        *PREPARE.libraries,
        *(f"stages.{stage}.train" for stage in STAGES),
        *(f"stages.{stage}.engines.transformers.train" for stage in ("pretrain", "sft")),
        "stages.rl.engines.trl.train",
        "stages.eval.engines.lm_eval.ask",
        "transformers.models.nemotron_h.modeling_nemotron_h",
    ),
    lambda target: target.command.module.endswith(".train"),
)
PARTS = {part.name: part for part in (STORE, PREPARE, TRAIN)}
