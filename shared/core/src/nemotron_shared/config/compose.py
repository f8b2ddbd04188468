"""Compose YAML files and command-line overrides with Hydra, recording the origin of each value.

    composed = compose(Path("stages/sft/config"), "tiny", ["train.train_iters=20", "engine=transformers"])
    composed.origins["train.train_iters"]      # "command line"
    composed.origins["optimizer.lr"]           # "tiny.yaml:14"

Hydra's compose API does the work: its `defaults:` list, config groups and override grammar (`key=value`, `+key=`,
`++key=`, `~key`). We add the origin of each value and readable errors.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from hydra import compose as hydra_compose
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from nemotron_shared.config.dialects import said_in_ours
from nemotron_shared.config.expansion import bounded
from nemotron_shared.config.failures import BROKEN, HOW_TO_WRITE, endless, first_line, not_composed, unreadable
from nemotron_shared.config.files import YAML_DUMPER, YAML_LOADER, require_defaults, require_plain_numbers
from nemotron_shared.config.grammar import readable
from nemotron_shared.config.keys import TRUST, keys_of_trust, leaf_keys
from nemotron_shared.config.overrides import COMMAND_LINE, Said, is_group, override, override_key, require_key, who_says
from nemotron_shared.config.references import engine_of
from nemotron_shared.config.sources import TooManyFiles, hydra_over
from nemotron_shared.config.translation import Translated, config_names, key_lines, translated
from nemotron_shared.errors import UserError, did_you_mean

TRANSLATED = "translated-from-another-library.yaml"
"""Unlike the name of any config of ours: it builds on those by name."""
CONFIG_PACKAGES = "nemotron.config"
"""Entry points of packages with config groups for every stage, such as `engine/*.yaml`."""


@dataclass(frozen=True)
class Composed:
    """The merged configuration, with references not yet resolved.

    `origins` maps a dotted key to "file.yaml:line" or "command line"; `files` lists the merged files in order; `notes`
    name keys of other libraries that have no effect. `trust_keys` are the `trust_remote_code` keys and their origins:
    no file may grant that, so they are removed from the tree. `choice` and `overrides` are what was asked for.
    """

    tree: DictConfig
    origins: dict[str, str]
    files: list[Path]
    notes: list[str] = field(default_factory=list)
    trust_keys: dict[str, str] = field(default_factory=dict)
    choice: str = ""
    overrides: tuple[str, ...] = ()


def compose(config_dir: Path, choice: str, overrides: Sequence[str]) -> Composed:
    """Merge the config `choice` (a name in `config_dir`, or a path) with `overrides`.

    Raises:
        UserError: no such config, a broken YAML file, a malformed override or one of an unknown key, or a number that
            YAML reads differently than people do.
    """
    asked = tuple(overrides)
    for text in overrides:
        require_key(text)
        require_plain_numbers(f"{who_says(text, None)}: {override_key(text)}", text.partition("=")[2])
    family = next((text.partition("=")[2] for text in overrides if override_key(text) == "run.family"), "")
    path = find_config(config_dir, choice, family)
    trust_keys = {key: COMMAND_LINE for key in map(override_key, overrides) if key.split(".")[-1] == TRUST}
    overrides = [readable(override) for override in overrides if override_key(override) not in trust_keys]
    with TemporaryDirectory(prefix="nemotron-config-") as scratch:
        said = None if path.parent == config_dir.resolve() else translated(path, [config_dir], family)
        if said is None:
            if path.parent != config_dir.resolve():
                require_defaults(path)
            found = _compose(config_dir, path, path, overrides, None, trust_keys)
            return replace(found, choice=choice, overrides=asked)
        start = Path(scratch) / TRANSLATED
        start.write_text(said.text, encoding="utf-8")
        found = _compose(config_dir, path, start, overrides, said, trust_keys)
        return replace(found, choice=choice, overrides=asked)


def write_composed(file: Path, composed: Composed) -> None:
    """Write a composed config for the process that continues with it. References to the environment stay references."""
    origins = [text.origin if isinstance(text, Said) else None for text in composed.overrides]
    tree = OmegaConf.to_container(composed.tree, resolve=False)
    files = [str(path) for path in composed.files]
    asked = {"tree": tree, "files": files, "overrides": list(map(str, composed.overrides)), "said_by": origins}
    kept = {name: getattr(composed, name) for name in ("origins", "notes", "trust_keys", "choice")}
    file.write_text(yaml.dump(kept | asked, Dumper=YAML_DUMPER, sort_keys=False, allow_unicode=True), encoding="utf-8")


def read_composed(file: Path) -> Composed:
    """Read a config that `write_composed` wrote."""
    found = yaml.load(file.read_text(encoding="utf-8"), YAML_LOADER)
    said_by, texts = found.pop("said_by"), found.pop("overrides")
    overrides = tuple(Said(text, who) if who else text for text, who in zip(texts, said_by, strict=True))
    tree = OmegaConf.create(found.pop("tree"), flags={"struct": True})
    return Composed(tree, files=[Path(path) for path in found.pop("files")], overrides=overrides, **found)


def _compose(
    config_dir: Path,
    path: Path,
    start: Path,
    overrides: Sequence[str],
    said: Translated | None,
    trust_keys: dict[str, str],
) -> Composed:
    """Compose a config whose file is known.

    Args:
        start: the file Hydra begins with: `path`, or its translation if that is another library's config.
    """
    # A config outside the stage may build on files next to it, the stage's own, and groups shared by all stages. One
    # of another library may not use files next to it: a default.yaml there is not ours.
    beside = [] if said else [path.parent]
    ours = [config_dir.resolve(), *shared_groups()]
    folders = list(dict.fromkeys([start.parent, *beside, *ours]))
    search = override("hydra.searchpath", [f"file://{folder}" for folder in folders[1:]])
    try:
        with bounded(), hydra_over(start.parent, ours):
            tree, overrides, theirs, notes = _in_our_keys(start.stem, search, folders, overrides)
            arguments = [search, *overrides]
            loader = GlobalHydra.instance().config_loader()
            defaults = loader.compute_defaults_list(start.stem, arguments, RunMode.RUN).defaults
        origins: dict[str, str] = {}
        files = []
        for item in defaults:
            candidates = (folder / f"{item.config_path}.yaml" for folder in folders)
            file = next((one for one in candidates if one.is_file()), None)
            if file is None or str(item.config_path).startswith("hydra"):
                continue
            if said is not None and file == start:
                files.append(path)
                origins |= said.origins
                continue
            files.append(file)
            prefix = f"{item.package}." if item.package not in {None, "", "_global_"} else ""
            name = f"{item.config_path}.yaml"
            for key, line in key_lines(yaml.compose(file.read_text(encoding="utf-8"), YAML_LOADER), prefix):
                if not key.startswith("defaults"):
                    origins[key] = f"{name}:{line}"
    except OverrideParseException as error:
        raise unreadable(error, overrides) from error
    except ConfigCompositionException as error:
        raise not_composed(start, folders, [search, *overrides], error) from error
    except BROKEN as error:
        raise UserError(f"{path.name}: {first_line(error)}", HOW_TO_WRITE) from error
    except yaml.YAMLError as error:
        raise UserError(f"{path.name}: not valid YAML: {error}", "correct the file") from error
    except (RecursionError, TooManyFiles) as error:
        raise endless(path, config_dir, error) from error
    origins |= {key: who_says(text, theirs.get(key)) for text in overrides if (key := override_key(text))}
    for key in list(keys_of_trust(OmegaConf.to_container(tree, resolve=False))):
        section, _, name = key.rpartition(".")
        with open_dict(tree):
            OmegaConf.select(tree, section).pop(name)
        trust_keys.setdefault(key, origins.pop(key, "config"))
    return Composed(tree, origins, files, [*(said.notes if said else []), *notes], trust_keys)


def _in_our_keys(
    name: str, search: str, folders: Sequence[Path], overrides: Sequence[str]
) -> tuple[DictConfig, list[str], dict[str, str], list[str]]:
    """The tree, and the overrides with other libraries' keys translated; see `said_in_ours`."""
    with suppress(ConfigCompositionException):  # raised again below, after translating keys of other libraries
        tree = hydra_compose(name, overrides=[search, *overrides])
        if _are_ours(overrides, tree, folders):
            return tree, list(overrides), {}, []
    groups = [text for text in overrides if is_group(text, folders)]
    without = hydra_compose(name, overrides=[search, *groups])
    found, theirs, notes = said_in_ours(
        [text for text in overrides if text not in groups],
        list(leaf_keys(without)),
        engine_of(without),
    )
    ours = [*groups, *found]
    return hydra_compose(name, overrides=[search, *ours]), ours, theirs, notes


