"""Which version of a name was made from what, without reading ten thousand manifests.

    index.json   {"1": "9c1f...", "2": "77ab...", "3": null}      fingerprints; null: removed, its number stays taken

It only repeats what the manifests say, so it may be deleted, may lack what another process published at the same
time, and is not believed: whoever finds a version by it compares the manifest.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from nemotron_shared import atomic
from nemotron_shared.artifacts.manifest import MANIFEST, Manifest
from nemotron_shared.errors import UserError

INDEX = "index.json"


class FingerprintIndex:
    """The index of one name; `shelf` is the folder that holds its versions."""

    def __init__(self, shelf: Path) -> None:
        self.shelf = shelf
        self.fingerprints = self._read()

    def made_from(self, fingerprint: str) -> list[int]:
        """Versions with this fingerprint, the newest first."""
        return sorted((number for number, known in self.fingerprints.items() if known == fingerprint), reverse=True)

    def complete(self, numbers: Sequence[int]) -> None:
        """Learn the fingerprints of versions that are there and not known yet, from their manifests."""
        learned = {}
        for number in numbers:
            if self.fingerprints.get(number) is not None:
                continue
            # Without a manifest it is no version; one that cannot be read is no result that could be used again.
            with suppress(UserError):
                learned[number] = Manifest.read(self.shelf / f"v{number}" / MANIFEST).fingerprint
        if learned:
            self.fingerprints |= learned
            self._write()

    def record(self, number: int, fingerprint: str | None) -> None:
        """Remember a version that was just published, or (None) that its number was used and is gone."""
        self.fingerprints[number] = fingerprint
        self._write()

    def _read(self) -> dict[int, str | None]:
        try:
            content = atomic.read_json(self.shelf / INDEX)
        except (UserError, OSError):
            return {}
        if not isinstance(content, dict):
            return {}
        try:
            return {int(number): known for number, known in content.items()}
        except ValueError:
            return {}

    def _write(self) -> None:
        # A store that is only readable, or full, does without: the next search reads the manifests again.
        with suppress(OSError, UserError):
            atomic.write_json(self.shelf / INDEX, {str(number): known for number, known in self.fingerprints.items()})
