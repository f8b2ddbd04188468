"""Download a model after inspecting it: resumed by ranges, checked against the hub's digests, linked into a folder.

fetch(look, into)
"""

import os
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from nemotron_shared.errors import UserError
from nemotron_shared.hub_errors import HubPlace, hub_errors
from nemotron_shared.lock import locked
from nemotron_shared.runtime.console import clock, renew, say
from nemotron_shared.runtime.disk import full_disk_explained, size
from nemotron_shared.runtime.models.hub import Look, download
from nemotron_shared.runtime.models.promises import (
    REMEDY,
    SHA256,
    is_as_promised,
)

PROGRESS_SECONDS = 5.0
RANGE = 32 * 2**20
"""Bytes per request, and the most that a kill loses."""
TRANSFERS = 8


def fetch(look: Look, into: Path) -> dict[str, str]:
    """Download missing files, check everything against the hub's digests, and link it into `into`.

    Returns:
        SHA-256 by name.

    Raises:
        UserError: no space, no connection, or content that differs from the hub's digests, even after a second try.
    """
    text, entries, cache_folder = str(look.model), look.artifact.manifest.files, look.require_room()
    names = list(entries)
    if look.missing:
        say(f"[{text}] downloading {size(look.missing_bytes)} of commit {look.commit[:12]} to {cache_folder}")
    place = HubPlace(look.model.repository, look.model.revision, "model")
    with hub_errors(text, place), full_disk_explained(cache_folder):
        with _progress(text, look):
            _resume(look, look.missing)
            download(look.model, look.commit, names)
        if damaged := _damaged(look):
            # the cached blob does not match its name: damaged on disk or in transit
            say(f"[{text}] {', '.join(damaged)}: not what the hub promises; fetching again")
            for name in damaged:
                (look.folder / name).resolve().unlink()
                (look.folder / name).unlink(missing_ok=True)
            _resume(look, {name: entries[name].bytes for name in damaged if SHA256.fullmatch(look.expected[name])})
            download(look.model, look.commit, names)
            damaged = _damaged(look)
    if damaged:
        what = f"{text}: {', '.join(damaged)}: the content has another digest than the hub promises"
        raise UserError(what, REMEDY)
    elsewhere = False
    for name in names:
        blob, target = (look.folder / name).resolve(), into / name
        try:
            os.link(blob, target)  # no second copy of the bytes, and they survive cleaning the hub's cache
        except OSError:
            target.symlink_to(blob)
            elsewhere = True
    if elsewhere:
        say(f"[{text}] the hub's cache is on another disk: the artifact links to it, and needs it: {cache_folder}")
    return {name: entry.sha256 for name, entry in look.artifact.manifest.files.items()}


def _resume(look: Look, sizes: dict[str, int]) -> None:
    """Download large files into the hub's cache by ranges, resuming where an earlier process was killed.

    The library's own download resumes only within one process.
    """
    from huggingface_hub import HfFileSystem

    blobs, system = look.folder.parent.parent / "blobs", HfFileSystem(skip_instance_cache=True)

    def bring(name: str) -> None:
        blob = blobs / look.expected[name]
        partial = blob.with_name(f"{blob.name}.partial")
        address = f"{look.model.repository}@{look.commit}/{name}"
        with locked(blob.with_name(f".{blob.name}.lock"), wait=True):  # another store may be downloading it, too
            if blob.is_file():
                return
            with partial.open("ab") as file, system.open(address, "rb", block_size=RANGE, cache_type="none") as there:
                while (begun := file.tell()) < sizes[name]:
                    there.seek(begun)
                    part = there.read(min(RANGE, sizes[name] - begun))
                    if not part:
                        what = (
                            f"{look.model}: {name}: ends after {begun} of the {sizes[name]} bytes that the hub promises"
                        )
                        raise UserError(what, REMEDY)
                    file.write(part)
                    file.flush()
            partial.replace(blob)

    with ThreadPoolExecutor(TRANSFERS) as pool:
        list(pool.map(bring, sizes))


def _damaged(look: Look) -> list[str]:
    """Files whose content differs from the hub's digest."""
    return [name for name, expected in look.expected.items() if not is_as_promised(look.folder / name, expected)]


@contextmanager
def _progress(text: str, look: Look) -> Generator[None]:
    """Show a download's progress, by the size of the cache."""
    blobs, done = look.folder.parent.parent / "blobs", threading.Event()

    def here() -> int:
        return sum(path.stat().st_size for path in blobs.glob("*") if path.exists())

    began, before = time.monotonic(), here()

    def watch() -> None:
        while not done.wait(PROGRESS_SECONDS):
            got, seconds = here() - before, time.monotonic() - began
            left = (look.missing_bytes - got) * seconds / got if got > 0 else 0
            renew(f"[{text}] {size(max(got, 0))} of {size(look.missing_bytes)}  {clock(max(left, 0))} left")

    watcher = threading.Thread(target=watch, daemon=True)
    if look.missing:
        watcher.start()
    try:
        yield
    finally:
        done.set()
        if look.missing:
            watcher.join()
