"""Validate what a hub, or a mirror of it, says about files.

Its digests, commits and ETags become file names in the hub's cache; one with a slash would lead out of it.
"""

import hashlib
import re
from pathlib import Path
from typing import Any

from nemotron_shared.digest import file_digest
from nemotron_shared.errors import UserError

SHA256, GIT = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")
ETAG = re.compile(r'(?:W/)?"?[\w.+=:-]{1,200}"?', re.ASCII)
REMEDY = "check the mirror in HF_ENDPOINT, or the proxy; nothing was imported"


def require_commit(text: str, commit: Any) -> str:
    """Check that a commit is 40 hexadecimal digits.

    Raises:
        UserError: it is not.
    """
    if not isinstance(commit, str) or not GIT.fullmatch(commit):
        raise UserError(f"{text}: what the hub gives for its commit is none: {str(commit)[:80]!r}", REMEDY)
    return commit


def require_promise(text: str, name: str, digest: Any, size: Any, *, large: bool) -> None:
    """Refuse an invalid digest (SHA-256, or git's SHA-1 if not `large`) or size.

    Raises:
        UserError: with the file.
    """
    forms = (SHA256,) if large else (SHA256, GIT)
    if not isinstance(digest, str) or not any(form.fullmatch(digest) for form in forms):
        raise UserError(f"{text}: {name}: what the hub gives for its digest is none: {str(digest)[:80]!r}", REMEDY)
    if type(size) is not int or size < 0:
        raise UserError(f"{text}: {name}: what the hub gives for its size is none: {str(size)[:80]!r}", REMEDY)


def is_plain(name: Any) -> bool:
    """Whether a file is at the top of a repository, with a name that is safe on every file system."""
    if not isinstance(name, str):
        return False
    return 0 < len(name) <= 200 and name.isprintable() and not {"/", "\\"} & set(name) and name not in (".", "..")


def check_answers() -> None:
    """Make the library's HTTP client refuse responses with headers unsafe as file names; once per client."""
    from huggingface_hub import get_session

    hooks = get_session().event_hooks.setdefault("response", [])
    if _check_headers not in hooks:
        hooks.append(_check_headers)


def _check_headers(answer: Any) -> None:
    for header, form in (("ETag", ETAG), ("X-Linked-ETag", ETAG), ("X-Repo-Commit", GIT)):
        value = answer.headers.get(header)
        if value is not None and not form.fullmatch(value):
            raise UserError(f"{answer.url.host}: an answer with {header} {value[:80]!r}, which cannot be one", REMEDY)


def is_as_promised(path: Path, expected: str) -> bool:
    """Whether a file has the promised digest."""
    if SHA256.fullmatch(expected):
        return file_digest(path) == expected
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest() == expected
