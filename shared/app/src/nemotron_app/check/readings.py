"""Read the files of a run, even while they are being written.

Logs are read in chunks, so memory does not grow with their size. Of logs larger than `LARGEST` only the beginning
and the end are read, with a note. Handles carriage returns of progress bars, color escape sequences, and an
incomplete last line, which may end within a number.
"""

import json
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

from nemotron_shared.machine.library_output import LIBRARY_LOGS, LibraryLog, require_usable
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.metrics import FILE as METRICS

PIECE = 1 << 20
LONGEST_LINE = 1 << 16
LONGEST_MATCHED = 2000
"""Match patterns only against this many characters of a line: matching time may grow quadratically or faster."""
LONGEST_NUMBER = 40
LARGEST = 256 << 20
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|\x00")
GPU_LINE = re.compile(r"MiB \|\s+(\d{1,3})%\s")
"""A GPU row of the table that `nvidia-smi` prints."""
SAMPLES = 3
MOMENTS = {"steps", "rollouts", "rollouts_wanted", "actors", "actors_wanted", "trained_percent"}
"""Named groups that belong to a moment of the log, not to a step."""


@dataclass
class Readings:
    """Attributes:
    series: values by metric and step; a repeated step keeps its last value.
    moments: values that belong to a moment, in the order of writing.
    counts: number of matching lines by pattern; `seen` has the first line of each.
    libraries: titles of the libraries whose output was recognized.
    newest: modification time of the newest file, by kind and by name.
    notes: what was skipped, for people.
    """

    series: dict[str, dict[int, float]] = field(default_factory=dict)
    moments: dict[str, list[float]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    seen: dict[str, str] = field(default_factory=dict)
    libraries: list[str] = field(default_factory=list)
    newest: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def step(self) -> int:
        """The last step with a value."""
        return max((max(values) for name, values in self.series.items() if values and name != "step"), default=0)

    @property
    def steps(self) -> int | None:
        """The total number of steps, according to the log."""
        return int(self.moments["steps"][-1]) if self.moments.get("steps") else None

    def values(self, metric: str) -> list[tuple[int, float]]:
        """(step, value) in order; values of moments are numbered instead."""
        if self.moments.get(metric):
            return list(enumerate(self.moments[metric]))
        return sorted(self.series.get(metric, {}).items())

    def recognise(self, log: LibraryLog) -> None:
        """Record a library whose output was recognized."""
        if log.title not in self.libraries:
            self.libraries.append(log.title)

    def add(self, found: Mapping[str, Mapping[int, float]]) -> None:
        """Merge the values of one file. If it restarts at an earlier step, drop the values after that step."""
        for name, values in found.items():
            if values:
                first = min(values)
                before = {step: value for step, value in self.series.get(name, {}).items() if step < first}
                self.series[name] = before | dict(values)


def read(files: Iterable[Path], patterns: Iterable[str]) -> Readings:
    """Read every file by its kind, the most precise kinds last so that their values win.

    Args:
        patterns: patterns to count in text logs.
    """
    readings = Readings()
    libraries = _libraries(readings)
    records = {name: log for log in libraries for name in log.records}
    wanted = {pattern: re.compile(pattern, re.MULTILINE) for pattern in patterns}
    by_kind: dict[str, list[tuple[float, Path]]] = {"log": [], "tensorboard": [], "records": [], "metrics": []}
    for file in files:
        kind = _kind(file, records)
        try:
            written = file.stat().st_mtime
        except OSError:
            continue  # deleted after the folder was listed
        if kind in by_kind:
            by_kind[kind].append((written, file))
        for name in (kind, file.name):
            readings.newest[name] = max(written, readings.newest.get(name, 0.0))
    for _, file in sorted(by_kind["log"]):
        _read_log(file, libraries, wanted, readings)
    for _, file in sorted(by_kind["tensorboard"]):
        _read_scalars(file, libraries, readings)
    for _, file in [*sorted(by_kind["records"]), *sorted(by_kind["metrics"])]:
        _read_records(file, records.get(file.name, LibraryLog("metrics.jsonl", {})), readings)
    _add_step_times(readings)
    return readings


def _kind(file: Path, records: Mapping[str, LibraryLog]) -> str:
    if file.name == METRICS:
        return "metrics"
    if "tfevents" in file.name:
        return "tensorboard"
    if file.name in records:
        return "records"
    return "sentinel" if not file.suffix and file.name.isupper() else "log"


def _libraries(readings: Readings) -> list[LibraryLog]:
    found = []
    for name in LIBRARY_LOGS.places():
        try:
            log = LIBRARY_LOGS.load(name)
            require_usable(name, log)
            found.append(log)
        except UserError as error:  # the engines package is not installed, or a plugin is broken
            readings.notes.append(f"{error}; its logs are not understood")
    return found


def pieces_of(file: Path, notes: list[str]) -> Iterator[list[str]]:
    """Yield lists of whole lines without escape sequences, about 1 MB each. A carriage return also ends a line."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        rest = b""
        while piece := stream.read(PIECE):
            *lines, rest = re.split(rb"[\r\n]+", rest + piece)
            rest = rest[:LONGEST_LINE]  # binary files may have no line breaks
            texts = [line[:LONGEST_LINE].decode("utf-8", "replace") for line in lines if line]
            yield [ESCAPES.sub("", text) if "\x1b" in text or "\x00" in text else text for text in texts]
            if LARGEST // 2 <= stream.tell() < size - LARGEST // 2:
                notes.append(f"{file}: {size / 1e9:.1f} GB; what is between its first and last 128 MB was not read")
                stream.seek(size - LARGEST // 2)
                stream.readline(LONGEST_LINE)  # the rest of a line
                rest = b""


def _read_log(
    file: Path, libraries: list[LibraryLog], wanted: Mapping[str, re.Pattern[str]], readings: Readings
) -> None:
    """Count matching lines, and extract metrics from lines that a library wrote."""
    found: dict[str, dict[int, float]] = {}
    step, began = 0, None
    tried = [(word, re.compile(line), log) for log in libraries for word, line in log.lines.items()]
    try:
        for lines in pieces_of(file, readings.notes):
            text = "\n".join(lines)
            _count_lines([line[:LONGEST_MATCHED] for line in lines] if wanted else [], wanted, readings)
            for percent in GPU_LINE.findall(text) if "MiB |" in text else ():
                readings.moments.setdefault("gpu_utilization", []).append(float(percent))
            for log, groups in _matches(lines, [one for one in tried if one[0] in text]):
                readings.recognise(log)
                if groups.get("step", "").isdecimal():
                    before, step = step, int(groups["step"]) + 1 - log.first_step
                    found = _cut(found, before, step)
                    found.setdefault("step", {})[step] = step
                moment = _seconds(groups.get("time", ""))
                if moment is not None:
                    began = moment if began is None else began
                    found.setdefault("seconds", {})[step] = moment - began
                for name, value in ((name, _number(text)) for name, text in groups.items()):
                    if value is not None and name in MOMENTS:
                        readings.moments.setdefault(name, []).append(value)
                    elif value is not None and name not in {"step", "time"}:
                        found.setdefault(name, {})[step] = value
    except OSError as error:
        readings.notes.append(f"{file}: not readable: {error.strerror}")
    readings.add(found)


def _count_lines(lines: list[str], wanted: Mapping[str, re.Pattern[str]], readings: Readings) -> None:
    text = "\n".join(lines)
    for pattern, compiled in wanted.items():
        # for literals, substring search is many times faster than a regular expression
        literals = pattern.split("|") if re.fullmatch(r"[\w :|]+", pattern) else []
        if any(word in text for word in literals) if literals else compiled.search(text):
            for line in filter(compiled.search, lines):
                readings.counts[pattern] += 1
                readings.seen.setdefault(pattern, line.strip()[:200])


def _matches(
    lines: list[str], tried: list[tuple[str, re.Pattern[str], LibraryLog]]
) -> Iterator[tuple[LibraryLog, dict[str, str]]]:
    """For each line, yield the library pattern that matches and its non-empty groups."""
    for line in lines if tried else ():
        for word, pattern, log in tried:
            if word in line and (match := pattern.search(line)):
                found = match.groupdict().items()
                yield log, {name: text for name, text in found if text and len(text) < LONGEST_NUMBER}


def _read_records(file: Path, log: LibraryLog, readings: Readings) -> None:
    """Read JSON lines. Damaged ones are counted and skipped."""
    found: dict[str, dict[int, float]] = {}
    step, damaged, began = 0, 0, None
    try:
        for line in chain.from_iterable(pieces_of(file, readings.notes)):
            try:
                entry: Any = json.loads(line)
                if (written := int(entry["step"])) < 0:
                    raise ValueError("no step")
                before, step = step, written + 1 - log.first_step
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                damaged += 1
                continue
            found = _cut(found, before, step)
            for key, value in entry.items():
                name = log.keys.get(key, key)
                if name == "time" and (moment := _seconds(str(value))) is not None:
                    began = moment if began is None else began
                    found.setdefault("seconds", {})[step] = moment - began
                elif name == "seconds" and step in found.get(name, {}):
                    pass  # validation after the step, whose time is not part of the step
                elif name != "step" and isinstance(value, int | float) and (number := _number(str(value))) is not None:
                    found.setdefault(name, {})[step] = number
    except OSError as error:
        readings.notes.append(f"{file}: not readable: {error.strerror}")
    if damaged:
        readings.notes.append(f"{file}: {damaged} damaged line{'s' if damaged > 1 else ''} left out")
    readings.recognise(log)
    readings.add(found)


def _read_scalars(file: Path, libraries: list[LibraryLog], readings: Readings) -> None:
    """Read TensorBoard files of NeMo-RL, which hold more than its log. Ours only repeat metrics.jsonl."""
    if not re.search(r"/exp_\d+/tensorboard/", str(file.resolve())):
        return
    found: dict[str, dict[int, float]] = {}
    for log in libraries:
        if log.scalars is None:
            continue
        try:
            for name, step, value in log.scalars(file):
                if name == "gpu_utilization":
                    readings.moments.setdefault(name, []).append(value)
                else:
                    found.setdefault(name, {})[step] = value
        except Exception as error:  # the library may raise anything on a damaged file
            readings.notes.append(f"{file}: not readable: {error}")
            continue
        readings.recognise(log)
    readings.add(found)


def _add_step_times(readings: Readings) -> None:
    """Compute step times if only the time since the start was logged."""
    clock, times = readings.values("seconds"), readings.series.get("step_seconds", {})
    if times or not clock:
        return
    before = (0, 0.0) if clock[0][0] == 1 and clock[0][1] > 0 else None
    for step, seconds in clock:
        if before is not None and seconds > before[1]:  # smaller if another attempt reset the clock
            times[step] = (seconds - before[1]) / (step - before[0])
        before = (step, seconds)
    readings.series["step_seconds"] = times


def _cut(found: dict[str, dict[int, float]], before: int, step: int) -> dict[str, dict[int, float]]:
    """Drop the values from the step at which a run was restarted, because they are computed again."""
    if step >= before:
        return found
    return {name: {at: value for at, value in one.items() if at < step} for name, one in found.items()}


def gpus_now() -> list[float]:
    """Utilization of each GPU of this machine, sampled over a few seconds; empty without GPUs."""
    program = shutil.which("nvidia-smi")
    found: list[float] = []
    for _ in range(SAMPLES if program else 0):
        said = subprocess.run([str(program)], capture_output=True, text=True, errors="replace", check=False)
        found += [float(percent) for percent in GPU_LINE.findall(said.stdout)]
        time.sleep(1)
    return found


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "").rstrip("."))
    except ValueError:
        return None


def _seconds(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None
