"""Compose YAML files and command-line overrides with Hydra, recording the origin of each value.

    composed = compose(Path("stages/sft/config"), "tiny", ["train.train_iters=20", "engine=transformers"])
    composed.origins["train.train_iters"]      # "command line"
    composed.origins["optimizer.lr"]           # "tiny.yaml:14"

Hydra's compose API does the work: its `defaults:` list, config groups and override grammar (`key=value`, `+key=`,
`++key=`, `~key`). We add the origin of each value, readable errors, and checks of every file that Hydra opens: only
Hydra knows which those are, as `defaults` has groups, packages, lists, optional entries and a search path.
"""

import logging
import math
import os
import re
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra._internal import config_loader_impl
from hydra._internal.config_repository import CachingConfigRepository, IConfigRepository
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.core_plugins.importlib_resources_config_source import ImportlibResourcesConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from nemotron_shared.config.files import (
    YAML_DUMPER,
    YAML_LOADER,
    parsed,
    read_text,
    require_composable,
    require_defaults,
    require_plain_numbers,
)
from nemotron_shared.config.overrides import (
    COMMAND_LINE,
    TRUST,
    Said,
    is_group,
    keys_of_trust,
    of_the_same_name,
    override,
    override_key,
    readable,
    require_key,
    who_says,
)
from nemotron_shared.config.references import bounded, engine_of, leaf_keys, setting
from nemotron_shared.config.translation import Translated, config_names, key_lines, said_in_ours, translated
from nemotron_shared.stages import STAGES
from nemotron_shared.system.errors import UserError, did_you_mean

MOST_SAID = 300
ALL_KEYS = "see --dry-run for all keys"
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
"""Errors Hydra raises at engine=null, a file that holds a number, and names longer than a file system allows."""


def not_composed(
    path: Path, folders: Sequence[Path], arguments: Sequence[str], error: ConfigCompositionException
) -> UserError:
    """Explain a composition error in the user's terms; the first of `arguments` is the search path."""
    if isinstance(error, MissingConfigException) and "Could not load" in str(error):
        return _not_there(path, folders, error)
    if group := re.search(r"Could not find '([\w/]+)/([\w.-]+)'", str(error)):
        known = sorted({name for folder in folders for name in config_names(folder / group[1])})
        remedy = did_you_mean(group[2], known, f"there are: {', '.join(known)}")
        return UserError(f"{group[1]}={group[2]}: no such {group[1]}", remedy)
    match = re.search(r"Could not (?:override|delete|append to config)[^']*'?([\w.@/-]+)", str(error))
    key = match[1].rstrip(".") if match else None
    search_path, *overrides = arguments
    if key is None or key not in map(override_key, overrides):
        return UserError(f"{path.name}: {first_line(error)}", HOW_TO_WRITE)
    known: list[str] = []
    # what failed to compose with the overrides may fail without them, too
    with hydra_over(path.parent, folders[1:]), suppress(*BROKEN):
        # keep the chosen engine: its keys differ from the default engine's
        chosen = [text for text in overrides if is_group(text, folders)]
        known = list(leaf_keys(hydra_compose(path.stem, overrides=[search_path, *chosen])))
    if any(name == key or name.startswith(f"{key}.") for name in known):
        return UserError(f"{COMMAND_LINE}: '{key}' cannot be set like this", f"write ++{key}=...")
    if above := next((name for name in known if key.startswith(f"{name}.")), None):
        with hydra_over(path.parent, folders[1:]):
            with_it = list(_with_section(folders, search_path, above))
        named = f"; a config with this section: {', '.join(with_it)}" if with_it else ""
        return UserError(f"{COMMAND_LINE}: unknown key '{key}'", f"'{above}' is not a section of {path.name}{named}")
    alike = of_the_same_name(key, known)
    sections = ", ".join(sorted({name.partition(".")[0] for name in known}))
    otherwise = ALL_KEYS if "." in key or not known else f"it is none of: {sections}; {ALL_KEYS}"
    remedy = did_you_mean(key, alike, f"did you mean '{alike[0]}'?") if alike else did_you_mean(key, known, otherwise)
    return UserError(f"{COMMAND_LINE}: unknown key '{key[:MOST_SAID]}'", remedy)


def _with_section(folders: Sequence[Path], search_path: str, section: str) -> Iterator[str]:
    """Configs that have a section of this name, their own or one that they inherit."""
    for name in sorted({one for folder in folders for one in config_names(folder)}):
        with suppress(UserError, *BROKEN):  # a file that is not a config
            if isinstance(setting(hydra_compose(name, overrides=[search_path]), section), dict):
                yield name


