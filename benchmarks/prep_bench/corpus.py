"""A benchmark corpus made from text on any developer machine: documentation and source code.

One line of `corpus.jsonl` (`corpus.parquet` has the same rows):

    {"id": 17, "source": "/usr/share/man/man1/tar.1.gz", "text": ".TH TAR 1 ..."}

Files are read in a seeded order, exact duplicates are dropped, and most long files are cut, so that the lengths are
those of web documents. The same machine and settings give the same corpus.
"""

import gzip
import hashlib
import json
import os
import random
import sys
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

RECIPE = 1  # increment when the recipe changes, to rebuild existing corpora
SYSTEM_FOLDERS = ["/usr/share/doc", "/usr/share/man", "/usr/share/perl", "/usr/share/licenses", "/usr/include"]
PROSE = {".md", ".rst", ".txt", ".html", ".ipynb", ".mdx", ".pod"}
CODE = {".py", ".pyi", ".h", ".hpp", ".js", ".ts", ".c", ".pl", ".pm", ".yaml", ".json", ".jinja", ".sh"}
DOCUMENTATION = ("/share/man/", "/share/doc/", "/share/licenses/")
PROSE_SHARE = 120 / 205
FILE_BYTES = range(120, 3_000_001)
JSON_BYTES = 60_000
SHORTEST_TEXT = 100
MINIFIED_LINE = 20_000
LONG_TEXT = 20_000
CUT_SHARE = 0.7
ROW_GROUP = 2000


class Document(NamedTuple):
    source: str
    text: str


def build_corpus(folder: Path, megabytes: int, extra: list[str], only: bool = False) -> dict[str, Any]:
    """Make the corpus in a folder, or use an existing one; returns its description (`corpus.json`).

    Args:
        megabytes: requested text, in 10^6 bytes of UTF-8; if the machine has less, `text_bytes` is smaller.
        extra: folders to read in addition to the environment's and the system's own, or `only` these.
    """
    wanted = {"recipe": RECIPE, "megabytes": megabytes, "add": sorted(extra), "only": only}
    described = folder / "corpus.json"
    if described.is_file():
        found = json.loads(described.read_text())
        if found["wanted"] == wanted:
            return found
    folder.mkdir(parents=True, exist_ok=True)
    described.unlink(missing_ok=True)
    documents = collect([*([] if only else default_folders()), *extra], megabytes * 1_000_000)
    documents = with_web_lengths(documents)
    write_jsonl(documents, folder / "corpus.jsonl")
    write_parquet(documents, folder / "corpus.parquet")
    sizes = [len(document.text.encode()) for document in documents]
    description = {"wanted": wanted, "documents": len(documents), "text_bytes": sum(sizes)}
    described.write_text(json.dumps(description, indent=2))
    return description


def default_folders() -> list[str]:
    """This environment's packages, the machine's standard libraries, and system documentation."""
    others = sorted(str(folder) for folder in Path("/usr/lib").glob("python3*"))
    python = [sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), *others]
    return [folder for folder in dict.fromkeys(python + SYSTEM_FOLDERS) if Path(folder).is_dir()]


def collect(folders: list[str], budget: int, seed: int = 0) -> list[Document]:
    """Documents of up to `budget` bytes: prose up to its share, then code, then the remaining prose."""
    kinds: dict[str, list[str]] = {"prose": [], "code": []}
    for path in sorted(set(files_below(folders))):
        kind = kind_of(path)
        if kind:
            kinds[kind].append(path)
    chance = random.Random(seed)
    for paths in kinds.values():
        chance.shuffle(paths)
    seen: set[bytes] = set()
    prose, code = (usable(kinds[kind], seen) for kind in ("prose", "code"))
    documents, used = [], 0
    for source, limit in ((prose, round(budget * PROSE_SHARE)), (code, budget), (prose, budget)):
        while used < limit and (document := next(source, None)) is not None:
            documents.append(document)
            used += len(document.text.encode())
    return documents


