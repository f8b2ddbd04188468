"""Write a large file past the page cache, beside the work that makes it, with its SHA-256 taken on the way.

Token shards are written once, must be on the disk before they count as finished, and are read much later. In the page
cache they would cost a copy and the memory of files that somebody does read.
"""

import errno
import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from mmap import mmap
from types import TracebackType
from typing import IO, Any, Self

BLOCK_BYTES = 1 << 20
"""Written at once; a multiple of every size that direct writes must be aligned to."""


class BulkFile:
    """Appends to an open file that nothing else writes to.

    with open_atomic(path) as file, BulkFile(file) as bulk:
        bulk.write(array)
        digest = bulk.finish()

    Blocks are written directly (`O_DIRECT`) where system and file system can, by a thread, so that a slow disk holds
    nobody up. A file smaller than one block, and the rest after the last, goes through the cache like any other.
    """

    def __init__(self, file: IO[Any]) -> None:
        self._descriptor = file.fileno()
        # mapped memory begins at a page, as direct writes ask for; one block is filled while the other is written
        self._block, self._other = memoryview(mmap(-1, BLOCK_BYTES)), memoryview(mmap(-1, BLOCK_BYTES))
        self._filled = 0
        self._digest = hashlib.sha256()
        self._direct = False
        self._thread: ThreadPoolExecutor | None = None  # begun with the first block that is full
        self._writing: Future[None] | None = None

    def write(self, data: bytes | memoryview) -> None:
        """Append the bytes of a contiguous buffer. An error of the disk may show at a later call."""
        left = memoryview(data).cast("B")
        while left:
            piece = left[: BLOCK_BYTES - self._filled]
            left = left[len(piece) :]
            self._block[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)
            if self._filled == BLOCK_BYTES:
                self._hand_over()

    def finish(self) -> str:
        """Write what is left; gives the SHA-256 of everything, in hex. Syncing is the caller's."""
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
                self._set_direct(False)  # another alignment than ours, or a part of a block was written before

    def _set_direct(self, wanted: bool) -> None:
        """Direct writing on or off; it stays off where there is no such thing."""
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
