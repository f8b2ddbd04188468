"""Records in a run's folder: what is made, in which attempts, and with what.

A run's folder is named by `what` alone, so an unfinished run continues after a change of the other two. A finished
result is reused only if `what` and code are the same. If all attempts that made a result are alike, its bytes are those
of an uninterrupted run.

runs/super3-sft-model-1f0c.../what.json
{"what": {"train.train_iters": 300, ...}, "modules": {"stages.sft.train": "5e88..."}}
runs/super3-sft-model-1f0c.../segments.json
[{"began": "2026-01-31T12:00:00+00:00", "from_step": 0, "how": {"train.micro_batch_size": 8, ...},
  "modules": {"stages.sft.train": "5e88..."}, "machine": {"host": "node1", "processes": 1, "cores": 2, ...}}]
"""

import platform
import re
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nemotron_shared.artifacts import Producer
from nemotron_shared.artifacts.artifact import utc
from nemotron_shared.artifacts.manifest import REPLAYABLE, Manifest
from nemotron_shared.config.schema import Section, StageConfig
from nemotron_shared.engine.spec import Step, Task
from nemotron_shared.machine.machine import hardware
from nemotron_shared.stages import PACKAGE
from nemotron_shared.step.code import NEVER_COUNTS, modules_of
from nemotron_shared.step.own_code import SECTIONS, digests_in
from nemotron_shared.system.atomic import read_json
from nemotron_shared.system.digest import json_digest
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.file_cache import FileCache
from nemotron_shared.system.process import world_size
from nemotron_shared.system.redaction import redact, redact_values
from nemotron_shared.system.versions import environment, package_version
from nemotron_shared.tracking.segments import Segment, read_segments

PACKAGES = ("nemotron_shared", "nemotron_data", "nemotron_engines")
CONTENT = "content of "
"""Prefix of a setting's key, for the digest of the content it refers to."""
RULE = "rule of "
"""Prefix of a key for a decision of our code, which no setting shows: `rule of weight decay`."""
DIGEST = re.compile(r"\b[0-9a-f]{64}\b")


def what_and_how(values: Mapping[str, Any], section: Section) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split one section's values into `what` and `how`, by its schema."""
    what: dict[str, Any] = {}
    how: dict[str, Any] = {}
    for name, value in values.items():
        inner = getattr(section, name)
        if name in section.extra_keys() and not inner:
            continue
        if name in section.how_keys():
            how[name] = value
        elif isinstance(inner, Section) and isinstance(value, dict):
            what[name], how[name] = what_and_how(value, inner)
        else:
            what[name] = value
    return what, how


CODE = Path("cache", "code.json")
"""Where a store keeps the digests of modules."""


def modules_loaded(entries: Sequence[str], without: str | None, directory: Path, home: Path) -> dict[str, str]:
    """Digests of the modules a step loads.

    Args:
        entries: the step's module, and the chosen engine's.
        without: a module not to follow: the step that prepares the data, whose result counts by its content.
        directory: the stage's folder.
        home: the store's, where digests are kept if it is there; a dry run creates none.
    """
    first = _package_of(entries[0])
    stage = first if first.startswith(f"{PACKAGE}.") else entries[0].rpartition(".")[0]
    roots = {stage: directory}
    for package in {*PACKAGES, *map(_package_of, entries)} - {stage}:  # also of a stage or an engine from outside
        if (spec := find_spec(package)) and spec.origin:
            roots[package] = Path(spec.origin).parent
    cache = FileCache(home / CODE if home.is_dir() else None)
    found = modules_of(entries, roots, cache, (*NEVER_COUNTS, *([without] if without else [])))
    cache.save()
    return found


def _package_of(module: str) -> str:
    """The package whose modules are followed: `stages.sft` of ours, otherwise the first name."""
    first, *rest = module.split(".")
    return f"{first}.{rest[0]}" if first == PACKAGE and rest else first


def modules_of_step(step: Step, config: StageConfig, home: Path, *more: str) -> dict[str, str]:
    """Digests of the modules that a step loads with its config, and of `more`; `home` is the store's folder."""
    entries = [step.module, *filter(None, [step.engine_module(config)]), *step.chosen(config), *more]
    prepared = step.prepare.module if step.prepare else None
    found = modules_loaded(entries, prepared, step.directory, home)
    if not step.trains:
        return found
    return found | digests_in(config.model_dump(include={*SECTIONS}.intersection(step.sections)), step.sections)


MOST_SHOWN = 8
"""Differences that a line shows."""


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """`train.micro_batch_size 8 -> 4` for each key whose value differs.

    Digests are shortened; the content of a setting is left out if the setting itself differs.
    """
    unlike = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
    found = []
    for key in unlike:
        is_of_another = key.startswith(CONTENT) and key.removeprefix(CONTENT) in unlike
        if not is_of_another:
            old, new = (_short(values.get(key, "(none)")) for values in (before, now))
            found.append(f"{key} {old} -> {new}")
    return found


def listed(found: list[str]) -> str:
    """Differences as one text, the first of many."""
    sources = [one for one in found if one.startswith("source ")]
    if len(sources) > 1:  # report a change of thousands of files as one
        more = f"{sources[0]} and {len(sources) - 1:,} more source{'s' if len(sources) > 2 else ''}"
        found = [*(one for one in found if not one.startswith("source ")), more]
    more = f"; and {len(found) - MOST_SHOWN} more" if len(found) > MOST_SHOWN else ""
    return "; ".join(found[:MOST_SHOWN]) + more


