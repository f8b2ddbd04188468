"""Run workers: as processes on this machine, or as Ray tasks on all machines of a cluster.

Processes are forked where that is safe, to share the loaded tokenizer and imports; with threads running, or on macOS,
they are spawned.

Ray joins the cluster at RAY_ADDRESS or the one that `ray start` started on this machine. Otherwise, or with
RAY_ADDRESS=local, it starts a cluster here for this run only. All machines must see the inputs and the run's folder
under the same paths, for example on a shared file system.
"""

import multiprocessing
import os
import platform
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from nemotron_data.prep.plan import Shard
from nemotron_data.prep.receipts import RECEIPT, Receipt, shard_folder
from nemotron_shared.system.background import can_fork
from nemotron_shared.system.errors import UserError, how_to_add
from nemotron_shared.system.process import end_with_parent, forked, forking

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


RETRIES = 2
START_ATTEMPTS = 6
"""Ray gives its raylet 30 seconds, which no setting changes; a busy machine may need several attempts."""
PATIENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_gcs_server_port_wait_time_s": "180",
    "RAY_gcs_server_request_timeout_seconds": "180",
    "RAY_NUM_REDIS_GET_RETRIES": "180",
}
"""Ray's environment: on a busy machine its server takes longer to start than Ray's defaults of 20 and 30 s."""
SHARE = "work on a file system that all machines of the Ray cluster share, run.home and the inputs included"


def run_on_ray(job: Any, shards: Sequence[Shard], setting: Any, progress: Any) -> Iterator[Result]:
    """Yield each shard with its receipt or error, as they finish. After an error no further shard is started.

    Raises:
        UserError: Ray is not installed, or a machine writes where this one cannot see it.
    """
    for name, value in PATIENT.items():  # read when Ray is imported
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise UserError(
            "data_prep.executor=ray: Ray is not installed", f"{how_to_add('ray')}, or set data_prep.executor=local"
        ) from error
    joined = _connect(ray, setting)
    try:
        yield from _tasks(ray, job, shards, setting, progress)
    finally:
        if not joined:
            ray.shutdown()


def _tasks(ray: Any, job: Any, shards: Sequence[Shard], setting: Any, progress: Any) -> Iterator[Result]:
    process = ray.remote(max_retries=RETRIES, num_cpus=1)(_process_on_ray)
    shared = ray.put(job)
    here = str(Path.cwd())
    waiting = list(reversed(shards))
    running: dict[Any, Shard] = {}
    at_once = 2 * max(setting.workers, int(ray.cluster_resources().get("CPU", 1)))
    while running or waiting:
        while waiting and len(running) < at_once:
            shard = waiting.pop()
            running[process.remote(shared, shard, here)] = shard
        finished, _ = ray.wait(list(running), timeout=0.5)
        for task in finished:
            shard = running.pop(task)
            result: Receipt | UserError
            try:
                result = ray.get(task)
            except ray.exceptions.WorkerCrashedError:
                where = ", ".join(part.file.path for part in shard.ranges[:3])
                result = UserError(
                    f"workers died {RETRIES + 1} times on shard {shard.index} ({where})",
                    "the machine may be out of memory: try a smaller data_prep.shard_mb",
                )
            if isinstance(result, Receipt) and not (shard_folder(job.directory, shard.index) / RECEIPT).is_file():
                what = f"shard {shard.index} was written on another machine"
                result = UserError(f"{what}, and {job.directory} does not show it here", SHARE)
            if isinstance(result, UserError):
                waiting.clear()
            yield shard, result
        progress.show()


def _process_on_ray(job: Any, shard: Shard, directory: str) -> Receipt | UserError:
    """Return user errors as values, because Ray would wrap an exception in its own. Paths may be relative."""
    try:
        os.chdir(directory)
        return job.process(shard)
    except FileNotFoundError:
        return UserError(f"{directory}: not there on {platform.node()}", SHARE)
    except UserError as error:
        return error


def _connect(ray: Any, setting: Any) -> bool:
    """Return True if a cluster was already running, or this process is already connected."""
    if ray.is_initialized():
        return True
    address = os.environ.get("RAY_ADDRESS") or ("auto" if _was_started() else None)
    join = address is not None and address != "local"
    if join:  # its workers may have been started without the folders on this process's sys.path
        code = [str(Path(each).resolve()) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
        what: dict[str, Any] = {
            "address": address,
            "job_config": ray.job_config.JobConfig(_py_driver_sys_path=code),
        }
    else:
        own = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        what = {"address": "local", "num_cpus": setting.workers, **own}
    expected = (RuntimeError, ConnectionError, TimeoutError, ray.exceptions.RayError)
    for attempt in range(1, START_ATTEMPTS + 1):
        try:
            _start_ray(ray, **what, log_to_driver=False, logging_level="error")
            break
        except Exception as error:
            # Ray raises a bare Exception if its raylet is too slow
            if not isinstance(error, expected) and type(error) is not Exception:
                raise
            ray.shutdown()
            absent = join and isinstance(error, ConnectionError)  # after Ray's own timeout
            if absent or attempt == START_ATTEMPTS:
                raise _no_ray(address if join else None, error) from (None if absent else error)
            busy = "does not answer" if join else "did not start"
            setting.announce(f"Ray {busy} in time on this busy machine; trying once more")
    if join:
        setting.announce(f"joined the Ray cluster at {ray.get_runtime_context().gcs_address}")
    else:
        setting.announce(f"started Ray on this machine, with {setting.workers} workers")
    return join


def _no_ray(address: str | None, error: Exception) -> UserError:
    """Args: address: of the cluster that could not be joined."""
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if address is None:
        return UserError(
            f"data_prep.executor=ray: Ray did not start on this machine ({reason})",
            "it may be too busy: run the same command again later, or with data_prep.executor=local",
        )
    why = "" if isinstance(error, ConnectionError) else f": {reason}"
    return UserError(
        f"no Ray cluster answers (RAY_ADDRESS={address}){why}",
        "start it (its token: RAY_AUTH_MODE=token, RAY_AUTH_TOKEN_PATH), or set RAY_ADDRESS=local to work here",
    )


def _start_ray(ray: Any, **settings: Any) -> None:
    """Call `ray.init` without its SIGTERM handler, which would end this process with exit code 15."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**settings)
    except BaseException:
        ray.shutdown()  # stop the parts that did start
        raise
    finally:
        if threading.current_thread() is threading.main_thread():  # Ray sets it only there
            signal.signal(signal.SIGTERM, handler)


def _was_started() -> bool:
    """Whether `ray start` has started a cluster on this machine.

    Ray's address "auto" would also join a temporary cluster that another run has started, and that ends with that run.
    """
    from ray._private.services import find_bootstrap_address

    return find_bootstrap_address(None) is not None