def _are_ours(overrides: Sequence[str], tree: DictConfig, folders: Sequence[Path]) -> bool:
    """Whether every override sets an existing value; a key that adds one may be another library's."""
    values = set(leaf_keys(tree))
    return all(
        is_group(text, folders) or (not text.startswith(("+", "~")) and override_key(text) in values)
        for text in overrides
    )


def find_config(config_dir: Path, choice: str, family: str = "") -> Path:
    """Resolve `tiny`, `tiny.yaml`, `config/tiny.yaml` or any path to an absolute path.

    Args:
        family: the family whose configs are suggested first if the file does not exist.

    Raises:
        UserError: no such config.
    """
    candidates = [config_dir / choice, config_dir / f"{choice}.yaml", config_dir.parent / choice]
    if "/" in choice or choice.endswith((".yaml", ".yml")):
        candidates.insert(0, Path(choice))
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    if "/" in choice:
        raise UserError(f"no such file: {choice}", "give the path of a YAML file, or the name of a config")
    known = config_names(config_dir)
    own = [name for name in known if name.startswith(family)] if family else []
    ours = next((name for name in own if name == f"{family}_{choice}"), None)
    remedy = (
        f"did you mean '{ours}'?"
        if ours
        else did_you_mean(choice, own)
        or did_you_mean(choice, known, f"there are: {', '.join(known)}; or give the path of a YAML file")
    )
    raise UserError(f"no config named '{choice}' in {config_dir}", remedy)


@cache
def shared_groups() -> tuple[Path, ...]:
    """Folders of config groups in installed packages, found without importing the packages."""
    found = (find_spec(point.value) for point in entry_points(group=CONFIG_PACKAGES))
    return tuple(Path(spec.origin).parent for spec in found if spec and spec.origin)
