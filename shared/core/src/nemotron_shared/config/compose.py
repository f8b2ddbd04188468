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
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException, HydraException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from nemotron_shared.config.dialects import said_in_ours
from nemotron_shared.config.expansion import bounded
from nemotron_shared.config.files import YAML_LOADER, parsed, read_text, require_defaults
from nemotron_shared.config.overrides import Said, override, override_key
from nemotron_shared.config.references import engine_of
from nemotron_shared.config.sources import TooManyFiles, checked_files
from nemotron_shared.config.translation import Translated, config_names, key_lines, translated
from nemotron_shared.errors import UserError, did_you_mean

COMMAND_LINE = "command line"
MOST_SAID = 300
HOW_TO_WRITE = "docs/configuration.md shows how files and settings are written"
BROKEN = (
    HydraException,
    OmegaConfBaseException,
    ValueError,
    OSError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
)
"""What Hydra raises at engine=null, at a file that holds a number, and at names longer than a file system has."""
TRUST = "trust_remote_code"
TRANSLATED = "translated-from-another-library.yaml"
"""Named like no config of ours, since it builds on them by name."""
CONFIG_PACKAGES = "nemotron.config"
"""Entry points: packages whose folder holds config groups that every stage may use, such as `engine/*.yaml`."""
# Megatron's environment holds a plugin for Hydra that tells, with a traceback, that no remote storage is set up.
STORAGE_PLUGIN = "multistorageclient.contrib.hydra"
STORAGE_RECORD, STORAGE_WARNING = "MSC config source not available", "provider=msc-universal"


@dataclass(frozen=True)
class Composed:
    """The merged configuration before references are resolved.

    `origins` maps a dotted key to "file.yaml:line" or "command line"; `files` lists what was merged, first to last;
    `notes` say which keys of another library have no effect. `trust_keys` are those of the name `trust_remote_code`,
    and where they stood: no file may ask for that, so they are not in the tree.
    """

    tree: DictConfig
    origins: dict[str, str]
    files: list[Path]
    notes: list[str] = field(default_factory=list)
    trust_keys: dict[str, str] = field(default_factory=dict)


def compose(config_dir: Path, choice: str, overrides: Sequence[str]) -> Composed:
    """Merge the config `choice` (a name in `config_dir`, or a path) with `overrides`.

    Raises:
        UserError: no such config, a broken YAML file, a malformed override, or an override of an unknown key.
    """
    family = next((text.partition("=")[2] for text in overrides if override_key(text) == "run.family"), "")
    path = find_config(config_dir, choice, family)
    trust_keys = {key: COMMAND_LINE for key in map(override_key, overrides) if key.split(".")[-1] == TRUST}
    overrides = [override for override in overrides if override_key(override) not in trust_keys]
    with TemporaryDirectory(prefix="nemotron-config-") as scratch:
        said = None if path.parent == config_dir.resolve() else translated(path, [config_dir], family)
        if said is None:
            if path.parent != config_dir.resolve():
                require_defaults(path)
            return _compose(config_dir, path, path, overrides, None, trust_keys)
        start = Path(scratch) / TRANSLATED
        start.write_text(said.text, encoding="utf-8")
        return _compose(config_dir, path, start, overrides, said, trust_keys)


def _compose(
    config_dir: Path,
    path: Path,
    start: Path,
    overrides: Sequence[str],
    said: Translated | None,
    trust_keys: dict[str, str],
) -> Composed:
    """Args: start: the file to begin with, which is `path` itself unless that was said in ours."""
    # Config groups that all stages share; a config outside the stage may also build on the stage's own files. One of
    # another library builds on these only: a default.yaml beside it is not ours.
    beside = [] if said else [path.parent]
    ours = [config_dir.resolve(), *shared_groups()]
    folders = list(dict.fromkeys([start.parent, *beside, *ours]))
    search = override("hydra.searchpath", [f"file://{folder}" for folder in folders[1:]])
    try:
        with bounded(), _hydra(start.parent, ours):
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
        raise _unreadable(error, overrides) from error
    except ConfigCompositionException as error:
        raise _composition_error(start, folders, [search, *overrides], error) from error
    except BROKEN as error:
        raise UserError(f"{path.name}: {_first_line(error)}", HOW_TO_WRITE) from error
    except yaml.YAMLError as error:
        raise UserError(f"{path.name}: not valid YAML: {error}", "correct the file") from error
    except (RecursionError, TooManyFiles) as error:
        raise _endless(path, error) from error
    origins |= {key: _who_says(text, theirs.get(key)) for text in overrides if (key := override_key(text))}
    for key in list(_trust_keys(OmegaConf.to_container(tree, resolve=False))):
        section, _, name = key.rpartition(".")
        with open_dict(tree):
            OmegaConf.select(tree, section).pop(name)
        trust_keys.setdefault(key, origins.pop(key, "config"))
    return Composed(tree, origins, files, [*(said.notes if said else []), *notes], trust_keys)


