"""Expectations of a healthy run, as data: one YAML file per recipe with known figures, in the stage's `config/expect`.

title: fine-tuning of Super 49B
when: {run.family: super49b, train.train_iters: 50}    the runs it applies to, by values of their config
expectations:
  - id: final-loss
    what: training loss at the end
    metric: loss
    how: last
    window: 5
    at_step: 50
    pass: {at_least: 1.2, at_most: 1.8}
    watch: {at_most: 2.2}
    remedy: compare the data and optimizer.lr with the recipe's
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from re import _parser as parser  # ty: ignore[import-not-found]
from typing import Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from nemotron_app.launch import stage_directory
from nemotron_shared.artifacts.names import LONGEST_SHOWN
from nemotron_shared.config.files import parsed, read_text
from nemotron_shared.config.schema import Section
from nemotron_shared.config.validate import validate
from nemotron_shared.stages import STAGES
from nemotron_shared.system.errors import UserError, did_you_mean
from nemotron_shared.tracking.metrics import METRICS

FOLDER = "expect"
READ = {
    "step": "The steps that have begun.",
    "steps": "How many steps the log says there will be.",
    "rollouts": "Completions that the present step has collected.",
    "actors": "Ray actors that are online.",
    "gpu_utilization": "Percent of the time in which a GPU worked.",
    "trained_percent": "Percent of the parameters that are trained.",
}
"""Metrics from logs, in addition to those of metrics.jsonl. An evaluation score is `TASK/MODEL`."""


class Limits(Section):
    """An inclusive range. With neither bound, it contains every finite number."""

    at_least: float | None = Field(default=None, allow_inf_nan=False)
    at_most: float | None = Field(default=None, allow_inf_nan=False)

    @model_validator(mode="after")
    def not_empty(self) -> "Limits":
        """Reject limits in the wrong order."""
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(f"at_least {self.at_least:g} must not be above at_most {self.at_most:g}")
        return self

    def hold(self, value: float) -> bool:
        """Whether the value is in the range."""
        low, high = self.at_least, self.at_most
        return math.isfinite(value) and (low is None or value >= low) and (high is None or value <= high)

    def __str__(self) -> str:
        ends = [("at least", self.at_least), ("at most", self.at_most)]
        if self.at_least is not None and self.at_least == self.at_most:
            return f"{self.at_least:g}"
        return ", ".join(f"{word} {value:g}" for word, value in ends if value is not None) or "any"


class Expectation(Section):
    """One value to check, its limits, and a remedy. Values outside `watch` fail."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True)

    id: str = Field(pattern=r"^[a-z0-9-]+$")
    what: str
    """Description, with the unit."""
    metric: str | None = None
    """A metric of metrics.jsonl or `READ`, or an evaluation score."""
    minus: str | None = None
    """Subtract the mean of this metric's last values up to the same step."""
    line: str | None = None
    """Count the log lines that match this pattern."""
    file: str | None = None
    """Check for files: `tensorboard`, `log`, or a file name."""
    how: Literal["first", "last", "lowest", "highest", "mean", "median", "sum", "change", "rise", "count", "age"]
    """`change`: mean of the last third minus mean of the first. `rise`: from the first to the last reading since the
    last restart of the count. `count`: lines or files. `age`: minutes since the newest file was modified.
    """
    window: int = Field(ge=1, default=1)
    """For `first` and `last`: the number of values to average."""
    at_step: int = Field(ge=0, default=0)
    """Do not judge before this step."""
    within: Limits = Field(alias="pass")
    watch: Limits | None = None
    instead: str = Field(alias="remedy")
    """What to do on failure; `{family}` is replaced by the model family of the run."""
    instead_if_fell: str | None = Field(alias="remedy_if_fell", default=None)
    """For `change`: what to do instead if the value is below 0."""
    told_by: str | None = None
    """How to obtain such figures, shown if they are missing."""

    @field_validator("line")
    @classmethod
    def a_pattern(cls, line: str | None) -> str | None:
        """Reject patterns that do not compile, or that could take exponential time."""
        try:
            parsed = parser.parse(line or "")
            re.compile(line or "")
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"must be a regular expression: {error}") from error
        if _may_take_for_ever(parsed, inside=False):
            raise ValueError("a repeat or alternatives within a repeat may take for ever; write the repeated part once")
        return line

    @field_validator("metric", "minus")
    @classmethod
    def a_metric(cls, name: str | None) -> str | None:
        """Reject unknown metrics, which would never have a value."""
        known = (*METRICS, *READ)
        if name is not None and name not in known and "/" not in name:
            near = did_you_mean(name, known, f"there are: {', '.join(known)}")
            raise ValueError(f"no metric '{name[:LONGEST_SHOWN]}'; {near}")
        return name

    @model_validator(mode="after")
    def one_source(self) -> "Expectation":
        """Allow only one of metric, line and file, with a matching `how`."""
        if [self.metric, self.line, self.file].count(None) != 2:
            raise ValueError(f"{self.id}: give one of metric, line and file")
        fitting = ("count",) if self.line else ("count", "age") if self.file else None
        if (fitting and self.how not in fitting) or (not fitting and self.how in {"count", "age"}):
            raise ValueError(f"{self.id}: how: {self.how} does not fit; count fits a line, count and age a file")
        if self.instead_if_fell is not None and self.how != "change":
            raise ValueError(f"{self.id}: remedy_if_fell fits how: change alone")
        return self


