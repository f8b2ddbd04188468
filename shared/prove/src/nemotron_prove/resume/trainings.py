"""Random trainings of a few steps, and the store that they start from."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_prove.faults import parts
from nemotron_prove.faults.bench import EMPTY, Bench, Target
from nemotron_prove.faults.child import Command, run
from nemotron_shared.errors import UserError

STAGES = ("pretrain", "sft", "rl")
ROWS = {
    "pretrain": "data_prep.synthetic_documents=400",
    "sft": "data_prep.synthetic_chats=400",
    "rl": "data_prep.synthetic_problems=200",
}
ADAPTERS = {"sft": "engine=transformers_lora", "rl": "engine=trl_lora"}
ALWAYS = ("logger.log_interval=1", "logger.tensorboard=false", "checkpoint.keep_last_state=true")


@dataclass(frozen=True)
class Training:
    """A step of a stage, and how many steps of the optimizer it takes."""

    target: Target
    steps: int
    about: str


def prepare(bench: Bench) -> None:
    """Make the data of every stage and the models that the next one starts from, each a base of the bench.

    Raises:
        UserError: one of them does not work.
    """
    (bench.place / "bases" / EMPTY).mkdir(parents=True)
    save_tokenizer(bench.place / "tokenizer")
    bench.restore(EMPTY)
    for stage in STAGES:
        for verb in ("data_prep", "train"):
            words = (*_words(stage, bench.place), *(parts.TRAINED[stage] if verb == "train" else ()))
            command = Command(f"stages.{stage}.{verb}", words)
            parts.remember_config(command)
            if (ran := run(command, bench.home)).code:
                raise UserError(f"{stage} does not work without any kill: {ran.last_line}", str(command))
            if verb == "data_prep":
                bench.keep(stage)


def drawn(seed: int, processes: int, place: Path) -> Iterator[Training]:
    """Training after training, of each stage in turn, without end."""
    number = 0
    while True:
        stage = STAGES[number % len(STAGES)]
        yield _draw(stage, random.Random(f"{seed}/{processes}/{number}"), processes, place)
        number += 1


def _draw(stage: str, dice: random.Random, processes: int, place: Path) -> Training:
    steps = dice.randint(3, 5) if stage == "rl" else dice.randint(4, 8)
    chosen = [
        f"train.train_iters={steps}",
        f"train.eval_interval={dice.randint(2, 4)}",
        f"train.micro_batch_size={dice.choice(('null', '2'))}",
        f"checkpoint.save_interval={dice.randint(1, 3)}",
        f"checkpoint.most_recent_k={dice.randint(1, 2)}",
        f"checkpoint.keep_best={dice.choice(('true', 'false'))}",
        f"optimizer.lr={dice.choice(('1e-3', '3e-3'))}",
        *_engine(stage, dice, processes),
    ]
    command = Command(f"stages.{stage}.train", (*_words(stage, place), *parts.TRAINED[stage], *ALWAYS, *chosen))
    result = f"super3-{stage}-model"
    return Training(Target(f"{stage} {' '.join(chosen)}", command, result, stage), steps, _about(stage, chosen))


def _engine(stage: str, dice: random.Random, processes: int) -> list[str]:
    """Mostly every weight is trained; sometimes adapters, or shards on several processes."""
    other = [
        *([["engine.strategy=fsdp2"]] if processes > 1 else []),
        *([[ADAPTERS[stage]]] if stage in ADAPTERS else []),
    ]
    return dice.choice([[], [], *other])


def _about(stage: str, chosen: list[str]) -> str:
    kinds = [word for word in ("lora", "fsdp2") if any(one.endswith(word) for one in chosen)]
    return " ".join([stage, *kinds])


def _words(stage: str, place: Path) -> tuple[str, ...]:
    return (*parts.tiny_words(stage, place), ROWS[stage])