def _who_says(override: str, theirs: str | None) -> str:
    """Args: theirs: the key of another library that was written."""
    who = override.origin if isinstance(override, Said) else COMMAND_LINE
    return f"{who} ({theirs})" if theirs else who


def _in_our_keys(
    name: str, search: str, folders: Sequence[Path], overrides: Sequence[str]
) -> tuple[DictConfig, list[str], dict[str, str], list[str]]:
    """The tree, and the overrides with the keys of other libraries said in ours; see `said_in_ours`."""
    with suppress(ConfigCompositionException):  # told below, after the keys of other libraries are understood
        tree = hydra_compose(name, overrides=[search, *overrides])
        if _are_ours(overrides, tree, folders):
            return tree, list(overrides), {}, []
    groups = [text for text in overrides if _is_group(text, folders)]
    without = hydra_compose(name, overrides=[search, *groups])
    found, theirs, notes = said_in_ours(
        [text for text in overrides if text not in groups],
        list(leaf_keys(without)),
        engine_of(without),
    )
    ours = [*groups, *found]
    return hydra_compose(name, overrides=[search, *ours]), ours, theirs, notes


def _is_group(override: str, folders: Sequence[Path]) -> bool:
    return any((folder / override_key(override)).is_dir() for folder in folders)


def _are_ours(overrides: Sequence[str], tree: DictConfig, folders: Sequence[Path]) -> bool:
    """Whether each override sets a value that the config has; what one adds may be a key of another library."""
    values = set(leaf_keys(tree))
    return all(
        _is_group(text, folders) or (not text.startswith(("+", "~")) and override_key(text) in values)
        for text in overrides
    )


def find_config(config_dir: Path, choice: str, family: str = "") -> Path:
    """The file meant by `tiny`, `tiny.yaml`, `config/tiny.yaml` or any path, as an absolute path.

    Args:
        family: whose configs are named first where there is no such file.

    Raises:
        UserError: there is none.
    """
    candidates = [config_dir / choice, config_dir / f"{choice}.yaml", config_dir.parent / choice]
    if "/" in choice or choice.endswith((".yaml", ".yml")):
        candidates.insert(0, Path(choice))
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
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
    """Folders of config groups that installed packages offer; the packages are found, not imported."""
    found = (find_spec(point.value) for point in entry_points(group=CONFIG_PACKAGES))
    return tuple(Path(spec.origin).parent for spec in found if spec and spec.origin)


@contextmanager
def _hydra(directory: Path, ours: Sequence[Path]) -> Generator[None]:
    """Hydra over a folder and ours. Its plugin says no word of a storage that nobody asked for; the rest is heard."""

    def is_news(record: logging.LogRecord) -> bool:
        return record.getMessage() != STORAGE_RECORD

    logger = logging.getLogger(STORAGE_PLUGIN)
    logger.addFilter(is_news)
    GlobalHydra.instance().clear()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=STORAGE_WARNING)
            with checked_files(directory, ours), initialize_config_dir(str(directory), version_base="1.3"):
                yield
    finally:
        GlobalHydra.instance().clear()
        logger.removeFilter(is_news)


