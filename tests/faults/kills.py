"""Kill trainings at random moments, continue them by the same command, and compare them with undisturbed ones.

    uv run python tests/faults/kills.py --seed 1 --kills 20                       # trainings on one process
    uv run python tests/faults/kills.py --seed 1 --kills 20 --processes 1 2 >> benchmarks/resume.md

Pretraining, SFT and RL of the tiny models take a few steps each, with random settings. SIGKILL hits all processes of a
training, or one rank, up to three times, at any moment. Compared are the published files, every figure of every step,
the token ids of every forward pass, and the last state: optimizer, schedule, random generators. The seed draws the
same trainings on every machine; moments are only as exact as the clock. It needs Linux.
"""

import argparse
import json
import random
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults.attempts import Attempt, Kill, attempt, differing_step, read_batches
from faults.bench import EMPTY, Bench, Target
from faults.campaign import TRAINED, TRAINING, import_all, remember_config, section, tiny_words, workspace
from faults.steps import Command, adopt_orphans, run

from nemotron_app.replay.compare import compare
from nemotron_app.wording import table_lines
from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_shared.artifacts import Reference, Store
from nemotron_shared.artifacts.artifact import problems
from nemotron_shared.artifacts.housekeeping import state_folder
from nemotron_shared.engine.checkpoints import COMPLETE, step_of
from nemotron_shared.system.atomic import read_json
from nemotron_shared.system.console import say
from nemotron_shared.system.digest import file_digest, json_digest, tree_files
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.stop import end_on_sigterm

KILLED_STAGES = ("pretrain", "sft", "rl")
ROWS = {
    "pretrain": "data_prep.synthetic_documents=400",
    "sft": "data_prep.synthetic_chats=400",
    "rl": "data_prep.synthetic_problems=200",
}
ADAPTERS = {"sft": "engine=transformers_lora", "rl": "engine=trl_lora"}
ALWAYS = ("logger.log_interval=1", "logger.tensorboard=false", "checkpoint.keep_last_state=true")


@dataclass(frozen=True)
class Training:
    """A step of a stage, and how many optimizer steps it takes."""

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
    for stage in KILLED_STAGES:
        for verb in ("data_prep", "train"):
            words = (*_words(stage, bench.place), *(TRAINED[stage] if verb == "train" else ()))
            command = Command(f"stages.{stage}.{verb}", words)
            remember_config(command)
            if (ran := run(command, bench.home)).code:
                raise UserError(f"{stage} does not work without any kill: {ran.last_line}", str(command))
            if verb == "data_prep":
                bench.keep(stage)


def drawn(seed: int, processes: int, place: Path) -> Iterator[Training]:
    """Training after training, of each stage in turn, without end."""
    number = 0
    while True:
        stage = KILLED_STAGES[number % len(KILLED_STAGES)]
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
    command = Command(f"stages.{stage}.train", (*_words(stage, place), *TRAINED[stage], *ALWAYS, *chosen))
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
    return (*tiny_words(stage, place), ROWS[stage])


WHOLE = "left alone"
"""The base of the bench that holds what the training makes when nothing is killed."""
LOG = "trainer_state.json"
TABLE = ".metadata"
CLOCK = re.compile(r"runtime|per_second|_time$")
KILLS = (1, 1, 2, 3)
"""How often one training is killed."""
ONE_RANK = 0.4
"""The share of kills of several processes that hit a single one."""


@dataclass(frozen=True)
class Hit:
    """One kill: of one rank or of all, in an attempt that went on after `start`, after the line of step `last`."""

    rank: int | None
    start: int
    last: int


@dataclass
class Life:
    """A training, its kills, and what came out differently; `compared` counts what was compared."""

    training: str
    command: str
    processes: int
    steps: int
    hits: list[Hit] = field(default_factory=list)
    compared: dict[str, int] = field(default_factory=dict)
    differing: list[str] = field(default_factory=list)

    @property
    def result(self) -> str:
        """The last column of the table."""
        return "differing" if self.differing else "exact"


