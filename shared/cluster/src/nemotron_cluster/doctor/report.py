"""Results of checks, and their output."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from nemotron_shared.system.errors import UserError, printable
from nemotron_shared.system.redaction import redact

State = Literal["PASS", "WARN", "FAIL", "SKIP"]
"""WARN: works, but with unexpected behavior. SKIP: not checked, with the reason."""
T = TypeVar("T")


@dataclass(frozen=True)
class Check:
    """One line: what was checked, what was found, and what to do about it."""

    group: str
    name: str
    state: State
    said: str
    remedy: str | None = None


Checks = Generator[Check, None, None]


@dataclass(frozen=True)
class Group:
    """Checks under one heading.

    yield MACHINE.warn("uv", "is not on PATH", "install it")
    """

    title: str

    def ok(self, name: str, said: str) -> Check:
        """The check passed."""
        return Check(self.title, name, "PASS", said)

    def warn(self, name: str, said: str, remedy: str) -> Check:
        """It works, but with unexpected behavior."""
        return Check(self.title, name, "WARN", said, remedy)

    def fail(self, name: str, said: str, remedy: str | None) -> Check:
        """A run would fail."""
        return Check(self.title, name, "FAIL", said, remedy or "")

    def skip(self, name: str, why: str) -> Check:
        """Not checked."""
        return Check(self.title, name, "SKIP", why)

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
        yield Check(check.group, check.name, check.state, f"{check.said} ({of})", check.remedy)


def text_lines(checks: Iterable[Check]) -> Iterator[str]:
    """Lines of text, as the checks complete."""
    group = None
    for check in checks:
        if check.group != group:
            yield f"{'' if group is None else chr(10)}{check.group}"
            group = check.group
        yield f"  {check.state}  {check.name}: {clean(check.said)}"
        yield from (f"        {clean(line.strip())}" for line in (check.remedy or "").splitlines())


def clean(text: str) -> str:
    """Redact secrets and escape terminal control sequences, because much of the text is output of other programs."""
    return printable(redact(text))


def summary(checks: Iterable[Check]) -> str:
    """Number of checks by state."""
    states = [check.state for check in checks]
    return ", ".join(f"{states.count(state)} {state}" for state in ("FAIL", "WARN", "PASS", "SKIP") if state in states)
