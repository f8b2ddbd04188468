"""Write a large file with direct I/O in the background, and compute its SHA-256.

Token shards are written once, must be on disk before they count as finished, and are read much later. In the page cache
they would cost a copy, and evict files that are in use.
"""

import errno
import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from mmap import mmap
from types import TracebackType
from typing import IO, Any, Self

BLOCK_BYTES = 1 << 20
"""Size of one write; a multiple of all alignments that direct writes require."""


class BulkFile:
    """Append to an open file that nothing else writes to.

    with open_atomic(path) as file, BulkFile(file) as bulk:
        bulk.write(array)
        digest = bulk.finish()

    If the system and file system support it, a thread writes blocks directly (`O_DIRECT`), so that a slow disk does not
    stall the caller. Files smaller than one block, and the rest after the last block, go through the page cache.
    """

    def __init__(self, file: IO[Any]) -> None:
        self._descriptor = file.fileno()
        # mmap is page-aligned, as direct writes require; one block is filled while the other is written
        self._block, self._other = memoryview(mmap(-1, BLOCK_BYTES)), memoryview(mmap(-1, BLOCK_BYTES))
        self._filled = 0
        self._digest = hashlib.sha256()
        self._direct = False
        self._thread: ThreadPoolExecutor | None = None  # started with the first full block
        self._writing: Future[None] | None = None

    def write(self, data: bytes | memoryview) -> None:
        """Append the bytes of a contiguous buffer. A disk error may be raised by a later call."""
        left = memoryview(data).cast("B")
        while left:
            piece = left[: BLOCK_BYTES - self._filled]
            left = left[len(piece) :]
            self._block[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)
            if self._filled == BLOCK_BYTES:
                self._hand_over()

    def finish(self) -> str:
        """Write the rest; returns the SHA-256 of everything, in hex. The caller must sync."""
        self._wait()
        self._set_direct(False)
        self._write_whole(self._block[: self._filled])
        self._filled = 0
        return self._digest.hexdigest()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.shutdown()  # before the file is closed

    def _hand_over(self) -> None:
        self._wait()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1)
            self._set_direct(True)
        self._writing = self._thread.submit(self._write_whole, self._block)
        self._block, self._other = self._other, self._block
        self._filled = 0

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()

    def _write_whole(self, left: memoryview) -> None:
        self._digest.update(left)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._set_direct(False)  # another alignment than ours, or a part of a block was already written

    def _set_direct(self, wanted: bool) -> None:
        """Turn direct I/O on or off; it stays off if unsupported."""
        flag = getattr(os, "O_DIRECT", 0)
        if not flag or wanted == self._direct:
            return
        import fcntl

        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | flag if wanted else flags & ~flag)
        except OSError:
            return
        self._direct = wanted
