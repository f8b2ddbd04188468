"""The content of an input file as a stream; `.gz` and `.zst` are decompressed as they are read.

with open_input("a.jsonl.gz") as file:
    file.readline()               # b'{"text": "Once upon a time"}\\n'
"""

import io
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from nemotron_data.sources.input_file import InputFile, file_system, format_of, is_remote, reported
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.redaction import redact

FEED_BYTES = 1 << 12  # small, because four bytes of zstd can become 128 KiB; a larger one is not faster
BUFFER_BYTES = 1 << 20
MOST_WINDOW_BYTES = 1 << 31  # as `zstd --long=31` needs


def open_input(file: InputFile | str | Path) -> IO[bytes]:
    """Open a file; `.gz` and `.zst` files are decompressed, and can only be read forward.

    Raises:
        UserError: the file is gone or not readable; while reading: it is truncated or damaged.
    """
    path = file.path if isinstance(file, InputFile) else os.fspath(file)
    with reported(path):
        if is_remote(path):
            system, place = file_system(path)
            # fsspec's own readline takes no limit, and a line may be larger than memory
            opened: IO[bytes] = io.BufferedReader(system.open(place, "rb"), 1 << 20)
        else:
            opened = Path(path).open("rb")  # noqa: SIM115 (the caller closes it)
    compression = format_of(path).compression
    return decompressed(opened, compression, redact(path)) if compression else opened


def decompressed(source: IO[bytes], compression: str, name: str) -> io.BufferedReader:
    """Stream of the decompressed content of `source`; closes `source` when it is closed.

    Args:
        compression: "gz" or "zst".
        name: name of the file in error messages.

    Reading raises `UserError` if the file is truncated or damaged.
    """
    if compression == "gz":
        stream = _Decompressed(source, lambda: zlib.decompressobj(wbits=31), zlib.error, name)
    else:
        try:
            import zstandard
        except ModuleNotFoundError as error:
            what = f"{name}: zstandard, which reads .zst, is not installed for this Python"
            raise UserError(what, "unpack the file, with: unzstd FILE, or install zstandard") from error
        engine = zstandard.ZstdDecompressor(max_window_size=MOST_WINDOW_BYTES)
        stream = _Decompressed(source, engine.decompressobj, zstandard.ZstdError, name)
    return io.BufferedReader(stream, BUFFER_BYTES)


class Converted(io.RawIOBase, ABC):
    """Forward-only stream of what another stream's content is converted to, piece by piece."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._ready = memoryview(b"")

    @abstractmethod
    def _next(self) -> bytes | None:
        """Convert one piece; None at the end of the file."""

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        while not self._ready:
            content = self._next()
            if content is None:
                return 0
            self._ready = memoryview(content)
        count = min(len(target), len(self._ready))
        target[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def close(self) -> None:
        self._source.close()
        super().close()


class _Decompressed(Converted):
    """The content of one compressed file.

    Files of several members or frames, as made by `cat a.gz b.gz`, `pigz` and `pzstd`, are read to their end.
    Uses a few MB of memory for any file size, and at most 128 MiB for a malicious file.
    """

    def __init__(self, source: IO[bytes], start: Callable[[], Any], broken: type[Exception], name: str) -> None:
        super().__init__(source)
        self._start, self._broken, self._name = start, broken, name
        self._member: Any = None
        self._rest = b""

    def _next(self) -> bytes | None:
        data = self._rest or self._source.read(FEED_BYTES)
        self._rest = b""
        if self._member is None:
            data = data.lstrip(b"\0") if self._broken is zlib.error else data  # tapes and tar pad gzip with zeros
            if not data:
                self._rest = self._source.read(FEED_BYTES)
                return b"" if self._rest else None
            self._member = self._start()
        if not data:
            raise UserError(f"{self._name}: cut short: the compressed stream has no end", "fetch the file again")
        try:
            content = self._member.decompress(data)
        except self._broken as error:
            raise UserError(f"{self._name}: cannot be decompressed: {error}", "fetch or write it again") from error
        if self._member.eof:
            self._rest, self._member = self._member.unused_data, None
        return content
