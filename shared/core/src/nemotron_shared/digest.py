"""Content digests: the identity of files, folders and configurations."""

import hashlib
import json
from pathlib import Path
from typing import Any


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_digest(value: Any) -> str:
    """SHA-256 of a JSON value, independent of the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def tree_files(root: Path) -> list[Path]:
    """Every file below `root`, in a fixed order."""
    return sorted((path for path in root.rglob("*") if path.is_file()), key=lambda path: path.as_posix())