class Alone:
    """A training that nothing disturbs, and what it made.

    Raises:
        UserError: it does not even work so.
    """

    def __init__(self, bench: Bench, training: Training, processes: int) -> None:
        self.bench, self.training, self.processes = bench, training, processes
        target = training.target
        remember_config(target.command)
        bench.restore(target.base)
        self.made = attempt(target.command, bench.home, processes)
        if self.made.code or max(self.made.reached, default=0) != training.steps:
            last = self.made.said.strip().splitlines()[-1:]
            raise UserError(f"{target.name} does not work without any kill: {last}", str(target.command))
        self.batches = [read_batches(file, 0) for file in self.made.batches]
        shutil.rmtree(bench.place / "bases" / WHOLE, ignore_errors=True)
        bench.keep(WHOLE)

    @property
    def store(self) -> Store:
        """As it was left."""
        return Store(self.bench.place / "bases" / WHOLE)

    def drawn_kill(self, start: int, dice: random.Random) -> Kill:
        """A moment of an attempt that goes on after `start`: before a step's line, or after the last one."""
        step = dice.randint(start, self.training.steps)
        moments = [0.0, *(self.made.reached[each] for each in range(1, self.training.steps + 1)), self.made.seconds]
        rank = dice.randrange(self.processes) if self.processes > 1 and dice.random() < ONE_RANK else None
        if step == start:  # an attempt takes as long to begin wherever it goes on
            return Kill(None, moments[1] * dice.random(), rank)
        return Kill(step, (moments[step + 1] - moments[step]) * dice.random(), rank)


def live(alone: Alone, dice: random.Random, most: int) -> Life:
    """Kill the training up to `most` times, let it end, and compare."""
    bench, training = alone.bench, alone.training
    bench.restore(training.target.base)
    life = Life(training.about, str(training.target.command), alone.processes, training.steps)
    kills = min(most, dice.choice(KILLS))
    while True:
        kill = alone.drawn_kill(_newest(bench, training.target), dice) if len(life.hits) < kills else None
        made = attempt(training.target.command, bench.home, alone.processes, kill)
        life.differing += [f"{made.left} processes were left"] if made.left else []
        _compare_batches(alone, made, life)
        if not made.killed:
            break
        assert kill is not None
        life.hits.append(Hit(kill.rank, made.start, made.last))
    if made.code:
        last = made.said.strip().splitlines()[-1:]
        life.differing.append(f"it could not be continued, exit code {made.code}: {''.join(last)}")
    else:
        _compare_results(alone, life)
    return life


def _newest(bench: Bench, target: Target) -> int:
    """The step of the newest checkpoint that a killed attempt left; 0 without any."""
    runs = bench.home.glob(f"runs/{target.result}-*/checkpoints")
    return max((step_of(mark.parent) for run in runs for mark in run.glob(f"*/{COMPLETE}")), default=0)


def _compare_batches(alone: Alone, made: Attempt, life: Life) -> None:
    for rank, (whole, file) in enumerate(zip(alone.batches, made.batches, strict=True)):
        part = read_batches(file, made.start)
        life.compared["passes"] = life.compared.get("passes", 0) + sum(map(len, part.values()))
        if step := differing_step(whole, part):
            life.differing.append(f"rank {rank} trained step {step} on other tokens")


def _compare_results(alone: Alone, life: Life) -> None:
    """The published files, the figures among them, and the last state."""
    store, result = alone.bench.store, alone.training.target.result
    then, now = alone.store.load(result, 1), store.load(result, 1)
    files = compare(then, now)
    life.differing += [f"{one.name}: {one.problem}" for one in files if one.problem] + problems(now)
    states = [state_folder(each, Reference(result, 1)) / "checkpoints" for each in (alone.store, store)]
    before, after = (_state(folder) for folder in states)
    life.differing += [f"last state: {name}" for name in sorted(before.keys() | after.keys())
                       if before.get(name) != after.get(name)]  # fmt: skip
    life.compared |= {"files": len(files), "files of the last state": len(before)}


def _state(checkpoints: Path) -> dict[str, str]:
    """Digests of the files of the checkpoint that was kept, as they are on the disk."""
    files = {str(path.relative_to(checkpoints)): path for path in tree_files(checkpoints) if path.name != COMPLETE}
    digest_of = {LOG: _log_digest, TABLE: _table_digest}
    return {name: digest_of.get(path.name, file_digest)(path) for name, path in files.items()}


