"""Content digests: the identity of files, folders and configurations."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

# Hashing is bound by disk as much as by CPU, and hashlib releases the GIL.
HASHING_THREADS = 8
PIECE = 1 << 18

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
_thread = threading.local()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(PIECE))
    left: threading.Event | None = getattr(_thread, "left", None)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            if left is not None and left.is_set():
                raise InterruptedError(f"{path}: hashing was cancelled")
            digest.update(buffer[:count])
    return digest.hexdigest()


def in_threads(take: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> list[ResultT]:
    """Map `take`, which may hash files, over the items in threads; an interrupt does not wait for large files."""
    left = threading.Event()
    with ThreadPoolExecutor(HASHING_THREADS, initializer=setattr, initargs=(_thread, "left", left)) as pool:
        try:
            return list(pool.map(take, items))
        except BaseException:
            left.set()
            raise


def json_digest(value: Any) -> str:
    """SHA-256 of a JSON value, independent of the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def tree_files(root: Path) -> list[Path]:
    """All files below `root`, sorted."""
    return sorted((path for path in root.rglob("*") if path.is_file()), key=lambda path: path.as_posix())
