"""Resumable downloads, verified against the digests of the lock file.

An incomplete file is called `NAME.partial`. Uses Python's HTTP client, which takes HTTPS_PROXY, NO_PROXY and
SSL_CERT_FILE from the environment.
"""

import http.client
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nemotron_cluster.airgap.packages import File
from nemotron_shared.atomic import sync
from nemotron_shared.digest import file_digest
from nemotron_shared.errors import UserError
from nemotron_shared.redaction import redact
from nemotron_shared.runtime.console import clock, renew
from nemotron_shared.runtime.disk import full_disk_explained, size

PARTIAL = ".partial"
TRANSFERS = 4
TRIES = 3
TIMEOUT = 60.0
"""Seconds without data after which a connection counts as lost."""
BLOCK = 1 << 20
PROGRESS_SECONDS = 5.0
REMEDY = "run the same command again, which goes on with what is here; check the connection and HTTPS_PROXY"


def is_whole(path: Path, sha256: str) -> bool:
    """Whether the file exists and has this digest."""
    return path.is_file() and file_digest(path) == sha256


def begun(path: Path) -> int:
    """Bytes of a partial file from an earlier process."""
    partial = path.with_name(path.name + PARTIAL)
    return partial.stat().st_size if partial.is_file() else 0


def size_on_index(file: File) -> int:
    """The size of a file according to the index, if the lock has none; 0 if unknown."""
    try:
        with _answer(urllib.request.Request(file.url, method="HEAD")) as answer:
            return int(answer.headers.get("Content-Length") or 0)
    except (OSError, http.client.HTTPException, ValueError):
        return 0


def download(files: Mapping[Path, File]) -> None:
    """Download files to their paths, several in parallel.

    Raises:
        UserError: the server cannot be reached or sends unexpected content, or the disk is full.
    """
    total, done, stop = sum(file.bytes or 0 for file in files.values()), threading.Event(), threading.Event()

    def watch() -> None:
        start, before = time.monotonic(), sum(map(_here, files))
        while not done.wait(PROGRESS_SECONDS):
            got = sum(map(_here, files))
            rate = (got - before) / (time.monotonic() - start)
            left = f"  {clock((total - got) / rate)} left" if rate > 0 else ""
            renew(f"{size(got)} of {size(total)}{left}")

    threading.Thread(target=watch, daemon=True).start()
    try:
        with ThreadPoolExecutor(TRANSFERS) as pool:
            running = [pool.submit(_bring, path, file, stop) for path, file in files.items()]
            try:
                for each in running:
                    each.result()
            except BaseException:
                stop.set()  # other threads stop soon, and keep their partial files
                pool.shutdown(wait=True, cancel_futures=True)
                raise
    finally:
        done.set()


def _here(path: Path) -> int:
    return path.stat().st_size if path.is_file() else begun(path)


def _bring(path: Path, file: File, stop: threading.Event) -> None:
    partial = path.with_name(path.name + PARTIAL)
    for attempt in range(1, TRIES + 1):
        try:
            with full_disk_explained(path):
                _transfer(partial, file, stop)
        except urllib.error.HTTPError as error:
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:  # longer than the file, so invalid
                partial.unlink(missing_ok=True)
                continue
            raise UserError(f"{redact(file.url)}: HTTP {error.code} {error.reason}", REMEDY) from error
        except (OSError, http.client.HTTPException) as error:
            if attempt == TRIES:
                raise UserError(f"{redact(file.url)}: {getattr(error, 'reason', None) or error}", REMEDY) from error
            stop.wait(attempt)
            continue
        if stop.is_set():
            return
        if is_whole(partial, file.sha256):
            sync(partial)
            partial.replace(path)
            return
        partial.unlink()  # restart from the beginning, since no part can be trusted
    what = f"{redact(file.url)}: the content has another SHA-256 than the lock says, even when fetched again"
    raise UserError(what, "something on the way changes it: check the proxy, and tell whoever runs it")


def _transfer(partial: Path, file: File, stop: threading.Event) -> None:
    """Append the missing bytes."""
    start = partial.stat().st_size if partial.is_file() else 0
    if start and start == file.bytes:
        return
    request = urllib.request.Request(file.url, headers={"Range": f"bytes={start}-"} if start else {})
    with _answer(request) as answer:
        continued = answer.status == http.HTTPStatus.PARTIAL_CONTENT
        with partial.open("ab" if continued else "wb") as target:
            while not stop.is_set() and (block := answer.read(BLOCK)):
                target.write(block)
                target.flush()
            length = target.tell()
    if file.bytes and length < file.bytes and not stop.is_set():
        raise ConnectionError(f"the connection ended after {length} of {file.bytes} bytes")


def _answer(request: urllib.request.Request) -> http.client.HTTPResponse:
    # urlopen would keep the proxy of its first call
    return urllib.request.build_opener().open(request, timeout=TIMEOUT)
