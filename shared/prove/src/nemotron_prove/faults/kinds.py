"""The kinds of faults: each draws one from a generator, puts it into a step, and has what follows judged."""

import errno
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nemotron_prove.faults.bench import Bench, Target, damageable
from nemotron_prove.faults.child import run
from nemotron_prove.faults.shim import Fault
from nemotron_prove.faults.tried import Tried, judge, judge_damage

Kind = Callable[[Bench, Target, random.Random, float], Tried]
"""Args: bench, target, generator, and a share from 0 to 1 that covers a step evenly over many cases."""
ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EDQUOT, errno.EROFS)
KILLED_AT = (30, 50, 70, 85, 95)
"""Percent of a step's calls, after which the runs were killed whose remains are damaged."""
CONTINUED_AT = 60
MOST_ZEROED = 512


def file_system(bench: Bench, target: Target, drawn: random.Random, share: float) -> Tried:
    """One call of all that change the store fails, writes a half, or is the moment of a signal."""
    calls = bench.references[target.name].calls
    mode = drawn.choice(("once", "once", "once", "ever", "short", "kill", "kill", "term"))
    if mode == "short":
        writes = [number for number, kind in enumerate(calls, 1) if kind == "w"]
        fault, words = Fault(writes[int(share * len(writes))], "short"), "half a write"
    elif mode in ("kill", "term"):
        number = signal.SIGKILL if mode == "kill" else signal.SIGTERM
        fault, words = Fault(1 + int(share * len(calls)), "signal", number), number.name
    else:
        error = errno.ENOSPC if mode == "ever" else drawn.choice(ERRORS)
        fault = Fault(1 + int(share * len(calls)), "ever" if mode == "ever" else "once", error)
        words = f"{errno.errorcode[error]}{' from then on' if mode == 'ever' else ''}"
    # a part of the cases begins where a killed run is continued, and its checkpoints are there to be lost
    base = bench.unfinished(target, CONTINUED_AT) if drawn.random() < 0.3 else target.base
    if base != target.base:
        fault = replace(fault, call=1 + fault.call * (100 - CONTINUED_AT) // 100)
        words = f"continued, {words}"
    bench.restore(base)
    kept = bench.kept()
    ran = bench.run_faulty(target, fault)
    hit = bench.page.hit.replace(f"{bench.home}/", "")
    what = f"{words} at call {fault.call} of {len(calls)}{hit and f' ({hit})'}"
    return judge(bench, target, what, [ran], kept, happened=bool(hit), must_finish=mode == "short")


def moments(bench: Bench, target: Target, drawn: random.Random, share: float) -> Tried:
    """A signal at a moment of the step's life."""
    at = share * bench.references[target.name].seconds
    kill, term, stop, go = signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, signal.SIGCONT
    chosen = drawn.choice(([kill], [kill], [term], [signal.SIGINT], [stop, kill], [stop, go]))
    bench.restore(target.base)
    kept = bench.kept()
    ran = run(target.command, bench.home, signals=[(at + 0.2 * number, one) for number, one in enumerate(chosen)])
    what = f"{' + '.join(one.name for one in chosen)} after {share:.0%} of its time"
    happened = ran.code != 0 or chosen[-1] == go
    return judge(bench, target, what, [ran], kept, happened=happened, must_finish=chosen[-1] == go)


def damaged_remains(bench: Bench, target: Target, drawn: random.Random, share: float) -> Tried:
    """Bytes of what a killed run left: shards, receipts, checkpoints, records."""
    base = bench.unfinished(target, drawn.choice(KILLED_AT))
    bench.restore(base)
    file = _drawn_file(damageable(bench.home / "runs"), drawn)
    if file is None:
        return Tried(f"nothing to damage in {base}", happened=False, finished=True)
    return judge_damage(bench, target, f"{base}: {damage(file, drawn)} {file.relative_to(bench.home)}", file)


def damaged_result(bench: Bench, target: Target, drawn: random.Random, share: float) -> Tried:
    """Bytes of a finished store: the artifact, its manifest, the indexes and caches beside it."""
    bench.restore(target.name)
    files = damageable(bench.store.root / target.result)
    if drawn.random() < 0.2:
        files = [path for path in damageable(bench.home) if target.result not in path.parts]
    file = _drawn_file(files, drawn)
    if file is None:
        return Tried("nothing to damage", happened=False, finished=True)
    return judge_damage(bench, target, f"{damage(file, drawn)} {file.relative_to(bench.home)}", file)


def _drawn_file(files: list[Path], drawn: random.Random) -> Path | None:
    return drawn.choice(files) if files else None


def damage(file: Path, drawn: random.Random) -> str:
    """Change a file as a bad disk would; says how."""
    content = bytearray(file.read_bytes())
    at = drawn.randrange(len(content))
    how = drawn.choice(("a bit of", "a bit of", "cut off", "zeros in", "emptied", "removed"))
    block = content[at : at + MOST_ZEROED]
    if how == "removed":
        file.unlink()
        return how
    if how == "zeros in" and any(block):
        content[at : at + MOST_ZEROED] = bytes(len(block))
    elif how in ("cut off", "emptied"):
        del content[at if how == "cut off" else 0 :]
    else:
        how = "a bit of"
        content[at] ^= 1 << drawn.randrange(8)
    mode = file.stat().st_mode
    file.chmod(mode | 0o200)
    file.write_bytes(content)
    file.chmod(mode)
    return how
