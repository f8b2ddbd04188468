"""Raw inputs of a replay. They are read relative to the original working folder, and must not have changed."""

import os
from collections.abc import Generator, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path

from nemotron_data.sources.datasets import SYNTHETIC
from nemotron_data.sources.files import is_remote
from nemotron_shared.artifacts import Artifact, Source
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.segments import FOLDER


def folder_of(artifact: Artifact) -> str | None:
    """The working folder of the recorded command, from its last attempt."""
    segments = artifact.manifest.segments
    found = segments[-1].get("machine", {}).get(FOLDER) if segments else None
    return found if isinstance(found, str) else None


@contextmanager
def where_it_was(artifact: Artifact) -> Generator[None]:
    """Change to the original working folder if it still exists, because command and config may use relative paths."""
    folder = folder_of(artifact)
    if folder is None or not os.path.isdir(folder):  # noqa: PTH112 - a manifest of others may hold any text
        yield
        return
    with chdir(folder):
        yield


def require_there(artifact: Artifact) -> None:
    """Require the local files among the sources.

    Raises:
        UserError: one is missing.
    """
    gone = [one for one in artifact.manifest.sources if _is_file(one) and not os.path.exists(one.uri)]  # noqa: PTH110
    if not gone:
        return
    first, folder = gone[0], folder_of(artifact)
    place = _place(artifact, first)
    what = f"{artifact.reference} was made from {first.uri}{_and_more(gone)}, which is not there: {place.absolute()}"
    if folder is None and not place.is_absolute():
        raise UserError(what, "replay it from the folder that it was made in, which it did not record")
    raise UserError(what, f"put {_content(first)} there; a replay reads every source where it was read then")


def require_unchanged(artifact: Artifact, now: Sequence[Source]) -> None:
    """Compare the sources that would be read with those that were read then.

    Raises:
        UserError: a source has changed, was removed, or is new.
    """
    before = {one.uri: one for one in artifact.manifest.sources if _has_content(one)}
    after = {one.uri: one for one in now if _has_content(one)}
    other = [one for uri, one in before.items() if uri in after and after[uri].digest != one.digest]
    for found, said in (
        (other, "has other content now"),
        ([one for uri, one in before.items() if uri not in after], "would not be read any more"),
        ([one for uri, one in after.items() if uri not in before], "was not read then, and would be now"),
    ):
        if found:
            first = found[0]
            place = f" ({_place(artifact, first).absolute()})" if _is_file(first) else ""
            what = f"{artifact.reference}: its source {first.uri}{_and_more(found)} {said}{place}"
            raise UserError(what, _remedy(first, was_read=first.uri in before))


def _is_file(source: Source) -> bool:
    is_code = source.uri.startswith("package:")  # of a registered chat format
    return _has_content(source) and not is_code and not is_remote(source.uri)


def _has_content(source: Source) -> bool:
    """Whether a source has content to compare. Generated rows follow from settings, whose changes are only reported."""
    return not source.uri.startswith(f"{SYNTHETIC}:")


def _place(artifact: Artifact, source: Source) -> Path:
    return Path(folder_of(artifact) or "", source.uri)


def _remedy(source: Source, *, was_read: bool) -> str:
    if not was_read:
        return "take it away from there for the replay"
    return f"put {_content(source)} there" if _is_file(source) else f"restore its content ({_sha256(source)})"


def _content(source: Source) -> str:
    """Description of the content that must be present again."""
    if source.detail.get("digest_of", "content") != "content":
        return "the same file, with the time of its last change (cp -p)"
    return f"a file of the same content ({_sha256(source)})"


def _sha256(source: Source) -> str:
    return f"SHA-256 {source.digest[:12]}..."


def _and_more(found: Sequence[Source]) -> str:
    return f" and {len(found) - 1:,} more" if len(found) > 1 else ""