def _short(value: Any) -> str:
    text = DIGEST.sub(lambda found: found[0][:12], str(value))
    return text if len(text) <= 40 else f"{text[:37]}..."


TRAVELLED = Path(__file__).resolve().parents[2] / "COMMIT"


def producer(step: Step, config_digest: str, code_digest: str, words: Sequence[str]) -> Producer:
    """Build the `producer` entry of a manifest; `words` are those of the command line."""
    return Producer(
        stage=step.stage,
        verb=step.verb,
        stage_version=package_version(f"nemotron-{step.stage}") or "not installed",
        shared_version=package_version("nemotron-shared") or "not installed",
        config_digest=config_digest,
        code_digest=code_digest,
        git=git_commit(step.directory),
        command=shlex.join(["python", "-m", step.module, *words]),
        environment=environment(),
    )


@cache
def ask_git(directory: Path) -> subprocess.Popen[str] | None:
    """Start asking git for the commit, so that it takes no time after the work; None without git."""
    command = ["git", "-C", str(directory), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except FileNotFoundError:
        return None


@cache
def git_commit(directory: Path) -> str | None:
    """Commit of the checkout that contains `directory`, with `-dirty` appended if it has changes; None outside one.

    Code that travels with a job brings its commit along, because it may be unpacked inside another checkout.
    """
    if TRAVELLED.is_file():
        return TRAVELLED.read_text(encoding="utf-8").strip() or None
    git = ask_git(directory)
    return (git.communicate()[0].strip() or None) if git else None


FOLDER = "folder"
"""Working folder of the command, in a segment's machine, for relative paths. It does not affect results."""
MOST_NAMED = 6


def what_it_was(file: Path) -> dict[str, dict[str, Any]] | None:
    """The record of a run; None if it is damaged."""
    with suppress(OSError, UserError):
        content = read_json(file)
        if isinstance(content, dict) and all(isinstance(content.get(key), dict) for key in ("what", "modules")):
            return content
    return None


def new_segment(task: Task[Any]) -> Segment:
    """A segment for an attempt starting here and now."""
    folder = {FOLDER: redact(str(Path.cwd()))}
    machine = {"host": platform.node(), **folder, "processes": world_size(), **hardware(), **environment()}
    return Segment(utc(time.time()), None, redact_values(task.how), dict(task.modules), machine)


def changes(before: Segment, now: Segment) -> list[str]:
    """Differences between two attempts, one phrase each: `how` settings, modules, libraries, machine."""
    found = differences(before.how, now.how) + changed_modules(before.modules, now.modules)
    machines = [{key: value for key, value in one.machine.items() if key != FOLDER} for one in (before, now)]
    return found + differences(*machines)


def why_not_promised(manifest: Manifest) -> str | None:
    """The reason for which an uninterrupted run may give other bytes; None if it gives the same.

    It gives the same where all attempts had the same settings, code and machine, and nothing in them draws otherwise
    each time.
    """
    attempts = [_what_counts(one) for one in manifest.segments]
    if manifest.metadata.get(REPLAYABLE) is False:
        return f"replayable: no, drawn by {manifest.metadata.get('generator', 'a generator that promises none')}"
    if not attempts:
        return "nothing is recorded of how it was made"
    alike = all(one == attempts[0] for one in attempts)
    return None if alike else f"made in {len(attempts)} segments that were not alike"


def promises_bytes(manifest: Manifest) -> bool:
    """Whether an uninterrupted run gives the same bytes; see `why_not_promised`."""
    return why_not_promised(manifest) is None


def processes_of(manifest: Manifest) -> int | None:
    """Processes that the last attempt at a result had; None if it is not recorded, as for data."""
    machine = _what_counts(manifest.segments[-1])[2] if manifest.segments else None
    return machine.get("processes") if machine else None


def _what_counts(segment: object) -> list[Any]:
    """The parts to compare of a segment in a manifest."""
    told = segment if isinstance(segment, dict) else {}
    machine = told.get("machine")
    machine = {key: value for key, value in machine.items() if key != FOLDER} if isinstance(machine, dict) else None
    return [told.get("how"), told.get("modules"), machine]


def changed_modules(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """One phrase naming the modules whose code differs; empty if none does."""
    modules = sorted({name for name, _ in before.items() ^ now.items()})
    more = f" and {len(modules) - MOST_NAMED} more" if len(modules) > MOST_NAMED else ""
    return [f"code of {', '.join(modules[:MOST_NAMED])}{more}"] if modules else []


def segments_of_result(directory: Path, seconds: float) -> list[dict[str, Any]]:
    """Attempts that made a result: the last one that started from scratch, and those that resumed it.

    In the manifest's form: one digest for all modules, and the duration of the last attempt.
    """
    found = read_segments(directory)
    starts = [index for index, segment in enumerate(found) if not segment.from_step]
    made_in = found[starts[-1] :] if starts else found
    written = [asdict(segment) | {"modules": json_digest(segment.modules)} for segment in made_in]
    if written:
        written[-1]["seconds"] = round(seconds, 1)
    return written


def made(manifest: Manifest, directory: Path) -> bool:
    """Whether the attempts in a run's folder are those that made an artifact."""

    def undated(attempts: list[Any]) -> list[Any]:
        return [one | {"seconds": None} if isinstance(one, dict) else one for one in attempts]

    return undated(segments_of_result(directory, 0)) == undated(manifest.segments)
