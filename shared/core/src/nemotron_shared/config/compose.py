"""Compose YAML files and command-line overrides with Hydra, and remember where each value came from.

    composed = compose(Path("stages/sft/config"), "tiny", ["train.train_iters=20", "engine=transformers"])
    composed.origins["train.train_iters"]      # "command line"
    composed.origins["optimizer.lr"]           # "tiny.yaml:14"

Hydra's compose API does the work: its `defaults:` list, its config groups, its override grammar
(`key=value`, `+key=`, `++key=`, `~key`). What is added here is the origin of each value and errors for people.
"""

import logging
import re
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException, HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemotron_shared.errors import UserError, did_you_mean

COMMAND_LINE = "command line"
CONFIG_PACKAGES = "nemotron.config"
"""Entry points: packages whose folder holds config groups that every stage may use, such as `engine/*.yaml`."""
# Megatron's environment holds a plugin for Hydra that tells, with a traceback, that no remote storage is set up.
STORAGE_PLUGIN = "multistorageclient.contrib.hydra"
STORAGE_RECORD, STORAGE_WARNING = "MSC config source not available", "provider=msc-universal"


@dataclass(frozen=True)
class Composed:
    """The merged configuration before references are resolved.

    `origins` maps a dotted key to "file.yaml:line" or "command line"; `files` lists what was merged, first to last.
    """

    tree: DictConfig
    origins: dict[str, str]
    files: list[Path]


def compose(config_dir: Path, choice: str, overrides: Sequence[str]) -> Composed:
    """Merge the config `choice` (a name in `config_dir`, or a path) with `overrides`.

    Raises:
        UserError: no such config, a broken YAML file, a malformed override, or an override of an unknown key.
    """
    path = find_config(config_dir, choice)
    with _hydra(path.parent), _readable_errors(path, config_dir, overrides):
        arguments = [*_search_path(path, config_dir), *overrides]
        tree = hydra_compose(path.stem, overrides=arguments)
        layers = _layers(path, arguments, [path.parent, config_dir, *shared_groups()])
    origins: dict[str, str] = {}
    for file, package in layers:
        origins |= _lines_by_key(file, package)
    origins |= {key: COMMAND_LINE for key in map(override_key, overrides) if key}
    return Composed(tree, origins, [file for file, _ in layers])


def find_config(config_dir: Path, choice: str) -> Path:
    """The file meant by `tiny`, `tiny.yaml`, `config/tiny.yaml` or any path, as an absolute path."""
    candidates = [config_dir / choice, config_dir / f"{choice}.yaml", config_dir.parent / choice]
    if "/" in choice or choice.endswith((".yaml", ".yml")):
        candidates.insert(0, Path(choice))
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    known = config_names(config_dir)
    remedy = did_you_mean(choice, known, f"there are: {', '.join(known)}; or give the path of a YAML file")
    raise UserError(f"no config named '{choice}' in {config_dir}", remedy)


def config_names(config_dir: Path) -> list[str]:
    """Names that `-c` accepts for a stage."""
    return sorted(path.stem for path in config_dir.glob("*.yaml"))


def override_key(override: str) -> str:
    """The dotted key that an override touches, without its `+`, `++` or `~`."""
    return override.partition("=")[0].lstrip("+~").strip()


def _search_path(path: Path, config_dir: Path) -> list[str]:
    """Config groups that all stages share; a config outside the stage may also build on the stage's own files."""
    own = [] if path.parent == config_dir.resolve() else [config_dir.resolve()]
    places = [*own, *shared_groups()]
    return [f"hydra.searchpath=[{','.join(f'file://{place}' for place in places)}]"]


@cache
def shared_groups() -> tuple[Path, ...]:
    """Folders of config groups that installed packages offer; the packages are found, not imported."""
    found = (find_spec(point.value) for point in entry_points(group=CONFIG_PACKAGES))
    return tuple(Path(spec.origin).parent for spec in found if spec and spec.origin)


@contextmanager
def _hydra(directory: Path) -> Generator[None]:
    GlobalHydra.instance().clear()
    try:
        with _quiet_storage_plugin(), initialize_config_dir(str(directory), version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().clear()


@contextmanager
def _quiet_storage_plugin() -> Generator[None]:
    """No word of a storage that nobody asked for; whatever else the plugin has to say is heard."""

    def is_news(record: logging.LogRecord) -> bool:
        return record.getMessage() != STORAGE_RECORD

    logger = logging.getLogger(STORAGE_PLUGIN)
    logger.addFilter(is_news)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=STORAGE_WARNING)
            yield
    finally:
        logger.removeFilter(is_news)


