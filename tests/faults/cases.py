"""The kinds of faults. Each draws one, makes it in a step, and has the step's results judged."""

import ctypes
import errno
import importlib.util
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from faults.bench import Bench, Target, damageable
from faults.steps import GRACE, PATIENCE, Command, Fault, Ran, children, logs_for, reap, run, start, wait_for
from faults.verdict import Tried, judge, judge_damage

from nemotron_shared.system.atomic import read_json
from nemotron_shared.system.lock import holder_of
from nemotron_shared.tracking.segments import SEGMENTS

Kind = Callable[[Bench, Target, random.Random, float], Tried]
"""Args: bench, target, generator, and a share from 0 to 1 that covers a step evenly over many cases."""
ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EDQUOT, errno.EROFS)
KILLED_AT = (30, 50, 70, 85, 95)
"""Percent of a step's calls, after which the runs were killed whose remains are damaged."""
CONTINUED_AT = 60
MOST_ZEROED = 512


def file_system(bench: Bench, target: Target, drawn: random.Random, share: float) -> Tried:
    """One call that changes the store fails, writes only half, or is the moment of a signal."""
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
    # some cases continue a killed run, whose checkpoints could be lost
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


def signals(bench: Bench, target: Target, drawn: random.Random, share: float) -> Tried:
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
    """Damage what a killed run left: shards, receipts, checkpoints, records."""
    base = bench.unfinished(target, drawn.choice(KILLED_AT))
    bench.restore(base)
    file = _drawn_file(damageable(bench.home / "runs"), drawn)
    if file is None:
        return Tried(f"nothing to damage in {base}", happened=False, finished=True)
    return judge_damage(bench, target, f"{base}: {damage(file, drawn)} {file.relative_to(bench.home)}", file)


def damaged_result(bench: Bench, target: Target, drawn: random.Random, share: float) -> Tried:
    """Damage a finished store: the artifact, its manifest, the indexes and caches beside it."""
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
    """Change a file as a bad disk would; returns how."""
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


# Around a step: rights, the clock, another run of it, code that changes.

HOUR, DAY = 3600.0, 24 * 3600.0
JUMPS = {"an hour on": HOUR, "a day back": -DAY, "ten years on": 3650 * DAY, "to 1980": -45 * 365 * DAY}
CAPABILITIES = 0x20080522
OVERRIDES = 0b1110
"""The rights to read and write files of others."""
PACKAGES = ("nemotron_shared", "nemotron_data", "nemotron_engines", "nemotron_app")
COMMENT = "\n# a comment that was not there\n"
FUNCTION = "\n\ndef _was_not_there() -> int:\n    return 1\n"


def read_only(bench: Bench, target: Target, drawn: random.Random, share: float) -> Tried:
    """A folder of the store that may not be written to."""
    bench.restore(target.base)
    (bench.home / "runs").mkdir(exist_ok=True)
    (bench.home / "artifacts").mkdir(exist_ok=True)
    folders = [bench.home, *(path for path in sorted(bench.home.glob("*")) if path.is_dir())]
    folders += sorted(path for path in bench.home.glob("*/*") if path.is_dir())
    folder, kept = drawn.choice(folders), bench.kept()
    folder.chmod(0o555)
    ran = run(target.command, bench.home, before=without_privileges)
    folder.chmod(0o755)
    return judge(bench, target, f"read-only: {folder.relative_to(bench.place)}", [ran], kept)