def _not_there(path: Path, folders: Sequence[Path], error: MissingConfigException) -> UserError:
    """The error for an entry of `defaults` without a file, with what to write instead if we can tell."""
    name = error.missing_cfg_file or ""
    asking = re.match(r"In '([^']+)'", str(error))
    asked_by = asking[1] if asking else path.stem
    above, _, last = name.rpartition("/")
    known = {one for folder in folders for one in config_names(folder)} - {path.stem}
    beside = asked_by.rpartition("/")[0]
    what = f"{asked_by}.yaml: its 'defaults' name '{name}'"
    if _is_absolute(folders, asked_by, name):
        what = f"{asked_by}.yaml: its 'defaults' name '/{name}': a path from the root cannot stand there"
        return UserError(what, "copy the file into the config's folder, and write its path from there")
    if beside and name.startswith(f"{beside}/") and (wanted := name.removeprefix(f"{beside}/")) in known:
        return UserError(f"{what}: a relative name means a file in the same folder", f"write '/{wanted}'")
    if above in STAGES and last in known:
        return UserError(f"{what}: a config may only build on configs of its own stage", f"write '{last}'")
    remedy = did_you_mean(name, known, f"there are: {', '.join(sorted(known))}")
    return UserError(f"{what}: no such config", remedy)


def _is_absolute(folders: Sequence[Path], asked_by: str, name: str) -> bool:
    """Whether an entry is an absolute path, whose leading slash Hydra takes for its search path."""
    file = next((file for folder in folders if (file := folder / f"{asked_by}.yaml").is_file()), None)
    content = parsed(file, read_text(file)) if file else None
    defaults = content.get("defaults") if isinstance(content, dict) else None
    return "/" in name and isinstance(defaults, list) and f"/{name}" in defaults


def unreadable(error: OverrideParseException, overrides: Sequence[str]) -> UserError:
    """The error for an override that Hydra's grammar cannot parse."""
    text = next((one for one in overrides if one == error.override), error.override)
    remedy = "write key=value, and quotes around a value with special characters: 'key=\"a, b\"'"
    why = first_line(error)
    why = "it has a character that needs quotes" if why.startswith("LexerNoViableAltException") else why
    return UserError(f"{who_says(text, None)}: '{text}' cannot be read: {why}", remedy)


def endless(path: Path, config_dir: Path, error: Exception) -> UserError:
    """The error for `defaults` that never end, or that are nested too deeply for Python.

    Args:
        config_dir: the stage's configs, which a file of the same name in another folder hides.
    """
    if files := _circle([path], set()):
        where = f"{path.name}: its 'defaults' lead in a circle ({' -> '.join(file.name for file in files)})"
        remedy = "take one of these files out of the other's 'defaults'"
        if hides := next((file for file in files if _hides(file, config_dir)), None):
            remedy = f"'{hides.stem}' is this folder's file, not the stage's: rename it, such as to my_{hides.name}"
        return UserError(where, remedy)
    if isinstance(error, UserError):
        return UserError(f"{path.name}: {error.message}", error.remedy)
    what = f"{path.name}, with what the command line sets, is nested too deeply"
    return UserError(what, "write fewer brackets within brackets, and shorter chains of 'defaults'")


def _hides(file: Path, config_dir: Path) -> bool:
    return file.parent != config_dir.resolve() and (config_dir / file.name).is_file()


def _circle(chain: list[Path], seen: set[Path]) -> list[Path]:
    """Files in one folder whose `defaults` form a cycle."""
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


def first_line(error: BaseException) -> str:
    """First line of an error's message; Hydra's may be empty, with the reason in the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines and (below := error.__cause__ or error.__context__):
        return first_line(below)
    return lines[0][:MOST_SAID] if lines else type(error).__name__


# Megatron's environment has a Hydra plugin that logs a traceback if no remote storage is set up.
STORAGE_PLUGIN = "multistorageclient.contrib.hydra"
STORAGE_RECORD, STORAGE_WARNING = "MSC config source not available", "provider=msc-universal"
MOST_NAMED = 500
"""Ten times as many as our largest config builds on."""


class CheckedFiles(FileConfigSource):
    """Files in the folders a config may build on, limited in size."""

    ours: ClassVar[Sequence[Path]] = ()
    """Our own folders, where an installer may have put links."""
    own: ClassVar[Path] = Path()
    """The folder of the config."""

    def load_config(self, config_path: str) -> ConfigResult:
        """Load one file.

        Raises:
            UserError: outside the allowed folders, too large, too deep, an alias contains itself, or an interpolation
                in its defaults.
        """
        file = Path(self.path, self._normalize_file_name(config_path))
        self._require_inside(file)
        if os.path.lexists(file):
            require_composable(file)
        return super().load_config(config_path)

    def _require_inside(self, file: Path) -> None:
        if Path(self.path) in self.ours and file.is_relative_to(self.path) and ".." not in file.parts:
            return
        if not any(map(file.resolve().is_relative_to, (self.own, *self.ours))):
            raise _outside(os.path.normpath(file), f"the config's folder {self.own}")


class CheckedPackages(ImportlibResourcesConfigSource):
    """Files in Hydra's own package, which it searches first for every name; paths must not lead out of it."""

    def load_config(self, config_path: str) -> ConfigResult:
        """Load one file.

        Raises:
            UserError: outside the package.
        """
        if config_path.startswith("/") or ".." in config_path.split("/"):
            raise _outside(config_path, "the folder of the config")
        return super().load_config(config_path)


