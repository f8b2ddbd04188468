"""A campaign of faults: put them into real steps, run each step again, and count what was lost, left or made wrongly.

    uv run python tests/faults/campaign.py --seed 1 --count 100
    uv run python tests/faults/campaign.py --seed 1 --only store-17                    # one case again
    uv run python tests/faults/campaign.py --seed 2 --minutes 40 >> benchmarks/faults.md

The seed and the number of a case determine it on every machine; only moments in time are as exact as the clock. For
several cores, start it several times, with other seeds. It needs Linux and a C compiler.
"""

import argparse
import importlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import count as count_from
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults import cases, pieces
from faults.bench import EMPTY, Bench, Target
from faults.cases import Kind
from faults.steps import Command, adopt_orphans, compile_shim
from faults.verdict import Tried

from nemotron_app.wording import table_lines
from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_shared.artifacts.artifact import utc
from nemotron_shared.config.compose import Composed, compose
from nemotron_shared.machine.machine import hardware
from nemotron_shared.step import start
from nemotron_shared.step.records import git_commit
from nemotron_shared.system.console import say
from nemotron_shared.system.stop import end_on_sigterm

SHIM = "NEMOTRON_FAULTS_SHIM"
"""Set in the process that was started under the shim: the folder of the shim."""
GOLDEN = 0.6180339887498949
"""Fractional parts of its multiples cover 0 to 1 evenly, however many there are."""
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
"""Few rows and few steps, so that a step takes a second."""
OFTEN = ("checkpoint.save_interval=1", "logger.tensorboard=false")


def tiny_words(stage: str, place: Path) -> tuple[str, ...]:
    """The tiny config of a stage with a few rows of data, as all steps of a stage are called here."""
    return ("-c", "tiny", *(word.format(tokenizer=place / "tokenizer") for word in PREPARED[stage]))


def _pieces(place: Path) -> list[Target]:
    return [Target(name, Command(pieces.__name__, (name,)), pieces.NAME) for name in ("publish", "checkpoints")]


def _preparations(place: Path) -> list[Target]:
    commands = {stage: Command(f"stages.{stage}.data_prep", tiny_words(stage, place)) for stage in STAGES}
    return [Target(f"{stage} data prep", command, f"super3-{stage}-data") for stage, command in commands.items()]


def _trainings(place: Path) -> list[Target]:
    """Each stage's preparation and training, on top of what the stages before have made."""
    chain: list[Target] = []
    for stage, preparation in zip(STAGES, _preparations(place), strict=True):
        result = "super3-eval-results" if stage == "eval" else f"super3-{stage}-model"
        words = (*tiny_words(stage, place), *TRAINED[stage], *(() if stage == "eval" else OFTEN))
        chain.append(replace(preparation, base=chain[-1].name if chain else EMPTY))
        chain.append(Target(f"{stage} training", Command(f"stages.{stage}.train", words), result, preparation.name))
    return chain


@dataclass(frozen=True)
class Part:
    """Cases whose steps are alike.

    Attributes:
        share: of the cases that `--count` asks for.
        time: share of the time that `--minutes` gives.
        targets: steps, made from the bench's place, in the order in which they are measured.
        kinds: kinds of faults, with their weights.
        libraries: imported before the first case.
        verb: faults are put into steps of this verb only; the others make what those need.
    """

    name: str
    share: float
    time: float
    targets: Callable[[Path], Sequence[Target]]
    kinds: Mapping[Kind, int]
    libraries: Sequence[str]
    verb: str = ""

    def open_bench(self, place: Path) -> Bench:
        """A bench whose targets have been measured."""
        import_all(self.libraries)
        bench = Bench(place)
        (place / "bases" / EMPTY).mkdir(parents=True)
        save_tokenizer(place / "tokenizer")
        for target in self.targets(place):
            remember_config(target.command)
            bench.measure(target)
            bench.import_what_it_did()
            code = bench.home / "cache" / "code.json"
            if code.is_file():  # digests of our modules take most of a second
                (place / "bases" / EMPTY / "cache").mkdir(exist_ok=True)
                shutil.copy(code, place / "bases" / EMPTY / "cache")
        for target in self.targets(place):  # again, with what a case finds
            bench.measure(target)
        return bench

    def attempt(self, bench: Bench, seed: int, number: int) -> "Outcome":
        """Try the case of a number."""
        drawn = random.Random(f"{seed}/{self.name}/{number}")
        kind = drawn.choices([*self.kinds], [*self.kinds.values()])[0]
        name = kind.__name__.replace("_", " ")
        target = drawn.choice([one for one in self.targets(bench.place) if one.command.module.endswith(self.verb)])
        share = (random.Random(f"{seed}/{self.name}/{name}").random() + number * GOLDEN) % 1
        return Outcome(f"{self.name}-{number}", self.name, name, target.name, kind(bench, target, drawn, share))


