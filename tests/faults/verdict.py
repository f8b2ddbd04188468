"""What became of one fault: the step is run again without it, and everything that must hold afterwards is looked at."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from faults.bench import Bench, Target, contents_of
from faults.steps import Ran, run

from nemotron_shared.system.stop import STOPPED_EXIT_CODE

REFUSED = 2
"""Exit code of an error for the user."""


@dataclass
class Tried:
    """One case and what went wrong with it.

    Attributes:
        what: the fault in words.
        happened: whether it came; a step may end before the moment that was drawn.
        finished: the rerun made the bytes of an undisturbed run.
        bytes_lost: of what was finished before the fault.
        silent: a step ended with success on something that is not what it should be.
        left: processes that were still there long after the step.
        wrong: everything that is not as it should be; a case without any passed.
    """

    what: str
    happened: bool = True
    finished: bool = False
    bytes_lost: int = 0
    silent: bool = False
    tracebacks: int = 0
    left: int = 0
    wrong: list[str] = field(default_factory=list)
    said: str = ""


def judge(
    bench: Bench,
    target: Target,
    what: str,
    disturbed: Sequence[Ran],
    kept: Mapping[str, int],
    *,
    happened: bool = True,
    must_finish: bool = False,
    anew: bool = False,
) -> Tried:
    """Look at a store after a fault, run the step again, and look again.

    Args:
        disturbed: the runs that met the fault; none where only bytes were damaged.
        kept: what `bench.kept` told before.
        must_finish: the disturbed runs had to reach their end all the same.
        anew: the rerun may make the same content once more, because other code made it before.
    """
    tried = Tried(what, happened)
    wanted = bench.references[target.name].digest
    for ran in disturbed:
        _look_at(ran, tried)
        if must_finish and ran.code:
            tried.wrong.append(f"ended with {ran.code}: {ran.last_line}")
    now = bench.digest(target)
    if any(ran.code == 0 for ran in disturbed) and now != wanted:
        tried.silent = True
        tried.wrong.append("success was reported for another result")
    _count_lost(bench, kept, tried, finished=now == wanted)
    again = run(target.command, bench.home)
    _look_at(again, tried)
    if again.code:
        tried.wrong.append(f"the rerun ended with {again.code}: {again.last_line}")
    elif bench.digest(target) != wanted and not (anew and bench.contents(target) == contents_of(wanted)):
        tried.silent = True
        tried.wrong.append("the rerun made another result")
    else:
        tried.finished = True
    _count_lost(bench, kept, tried, finished=True)
    _look_for_leftovers(bench, tried)
    return tried


def judge_damage(bench: Bench, target: Target, what: str, file: Path) -> Tried:
    """The step after bytes of a file were damaged.

    It makes the right result again, or refuses; then it does as the error says: forced, without the file, or once
    the step before it has made its own result again.
    """
    tried = Tried(what)
    ran = run(target.command, bench.home)
    _look_at(ran, tried)
    if ran.code == REFUSED and file.is_file() and str(file) in ran.said and "delete" in ran.said:
        file.unlink()  # what only a person can have said, and nobody can make again
        ran = run(target.command, bench.home)
        _look_at(ran, tried)
    if ran.code == REFUSED:
        ran = run(target.forced, bench.home)
        _look_at(ran, tried)
    judged = target
    while ran.code == REFUSED and (maker := _maker_of_damaged(ran, bench)) and maker is not judged:
        judged = maker  # its bytes are the same; an evaluation writes down which versions it asked
        ran = run(maker.forced, bench.home)
        _look_at(ran, tried)
        if not ran.code:
            ran = run(target.command, bench.home)
            _look_at(ran, tried)
    if ran.code:
        tried.wrong.append(f"cannot be made again, not even with --force: {ran.last_line}")
        return tried
    wanted, versions = contents_of(bench.references[judged.name].digest), bench.store.versions(judged.result)
    if not versions or bench.content(judged, bench.store.latest_of(judged.result, versions)) not in wanted:
        tried.silent = True
        tried.wrong.append("success was reported for another result")
    tried.finished = not tried.silent
    _look_for_leftovers(bench, tried)
    return tried


def _maker_of_damaged(ran: Ran, bench: Bench) -> Target | None:
    """What makes the artifact that the error says is damaged."""
    named = re.search(r"error: \S+ ([\w-]+):v\d+ is damaged", ran.said)
    return bench.makers.get(named[1]) if named else None


def _look_at(ran: Ran, tried: Tried) -> None:
    """A step may end well, with an error for a person, or by a signal; in no other way."""
    tried.left += ran.left
    if ran.left:
        tried.wrong.append(f"{ran.left} processes were left")
    if ran.has_traceback:
        tried.tracebacks += 1
        tried.wrong.append(f"a traceback: {ran.said.strip().splitlines()[-1]}")
    elif ran.code > 0 and ran.code not in (REFUSED, STOPPED_EXIT_CODE):
        tried.wrong.append(f"exit code {ran.code}: {ran.last_line}")
    elif ran.code == REFUSED and "error: " not in ran.said:
        tried.wrong.append(f"exit code 2 without an error: {ran.last_line}")
    if ran.code or ran.has_traceback:
        tried.said = ran.said


def _count_lost(bench: Bench, kept: Mapping[str, int], tried: Tried, *, finished: bool) -> None:
    if lost := bench.lost(kept, finished):
        tried.bytes_lost += sum(lost.values())
        tried.wrong.append(f"lost: {', '.join(lost)}")


def _look_for_leftovers(bench: Bench, tried: Tried) -> None:
    if left := bench.uncleaned():
        tried.wrong.append(f"never cleaned: {', '.join(left)}")
