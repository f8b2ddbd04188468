"""Which version of a name was made from what, without reading ten thousand manifests.

    index.json   {"1": "9c1f...", "2": "77ab...", "3": null}      fingerprints; null: removed, its number stays taken

It only repeats what the manifests say, so it may be deleted, may lack what another process published at the same
time, and is not believed: whoever finds a version by it compares the manifest.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from nemotron_shared import atomic
from nemotron_shared.artifacts.manifest import MANIFEST, Manifest
from nemotron_shared.errors import UserError

INDEX = "index.json"


def read_index(shelf: Path) -> dict[int, str | None]:
    """Fingerprints by version, as far as they are known; `shelf` is the folder that holds the versions of a name."""
    try:
        content = atomic.read_json(shelf / INDEX)
        return {int(number): known for number, known in content.items()}
    except (UserError, OSError, AttributeError, ValueError):  # it can be made again
        return {}


def record(shelf: Path, learned: Mapping[int, str | None]) -> dict[int, str | None]:
    """Remember the fingerprints of versions, or (None) that a number was used and is gone. Returns all that is known.

    A store that is only readable, or full, does without: the next search reads the manifests again.
    """
    known = read_index(shelf) | dict(learned)
    with suppress(OSError, UserError):
        atomic.write_json(shelf / INDEX, {str(number): fingerprint for number, fingerprint in known.items()})
    return known


def complete_index(shelf: Path, numbers: Sequence[int]) -> dict[int, str | None]:
    """Fingerprints by version, those that were not known yet learned from the manifests."""
    known, learned = read_index(shelf), {}
    for number in numbers:
        if known.get(number) is None:
            # Without a manifest it is no version; one that cannot be read is no result that could be used again.
            with suppress(UserError):
                learned[number] = Manifest.read(shelf / f"v{number}" / MANIFEST).fingerprint
    return record(shelf, learned) if learned else known