PREPARING = tuple(f"stages.{stage}.data_prep" for stage in STAGES)
TRAINING = (
    *PREPARING,
    *(f"stages.{stage}.train" for stage in STAGES),
    *(f"stages.{stage}.engines.transformers.train" for stage in ("pretrain", "sft")),
    "stages.rl.engines.trl.train",
    "stages.eval.engines.lm_eval.ask",
    "transformers.models.nemotron_h.modeling_nemotron_h",
)
STORE_KINDS: dict[Kind, int] = {
    cases.file_system: 50, cases.damaged_remains: 20, cases.damaged_result: 15, cases.race: 5, cases.clock: 3,
    cases.read_only: 3,
}  # fmt: skip
PREPARE_KINDS = STORE_KINDS | {cases.signals: 13, cases.changed_code: 2}
TRAIN_KINDS = PREPARE_KINDS | {cases.launcher: 4, cases.pipeline: 2, cases.rank: 3}
PARTS = (
    # without data or model: 0.05 s of CPU time for each case
    Part("store", 0.72, 0.2, _pieces, STORE_KINDS, (pieces.__name__,)),
    # 0.6 s
    Part("prepare", 0.22, 0.45, _preparations, PREPARE_KINDS, PREPARING),
    # 7 s
    Part("train", 0.06, 0.35, _trainings, TRAIN_KINDS, TRAINING, verb=".train"),
)


def import_all(libraries: Iterable[str]) -> None:
    """Import what the steps import."""
    for module in libraries:
        importlib.import_module(module)


@cache
def _composed(folder: Path, choice: str, overrides: tuple[str, ...]) -> Composed:
    return compose(folder, choice, overrides)


def _remembered(config_dir: Path, choice: str, overrides: Sequence[str]) -> Composed:
    return _composed(config_dir, choice, tuple(overrides))


def remember_config(command: Command) -> None:
    """Compose a step's config once for all cases: it takes three times as long as the rest of a short step."""
    setattr(start, "compose", _remembered)  # noqa: B010 - so that its type may stay what it is
    if command.words[:1] == ("-c",):
        step = importlib.import_module(command.module).STEP
        _composed(step.directory / "config", command.words[1], command.words[2:])


@dataclass(frozen=True)
class Outcome:
    """A case, such as `prepare-17`, and its result."""

    case: str
    part: str
    kind: str
    target: str
    tried: Tried


def run_campaign(options: argparse.Namespace, place: Path) -> Iterator[Outcome]:
    """Try the cases of each part, by number, until its share of the time is over."""
    adopt_orphans()
    until = time.monotonic()
    for part in PARTS:
        only = [int(name.rpartition("-")[2]) for name in options.only if name.rpartition("-")[0] == part.name]
        numbers = only or (() if options.only else range(1, 1 + round(options.count * part.share)))
        until += options.minutes * 60 * part.time
        bench = None
        for number in count_from(1) if options.minutes else numbers:
            bench = bench or part.open_bench(place / part.name)
            if options.minutes and time.monotonic() > until:
                break
            yield part.attempt(bench, options.seed, number)


HEADINGS = ("part", "kind", "faults", "finished", "bytes lost", "silent", "tracebacks", "left", "failed")


