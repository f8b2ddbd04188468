"""Verified checkpoints: complete and checked, or set aside.

A checkpoint is a folder of many files. Its mark, the file `COMPLETE`, is written last and describes the folder: SHA-256
and size of each file, the step, the number of processes, the last validation.

    checkpoint-30/                   complete: its files match its mark
    checkpoint-40/                   no mark: killed while writing; deleted by the next run
    damaged-checkpoint-20/           does not match its mark; kept for inspection, never loaded again

Names of folders and required files differ between engines, each of which describes its own by a `Layout`.
"""

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from nemotron_shared.artifacts import FileEntry
from nemotron_shared.config.training import PublishBest
from nemotron_shared.system.atomic import sync, write_text
from nemotron_shared.system.digest import file_digest, json_digest, tree_files
from nemotron_shared.system.disk import full_disk_error
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.metrics import Figures, MetricsLog
from nemotron_shared.tracking.run import Run

HIGHER_IS_BETTER = {"valid_reward": True, "valid_loss": False}
"""Metrics that rank validations; if both are present, the reward decides."""


@dataclass(frozen=True)
class Validation:
    """One metric of a validation: `valid_loss` or `valid_reward` after a step."""

    step: int
    name: str
    value: float

    def rank(self) -> tuple[float, int]:
        """Sort key: better values first, then earlier steps."""
        return (-self.value if HIGHER_IS_BETTER.get(self.name) else self.value, self.step)


def validation_of(step: int, figures: Figures) -> Validation | None:
    """The validation in a step's metrics; None if it has none, or it is not finite."""
    known: dict[str, float] = dict(figures.items())
    for name in HIGHER_IS_BETTER:
        if (value := known.get(name)) is not None and math.isfinite(value):
            return Validation(step, name, float(value))
    return None


def validations(log: MetricsLog) -> list[Validation]:
    """All logged validations of a run, in order of steps."""
    found = (validation_of(entry["step"], entry) for entry in log.read())
    return [validation for validation in found if validation is not None]


def best_of(found: Iterable[Validation]) -> Validation | None:
    """The best of several validations."""
    return min(found, key=Validation.rank, default=None)


def report_best(
    run: Run, keep: Callable[[Validation], str], published: Validation | None = None, prompts: int | None = None
) -> dict[str, float]:
    """`best_step` and its metric for a manifest, and a line if it is not the last step.

    Args:
        keep: called with the best validation if the last one is worse; saves the checkpoint of the step that is not
            published, because checkpoints are deleted on publishing, and returns a line about it.
        published: the best validation, if its step is published; None: the last step is.
        prompts: that a reward is a mean over: with few of them, a small difference says nothing.
    """
    found = validations(run.metrics)
    best = best_of(found)
    if best is None:
        return {}
    last = found[-1]
    over = f" (means over {prompts:,} prompts)" if prompts and best.name == "valid_reward" else ""
    values = f"{best.name} {best.value:.4g}, at the end {last.value:.4g}{over}"
    if published is not None:
        run.say(f"published is step {published.step}, which validated best: {values}")
    elif best.rank()[0] < last.rank()[0]:
        run.say(f"published is the last step; step {best.step} validated better: {values}")
    else:
        return {"best_step": best.step, f"best_{best.name}": best.value}
    if kept := keep(best):
        run.say(kept)
    return {"best_step": best.step, f"best_{best.name}": best.value}


LEARNT, LOOKED_AT = 0.1, 20
"""Mean loss of training, in nats a token, below which a model knows its rows; over so many steps."""


def best_to_publish(run: Run, layout: "Layout", when: PublishBest) -> tuple[Path, Validation] | None:
    """The checkpoint with the best validation, if it shall be published and the last step validated worse."""
    found, held = validations(run.metrics), best(run.checkpoints, layout)
    if when is None or held is None or held[1].rank()[0] >= found[-1].rank()[0]:
        return None
    until = held[1].step
    losses = [entry["loss"] for entry in run.metrics.read() if "loss" in entry and entry["step"] <= until][-LOOKED_AT:]
    if when == "when_learnt" and (not losses or sum(losses) / len(losses) > LEARNT):
        return None
    if damage := damage_of(held[0], layout):
        run.say(f"WARNING: {held[0]} validated best and is not published, because {damage}")
        return None
    return held


