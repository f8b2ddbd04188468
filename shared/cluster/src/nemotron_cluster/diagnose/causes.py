"""Derive findings from logs and facts; the earliest cause comes before its consequences.

Known causes are data: `rules/*.yaml`. Their patterns are literal text with the wildcard `*`, which matches within a
line. They are easy to write, and cannot take exponential time on a hostile line. The scheduler's state is matched as
one more line, made by `Facts.line`:

    scheduler: state=TIMEOUT reason=None exit=0:15
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Annotated, Literal, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict

from nemotron_cluster.backends import Condition
from nemotron_cluster.diagnose.logs import Logs, Text
from nemotron_shared.system.errors import Finding, printable
from nemotron_shared.system.redaction import redact

TOPICS = ("own", "build", "container", "hub", "gpu", "nccl", "memory", "launch", "disk", "python", "ray", "slurm")
"""The rule files in order. The first matching rule claims a line, so specific rules come before general ones, both
across files and within each.
"""
Level = Literal["cause", "unknown", "end", "consequence", "hint"]
"""In display order: the cause of the end; an exception without a rule; how the job ended, which may have an earlier
cause; reactions of other processes to a failure; a hint that is not a failure.
"""
Texts = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]
SHOWN, AROUND = 300, 2000
"""Characters of a line to show, and context for redaction, which must see whole secrets to detect them."""
MOMENT = re.compile(r"\b(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)")
RESTARTS = ("DUE TO JOB REQUEUE", "DUE TO PREEMPTION", "DUE TO NODE FAILURE")
"""Messages that Slurm writes when it restarts a job; everything before them belongs to an earlier attempt."""
LABEL = r"(?:\[[\w:.-]+\]:? ?|\([^()\n]{1,80}\) |\d{1,5}: )*"
"""Prefixes that launchers add to the lines of processes."""
OWN = re.compile(rf"^{LABEL}error: .+((?:\n{LABEL}  \S.*){{0,4}})", re.MULTILINE)
TRACEBACK = "Traceback (most recent call last)"
TORCHRUN_S = re.compile(r"ChildFailedError|SignalException")
"""Exceptions that torchrun itself raises when one of its processes has failed."""
LONGEST, ENDS = 2000, 15
"""Lines to search for the end of a traceback, and how many of its last lines to show."""
RAISED = re.compile(rf"^{LABEL}(?:\w+\.)*[A-Z]\w*[a-z]\w*(?::|$)")
CODE = re.compile(rf"{LABEL} {{4}}")
SIGNS = ("Traceback", "Error", "ERROR", "error:", "rror ", "FATAL", "Fatal", "Killed", "Aborted", "dumped", "failed")
ORDER = get_args(Level)


class Rule(BaseModel):
    """One known message."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    match: Texts
    example: str
    """A line as the software prints it, with names changed."""
    means: str
    do: Texts
    level: Level = "cause"
    traceback: bool = False
    """Whether the message only reports that a process failed, so that the process's own traceback says more."""

    def lines(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Start and end of every matching line, and where its relevant part begins."""
        for pattern in self.match:
            yield from _matching_lines(text, pattern.split("*"))


def _matching_lines(text: str, parts: list[str]) -> Iterator[tuple[int, int, int]]:
    """Yields each line at most once, even if the relevant part occurs several times."""
    telling = max(parts, key=len)
    at = text.find(telling)
    while at >= 0:
        start, end = text.rfind("\n", 0, at) + 1, _line_end(text, at)
        if len(parts) == 1 or _in_order(text, parts, start, end):
            yield start, end, at
        at = text.find(telling, end)


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _in_order(text: str, parts: list[str], start: int, end: int) -> bool:
    for part in parts:
        at = text.find(part, start, end)
        if at < 0:
            return False
        start = at + len(part)
    return True


@cache
def rules() -> tuple[Rule, ...]:
    """All rules, in matching order."""
    folder = files("nemotron_cluster.diagnose") / "rules"
    texts = [(folder / f"{topic}.yaml").read_text(encoding="utf-8") for topic in TOPICS]
    return tuple(Rule.model_validate(row) for text in texts for row in yaml.safe_load(text))


OWN_MESSAGE = Rule(id="own-message", match=(), example="error: ", means="The program itself says what is wrong.", do=())
UNKNOWN = Rule(
    id="unknown-exception", match=(), example=TRACEBACK, do=(), level="unknown",
    means="Python raised an exception that no rule knows.",
)  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """Facts about a job from outside its log, and their source.

    Attributes:
        sentence: for people.
        state: the scheduler's own word, such as NODE_FAIL.
    """

    condition: Condition
    source: str
    sentence: str = ""
    state: str = ""
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None

    @property
    def line(self) -> str:
        """The facts as one line, for matching rules."""
        code = "" if self.exit_code is None else f" exit={self.exit_code}:{self.signal or 0}"
        return f"scheduler: state={self.state or self.condition.upper()} reason={self.reason or None}{code}"


@dataclass(frozen=True)
class Match:
    """The first match of a rule."""

    rule: Rule
    place: str
    line: int | None
    text: str
    do: tuple[str, ...]
    moment: float = 0.0
    count: int = 1
    files: int = 1
    over: bool = False
    """It precedes a restart of the job."""

    @property
    def finding(self) -> Finding:
        """What the line means, and what to do."""
        level = "note" if self.rule.level == "hint" else "problem"
        return Finding(level, self.rule.means, "\n".join(f"- {each}" for each in self.do) or None, self.rule.id)


@dataclass(frozen=True)
class Traceback:
    """The first traceback of a process, verbatim."""

    place: str
    line: int | None
    lines: tuple[str, ...]
    moment: float = 0.0


@dataclass(frozen=True)
class Diagnosis:
    """Everything known about a job."""

    findings: tuple[Match, ...]
    facts: Facts | None
    logs: Logs
    failed: bool
    """Whether it has failed, judging by the facts and logs."""
    traceback: Traceback | None = None
    """Of the process that failed first, if a launcher reports a failure."""

    @property
    def known(self) -> bool:
        """Whether any finding explains the failure."""
        return any(found.rule.level in ("cause", "end") for found in self.findings)

    def last_lines(self, count: int = 15) -> list[str]:
        """The end of the newest log."""
        text = self.logs.texts[0].text if self.logs.texts else ""
        return [shown(line, 0) for line in text[-count * AROUND :].rstrip().splitlines()[-count:]]


def diagnose(logs: Logs, facts: Facts | None) -> Diagnosis:
    """Collect all findings."""
    found: dict[str, Match] = {}
    of_logs = [one for text in logs.texts for one in _text_findings(text)]
    for one in [*(_scheduler_findings(facts) if facts else ()), *of_logs]:
        before = found.get(one.rule.id)
        if before is None:
            found[one.rule.id] = one
            continue
        first = min(before, one, key=lambda each: (each.over, each.moment))
        found[one.rule.id] = replace(first, count=before.count + one.count, files=before.files + one.files)
    findings = sorted(found.values(), key=lambda one: (one.over, ORDER.index(one.rule.level), one.moment))
    if facts and facts.condition != "unknown":
        failed = facts.condition in ("failed", "cancelled")
    else:
        ends = [text.text[max(_restart(text.text), len(text.text) - 2 * AROUND, 0) :] for text in logs.texts]
        signs = any(sign in end for sign in SIGNS for end in ends)
        failed = signs or any(each.rule.level != "hint" and not each.over for each in findings)
    reported = failed and any(each.rule.traceback for each in findings)
    tracebacks = [one for text in logs.texts if reported and (one := _traceback(text))]
    return Diagnosis(tuple(findings), facts, logs, failed, min(tracebacks, key=lambda one: one.moment, default=None))


def _scheduler_findings(facts: Facts) -> Iterator[Match]:
    """Slurm's own reason for ending a job takes precedence over log lines; a bare exit code ranks below them."""
    moment = 0.0 if facts.state not in ("", "FAILED") else math.inf
    for rule in rules():
        if any(rule.lines(facts.line)):
            yield Match(rule, facts.source, None, facts.line.removeprefix("scheduler: "), rule.do, moment)
            return


def _text_findings(text: Text) -> list[Match]:
    """The first match of each rule in a log, preferring matches after the last restart."""
    restart = _restart(text.text)
    claimed: dict[int, Rule] = {}
    places: list[tuple[int, Match]] = []
    for rule in rules():
        mine = [line for line in rule.lines(text.text) if line[0] not in claimed and not _is_code(text.text, line[0])]
        claimed.update((start, rule) for start, _, _ in mine)
        if mine:
            places.append(_finding(text, rule, mine, restart, rule.do))
    places += _own_messages(text, claimed, restart)
    places += _exceptions(text, claimed, restart)
    places.sort(key=lambda each: each[0], reverse=True)
    later, findings = text.changed, []
    for at, found in places:  # a line without a time counts as earlier than the next line that has one
        later = _moment(text.text, at) or later
        findings.append(replace(found, moment=later))
    return findings[::-1]


def _restart(text: str) -> int:
    """Position of the last restart; -1 without a restart, or without output after it."""
    at = max(text.rfind(mark) for mark in RESTARTS)
    return at if text.find("\n", at) < len(text.rstrip()) - 1 else -1


def _is_code(text: str, start: int) -> bool:
    """Whether a line is source code, as shown below the file name in a traceback."""
    above = text[text.rfind("\n", 0, max(start - 1, 0)) + 1 : start][:AROUND]
    return 'File "' in above and '", line ' in above and CODE.match(text, start, start + AROUND) is not None


def _finding(
    text: Text, rule: Rule, lines: Sequence[tuple[int, int, int]], restart: int, do: tuple[str, ...]
) -> tuple[int, Match]:
    """Args: lines: start, end and position of the relevant part of each candidate line."""
    start, end, at = min([line for line in lines if line[0] > restart] or lines)
    found = Match(rule, text.name, text.number(start), shown(text.text[start:end], at - start), do)
    return start, replace(found, count=len({line[0] for line in lines}), over=start < restart)


def _own_messages(text: Text, claimed: dict[int, Rule], restart: int) -> list[tuple[int, Match]]:
    """Errors printed by our commands: the problem, followed by indented remedies."""
    for found in OWN.finditer(text.text):
        if found.start() in claimed or (restart > found.start()):
            continue
        do = tuple(shown(re.sub(rf"^{LABEL}", "", line), 0).strip() for line in found[1].splitlines() if line.strip())
        end = found.start(1)
        claimed[found.start()] = OWN_MESSAGE
        return [_finding(text, OWN_MESSAGE, [(found.start(), end, found.start())], restart, do)]
    return []


def _exceptions(text: Text, claimed: dict[int, Rule], restart: int) -> list[tuple[int, Match]]:
    """The first exception that no rule matches."""
    at = text.text.find(TRACEBACK, max(restart, 0))
    while at >= 0:
        following = text.text.find(TRACEBACK, at + 1)
        stop = following if following >= 0 else len(text.text)
        start = _line_end(text.text, at) + 1
        while start < stop:
            end = _line_end(text.text, start)
            if RAISED.match(text.text[start : min(end, start + AROUND)]):
                if start in claimed:
                    break
                return [_finding(text, UNKNOWN, [(start, end, start)], restart, ())]
            start = end + 1
        at = following
    return []


def _traceback(text: Text) -> Traceback | None:
    """The first traceback since the last restart, except those in which torchrun reports another process."""
    at = text.text.find(TRACEBACK, max(_restart(text.text), 0))
    while at >= 0:
        start = text.text.rfind("\n", 0, at) + 1
        label = text.text[start:at]  # lines of several processes may be interleaved
        lines = text.text[start : start + LONGEST * AROUND].splitlines()[:LONGEST]
        own = [line for line in lines if line.startswith(label)]
        end = next((number for number, line in enumerate(own) if number and RAISED.match(line[:AROUND])), None)
        if end is not None and not TORCHRUN_S.search(own[end]):
            lines = [line.removeprefix(label) for line in own[: end + 1]]
            lines = [" " * min(len(line) - len(line.lstrip(" ")), SHOWN) + shown(line, 0) for line in lines]
            if len(lines) > ENDS:
                lines = [lines[0], "  ...", *lines[2 - ENDS :]]
            return Traceback(text.name, text.number(start), tuple(lines), _moment(text.text, at) or text.changed)
        at = text.text.find(TRACEBACK, at + 1)
    return None


def _moment(text: str, at: int) -> float | None:
    """The last timestamp before a position, or on the same line."""
    nearby = text[max(0, at - 4 * AROUND) : min(at + AROUND, _line_end(text, at))]
    times = MOMENT.findall(nearby)
    try:
        return datetime.fromisoformat("T".join(times[-1])).timestamp() if times else None
    except (ValueError, OverflowError, OSError):
        return None


def shown(line: str, at: int) -> str:
    """The part of a line around a position, redacted and safe to print on a terminal."""
    begin = line.rfind("\r", 0, at) + 1  # skip a progress bar on the same line
    text = redact(line[max(begin, at - AROUND) : at + AROUND].split("\r")[0] or line[at : at + AROUND]).strip()
    if len(text) > SHOWN:
        telling = max(text.find(line[at : at + 20]), 0) if at else 0
        begin = max(0, telling - SHOWN // 3)
        text = f"{'...' if begin else ''}{text[begin : begin + SHOWN]}..."
    return printable(text)
