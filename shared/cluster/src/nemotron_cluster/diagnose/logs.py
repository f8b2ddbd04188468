"""Find and read the logs of one job in bounded memory."""

import codecs
import json
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nemotron_cluster.job import CODE
from nemotron_shared.system.errors import UserError

MB = 1 << 20
HEAD, TAIL = 2 * MB, 6 * MB
"""Bytes to read from the start and the end of a file."""
IN_ALL = 48 * MB
MOST_FILES, MOST_ENTRIES = 400, 50_000
LOG_NAME = re.compile(r"\.(?:log|out|err|txt|stdout|stderr)(?:\.\d+)?$|^(?:stdout|stderr|log|error\.json)$")
JOB_NUMBER = re.compile(r"(?:^|/)slurm-(\d+)|[-_.](\d{4,})\.(?:out|err|log|txt)$|(?:^|/)(\d+)-logs/|(?:^|/)exp_(\d+)/")
"""Job numbers in file names, which separate the logs of submissions that share a folder."""
SAMPLE = 20_000
"""Characters that show what a file is."""
REPLACED = "\ufffd"
OTHER_SUFFIXES = {
    ".md", ".rst", ".html", ".py", ".ipynb", ".sh", ".yaml", ".yml", ".toml", ".csv", ".tsv", ".parquet", ".arrow",
    ".safetensors", ".bin", ".pt", ".npy", ".gguf", ".png", ".jpg", ".pdf", ".zip", ".gz", ".tar",
}  # fmt: skip
MESSAGE_KEYS = {"message", "msg", "log", "error", "exception", "traceback", "level", "levelname", "severity", "event"}
"""Keys of which a line of a log in JSON has one."""
COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


@dataclass(frozen=True)
class Text:
    """The text of a file, or of its start and end."""

    name: str
    text: str
    changed: float
    skipped_at: int | None = None
    """Position at which the middle of a large file is left out; line numbers after it are unknown."""

    def number(self, at: int) -> int | None:
        """Line number of a position in the text."""
        known = self.skipped_at is None or at < self.skipped_at
        return self.text.count("\n", 0, at) + 1 if known else None


@dataclass(frozen=True)
class Logs:
    """The logs that were read, and those that were skipped."""

    texts: tuple[Text, ...]
    left_out: tuple[str, ...] = ()


def read_logs(path: Path) -> Logs:
    """Read one log file, or all logs in a folder."""
    try:
        if not path.is_dir():
            if not stat.S_ISREG(path.stat().st_mode):
                raise UserError(f"{path}: not a regular file", "give a log file, or a folder of logs")
            return Logs((_text(path, path.name),))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    found = sorted(_log_files(path), reverse=True)  # newest first
    numbers = {name: _job_number(name) for _, name in found}
    newest = next((number for number in numbers.values() if number), None)
    older = [name for name, number in numbers.items() if number not in (None, newest)]
    left_out = [f"{len(older)} of earlier jobs left out"] if older else []
    texts: list[Text] = []
    budget = IN_ALL
    wanted = [name for _, name in found if name not in set(older)]
    for name in wanted[:MOST_FILES]:
        if budget <= 0:
            break
        try:
            texts.append(_text(path / name, name))
        except OSError as error:
            left_out.append(f"{name}: {error.strerror}")
            continue
        budget -= len(texts[-1].text)
    if len(wanted) > len(texts) + len(left_out):
        left_out.append(f"{len(wanted) - len(texts)} more left out, beyond what is read at once")
    return Logs(tuple(texts), tuple(left_out))


NAME_A_LOG = "name a log file, a folder of logs, or a job: nemotron jobs"


def require_any(folder: Path, logs: Logs) -> None:
    """Refuse a folder of which nothing was read.

    Raises:
        UserError: it holds no log, or only empty or unreadable ones.
    """
    if logs.texts:
        return
    why = "; ".join(logs.left_out) or "no file that is named like a log (.log, .out, .err, .txt), or only empty ones"
    raise UserError(f"{folder}: nothing to read: {why}", NAME_A_LOG)


def require_log(path: Path, text: Text) -> None:
    """Refuse a file that tells nothing of a job, because it is something else than a log.

    Raises:
        UserError: it is empty, binary, rows of data, or of a name that no log has.
    """
    start = text.text[:SAMPLE]
    unreadable = sum(sign == REPLACED or (sign < " " and sign not in "\n\r\t\b\x1b\f") for sign in start)
    if not start.strip():
        why = "nothing is in it"
    elif unreadable > len(start) / 10:
        why = "a binary file"
    elif path.suffix.lower() in OTHER_SUFFIXES:
        why = f"a {path.suffix} file"
    elif _is_rows(start):
        why = "rows of JSON without a message"
    else:
        return
    raise UserError(f"{path}: not a log: {why}", NAME_A_LOG)


def _is_rows(start: str) -> bool:
    """Whether a text is JSON, line by line, and no log in that form."""
    whole = start.splitlines()[:-1] if len(start) == SAMPLE else start.splitlines()
    lines = [line for line in whole if line.strip()]
    try:
        rows = [json.loads(line) for line in lines]
    except (ValueError, RecursionError):
        return False
    keys = {str(key).lower() for row in rows if isinstance(row, dict) for key in row}
    return bool(rows) and all(isinstance(row, dict | list) for row in rows) and not keys & MESSAGE_KEYS


def _log_files(folder: Path) -> Iterator[tuple[float, str]]:
    """Modification time and relative name of regular files, excluding symlinks."""
    seen = 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != CODE)
        for name in names:
            seen += 1
            if seen > MOST_ENTRIES:
                return
            if not LOG_NAME.search(name):
                continue
            file = Path(place, name)
            try:
                found = file.lstat()
            except OSError:
                continue
            if stat.S_ISREG(found.st_mode) and found.st_size:
                yield found.st_mtime, file.relative_to(folder).as_posix()


def _job_number(name: str) -> str | None:
    found = JOB_NUMBER.search(name)
    return next(filter(None, found.groups())) if found else None


def _text(file: Path, name: str) -> Text:
    # the file may have been replaced by a pipe, which would block forever
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as stream:  # noqa: PTH123 - the descriptor is checked
        size = os.fstat(descriptor).st_size
        changed = os.fstat(descriptor).st_mtime
        if size <= HEAD + TAIL:
            return Text(name, _decoded(stream.read(HEAD + TAIL)), changed)
        head = _decoded(stream.read(HEAD))
        stream.seek(size - TAIL)
        return Text(name, f"{head}\n{_decoded(stream.read(TAIL))}", changed, skipped_at=len(head))


def text_of(name: str, data: bytes) -> Text:
    """A log that was read on another machine."""
    return Text(name, _decoded(data[-TAIL:]), time.time(), skipped_at=0 if len(data) > TAIL else None)


def _decoded(data: bytes) -> str:
    """Decode with any encoding: messages are recognized by their ASCII characters."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = data.decode("utf-16", errors="replace")
    else:
        text = data.decode("utf-8", errors="replace").replace("\0", "")
    return COLOURS.sub("", text) if "\x1b" in text else text
