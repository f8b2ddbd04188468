"""Derive findings from logs and facts; the earliest cause comes before its consequences."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import get_args

from nemotron_cluster.backends import Condition
from nemotron_cluster.diagnose.logs import Logs, Text
from nemotron_cluster.diagnose.rules import Level, Rule, rules
from nemotron_shared.errors import printable
from nemotron_shared.redaction import redact

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
OWN_MESSAGE = Rule(id="own-message", match=(), example="error: ", means="The program itself says what is wrong.", do=())
UNKNOWN = Rule(
    id="unknown-exception",
    match=(),
    example=TRACEBACK,
    means="Python raised an exception for which there is no rule.",
    do=(),
    level="unknown",
)


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
class Finding:
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

    findings: tuple[Finding, ...]
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
    found: dict[str, Finding] = {}
    for one in [*(_of_scheduler(facts) if facts else ()), *(each for text in logs.texts for each in _of_text(text))]:
        before = found.get(one.rule.id)
        if before is None:
            found[one.rule.id] = one
            continue
        first = min(before, one, key=lambda each: (each.over, each.moment))
        found[one.rule.id] = replace(first, count=before.count + one.count, files=before.files + one.files)
    findings = sorted(found.values(), key=_rank)
    if facts and facts.condition != "unknown":
        failed = facts.condition in ("failed", "cancelled")
    else:
        ends = [text.text[max(_restart(text.text), len(text.text) - 2 * AROUND, 0) :] for text in logs.texts]
        signs = any(sign in end for sign in SIGNS for end in ends)
        failed = signs or any(each.rule.level != "hint" and not each.over for each in findings)
    reported = failed and any(each.rule.traceback for each in findings)
    tracebacks = [one for text in logs.texts if reported and (one := _traceback(text))]
    return Diagnosis(tuple(findings), facts, logs, failed, min(tracebacks, key=lambda one: one.moment, default=None))


def _rank(found: Finding) -> tuple[bool, int, float]:
    return found.over, ORDER.index(found.rule.level), found.moment


def _of_scheduler(facts: Facts) -> Iterator[Finding]:
    """Slurm's own reason for ending a job takes precedence over log lines; a bare exit code ranks below them."""
    moment = 0.0 if facts.state not in ("", "FAILED") else math.inf
    for rule in rules():
        if any(rule.lines(facts.line)):
            yield Finding(rule, facts.source, None, facts.line.removeprefix("scheduler: "), rule.do, moment)
            return


def _of_text(text: Text) -> list[Finding]:
    """The first match of each rule in a log, preferring matches after the last restart."""
    restart = _restart(text.text)
    claimed: dict[int, Rule] = {}
    places: list[tuple[int, Finding]] = []
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
) -> tuple[int, Finding]:
    """Args: lines: start, end and position of the relevant part of each candidate line."""
    start, end, at = min([line for line in lines if line[0] > restart] or lines)
    found = Finding(rule, text.name, text.number(start), shown(text.text[start:end], at - start), do)
    return start, replace(found, count=len({line[0] for line in lines}), over=start < restart)


def _own_messages(text: Text, claimed: dict[int, Rule], restart: int) -> list[tuple[int, Finding]]:
    """Errors printed by our commands: the problem, followed by indented remedies."""
    for found in OWN.finditer(text.text):
        if found.start() in claimed or (restart > found.start()):
            continue
        do = tuple(shown(re.sub(rf"^{LABEL}", "", line), 0).strip() for line in found[1].splitlines() if line.strip())
        end = found.start(1)
        claimed[found.start()] = OWN_MESSAGE
        return [_finding(text, OWN_MESSAGE, [(found.start(), end, found.start())], restart, do)]
    return []


def _exceptions(text: Text, claimed: dict[int, Rule], restart: int) -> list[tuple[int, Finding]]:
    """The first exception that no rule matches."""
    at = text.text.find(TRACEBACK, max(restart, 0))
    while at >= 0:
        stop = text.text.find(TRACEBACK, at + 1)
        start = text.text.find("\n", at) + 1
        while 0 < start < (stop if stop >= 0 else len(text.text)):
            end = text.text.find("\n", start)
            end = len(text.text) if end < 0 else end
            if RAISED.match(text.text[start : min(end, start + AROUND)]):
                if start in claimed:
                    break
                return [_finding(text, UNKNOWN, [(start, end, start)], restart, ())]
            start = end + 1
        at = stop
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
            said = [_indented(line.removeprefix(label)) for line in own[: end + 1]]
            if len(said) > ENDS:
                said = [said[0], "  ...", *said[2 - ENDS :]]
            return Traceback(text.name, text.number(start), tuple(said), _moment(text.text, at) or text.changed)
        at = text.text.find(TRACEBACK, at + 1)
    return None


def _indented(line: str) -> str:
    """A redacted line, with its indentation within the traceback."""
    return " " * min(len(line) - len(line.lstrip(" ")), SHOWN) + shown(line, 0)


def _moment(text: str, at: int) -> float | None:
    """The last timestamp before a position, or on the same line."""
    end = text.find("\n", at)
    nearby = text[max(0, at - 4 * AROUND) : min(at + AROUND, end if end >= 0 else len(text))]
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
