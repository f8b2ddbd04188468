"""Run all test lanes, continuing after failures, and print a summary.

The ordinary lane and then the slow one print as they run. Both wait for much of their time: for the disk, for
schedulers and for processes that are to be killed. So the lanes of engines and checks run in parallel to them, one
after the other, and print their output when they have ended.

    python3 ci/lanes.py                       all lanes that can run here
    python3 ci/lanes.py checks automodel      some of them

lane        result  passed  failed  skipped      wall       CPU
ordinary    ok        2310       0       12  18.1 min  31.0 min
automodel   FAILED      33       1        0   3.2 min   5.9 min

Lanes that cannot run here are listed, with the command to run them elsewhere. Exit code 1 if one failed.
"""

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DURATIONS = "--durations=50"
ORDINARY, SLOW = "ordinary", "slow"
ENGINES = ("automodel", "megatron", "evaluator", "nemo_run", "nemo_gym", "llama_cpp", "vllm_cpu", "modelopt", "clients")
LANES = {
    ORDINARY: ["uv", "run", "pytest", DURATIONS],
    SLOW: ["uv", "run", "pytest", "-m", "slow", DURATIONS],
    **{name: ["ci/engine.sh", name, DURATIONS] for name in ENGINES},
    "nemo_rl": ["ci/engine.sh", "nemo_rl", DURATIONS],
    "checks": ["ci/check.sh"],  # last: it brings the environment of the ordinary lane up to date, too
}
CHECKOUTS = "NEMO_RL_CHECKOUTS"
CLOSING = re.compile(r"^=*\s*((?:\d+ \w+(?:, )?)+) in [\d.]+s", re.MULTILINE)
"""pytest's last line: `1 failed, 32 passed, 2 warnings in 493.88s`."""
CPU = re.compile(r"^CPU time: ([\d.]+) minutes", re.MULTILINE)
"""Printed by our conftest.py, which also counts processes that the system does not attribute to pytest."""


@dataclass(frozen=True)
class Outcome:
    """Result of a lane. `cpu` and `wall` are seconds."""

    name: str
    code: int
    counts: dict[str, int]
    wall: float
    cpu: float

    @property
    def cells(self) -> tuple[str, ...]:
        """Its row in the table."""
        numbers = (str(self.counts[kind]) for kind in ("passed", "failed", "skipped"))
        minutes = (f"{seconds / 60:.1f} min" for seconds in (self.wall, self.cpu))
        return (self.name, "FAILED" if self.code else "ok", *numbers, *minutes)


def not_run() -> dict[str, str]:
    """Lanes that this machine cannot run, and what to do about each."""
    folder = os.environ.get(CHECKOUTS)
    if folder and all((Path(folder) / version).is_dir() for version in ("v0.7.0", "nano-v3")):
        return {}
    what = "NeMo-RL is on no package registry, and its checkouts v0.7.0 and nano-v3 are not here"
    return {"nemo_rl": f"{what}; run it with: {CHECKOUTS}=FOLDER ci/engine.sh nemo_rl"}


def run(name: str, command: list[str], *, beside: bool) -> Outcome:
    """Run a lane and print its output: line by line, or at the end if it runs in parallel."""
    heading = f"\n##### lane {name}: {' '.join(command)}"
    if not beside:
        print(heading, flush=True)
    began, said = time.monotonic(), []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line.decode(errors="replace"))
            if not beside:
                print(said[-1], end="", flush=True)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    text = "".join(said)
    if beside:
        print(f"{heading}\n{text}", end="", flush=True)
    told = CPU.findall(text)
    cpu = 60 * float(told[-1]) if told else usage.ru_utime + usage.ru_stime
    return Outcome(name, process.returncode, counts_in(text), time.monotonic() - began, cpu)


def counts_in(text: str) -> dict[str, int]:
    """Number of tests by result, from pytest's closing line; errors count as failures."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for number, kind in re.findall(r"(\d+) (\w+)", (CLOSING.findall(text) or [""])[-1]):
        kind = "failed" if kind in ("error", "errors") else kind
        if kind in counts:
            counts[kind] += int(number)
    return counts


def summary(outcomes: list[Outcome], left_out: dict[str, str], wall: float) -> str:
    """Table, lanes that could not run, failures, and a closing line in pytest's style."""
    rows = [("lane", "result", "passed", "failed", "skipped", "wall", "CPU"), *(one.cells for one in outcomes)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join([first.strip().ljust(widths[0]), *others]))
    lines += [f"NOT RUN: {name}: {why}" for name, why in left_out.items()]
    failed = [one.name for one in outcomes if one.code]
    lines.append(f"FAILED: {', '.join(failed)}" if failed else "every lane that ran is green")
    totals = {kind: sum(one.counts[kind] for one in outcomes) for kind in ("failed", "passed", "skipped")}
    told = ", ".join(f"{number} {kind}" for kind, number in totals.items() if number or kind == "passed")
    return "\n".join([*lines, f"==== {told} in {wall:.2f}s ===="])


def main(names: list[str]) -> int:
    """Run the named lanes, or all."""
    unknown = [name for name in names if name not in LANES]
    if unknown:
        print(f"lanes: no lane named '{unknown[0]}'; there are: {', '.join(LANES)}", file=sys.stderr)
        return 2
    left_out = {name: why for name, why in not_run().items() if name in (names or LANES)}
    chosen = {name: command for name, command in LANES.items() if name in (names or LANES) and name not in left_out}
    began = time.monotonic()
    shown = [name for name in (ORDINARY, SLOW) if name in chosen]
    others = [name for name in chosen if name not in shown]
    with ThreadPoolExecutor() as pool:
        rest = pool.submit(lambda: [run(name, chosen[name], beside=bool(shown)) for name in others])
        outcomes = [run(name, chosen[name], beside=False) for name in shown]
        outcomes += rest.result()
    print("\n" + summary(outcomes, left_out, time.monotonic() - began), flush=True)
    return int(any(one.code for one in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