def _composition_error(
    path: Path, folders: Sequence[Path], arguments: Sequence[str], error: ConfigCompositionException
) -> UserError:
    """What Hydra could not do, in the user's terms; the first of `arguments` is the search path."""
    if group := re.search(r"Could not find '([\w/]+)/([\w.-]+)'", str(error)):
        known = sorted({name for folder in folders for name in config_names(folder / group[1])})
        remedy = did_you_mean(group[2], known, f"there are: {', '.join(known)}")
        return UserError(f"{group[1]}={group[2]}: there is no such {group[1]}", remedy)
    match = re.search(r"Could not (?:override|delete|append to config)[^']*'?([\w.@/-]+)", str(error))
    key = match[1].rstrip(".") if match else None
    search_path, *overrides = arguments
    if key is None or key not in map(override_key, overrides):
        return UserError(f"{path.name}: {_first_line(error)}", HOW_TO_WRITE)
    known: list[str] = []
    with (
        _hydra(path.parent, folders[1:]),
        suppress(*BROKEN),
    ):  # what it takes not as a whole, it may not take by itself either
        # with the engine that is asked for, whose keys are not those of the default's
        chosen = [text for text in overrides if _is_group(text, folders)]
        known = list(leaf_keys(hydra_compose(path.stem, overrides=[search_path, *chosen])))
    if any(name == key or name.startswith(f"{key}.") for name in known):
        return UserError(f"{COMMAND_LINE}: '{key}' cannot be set like this", f"write ++{key}=...")
    return UserError(
        f"{COMMAND_LINE}: unknown key '{key[:MOST_SAID]}'", did_you_mean(key, known, "see --dry-run for all keys")
    )


def _unreadable(error: OverrideParseException, overrides: Sequence[str]) -> UserError:
    """An override that is none in Hydra's grammar."""
    text = next((one for one in overrides if one == error.override), error.override)
    remedy = "write key=value, and quotes around a value with special characters: 'key=\"a, b\"'"
    return UserError(f"{_who_says(text, None)}: '{text}' cannot be read: {_first_line(error)}", remedy)


def _first_line(error: BaseException) -> str:
    """What an error says; Hydra's may say nothing, and have one below that does."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines and (below := error.__cause__ or error.__context__):
        return _first_line(below)
    return lines[0][:MOST_SAID] if lines else type(error).__name__


def leaf_keys(tree: DictConfig) -> Iterator[str]:
    """Dotted keys of all values; see `leaves`."""
    return (key for key, _ in leaves(OmegaConf.to_container(tree, resolve=False)))


def leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of a tree, a list or an empty mapping counting as one value."""
    if isinstance(node, dict) and node:
        for name, child in node.items():
            yield from leaves(child, f"{key}.{name}" if key else str(name))
    else:
        yield key, node


def _trust_keys(node: Any, above: str = "") -> Iterator[str]:
    """Where `trust_remote_code` stands, in lists too."""
    for number, child in enumerate(node) if isinstance(node, list) else ():
        yield from _trust_keys(child, f"{above}[{number}]")
    for name, child in node.items() if isinstance(node, dict) else ():
        key = f"{above}.{name}" if above else str(name)
        if name == TRUST:
            yield key
        else:
            yield from _trust_keys(child, key)


def _endless(path: Path, error: Exception) -> UserError:
    """What keeps `defaults` from coming to an end."""
    circle = " -> ".join(file.name for file in _circle([path], set()))
    if isinstance(error, UserError) and not circle:
        return UserError(f"{path.name}: {error.message}", error.remedy)
    where = f"{path.name}: its 'defaults' lead in a circle{circle and f' ({circle})'}"
    return UserError(where, "take one of these files out of the other's 'defaults'")


def _circle(chain: list[Path], seen: set[Path]) -> list[Path]:
    """The files whose `defaults` lead from one to the next and back, as far as they lie in one folder."""
    seen.add(chain[-1])
    content = parsed(chain[-1], read_text(chain[-1]))
    defaults = content.get("defaults") if isinstance(content, dict) else None
    for entry in defaults if isinstance(defaults, list) else []:
        file = chain[-1].parent / f"{str(entry).removesuffix('.yaml')}.yaml"
        if file in chain:
            return [*chain[chain.index(file) :], file]
        is_beside = file.parent == chain[0].parent and file.is_file()
        if is_beside and file not in seen and (found := _circle([*chain, file], seen)):
            return found
    return []
