"""Content digests: the identity of files, folders and configurations."""

import hashlib
import json
from pathlib import Path
from typing import Any

BLOCK_BYTES = 1 << 20


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def json_digest(value: Any) -> str:
    """SHA-256 of a JSON value, independent of the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def tree_files(root: Path) -> list[Path]:
    """Every file below `root`, in a fixed order."""
    return sorted((path for path in root.rglob("*") if path.is_file()), key=lambda path: path.as_posix())
