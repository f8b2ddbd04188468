"""Run workers as processes on this machine.

They are forked where that is safe, to share the loaded tokenizer and imports; with threads running, or on macOS, they
are spawned.
"""

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from nemotron_data.prep.plan import Shard
from nemotron_data.prep.receipts import Receipt
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.background import can_fork
from nemotron_shared.runtime.process import end_with_parent, forked, forking

ATTEMPTS = 3
Result = tuple[Shard, Receipt | UserError]

_job: Any = None  # set once in each worker, when it starts


def run_here(job: Any, shards: Sequence[Shard], setting: Any, progress: Any) -> Iterator[Result]:
    """Yield each shard with its receipt or error, as they finish. After an error no further shard is started.

    If a worker dies, its shard is tried again, `ATTEMPTS` times in all.
    """
    workers = min(setting.workers, len(shards))
    if workers <= 1:
        for shard in shards:
            try:
                yield shard, job.process(shard)
            except UserError as error:
                yield shard, error
                return
        return
    left = {shard.index: shard for shard in shards}
    for attempt in range(1, ATTEMPTS + 1):
        failed = False
        for shard, result in _pool(job, list(left.values()), workers, progress):
            del left[shard.index]
            failed = failed or isinstance(result, UserError)
            yield shard, result
        if failed or not left:
            return
        setting.announce(f"a worker died; {len(left)} shards are left (attempt {attempt} of {ATTEMPTS})")
    first = next(iter(left.values()))
    where = ", ".join(part.file.path for part in first.ranges[:3])
    yield (
        first,
        UserError(
            f"workers died {ATTEMPTS} times, at or after shard {first.index} ({where})",
            "the system may be out of memory: try data_prep.workers=1, or a smaller data_prep.shard_mb",
        ),
    )


def _pool(job: Any, shards: Sequence[Shard], workers: int, progress: Any) -> Iterator[Result]:
    context = multiprocessing.get_context(start_method())
    pool = ProcessPoolExecutor(workers, context, initializer=_start, initargs=(job, os.getpid()))
    try:
        waiting = list(reversed(shards))
        running: dict[Future[Receipt], Shard] = {}
        while running or waiting:
            while waiting and len(running) < 2 * workers:
                shard = waiting.pop()
                with forking():  # submitting the first tasks starts the workers
                    running[pool.submit(_process, shard)] = shard
            for future in wait(running, timeout=0.5, return_when=FIRST_COMPLETED).done:
                shard = running.pop(future)
                try:
                    result: Receipt | UserError = future.result()
                except UserError as error:
                    waiting.clear()  # running shards are finished and kept
                    result = error
                yield shard, result
            progress.show()
    except BrokenProcessPool:
        return
    finally:
        # kill any worker left, even a busy one: an unfinished shard is redone next time
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)  # its thread must be gone before the next pool is forked


def start_method() -> str:
    """`fork` where it is safe, else `spawn`."""
    return "fork" if can_fork() else "spawn"


def _start(job: Any, parent: int) -> None:
    """Worker initializer: leave Ctrl-C to the parent, and exit when the parent dies."""
    global _job
    _job = job
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent(parent, signal.SIGKILL)
    forked()


def _process(shard: Shard) -> Receipt:
    return _job.process(shard)
