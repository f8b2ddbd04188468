"""A model family: the first word of a command, and the first part of its artifacts' names.

A package outside this repository adds one as an entry point of the group `nemotron.families`:

    [project.entry-points."nemotron.families"]
    mine = "my_package:MINE"

    MINE = Family("Our own little hybrid", configs=Path(__file__).parent / "configs")

`configs` holds a folder for each stage, with YAML files that `-c NAME` then finds: `nemotron mine sft -c small` takes
`configs/sft/small.yaml`, which may build on the stage's own files (`defaults: [tiny, _self_]`). A config called as the
family is its recipe, which `nemotron mine sft` takes when no config is named.
"""

from dataclasses import dataclass
from pathlib import Path

from nemotron_shared.stages import STAGES


@dataclass(frozen=True)
class Family:
    """Attributes: `stages` those that it has; `configs` a folder of configs by stage, beside the stages' own."""

    title: str
    stages: tuple[str, ...] = tuple(STAGES)
    experimental: bool = False
    configs: Path | None = None

    def config(self, stage: str, choice: str) -> str:
        """What `-c choice` means for a stage: a file of the family's own where there is one."""
        file = self.configs / stage / f"{choice}.yaml" if self.configs else None
        return str(file) if file and file.is_file() else choice