COMPLETE = "COMPLETE"
NAME = re.compile(r"checkpoint-(\d+)")
DAMAGED = "damaged-"


def step_of(path: Path) -> int:
    """The step at which a checkpoint folder was written; -1 for any other folder."""
    match = NAME.fullmatch(path.name)
    return int(match[1]) if match else -1


@dataclass(frozen=True)
class Mark:
    """Description of a complete checkpoint: its step, number of processes, files, and last validation.

    `files` are keyed by their path inside the checkpoint.
    """

    step: int
    world_size: int
    files: Mapping[str, FileEntry]
    validation: Validation | None = None

    def text(self) -> str:
        """The mark's exact text: equal marks give equal bytes, and `digest` covers all other keys."""
        body = asdict(self)
        return json.dumps(body | {"digest": json_digest(body)}, indent=2, sort_keys=True) + "\n"


@dataclass(frozen=True)
class Layout:
    """How an engine lays out its checkpoints.

    Attributes:
        step_of: optimizer steps in a folder of this name, negative if the folder is not a checkpoint.
        missing: state that is needed for resuming and missing in a folder, None if it is all there; called with
            the mark, after checking that the mark's files exist.
    """

    step_of: Callable[[Path], int] = step_of
    missing: Callable[[Path, Mark], str | None] = lambda checkpoint, mark: None


def read_mark(checkpoint: Path) -> Mark:
    """The mark of a checkpoint.

    Raises:
        ValueError: no valid mark, with the reason.
    """
    content = (checkpoint / COMPLETE).read_bytes()
    if not content:
        raise ValueError(f"{COMPLETE} is empty: an older version wrote it, without digests")
    try:
        body = json.loads(content)
        files = {name: FileEntry(**entry) for name, entry in body["files"].items()}
        validation = Validation(**body["validation"]) if body["validation"] else None
        mark = Mark(body["step"], body["world_size"], files, validation)
        # A changed byte gives broken JSON, a wrong digest, or a text we would not have written.
        unchanged = mark.text().encode() == content
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        unchanged = False
    if not unchanged:
        raise ValueError(f"{COMPLETE} has changed since it was written")
    return mark


def damage_of(checkpoint: Path, layout: Layout, *, digests: bool = True) -> str | None:
    """What is wrong with a marked checkpoint; None if it matches its mark.

    Args:
        digests: hash every file; otherwise compare sizes only.
    """
    try:
        mark = read_mark(checkpoint)
        if mark.step != layout.step_of(checkpoint):
            return f"{COMPLETE} is of step {mark.step}"
        for name, entry in mark.files.items():
            file = checkpoint / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != entry.bytes:
                return f"{name} has {file.stat().st_size:,} bytes instead of {entry.bytes:,}"
        if digests:
            found = _digests(checkpoint, mark.files)
            changed = [name for name, entry in mark.files.items() if found[name] != entry.sha256]
            if changed:
                return f"the bytes of {', '.join(changed)} have changed"
        return layout.missing(checkpoint, mark)
    except ValueError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename or checkpoint} cannot be read: {error.strerror}"


def mark_complete(checkpoint: Path, layout: Layout, *, world_size: int, validation: Validation | None = None) -> None:
    """Mark a checkpoint as complete once all of it is synced to disk, then check it.

    Raises:
        UserError: the disk is full, and the folder is removed; or state is missing, and it is set aside.
    """
    with removed_when_disk_is_full(checkpoint):
        files = {path.relative_to(checkpoint).as_posix(): path for path in tree_files(checkpoint)}
        files.pop(COMPLETE, None)
        for path in [*files.values(), *{path.parent for path in files.values()}]:
            sync(path)
        digests = _digests(checkpoint, files)
        table = {name: FileEntry(digests[name], path.stat().st_size) for name, path in files.items()}
        mark = Mark(layout.step_of(checkpoint), world_size, table, validation)
        write_text(checkpoint / COMPLETE, mark.text())
    # The files were hashed as read back from disk just now, so don't hash them again.
    damage = damage_of(checkpoint, layout, digests=False)
    if damage:
        aside = _set_aside(checkpoint)
        raise UserError(
            f"{checkpoint.name} is of no use ({damage}); it is set aside as {aside.name}, older ones are kept",
            "run the same command again to continue from the one before",
        )