def _may_take_for_ever(part: Any, *, inside: bool) -> bool:
    """Whether a pattern can backtrack exponentially: `(a+)+`, `(a|aa)*`. Args: inside: within a repeat."""
    if isinstance(part, parser.SubPattern | list | tuple):
        kinds = (int, int, parser.SubPattern)
        if len(part) == 3 and all(isinstance(one, kind) for one, kind in zip(part, kinds, strict=True)):
            fewest, most, repeated = part
            return (inside and fewest != most) or _may_take_for_ever(repeated, inside=inside or most > 1)
        if len(part) == 2 and part[0] is parser.BRANCH and inside:
            return True
        return any(_may_take_for_ever(one, inside=inside) for one in part)
    return False


class ExpectationFile(Section):
    """The expectations of one recipe."""

    title: str
    when: dict[str, Any]
    """Values of a run's config by dotted key; a list allows any of its values. The file applies to runs that match all
    keys.
    """
    expectations: list[Expectation] = Field(min_length=1)

    @model_validator(mode="after")
    def each_id_once(self) -> "ExpectationFile":
        """Require unique ids, because programs identify results by them."""
        ids = [one.id for one in self.expectations]
        if twice := sorted({name for name in ids if ids.count(name) > 1}):
            raise ValueError(f"twice the id {', '.join(twice)}")
        return self


@dataclass(frozen=True)
class Expected:
    """A parsed file of expectations. `name` is `sft/super49b`, or the path of a user's file."""

    name: str
    stage: str | None
    path: Path
    content: ExpectationFile

    def misfits(self, config: Mapping[str, Any]) -> list[str]:
        """Differences between a run's config and `when`."""
        found = []
        for key, wanted in self.content.when.items():
            value: Any = config
            for part in key.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            several = wanted if isinstance(wanted, list) else [wanted]
            if value != wanted and value not in several:
                found.append(f"{key} is {value} and not {' or '.join(map(str, several))}")
        return found


def read_expectations(path: Path, stage: str | None = None) -> Expected:
    """Read one file.

    Raises:
        UserError: unreadable file, or an unknown, missing or invalid key.
    """
    values = parsed(path, read_text(path))
    if not isinstance(values, dict):
        raise UserError(f"{path}: not a mapping", "see docs/check.md, Expectations of your own")
    name = f"{stage}/{path.stem}" if stage else str(path)
    return Expected(name, stage, path, validate(ExpectationFile, values, {"": str(path) if not stage else name}))


def all_expectations() -> list[Expected]:
    """Read the expectations of all installed stages."""
    found = []
    for stage in STAGES:
        try:
            folder = stage_directory(stage) / "config" / FOLDER
        except UserError:
            continue  # not installed
        found += [read_expectations(path, stage) for path in sorted(folder.glob("*.yaml"))]
    return found


def choose(asked: str | None, stage: str | None, config: Mapping[str, Any] | None) -> Expected:
    """The file that `--expect` names, or the one whose `when` matches a run's config.

    Raises:
        UserError: no match, or no config to match.
    """
    if asked is not None and (asked.endswith((".yaml", ".yml")) or Path(asked).is_file()):
        return read_expectations(Path(asked).expanduser())
    known = {one.name: one for one in all_expectations()}
    listed = f"there are: {', '.join(known)}; or give the path of a YAML file"
    if asked is not None:
        if asked not in known:
            raise UserError(f"--expect: no expectations named '{asked}'", did_you_mean(asked, known, listed))
        return known[asked]
    if config is None:
        raise UserError("what was given does not say which recipe it is of", f"say it with --expect NAME; {listed}")
    known = {name: one for name, one in known.items() if stage in {one.stage, None}}
    fitting = [one for one in known.values() if not one.misfits(config)]
    if fitting:
        return max(fitting, key=lambda one: len(one.content.when))
    near = {one.name: one.misfits(config) for one in known.values()}
    name, wrong = min(near.items(), key=lambda pair: len(pair[1]), default=("", []))
    reason = f"; the nearest, {name}, is for other runs: {', '.join(wrong)}" if name else ""
    instead = f"--expect {name} judges by it nevertheless; " if name else ""
    raise UserError(f"no expectations fit this run{reason}", f"{instead}docs/check.md shows how to write some")
