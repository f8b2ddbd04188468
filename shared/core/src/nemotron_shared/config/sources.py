"""Check every file that Hydra opens while composing, before it is parsed.

Only Hydra knows which files those are: `defaults` has groups, packages, lists, optional entries and a search path.
"""

import logging
import os
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from hydra import initialize_config_dir
from hydra._internal import config_loader_impl
from hydra._internal.config_repository import CachingConfigRepository, IConfigRepository
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.core_plugins.importlib_resources_config_source import ImportlibResourcesConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult

from nemotron_shared.config.files import require_composable
from nemotron_shared.errors import UserError

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