@contextmanager
def removed_when_disk_is_full(checkpoint: Path) -> Generator[None]:
    """On a full disk, remove the partial checkpoint and raise a single clear error."""
    try:
        yield
    except Exception as error:
        full = full_disk_error(error, checkpoint)
        if full is None:
            raise
        shutil.rmtree(checkpoint, ignore_errors=True)
        raise full from error


def resume_point(directory: Path, layout: Layout, say: Callable[[str], None]) -> Path | None:
    """The newest complete checkpoint, verified by digest; None to start from scratch.

    A checkpoint without a mark is deleted. A damaged one is set aside, and the one before it is tried. Nothing else is
    removed: until training writes the next checkpoint, the older ones are all there is.

    Raises:
        UserError: there were checkpoints, and all of them are damaged.
    """
    for path in _all(directory, layout):
        if not (path / COMPLETE).is_file():
            shutil.rmtree(path)
    for path in reversed(_all(directory, layout)):
        damage = damage_of(path, layout)
        if damage is None:
            return path
        say(f"{path.name} is damaged ({damage}): set aside as {_set_aside(path).name}")
    if aside := _those_aside(directory):
        raise _none_left(directory, aside)
    return None


def require_one_left(directory: Path) -> None:
    """Refuse a folder whose checkpoints have all been set aside; the remaining ones are not verified.

    Raises:
        UserError: with their names.
    """
    aside = _those_aside(directory)
    if aside and not any(mark.parent.name not in aside for mark in directory.glob(f"*/{COMPLETE}")):
        raise _none_left(directory, aside)


def any_marked(directory: Path) -> bool:
    """Whether a folder has a marked checkpoint of any engine; the mark is not verified."""
    return any(mark.is_file() for mark in directory.glob(f"*/{COMPLETE}"))


def _those_aside(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob(f"{DAMAGED}*"))


def _none_left(directory: Path, aside: list[str]) -> UserError:
    what = f"{directory}: no whole checkpoint is left ({', '.join(aside)})"
    return UserError(what, "run the same command with --force to start over")


def latest(directory: Path, layout: Layout) -> Path | None:
    """The newest checkpoint with a mark; the mark is not verified."""
    marked = _marked(directory, layout)
    return marked[-1] if marked else None


def best(directory: Path, layout: Layout) -> tuple[Path, Validation] | None:
    """The checkpoint with the best validation so far, and that validation.

    If validations are rarer than checkpoints, several hold the same one; take the first, which is closest to it.
    """
    validated: dict[Validation, Path] = {}
    for path in _marked(directory, layout):
        with suppress(ValueError, OSError):  # damaged: set aside when a run tries to resume from it
            if validation := read_mark(path).validation:
                validated.setdefault(validation, path)
    found = best_of(validated)
    return (validated[found], found) if found else None


def prune(directory: Path, layout: Layout, *, keep: int, keep_best: bool) -> None:
    """Delete unfinished checkpoints, and complete ones except the newest `keep` and, if `keep_best`, the best."""
    kept = set(_marked(directory, layout)[-keep:])
    found = best(directory, layout) if keep_best else None
    if found:
        kept.add(found[0])
    for path in _all(directory, layout):
        if path not in kept:
            shutil.rmtree(path)


def _set_aside(checkpoint: Path) -> Path:
    """Rename a damaged checkpoint, keeping any earlier one with the same name."""
    aside, number = checkpoint.with_name(f"{DAMAGED}{checkpoint.name}"), 1
    while aside.exists():
        number += 1
        aside = checkpoint.with_name(f"{DAMAGED}{checkpoint.name}-{number}")
    checkpoint.rename(aside)
    sync(checkpoint.parent)
    return aside


def _digests(checkpoint: Path, names: Iterable[str]) -> dict[str, str]:
    """SHA-256 of files by name; hashing releases the GIL, so threads speed up the shards of a large model."""
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        return dict(pool.map(lambda name: (name, file_digest(checkpoint / name)), names))


def _all(directory: Path, layout: Layout) -> list[Path]:
    if not directory.is_dir():
        return []
    found = [path for path in directory.iterdir() if layout.step_of(path) >= 0]
    return sorted((path for path in found if path.is_dir() and not path.is_symlink()), key=layout.step_of)


def _marked(directory: Path, layout: Layout) -> list[Path]:
    return [path for path in _all(directory, layout) if (path / COMPLETE).is_file()]
