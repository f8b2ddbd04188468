"""Results of checks, and their output."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from nemotron_shared.system.console import finding_lines
from nemotron_shared.system.errors import Finding, Level, UserError, printable
from nemotron_shared.system.redaction import redact

T = TypeVar("T")
STATES: dict[Level, str] = {
    "problem": "FAIL",
    "lacking": "FAIL",
    "warning": "WARN",
    "passed": "PASS",
    "skipped": "SKIP",
}
"""Words for the levels of findings. WARN: works, but with unexpected behavior. SKIP: not checked, with the reason."""


@dataclass(frozen=True)
class Check:
    """One line: what was checked, and what was found."""

    group: str
    name: str
    finding: Finding

    @property
    def state(self) -> str:
        """The level in a word."""
        return STATES[self.finding.level]

    def as_json(self) -> dict[str, str]:
        """Values for programs."""
        said, remedy = clean(self.finding.message), clean(self.finding.remedy or "")
        return {"group": self.group, "name": self.name, "state": self.state, "said": said, "remedy": remedy}


Checks = Generator[Check, None, None]


@dataclass(frozen=True)
class Group:
    """Checks under one heading.

    yield MACHINE.warn("uv", "is not on PATH", "install it")
    """

    title: str

    def ok(self, name: str, said: str) -> Check:
        """The check passed."""
        return Check(self.title, name, Finding("passed", said))

    def warn(self, name: str, said: str, remedy: str) -> Check:
        """It works, but with unexpected behavior."""
        return Check(self.title, name, Finding("warning", said, remedy))

    def fail(self, name: str, said: str, remedy: str | None) -> Check:
        """A run would fail."""
        return Check(self.title, name, Finding("problem", said, remedy))

    def skip(self, name: str, why: str) -> Check:
        """Not checked."""
        return Check(self.title, name, Finding("skipped", why))

    def guarded(self, name: str, checks: Callable[[], Generator[Check, None, T]]) -> Generator[Check, None, T | None]:
        """Run checks and return their result. An error ends them and becomes the last check."""
        try:
            return (yield from checks())
        except UserError as error:
            yield self.fail(name, error.message, error.remedy or "correct it, and ask again")
            return None


def on_all(checks: Mapping[str, Iterable[Check]]) -> Iterator[Check]:
    """Checks of several machines. Identical results are merged into one, with the machines' names."""
    hosts: dict[Check, list[str]] = {}
    for host, found in checks.items():
        for check in found:
            hosts.setdefault(check, []).append(host)
    for check, names in hosts.items():
        of = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        of = f"all {len(checks)}" if len(names) == len(checks) > 1 else of
        yield replace(check, finding=replace(check.finding, message=f"{check.finding.message} ({of})"))


def text_lines(checks: Iterable[Check]) -> Iterator[str]:
    """Lines of text, as the checks complete."""
    group = None
    for check in checks:
        if check.group != group:
            yield f"{'' if group is None else chr(10)}{check.group}"
            group = check.group
        yield from finding_lines(check.finding, f"  {check.state}  {check.name}: ", indent=8)


def clean(text: str) -> str:
    """Redact secrets and escape terminal control sequences, because much of the text is output of other programs."""
    return printable(redact(text))


def summary(checks: Iterable[Check]) -> str:
    """Number of checks by state."""
    states = [check.state for check in checks]
    return ", ".join(f"{states.count(state)} {state}" for state in ("FAIL", "WARN", "PASS", "SKIP") if state in states)
