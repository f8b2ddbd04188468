"""What a passport says: four parts, each with facts, findings and what was not looked at.

tensors             each of the model's in the export, and nothing else
config and tokens   special ids, template, limits, norms, router
numbers             the same prompts through both, and through each runtime that is installed
task                held-out rows of the model's training data, before and after
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemotron_app import output
from nemotron_shared.system.atomic import write_json, write_text
from nemotron_shared.system.errors import Finding, UserError, problem

PAGE, DATA = "passport.html", "passport.json"
TENSORS, CONFIG, NUMBERS, TASK = "tensors", "config and tokens", "numbers", "task"
MOST_SHOWN = 40
"""Findings of a part that are listed; the others are counted."""


@dataclass
class Part:
    """One of the four."""

    title: str
    facts: list[tuple[str, str]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    judged: bool = True
    """Whether it is known how large each difference may be."""
    other: str = "the model"
    """What it is compared with."""

    def find(self, where: str, what: str) -> None:
        """Note a difference, by the tensor, the key or the file that it is in."""
        self.findings.append(problem(what, key=where))

    def as_json(self) -> dict[str, Any]:
        """The part for programs."""
        findings = [{"where": finding.key, "what": finding.message} for finding in self.findings]
        return vars(self) | {"findings": findings, "verdict": self.verdict}

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.findings:
            return f"{len(self.findings)} differ" if len(self.findings) > 1 else "1 differs"
        if not self.facts:
            return "not looked at"
        return "the same" if self.judged else "measured"


@dataclass
class Passport:
    """Of one export, and the model that it was made from.

    Attributes:
        export: name of the folder or file.
        source: reference and digest of the model in the store; empty for one from outside of it.
    """

    export: str
    source: dict[str, str]
    parts: list[Part]

    @property
    def findings(self) -> list[Finding]:
        """Those of all parts."""
        return [finding for part in self.parts for finding in part.findings]

    @property
    def line(self) -> str:
        """The passport in a line."""
        return "; ".join(f"{part.title}: {part.verdict}" for part in self.parts)

    def summary(self) -> dict[str, Any]:
        """The passport as JSON."""
        return {
            "export": self.export,
            "source": self.source,
            "same": not self.findings,
            "parts": [part.as_json() for part in self.parts],
        }

    def write(self, folder: Path) -> None:
        """Write the page and the data."""
        write_json(folder / DATA, self.summary())
        values = {"passport": self, "most": MOST_SHOWN}
        write_text(folder / PAGE, output.render("passport.html.jinja", values, package="nemotron_serving.passport"))


def few(names: Iterable[object], most: int = 3) -> str:
    """The first names, and how many more there are."""
    every = [str(name) for name in names]
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")


def reason(error: UserError) -> str:
    """An error in a passport: its first line, without the folders of this machine."""
    return re.sub(r"/\S*/", ".../", error.message.partition("\n")[0])
