"""Weights & Biases, online or, with `WANDB_MODE=offline`, into the run's folder for `wandb sync` later."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from nemotron_shared.artifacts import Artifact
from nemotron_shared.config.training import LoggerSection
from nemotron_shared.runtime.trackers import SMALL_FILES, Ending

EXIT_CODES: dict[Ending, int] = {"finished": 0, "stopped": 130, "failed": 1}


class WandbTracker:
    """One run of W&B. Its id is the name of the run's folder, so that a run that is continued goes on there, too."""

    name = "W&B"

    def __init__(self, name: str, directory: Path, section: LoggerSection, settings: Mapping[str, Any]) -> None:
        self._run = wandb.init(
            project=section.wandb_project,
            entity=section.wandb_entity,
            id=name,
            name=name,
            resume="allow",
            dir=directory,
            config=dict(settings),
            settings=wandb.Settings(console="off", silent=True, x_disable_meta=True, disable_git=True, save_code=False),
        )

    def figures(self, step: int, values: Mapping[str, float]) -> None:
        """Log the figures of a step."""
        self._run.log(dict(values), step=step)

    def result(self, artifact: Artifact) -> None:
        """Log an artifact with the result's small files; its metadata says where the whole of it lies."""
        made = artifact.manifest
        known = {"reference": artifact.reference, "digest": made.digest, "path": str(artifact.path), **made.metrics}
        mirrored = wandb.Artifact(made.name, type=made.type, metadata=known)
        for name in SMALL_FILES:
            if (artifact.path / name).is_file():
                mirrored.add_file(str(artifact.path / name), name=name)
        self._run.log_artifact(mirrored, aliases=[f"v{made.version}", "latest"])

    def end(self, ending: Ending) -> None:
        """Send what is left."""
        self._run.finish(exit_code=EXIT_CODES[ending])