def counts_of(tried: Tried) -> dict[str, int]:
    """What one case adds to the columns of the table."""
    counts = {
        "faults": tried.happened, "finished": tried.happened and tried.finished, "bytes lost": tried.bytes_lost,
        "silent": tried.silent, "tracebacks": tried.tracebacks, "left": tried.left, "failed": bool(tried.wrong),
        "missed": not tried.happened,
    }  # fmt: skip
    return {heading: int(count) for heading, count in counts.items()}


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """Sums by part and kind, and over all."""
    sums: dict[tuple[str, str], Counter[str]] = {}
    for one in outcomes:
        for name in ((one.part, one.kind), ("", "all")):
            sums.setdefault(name, Counter()).update(counts_of(one.tried))
    total = sums.pop(("", "all"))
    rows = [(*name, *(str(found[heading]) for heading in HEADINGS[2:])) for name, found in sums.items()]
    rows.append(("", "all", *(str(total[heading]) for heading in HEADINGS[2:])))
    lines = table_lines(HEADINGS, rows, right=HEADINGS[2:])
    if total["missed"]:
        lines.append(f"{total['missed']} more were drawn for a moment that the step did not reach")
    return lines


def section(about: str, lines: Iterable[str]) -> str:
    """A section of a page of records: with the date, the code and the machine."""
    machine = ", ".join(f"{key} {value}" for key, value in hardware().items())
    code = git_commit(Path(__file__).parent) or "of no commit"
    return "\n".join([f"\n## {utc(time.time())}, {about}\n", f"Code {code}; {machine}.\n", "```text", *lines, "```"])


def workspace() -> str:
    """A temporary folder, in memory if there is room: a campaign syncs a hundred thousand files."""
    memory = Path("/dev/shm")
    has_room = memory.is_dir() and shutil.disk_usage(memory).free > 4e9
    return tempfile.mkdtemp(prefix="nemotron-faults-", dir=memory if has_room else None)


def _show(outcome: Outcome, seed: int) -> None:
    if outcome.tried.wrong:
        say(f"{outcome.case}  {outcome.target}: {outcome.tried.what}: {'; '.join(outcome.tried.wrong)}")
        for line in outcome.tried.said.splitlines()[-30:]:  # a moment in time may not come again
            say(f"    | {line}")
        say(f"    again: uv run python tests/faults/campaign.py --seed {seed} --only {outcome.case}")


def case(name: str) -> str:
    """The name of a case, as argparse reads it."""
    part, _, number = name.rpartition("-")
    parts = [one.name for one in PARTS]
    if part not in parts or not number.isdecimal():
        raise argparse.ArgumentTypeError(
            f"'{name}' is not a case: give one of {', '.join(parts)} and a number: store-17"
        )
    return name


def main() -> int:
    """Run a campaign; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="draws the faults")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--count", type=int, default=0, help="number of faults; about half a second of CPU time each")
    how.add_argument("--minutes", type=float, default=0, help="as many faults as there is time for")
    how.add_argument("--only", nargs="+", type=case, default=[], metavar="CASE", help="these cases, such as store-17")
    parser.add_argument("--json", action="store_true", help="print all outcomes as JSON")
    options = parser.parse_args()
    if SHIM not in os.environ:  # a library can only come into a process as it starts
        folder = workspace()
        os.environ |= {SHIM: folder, "LD_PRELOAD": str(compile_shim(Path(folder)))}
        os.execv(sys.executable, [sys.executable, *sys.argv])
    os.environ.pop("LD_PRELOAD")  # the processes that steps start are left alone
    folder = os.environ.pop(SHIM)
    end_on_sigterm()  # with the folder removed
    outcomes, began = [], time.monotonic()
    try:
        for outcome in run_campaign(options, Path(folder)):
            outcomes.append(outcome)
            _show(outcome, options.seed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    about = f"seed {options.seed}, {(time.monotonic() - began) / 60:.0f} minutes"
    print(json.dumps([asdict(one) for one in outcomes]) if options.json else section(about, table(outcomes)))
    return 1 if any(one.tried.wrong for one in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
