"""Weights & Biases, online or, with `WANDB_MODE=offline`, in the run's folder for a later `wandb sync`.

Results and inputs are logged as artifacts, so W&B can draw the lineage. An artifact is named by its content: an input
logged by its own run is found again, and one that no run has logged is logged when it is used.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import wandb

from nemotron_shared.artifacts import Artifact
from nemotron_shared.artifacts.manifest import MANIFEST
from nemotron_shared.config.training import TrackerSection
from nemotron_shared.tracking.completions import Completion
from nemotron_shared.tracking.trackers.base import SMALL_FILES, Ending

EXIT_CODES: dict[Ending, int] = {"finished": 0, "stopped": 130, "failed": 1}


class WandbTracker:
    """A run in W&B. Its id is the name of the run's folder, so a resumed run continues the same one.

    If the engine's library has a run open in this process, that one is used.
    """

    name = "W&B"

    def __init__(self, name: str, directory: Path, section: TrackerSection, settings: Mapping[str, Any]) -> None:
        self._is_own = wandb.run is None
        self._run = wandb.run or wandb.init(
            project=section.wandb_project,
            entity=section.wandb_entity,
            id=name,
            name=section.wandb_name or name,
            resume="allow",
            dir=directory,
            config=dict(settings),
            settings=wandb.Settings(console="off", silent=True, x_disable_meta=True, disable_git=True, save_code=False),
        )

    def figures(self, step: int, values: Mapping[str, float]) -> None:
        """Log a step's metrics."""
        self._run.log(dict(values), step=step)

    def completions(self, step: int, completions: Sequence[Completion]) -> None:
        """Log a table for each step, which W&B shows with a slider."""
        columns, rows = as_table(completions)
        self._run.log({"completions": wandb.Table(columns=columns, data=rows)}, step=step)

    def result(self, artifact: Artifact, inputs: Sequence[Artifact]) -> None:
        """Log the result as an artifact and the inputs as used ones; its metrics go into the summary."""
        self._run.summary.update(dict(numbers(artifact.manifest.metrics)))
        self._run.log_artifact(mirrored(artifact), aliases=[f"v{artifact.manifest.version}", "latest"])
        for used in inputs:
            if self._run.offline:  # `use_artifact` fails offline; record its underlying call for `wandb sync`
                self._run._log_artifact(mirrored(used), aliases=[], is_user_created=True, use_after_commit=True)
            else:
                self._run.use_artifact(mirrored(used))

    def end(self, ending: Ending) -> None:
        """Send what is pending."""
        if self._is_own:
            self._run.finish(exit_code=EXIT_CODES[ending])


def as_table(completions: Sequence[Completion]) -> tuple[list[Any], list[Iterable[Any]]]:
    """Columns and rows, with a column for each reward."""
    names = list(completions[0].rewards) if completions else []
    texts, numbers = ["which", "prompt", "completion", "expected"], ["reward", "advantage", "tokens", "ended"]
    rows: list[Iterable[Any]] = [
        [getattr(one, name) for name in texts] + [one.rewards[name] for name in names]
        + [getattr(one, name) for name in numbers]
        for one in completions
    ]  # fmt: skip
    return [*texts, *(f"rewards/{name}" for name in names), *numbers], rows


def mirrored(artifact: Artifact) -> wandb.Artifact:
    """A W&B artifact with our artifact's small files; its metadata has the location of the full one."""
    made = artifact.manifest
    known = {"reference": artifact.reference, "digest": made.digest, "path": str(artifact.path), **made.metrics}
    found = wandb.Artifact(made.name, type=made.type, metadata=known)
    for name in SMALL_FILES:
        if (artifact.path / name).is_file() and not (artifact.is_external and name == MANIFEST):
            found.add_file(str(artifact.path / name), name=name)
    if artifact.is_external:  # an external folder has no manifest; its digest identifies it
        with found.new_file("digest.txt") as file:
            file.write(f"{made.digest}\n")
    return found


def numbers(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    """Numbers in nested mappings, by path: `sft/sums/accuracy`."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{above}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{above}{name}", value
