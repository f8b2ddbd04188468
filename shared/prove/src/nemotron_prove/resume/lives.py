"""The life of one training: killed once or several times, continued by the same command, compared with one left alone.

Compared are the published files, every figure of every step, what each step trained on, and the last state, which a
longer training would go on from: the optimizer, the schedule, the random generators.
"""

import random
import re
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

from nemotron_app.replay.compare import compare
from nemotron_prove.faults.bench import Bench, Target
from nemotron_prove.faults.parts import remember_config
from nemotron_prove.resume.batches import differing_step, read_batches
from nemotron_prove.resume.ranks import Attempt, Kill, attempt
from nemotron_prove.resume.trainings import Training
from nemotron_shared.artifacts import Reference, Store
from nemotron_shared.artifacts.artifact import problems
from nemotron_shared.artifacts.housekeeping import state_folder
from nemotron_shared.atomic import read_json
from nemotron_shared.digest import file_digest, json_digest, tree_files
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.checkpoints import COMPLETE, step_of

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
    """A training, its kills, and what came out differently; `compared` counts what was looked at."""

    training: str
    command: str
    processes: int
    steps: int
    hits: list[Hit] = field(default_factory=list)
    compared: dict[str, int] = field(default_factory=dict)
    differing: list[str] = field(default_factory=list)


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