@contextmanager
def _readable_errors(path: Path, config_dir: Path, overrides: Sequence[str]) -> Generator[None]:
    try:
        yield
    except ConfigCompositionException as error:
        raise _composition_error(path, config_dir, overrides, error) from error
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(f"{path.name}: {_first_line(error)}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path.name}: not valid YAML: {error}") from error


def _composition_error(
    path: Path, config_dir: Path, overrides: Sequence[str], error: ConfigCompositionException
) -> UserError:
    group = re.search(r"Could not find '([\w/]+)/([\w.-]+)'", str(error))
    places = [path.parent, config_dir, *shared_groups()]
    if group:
        return _unknown_choice(places, *group.groups())
    match = re.search(r"Could not (?:override|delete|append to config)[^']*'?([\w.@/-]+)", str(error))
    key = match[1].rstrip(".") if match else None
    if key is None or key not in map(override_key, overrides):
        return UserError(f"{path.name}: {_first_line(error)}")
    with _hydra(path.parent):
        # with the engine that is asked for, whose keys are not those of the default's
        chosen = [text for text in overrides if any((place / override_key(text)).is_dir() for place in places)]
        known = list(leaf_keys(hydra_compose(path.stem, overrides=[*_search_path(path, config_dir), *chosen])))
    if any(name == key or name.startswith(f"{key}.") for name in known):
        return UserError(f"{COMMAND_LINE}: '{key}' cannot be set like this", f"write ++{key}=...")
    return UserError(f"{COMMAND_LINE}: unknown key '{key}'", did_you_mean(key, known, "see --dry-run for all keys"))


def _unknown_choice(places: Sequence[Path], group: str, choice: str) -> UserError:
    known = sorted({name for place in places for name in config_names(place / group)})
    remedy = did_you_mean(choice, known, f"there are: {', '.join(known)}")
    return UserError(f"{group}={choice}: there is no such {group}", remedy)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def leaf_keys(tree: DictConfig) -> Iterator[str]:
    """Dotted keys of all values, a list or an empty mapping counting as one value."""
    for key, node in as_mapping(tree).items():
        yield from _leaves(node, key)


def as_mapping(tree: DictConfig) -> dict[str, Any]:
    """The tree as plain values, references not resolved."""
    content = OmegaConf.to_container(tree, resolve=False)
    assert isinstance(content, dict)
    return {str(key): node for key, node in content.items()}


def _leaves(node: Any, key: str) -> Iterator[str]:
    if isinstance(node, dict) and node:
        for name, child in node.items():
            yield from _leaves(child, f"{key}.{name}")
    else:
        yield key


def _layers(path: Path, arguments: Sequence[str], directories: Sequence[Path]) -> list[tuple[Path, str]]:
    """Files of the defaults list with the package each is merged into, in the order of merging."""
    loader = GlobalHydra.instance().config_loader()
    defaults = loader.compute_defaults_list(path.stem, list(arguments), RunMode.RUN).defaults
    layers = []
    for item in defaults:
        for directory in directories:
            file = directory / f"{item.config_path}.yaml"
            if not str(item.config_path).startswith("hydra") and file.is_file():
                layers.append((file, item.package or ""))
                break
    return layers


def _lines_by_key(file: Path, package: str) -> dict[str, str]:
    """Each dotted key a YAML file sets, with "name:line"."""
    root = yaml.compose(file.read_text(encoding="utf-8"))
    prefix = f"{package}." if package and package != "_global_" else ""
    name = f"{file.parent.name}/{file.name}" if prefix else file.name
    found = _node_lines(root, prefix)
    return {key: f"{name}:{line}" for key, line in found if not key.startswith("defaults")}


def _node_lines(node: yaml.Node | None, prefix: str) -> Iterator[tuple[str, int]]:
    if not isinstance(node, yaml.MappingNode):
        return
    for key_node, value_node in node.value:
        key = f"{prefix}{key_node.value}"
        yield key, key_node.start_mark.line + 1
        yield from _node_lines(value_node, f"{key}.")