def _outside(file: str, folder: str) -> UserError:
    remedy = "copy that file, and no link to it, into the folder"
    return UserError(f"'defaults' lead to {file}, outside of {folder}", remedy)


class TooManyFiles(UserError):
    """`defaults` branch too much or go in a circle."""


class CountedFiles(CachingConfigRepository):
    """Count a file each time it is named, since Hydra processes it each time."""

    def __init__(self, delegate: IConfigRepository) -> None:
        super().__init__(delegate)
        self.named = 0

    def load_config(self, config_path: str) -> ConfigResult | None:
        """Load a file, or take it from the cache.

        Raises:
            TooManyFiles: beyond the limit.
        """
        self.named += 1
        if self.named > MOST_NAMED:
            what = f"{config_path}: the {MOST_NAMED + 1}st file that 'defaults' lead to, each counted as often as named"
            raise TooManyFiles(what, "name fewer files, and each of them once")
        return super().load_config(config_path)


@contextmanager
def _checked_files(own: Path, ours: Sequence[Path]) -> Generator[None]:
    """Make Hydra open files only through `CheckedFiles`, limited in number by `CountedFiles`.

    Args:
        own: the config's folder.
        ours: other folders it may build on.
    """
    Plugins.instance()  # make Hydra register its own sources now, which it does only once
    types = SourcesRegistry.instance().types
    names = vars(config_loader_impl)
    before, repository = types.copy(), names["CachingConfigRepository"]
    types["file"] = type("CheckedFilesOfConfig", (CheckedFiles,), {"own": own.resolve(), "ours": tuple(ours)})
    types["pkg"] = CheckedPackages
    names["CachingConfigRepository"] = CountedFiles
    try:
        yield
    finally:
        types.update(before)
        names["CachingConfigRepository"] = repository


@contextmanager
def hydra_over(directory: Path, ours: Sequence[Path]) -> Generator[None]:
    """Initialise Hydra over a config's folder and ours, muting its storage plugin's message and nothing else."""

    def is_news(record: logging.LogRecord) -> bool:
        return record.getMessage() != STORAGE_RECORD

    logger = logging.getLogger(STORAGE_PLUGIN)
    logger.addFilter(is_news)
    GlobalHydra.instance().clear()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=STORAGE_WARNING)
            with _checked_files(directory, ours), initialize_config_dir(str(directory), version_base="1.3"):
                yield
    finally:
        GlobalHydra.instance().clear()
        logger.removeFilter(is_news)


TRANSLATED = "translated-from-another-library.yaml"
"""Unlike the name of any config of ours: it builds on those by name."""
CONFIG_PACKAGES = "nemotron.config"
"""Entry points of packages with config groups for every stage, such as `engine/*.yaml`."""


@dataclass(frozen=True)
class Composed:
    """The merged configuration, with references not yet resolved.

    `origins` maps a dotted key to "file.yaml:line" or "command line"; `files` lists the merged files in order; `notes`
    name keys of other libraries that have no effect. `trust_keys` are the `trust_remote_code` keys and their origins:
    no file may grant that, so they are removed from the tree. `choice` and `overrides` are the user's request.
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


GROUP = "engine"


def layout_for(composed: Composed, gpus: int, again: Callable[[str], Composed]) -> str | None:
    """The engine file for this number of GPUs, next to those the config builds on.

    Args:
        again: composes the same config with one more override.

    Returns:
        None if the config's layout already fits that number, or the file does not exist.
    """
    found = [file.with_name(f"{file.stem}_{gpus}gpus.yaml") for file in composed.files if file.parent.name == GROUP]
    layout = next((file.stem for file in reversed(found) if file.is_file()), None)
    if layout is None or _gpus_of(composed.tree) == gpus:
        return None
    return layout if _gpus_of(again(f"{GROUP}={layout}").tree) == gpus else None


def _gpus_of(tree: DictConfig) -> int | None:
    """Number of GPUs a layout is made for; None if the engine does not say."""
    if isinstance(processes := setting(tree, "engine.world_size"), int):
        return processes
    sizes = [setting(tree, f"engine.{key}") for key in ("num_nodes", "gpus_per_node")]
    return math.prod(sizes) if all(isinstance(size, int) for size in sizes) else None
