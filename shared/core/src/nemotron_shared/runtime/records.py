"""What a run's folder records: what is being made, and in which attempts.

If all attempts that made a result are alike, its bytes are those of an uninterrupted run.

runs/super3-sft-model-1f0c.../what.json
{"what": {"train.train_iters": 300, ...}, "modules": {"stages.sft.train": "5e88..."}}
runs/super3-sft-model-1f0c.../segments.json
[{"began": "2026-01-31T12:00:00+00:00", "from_step": 0, "how": {"train.micro_batch_size": 8, ...},
  "modules": {"stages.sft.train": "5e88..."}, "machine": {"host": "node1", "processes": 1, "cores": 2, ...}}]
"""

import platform
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nemotron_shared.artifacts.artifact import utc
from nemotron_shared.artifacts.manifest import Manifest
from nemotron_shared.atomic import read_json, write_json
from nemotron_shared.digest import json_digest
from nemotron_shared.errors import UserError
from nemotron_shared.redaction import redact, redact_values
from nemotron_shared.runtime.distributed import world_size
from nemotron_shared.runtime.identity import Identity, differences
from nemotron_shared.runtime.machine import hardware
from nemotron_shared.runtime.provenance import environment

WHAT, SEGMENTS = "what.json", "segments.json"
FOLDER = "folder"
"""Working folder of the command, in a segment's machine, for relative paths. It does not affect results."""
MOST_NAMED = 6


def is_recorded(config: Path) -> bool:
    """Whether a config was recorded by a run: it then states every value, including defaults."""
    return (config.parent / WHAT).is_file()


def what_it_was(file: Path) -> dict[str, dict[str, Any]] | None:
    """The record of a run; None if it is damaged."""
    with suppress(OSError, UserError):
        content = read_json(file)
        if isinstance(content, dict) and all(isinstance(content.get(key), dict) for key in ("what", "modules")):
            return content
    return None


@dataclass(frozen=True)
class Segment:
    """One attempt. `from_step` is the step it resumed after, None if it used nothing of an earlier attempt."""

    began: str
    from_step: int | None
    how: dict[str, Any]
    modules: dict[str, str]
    machine: dict[str, Any]


def new_segment(identity: Identity) -> Segment:
    """A segment for an attempt starting here and now."""
    folder = {FOLDER: redact(str(Path.cwd()))}
    machine = {"host": platform.node(), **folder, "processes": world_size(), **hardware(), **environment()}
    return Segment(utc(time.time()), None, redact_values(identity.how), identity.modules, machine)


def read_segments(directory: Path) -> list[Segment]:
    """Attempts recorded in a run's folder, oldest first.

    Raises:
        UserError: the file is damaged, so it is unknown how the unfinished run was made.
    """
    file, remedy = directory / SEGMENTS, "begin this run anew: the same command with --force"
    entries = read_json(file, remedy) if file.is_file() else []
    if not isinstance(entries, list) or not all(map(_is_segment, entries)):
        raise UserError(f"{file}: damaged: not the attempts of a run", remedy)
    return [Segment(**entry) for entry in entries]


def _is_segment(entry: object) -> bool:
    """Whether this has a segment's fields, with the right types."""
    if not isinstance(entry, dict) or set(entry) != set(Segment.__dataclass_fields__):
        return False
    step, modules = entry["from_step"], entry["modules"]
    texts = [entry["began"], *(modules.values() if isinstance(modules, dict) else [None])]
    sections = isinstance(entry["how"], dict) and isinstance(entry["machine"], dict)
    is_step = step is None or (type(step) is int and step >= 0)
    return sections and is_step and all(isinstance(text, str) for text in texts)


def write_segments(directory: Path, segments: list[Segment]) -> None:
    """Replace the recorded attempts."""
    write_json(directory / SEGMENTS, [asdict(segment) for segment in segments])


def continued(segments: list[Segment], step: int) -> list[Segment]:
    """Segments once the last one resumes from `step`; from the start (0), earlier ones no longer count."""
    before = segments[:-1] if step else []
    return [*before, replace(segments[-1], from_step=step)]


def changes(before: Segment, now: Segment) -> list[str]:
    """Differences between two attempts, one phrase each: `how` settings, modules, libraries, machine."""
    found = differences(before.how, now.how) + changed_modules(before.modules, now.modules)
    machines = [{key: value for key, value in one.machine.items() if key != FOLDER} for one in (before, now)]
    return found + differences(*machines)


def promises_bytes(manifest: Manifest) -> bool:
    """Whether an uninterrupted run gives the same bytes: all attempts had the same settings, code and machine."""
    attempts = [_what_counts(one) for one in manifest.segments]
    return bool(attempts) and all(one == attempts[0] for one in attempts)


def _what_counts(segment: object) -> list[Any]:
    """The parts to compare of a segment in a manifest."""
    told = segment if isinstance(segment, dict) else {}
    machine = told.get("machine")
    machine = {key: value for key, value in machine.items() if key != FOLDER} if isinstance(machine, dict) else None
    return [told.get("how"), told.get("modules"), machine]


def changed_modules(before: dict[str, str], now: dict[str, str]) -> list[str]:
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