def files_below(folders: list[str]) -> Iterator[str]:
    for top in folders:
        for parent, names, files in os.walk(top):
            names[:] = [name for name in names if name != ".git" and not Path(parent, name).is_symlink()]
            yield from (f"{parent}/{file}" for file in files)


def kind_of(path: str) -> str | None:
    suffix = suffix_of(path)
    if suffix in CODE:
        return "code"
    return "prose" if suffix in PROSE or any(part in path for part in DOCUMENTATION) else None


def suffix_of(path: str) -> str:
    return Path(path.removesuffix(".gz")).suffix.lower()


def usable(paths: list[str], seen: set[bytes]) -> Iterator[Document]:
    """Unique documents among some files."""
    for path in paths:
        content = read_file(path)
        if content is None or len(content) not in FILE_BYTES:
            continue
        digest = hashlib.md5(content, usedforsecurity=False).digest()
        text = text_of(content, suffix_of(path))
        if text is not None and digest not in seen:
            seen.add(digest)
            yield Document(path, text)


def read_file(path: str) -> bytes | None:
    """Decompressed content; None for a link, and for files that are unreadable or far too large."""
    try:
        file = Path(path)
        if file.is_symlink() or file.stat().st_size > FILE_BYTES[-1]:
            return None
        content = file.read_bytes()
        return gzip.decompress(content) if path.endswith(".gz") else content
    except (OSError, EOFError, zlib.error):
        return None


def text_of(content: bytes, suffix: str) -> str | None:
    """Decoded text; None for binary, very short and machine-generated files."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if len(text) < SHORTEST_TEXT or "\0" in text or (suffix == ".json" and len(content) > JSON_BYTES):
        return None
    if suffix in {".js", ".json", ".html"} and any(len(line) > MINIFIED_LINE for line in text.split("\n", 2000)[:2000]):
        return None
    return text


def with_web_lengths(documents: list[Document], seed: int = 0) -> list[Document]:
    """Cut most of the long documents at line ends, in a seeded order."""
    chance = np.random.default_rng(seed)
    pieces: list[Document] = []
    for document in documents:
        if len(document.text) > LONG_TEXT and chance.random() < CUT_SHARE:
            pieces += [Document(document.source, piece) for piece in cut(document.text, chance)]
        else:
            pieces.append(document)
    random.Random(seed).shuffle(pieces)
    return pieces


def cut(text: str, chance: np.random.Generator) -> Iterator[str]:
    start = 0
    while start < len(text):
        length = int(np.clip(chance.lognormal(8.3, 1.0), 300, 60_000))
        newline = text.find("\n", start + length)
        end = len(text) if newline < 0 else newline + 1
        yield text[start:end]
        start = end


def write_jsonl(documents: list[Document], path: Path) -> None:
    with path.open("wb") as file:
        for number, document in enumerate(documents):
            file.write(orjson.dumps({"id": number, **document._asdict()}, option=orjson.OPT_APPEND_NEWLINE))


def write_parquet(documents: list[Document], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "id": range(len(documents)),
        "source": [d.source for d in documents],
        "text": [d.text for d in documents],
    }
    pq.write_table(pa.table(columns), path, compression="zstd", row_group_size=ROW_GROUP)


def read_texts(corpus: Path, every: int = 1) -> Iterator[str]:
    """Text of every n-th row of a JSONL file."""
    with corpus.open("rb") as file:
        for number, line in enumerate(file):
            if number % every == 0:
                yield orjson.loads(line)["text"]


def write_prefix(corpus: Path, path: Path, documents: int) -> Path:
    """Copy the first rows of a JSONL file, as a smaller corpus."""
    with corpus.open("rb") as source, path.open("wb") as target:
        for _, line in zip(range(documents), source, strict=False):
            target.write(line)
    return path


if __name__ == "__main__":
    print(build_corpus(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
