"""Every file that Hydra opens while it puts a configuration together is checked before it is parsed.

Which files those are, only Hydra knows: `defaults` has groups, packages, lists, optional entries and a search path.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult

from nemotron_shared.config.files import require_composable


class CheckedFiles(FileConfigSource):
    """Files of a folder, each of a size that people write."""

    def load_config(self, config_path: str) -> ConfigResult:
        """Load one of them.

        Raises:
            UserError: it is too large, too deep, or contains itself; or its defaults hold an interpolation.
        """
        file = Path(self.path, self._normalize_file_name(config_path))
        if os.path.lexists(file):
            require_composable(file)
        return super().load_config(config_path)


@contextmanager
def checked_files() -> Generator[None]:
    """Let Hydra open files through `CheckedFiles` only."""
    Plugins.instance()  # registers Hydra's own, which it does once
    types = SourcesRegistry.instance().types
    before = types["file"]
    types["file"] = CheckedFiles
    try:
        yield
    finally:
        types["file"] = before