def without_privileges() -> None:
    """Drop root's right to ignore file modes."""
    if os.geteuid():
        return
    header = (ctypes.c_uint32 * 2)(CAPABILITIES, 0)
    rights = (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.capget(header, rights)
    for field in range(3):  # effective, permitted, inheritable
        rights[field] &= ~OVERRIDES
    if libc.capset(header, rights):
        raise OSError(ctypes.get_errno(), "capset")


def clock(bench: Bench, target: Target, drawn: random.Random, share: float) -> Tried:
    """The clock is put forward or back while the step runs."""
    words = drawn.choice([*JUMPS])
    bench.restore(target.base)
    kept = bench.kept()
    moment = share * bench.references[target.name].seconds
    ran = run(target.command, bench.home, before=jump(JUMPS[words], moment))
    return judge(bench, target, f"the clock goes {words} after {share:.0%} of its time", [ran], kept, must_finish=True)


def jump(seconds: float, after: float) -> Callable[[], None]:
    """A function that sets the clock of its process wrong from a moment on."""

    def before() -> None:
        real, real_ns, began = time.time, time.time_ns, time.monotonic()

        def off() -> float:
            return seconds if time.monotonic() - began > after else 0.0

        setattr(time, "time", lambda: real() + off())  # noqa: B010 - so that its type may stay what it is
        setattr(time, "time_ns", lambda: real_ns() + int(off() * 1e9))  # noqa: B010

    return before


def race(bench: Bench, target: Target, drawn: random.Random, share: float) -> Tried:
    """Two or three runs of one step at once: one makes the result, the others use it or name the one that runs."""
    bench.restore(target.base)
    kept, count = bench.kept(), drawn.choice((2, 2, 3))
    pause = drawn.choice((0.0, 0.0, share * bench.references[target.name].seconds))
    logs, pids, began = logs_for(bench.home, count), [], time.monotonic()
    for log in logs:
        pids.append(start(target.command, bench.home, log, None, None))
        time.sleep(pause)
    codes = [wait_for(pid, began) for pid in pids]
    left = reap()
    ran = [Ran(code, log.read_text(errors="replace"), 0.0) for code, log in zip(codes, logs, strict=True)]
    tried = judge(bench, target, f"{count} runs at once, {pause:.2f} s apart", ran, kept)
    tried.left += left
    if 0 not in codes:
        tried.wrong.append(f"none of the runs finished: {codes}")
    losers = [one for one in ran if one.code and "already running" not in one.said and "moment faster" not in one.said]
    tried.wrong += [f"does not say why it may not run: {one.last_line}" for one in losers]
    return tried


def changed_code(bench: Bench, target: Target, drawn: random.Random, share: float) -> Tried:
    """A killed run is continued by code with another comment or another function."""
    bench.restore(bench.unfinished(target, drawn.choice((50, 70, 85))))
    found = sorted(bench.home.glob(f"runs/*/{SEGMENTS}"))
    if not found:
        return Tried("killed before its run began", happened=False, finished=True)
    module = drawn.choice(sorted(read_json(found[0])[-1]["modules"]))
    roots, is_comment = _copied_code(bench.place / "code"), drawn.random() < 0.5
    file = _file_of(module, roots)
    if file is None:
        return Tried(f"{module} is not in the copied code", happened=False, finished=True)
    before = file.read_text(encoding="utf-8")
    file.write_text(before + (COMMENT if is_comment else FUNCTION), encoding="utf-8")
    kept = bench.kept()
    ran = _run_copied(target, bench.home, roots)
    file.write_text(before, encoding="utf-8")
    tried = judge(
        bench, target, f"another {'comment' if is_comment else 'function'} in {module}", [], kept, anew=not is_comment
    )
    tried.wrong += [f"ended with {ran.code}: {ran.last_line}"] if ran.code else []
    tried.wrong += ["a traceback"] if ran.has_traceback else []
    if is_comment == ("code of" in ran.said):
        tried.wrong.append(f"{'said' if is_comment else 'did not say'} that the code has changed")
    return tried


def _copied_code(folder: Path) -> Path:
    """A copy of our packages, which may be changed."""
    if not folder.is_dir():
        for package in (*PACKAGES, "stages.pretrain", "stages.sft", "stages.rl", "stages.eval"):
            spec = importlib.util.find_spec(package)
            assert spec is not None and spec.submodule_search_locations, package
            ignored = shutil.ignore_patterns("__pycache__", "tests")
            source = next(iter(spec.submodule_search_locations))
            shutil.copytree(source, folder.joinpath(*package.split(".")), ignore=ignored)
    return folder


def _file_of(module: str, roots: Path) -> Path | None:
    place = roots.joinpath(*module.split("."))
    return next((file for file in (place / "__init__.py", place.with_name(f"{place.name}.py")) if file.is_file()), None)


def _run_copied(target: Target, home: Path, roots: Path) -> Ran:
    """The step as a separate process that runs the copied code."""
    environment = os.environ | {"PYTHONPATH": str(roots), "NEMOTRON_HOME": str(home)}
    command = [sys.executable, "-m", target.command.module, *target.command.words]
    done = subprocess.run(command, cwd=home.parent, env=environment, capture_output=True, text=True, check=False)
    return Ran(done.returncode, done.stdout + done.stderr, 0.0)


# Real processes: the command that starts a step, the pipeline, and the ranks of torchrun.

RANKS = 2
LONGER = 2.0
"""Seconds after the step has begun, within which a real process is disturbed."""
NAMED = re.compile(r"SIGKILL|SIGTERM|Signal \d+|exitcode\s*:\s*-?\d+|ChildFailedError|died|connection", re.IGNORECASE)


def launcher(bench: Bench, target: Target, drawn: random.Random, share: float) -> Tried:
    """Kill the command that started the step: the step must end with it, and a rerun continue."""
    number = drawn.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
    stage = target.command.module.split(".")[1]
    command = [sys.executable, "-m", "nemotron_app.main", "super3", stage, *target.command.words]
    return _disturbed_parent(bench, target, command, f"{number.name} to the launcher of {stage}", number, share)


def pipeline(bench: Bench, target: Target, drawn: random.Random, share: float) -> Tried:
    """The same for the pipeline, in the last step that is left to do."""
    number = drawn.choice((signal.SIGKILL, signal.SIGTERM))
    stage = target.command.module.split(".")[1]
    words = [f"{stage}.{word}" if "=" in word else word for word in target.command.words]
    command = [sys.executable, "-m", "nemotron_app.main", "super3", "pipeline", *words]
    return _disturbed_parent(bench, target, command, f"{number.name} to the pipeline", number, share)


def _disturbed_parent(
    bench: Bench, target: Target, command: Sequence[str], what: str, number: signal.Signals, share: float
) -> Tried:
    bench.restore(target.base)
    kept = bench.kept()
    process, log = _begin(command, bench.home)
    happened = _wait_for_work(bench.home, process)
    time.sleep(share * LONGER)
    process.send_signal(number)
    ended = process.wait(PATIENCE)
    ran = Ran(ended, log.read_text(errors="replace"), 0.0, reap())
    return judge(bench, target, f"{what}, {share * LONGER:.1f} s after its step began", [ran], kept, happened=happened)


def rank(bench: Bench, target: Target, drawn: random.Random, share: float) -> Tried:
    """One of two ranks dies: the other ends within 30 s, the cause is named, and a rerun makes the same bytes."""
    whole = _torchrun(target)
    if whole.name not in bench.references:
        bench.measure(whole)
    bench.restore(target.base)
    kept = bench.kept()
    process, log = _begin(_torchrun_command(target), bench.home)
    happened = _wait_for_work(bench.home, process)
    time.sleep(share * LONGER)
    ranks = [pid for pid in children(process.pid) if _is_rank(pid)]
    victim = drawn.randrange(RANKS)
    if len(ranks) <= victim:
        happened = False
    else:
        os.kill(ranks[victim], signal.SIGKILL)
    killed_at = time.monotonic()
    try:
        code = process.wait(GRACE * 2)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    took = time.monotonic() - killed_at
    said = log.read_text(errors="replace")
    left = reap()
    tried = judge(bench, whole, f"rank {victim} of {RANKS} killed", [], kept, happened=happened)
    if happened and code == 0:
        tried.happened = False  # it was at its end already
    elif happened and took > GRACE:
        tried.wrong.append(f"the other rank went on for {took:.0f} s")
    elif happened and not NAMED.search(said):
        tried.wrong.append(f"the cause is not named: {said[-300:]}")
    tried.left += left
    tried.wrong += [f"{left} processes were left"] if left else []
    return tried


def _torchrun(target: Target) -> Target:
    """The target on two ranks, as a step of this module."""
    words = (target.command.module, *target.command.words)
    return Target(f"{target.name} on {RANKS} ranks", Command(__name__, words), target.result, target.base)


def _torchrun_command(target: Target) -> list[str]:
    torchrun = ["-m", "nemotron_shared.engine.torchrun", "--standalone", f"--nproc-per-node={RANKS}"]
    return [sys.executable, *torchrun, "-m", target.command.module, *target.command.words]


class Ranks:
    """A step on two ranks, called as the step of a stage is."""

    directory = Path(__file__).parent

    def main(self) -> int:
        """Run torchrun to its end; returns its exit code."""
        module, *words = sys.argv[1:]
        done = subprocess.run(_torchrun_command(Target("", Command(module, tuple(words)), "")), check=False)
        return done.returncode


STEP = Ranks()
main = STEP.main


def _begin(command: Sequence[str], home: Path) -> tuple["subprocess.Popen[bytes]", Path]:
    """A real process beside the store."""
    log = home.parent / "log-process"
    environment = os.environ | {"NEMOTRON_HOME": str(home)}
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=home.parent, env=environment, stdout=file, stderr=file)
    return process, log


def _wait_for_work(home: Path, process: "subprocess.Popen[bytes]") -> bool:
    """Wait until the step has taken its run's lock; False where it ended before."""
    until = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < until:
        if any((holder := holder_of(lock)) and holder.lives for lock in home.glob("runs/*/lock")):
            return True
        time.sleep(0.02)
    return False


def _is_rank(pid: int) -> bool:
    try:
        return b"RANK=" in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
