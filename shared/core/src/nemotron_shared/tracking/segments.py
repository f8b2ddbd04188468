"""The attempts of a run, in its folder: where each began, with which settings, code, and machine.

runs/super3-sft-model-1f0c.../segments.json
[{"began": "2026-01-31T12:00:00+00:00", "from_step": 0, "how": {"train.micro_batch_size": 8, ...},
  "modules": {"stages.sft.train": "5e88..."}, "machine": {"host": "node1", "processes": 1, "cores": 2, ...}}]
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nemotron_shared.system.atomic import read_json, write_json
from nemotron_shared.system.errors import UserError

SEGMENTS = "segments.json"


@dataclass(frozen=True)
class Segment:
    """One attempt. `from_step` is the step it resumed after, None if it used nothing of an earlier attempt."""

    began: str
    from_step: int | None
    how: dict[str, Any]
    modules: dict[str, str]
    machine: dict[str, Any]


def read_segments(directory: Path) -> list[Segment]:
    """Attempts recorded in a run's folder, oldest first.

    Raises:
        UserError: the file is damaged, so it is unknown how the unfinished run was made.
    """
    file, remedy = directory / SEGMENTS, "start this run over: the same command with --force"
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


def other_processes(segments: Sequence[Segment], step: int) -> int | None:
    """Number of processes of an earlier attempt at the first `step` steps, if the last attempt has another number."""
    *before, now = (one.machine.get("processes") for one in segments)
    return next((was for was in before if step and was not in (None, now)), None)