def _table_digest(file: Path) -> str:
    """Of the table of a distributed checkpoint, without the random name that every saving has."""
    from torch.distributed.checkpoint import FileSystemReader

    table = replace(FileSystemReader(file.parent).read_metadata(), storage_meta=None)
    return json_digest(repr(table))


def _log_digest(file: Path) -> str:
    """Of the Trainer's own record, without how long something took."""
    content = read_json(file)
    log = [{key: value for key, value in entry.items() if not CLOCK.search(key)} for entry in content["log_history"]]
    return json_digest(content | {"log_history": log})


LIVES = 2
"""Of one training: to find out what it makes undisturbed takes as long as a life."""
MISSED = 5
"""Kills that may come too late for each one that comes in time, before something must be wrong."""
Trainings = Callable[[int, int, Path], Iterator[Training]]


def run_campaign(
    seed: int, bench: Bench, counts: Sequence[int], kills: int, trainings: Trainings = drawn
) -> Iterator[Life]:
    """Make so many kills on each number of processes.

    Raises:
        UserError: a training does not work even undisturbed, or ends before nearly every kill.
    """
    for processes in counts:
        made = tried = 0
        for number, training in enumerate(trainings(seed, processes, bench.place)):
            if made >= kills:
                break
            alone = Alone(bench, training, processes)
            for turn in range(LIVES):
                if made < kills:
                    life = live(alone, random.Random(f"{seed}/{processes}/{number}/{turn}"), kills - made)
                    made += len(life.hits)
                    yield life
            tried += LIVES
            if tried > MISSED * kills + MISSED:
                raise UserError(f"only {made} of {tried} trainings could be killed before their end")


HEADINGS = ("processes", "life", "training", "killed", "begun after", "hit", "result")


def table(lives: Sequence[Life]) -> list[str]:
    """A row for each kill, and what was compared."""
    rows = [(str(life.processes), str(number), life.training, *_hit(hit, life), life.result)
            for number, life in enumerate(lives, 1) for hit in life.hits]  # fmt: skip
    killed = [life for life in lives if life.hits]
    compared = {what: sum(life.compared.get(what, 0) for life in killed) for life in killed for what in life.compared}
    return [
        *table_lines(HEADINGS, rows, right=HEADINGS[:2]),
        f"{len(rows)} kills of {len(killed)} trainings, {sum(bool(life.differing) for life in lives)} differing",
        f"compared: {', '.join(f'{number:,} {what}' for what, number in compared.items())}",
        *(f"life {number} differs: {line}" for number, life in enumerate(lives, 1) for line in life.differing),
    ]


def _hit(hit: Hit, life: Life) -> tuple[str, str, str]:
    """Who was killed, and when. The line of a step comes before its checkpoint."""
    where = f"in step {hit.last + 1} of {life.steps}" if hit.last < life.steps else f"after step {hit.last}, the last"
    return "all" if hit.rank is None else f"rank {hit.rank} of {life.processes}", str(hit.start), where


def main() -> int:
    """Run a campaign; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="draws the trainings")
    parser.add_argument("--kills", type=int, required=True, help="for each number of processes")
    parser.add_argument("--processes", type=int, nargs="+", default=[1])
    parser.add_argument("--json", action="store_true", help="print all trainings as JSON")
    options = parser.parse_args()
    end_on_sigterm()  # with the folder removed
    adopt_orphans()
    import_all(TRAINING)
    place, lives = Path(workspace()), list[Life]()
    try:
        bench = Bench(place)
        prepare(bench)
        for life in run_campaign(options.seed, bench, options.processes, options.kills):
            lives.append(life)
            where = ", ".join(_hit(hit, life)[2] for hit in life.hits) or "not killed in time"
            say(f"[kills] {life.training} on {life.processes}: {where}: {life.result}")
            for line in (*life.differing, life.command) if life.differing else ():
                say(f"    {line}")
    finally:
        shutil.rmtree(place, ignore_errors=True)
    about = f"seed {options.seed}, {options.kills} kills on {' and '.join(map(str, options.processes))} processes"
    print(json.dumps([asdict(life) for life in lives]) if options.json else section(about, table(lives)))
    return 1 if any(life.differing for life in lives) else 0


if __name__ == "__main__":
    sys.exit(main())
