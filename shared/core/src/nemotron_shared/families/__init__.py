"""Model families: the first word of a command, by which artifacts are named.

A family is a YAML file in this folder, named after it:

    title: Our own little hybrid
    stages: [pretrain, sft]                # left out: all of them
    architecture: {like: nano3, hidden_size: 2048}
    tiny: {like: nano3}
    small: {like: nano3}

`architecture` has the fields of transformers' NemotronHConfig. `tiny` and `small` describe twins with the same kinds of
layers: one that trains on a laptop (`-c tiny`) and one that trains on a single GPU (`-c one_gpu`). `like` starts from
another family's fields. `model.architecture` accepts all of these names: `nano3`, `nano3_tiny`, `nano3_small`.

A package outside this repository adds a family as an entry point in the group `nemotron.families`:

    [project.entry-points."nemotron.families"]
    mine = "my_package:MINE"

    MINE = read_family(Path(__file__).parent / "mine.yaml", configs=Path(__file__).parent / "configs")

`configs` has a folder for each stage with the YAML files for `-c NAME`: `nemotron mine sft -c small` uses
`configs/sft/small.yaml`, which may build on the stage's own files (`defaults: [tiny, _self_]`). A config with the
family's name is its recipe, which `nemotron mine sft` uses by default.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from nemotron_shared.config.registry import Registry, shown
from nemotron_shared.stages import DEFAULT_FAMILY, STAGES
from nemotron_shared.system.errors import UserError, did_you_mean

LIKE = "like"
TWIN = "_tiny"
SMALL = "_small"
"""Suffixes that a family's name takes in the names of its twins."""
KINDS = {
    "title": (str, "a text"), "hub": (str, "a text"), "stages": (list, "a list"),
    "experimental": (bool, "true or false"),
    "architecture": (dict, "a mapping"), "tiny": (dict, "a mapping"), "small": (dict, "a mapping"),
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """One model family.

    Attributes:
        stages: the stages it has.
        hub: the hub model that its first stage starts from, if its own stages do not make one.
        configs: folder of configs by stage, in addition to the stages' own.
    """

    title: str
    hub: str | None = None
    stages: tuple[str, ...] = tuple(STAGES)
    experimental: bool = False
    architecture: Mapping[str, Any] = field(default_factory=dict)
    tiny: Mapping[str, Any] = field(default_factory=lambda: {LIKE: DEFAULT_FAMILY})
    small: Mapping[str, Any] = field(default_factory=lambda: {LIKE: DEFAULT_FAMILY})
    configs: Path | None = None

    def config(self, stage: str, choice: str) -> str:
        """The config meant by `choice`: the family's own file if it has one."""
        file = self.configs / stage / f"{choice}.yaml" if self.configs else None
        return str(file) if file and file.is_file() else choice


OUTSIDE: Registry[Family] = Registry(
    "family", "nemotron.families", {}, lambda found: isinstance(found, Family), "a Family"
)


def read_family(file: Path, configs: Path | None = None) -> Family:
    """Read a family from its YAML file.

    Raises:
        UserError: not YAML, not a mapping, an unknown key, or a value of the wrong type.
    """
    from nemotron_shared.config.files import parsed, read_text  # here: commands about artifacts do not need YAML

    content = parsed(file, read_text(file))
    if not isinstance(content, dict) or "title" not in content:
        raise UserError(f"{file}: not a family", "write a mapping with at least a `title`")
    for key in content:
        if key not in KINDS:
            raise UserError(f"{file}: a family has no '{key}'", did_you_mean(str(key), [*KINDS]))
    _require_kinds(str(file), content)
    return Family(**(content | {"stages": tuple(content.get("stages", STAGES))}), configs=configs)


def _require_kinds(place: str, values: Mapping[str, Any]) -> None:
    """Refuse invalid fields of a family, from a file or from a package."""
    for key, value in values.items():
        kind, called = KINDS[key]
        if not isinstance(value, kind):
            raise UserError(f"{place}: {key}: {shown(value)} is not {called}")
    for name in values.get("stages", ()):
        if name not in [*STAGES]:
            raise UserError(f"{place}: no stage '{name}'", did_you_mean(str(name), [*STAGES]))


def _of_package(name: str) -> Family:
    found = OUTSIDE.load(name)
    place = f"family '{name}' of {OUTSIDE.module_of(name)}"
    stages = list(found.stages) if isinstance(found.stages, tuple) else found.stages
    values = {key: getattr(found, key) for key in KINDS} | {"stages": stages}
    _require_kinds(place, {key: value for key, value in values.items() if key != "hub" or value is not None})
    if not isinstance(found.configs, Path | None):
        raise UserError(f"{place}: configs: {shown(found.configs)} is not a path")
    return found


@cache
def families() -> dict[str, Family]:
    """Our families, default first, then those of installed packages."""
    own = {file.stem: file for file in sorted(Path(__file__).parent.glob("*.yaml"))}
    own = {DEFAULT_FAMILY: own[DEFAULT_FAMILY]} | own
    return {name: read_family(file) for name, file in own.items()} | {
        name: _of_package(name) for name in OUTSIDE.places()
    }


def architectures() -> list[str]:
    """All names that `model.architecture` accepts."""
    return [name for family in families() for name in (family, f"{family}{TWIN}", f"{family}{SMALL}")]


def architecture(name: str) -> dict[str, Any]:
    """NemotronHConfig fields of a family or one of its twins: `nano3`, `nano3_tiny`, `nano3_small`.

    Raises:
        UserError: no such family, it describes no architecture, or its `like` goes in a circle.
    """
    return _fields(name, ())


def _fields(name: str, before: tuple[str, ...]) -> dict[str, Any]:
    size = next((end for end in (TWIN, SMALL) if name.endswith(end)), "")
    family = name.removesuffix(size)
    if family not in families():
        remedy = did_you_mean(name, architectures(), f"there are: {', '.join(architectures())}")
        raise UserError(f"model.architecture: no architecture '{name}'", f"{remedy}; or give the path of a YAML file")
    if name in before:
        raise UserError(f"model.architecture: each is like the next: {' -> '.join((*before, name))}")
    described = families()[family]
    found = dict({TWIN: described.tiny, SMALL: described.small}.get(size, described.architecture))
    if not found:
        raise UserError(f"model.architecture: the family {family} does not describe one", "give a YAML file's path")
    like = found.pop(LIKE, None)
    return (_fields(f"{like}{size}", (*before, name)) if like else {}) | found
