"""Faults of what is around a step: rights, the clock, another run of the same step, code that changes meanwhile."""

import ctypes
import importlib.util
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from nemotron_prove.faults.bench import Bench, Target
from nemotron_prove.faults.child import Ran, logs_for, reap, run, start, wait_for
from nemotron_prove.faults.tried import Tried, judge
from nemotron_shared.atomic import read_json
from nemotron_shared.runtime.records import SEGMENTS

HOUR, DAY = 3600.0, 24 * 3600.0
JUMPS = {"an hour on": HOUR, "a day back": -DAY, "ten years on": 3650 * DAY, "to 1980": -45 * 365 * DAY}
CAPABILITIES = 0x20080522
OVERRIDES = 0b1110
"""The rights of root to read and write what is not its own to read and write."""
PACKAGES = ("nemotron_shared", "nemotron_data", "nemotron_engines", "nemotron_app", "nemotron_prove")
COMMENT = "\n# a comment that was not there\n"
FUNCTION = "\n\ndef _was_not_there() -> int:\n    return 1\n"


def read_only(bench: Bench, target: Target, drawn: random.Random, share: float) -> Tried:
    """A folder of the store that may not be written to, for somebody without root's rights."""
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
    """Be held to the modes of files, as everybody but root is."""
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
    """A function that lets the clock of its process go wrong from a moment on."""

    def before() -> None:
        real, real_ns, began = time.time, time.time_ns, time.monotonic()

        def off() -> float:
            return seconds if time.monotonic() - began > after else 0.0

        setattr(time, "time", lambda: real() + off())  # noqa: B010 - so that its type may stay what it is
        setattr(time, "time_ns", lambda: real_ns() + int(off() * 1e9))  # noqa: B010

    return before


def race(bench: Bench, target: Target, drawn: random.Random, share: float) -> Tried:
    """Two or three runs of one step at the same time: one makes the result, the others use it or say who is at it."""
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
    tried.wrong += [f"not told why it may not run: {one.last_line}" for one in losers]
    return tried


def changed_code(bench: Bench, target: Target, drawn: random.Random, share: float) -> Tried:
    """A killed run is continued by code in which a comment, or a function, is another one."""
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
    """All packages of ours, where they may be changed."""
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
    """The step as a process of its own, by the copied code."""
    environment = os.environ | {"PYTHONPATH": str(roots), "NEMOTRON_HOME": str(home)}
    command = [sys.executable, "-m", target.command.module, *target.command.words]
    done = subprocess.run(command, cwd=home.parent, env=environment, capture_output=True, text=True, check=False)
    return Ran(done.returncode, done.stdout + done.stderr, 0.0)
