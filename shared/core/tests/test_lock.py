"""One process at a time, on this machine and on file systems that several machines share."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from nemotron_shared.system import lock
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.lock import Busy, holder_of, is_held, locked

HOLD = """
import pathlib, sys, time
from nemotron_shared.system.lock import locked
with locked(pathlib.Path(sys.argv[1]), wait=False):
    print("held", flush=True)
    time.sleep(600)
"""


def hold(path: Path) -> subprocess.Popen:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


@pytest.fixture
def nfs(tmp_path: Path, monkeypatch) -> None:
    """The temporary folder as a network file system; heartbeats come quickly."""
    mounts = tmp_path.parent / f"{tmp_path.name}-mounts"
    mounts.write_text(f"root / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr(lock, "MOUNTS", mounts)
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.2)
    monkeypatch.setattr(lock, "SILENT_SECONDS", 3.0)


def test_a_second_process_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    process = hold(path)
    try:
        holder = holder_of(path)
        assert holder is not None and holder.pid == process.pid and holder.lives and is_held(path, holder)
        with pytest.raises(Busy, match=f"process {process.pid} is already running"), locked(path, wait=False):
            pass
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    left = holder_of(path)
    assert left is not None and not left.lives and not is_held(path, left)
    with locked(path, wait=False):
        assert holder_of(path).pid == os.getpid()
    assert holder_of(path) is None


@pytest.mark.parametrize("put", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_no_lock(tmp_path: Path, put) -> None:
    put(tmp_path / "lock")
    with pytest.raises(UserError, match="lock: not a regular file"), locked(tmp_path / "lock", wait=False):
        pass


def test_a_process_number_used_again_is_not_the_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path, wait=False):
        record = lock.record_of(path).read_text()
    mine = f'"process_started": "{lock._process_started(os.getpid())}"'
    lock.record_of(path).write_text(record.replace(mine, '"process_started": "1"'))
    with locked(path, wait=False):
        pass


def test_a_record_that_makes_no_sense_is_none(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    for text in ("", "{", "[]", '{"pid": 1}', "4711"):
        lock.record_of(path).write_text(text)
        assert holder_of(path) is None
        with locked(path, wait=False):
            pass


def test_the_file_system_is_that_of_the_longest_mount_point(tmp_path: Path, nfs) -> None:
    (tmp_path / "deep").mkdir()
    assert lock._file_system(tmp_path / "deep" / "lock") == "nfs4"
    assert lock._file_system(tmp_path.parent / "lock") == "ext4"


def test_another_machine_at_work_is_seen_where_locks_do_not_reach(tmp_path: Path, nfs, monkeypatch, capsys) -> None:
    path = tmp_path / "lock"
    with locked(path, wait=False):
        # As it looks from another machine, whose lock this one would not feel.
        monkeypatch.setattr(lock, "_machine", lambda: "another machine")
        monkeypatch.setattr(lock, "_take", lambda *_: None)
        with pytest.raises(Busy, match=f"process {os.getpid()} on "), locked(path, wait=False):
            pass
        monkeypatch.undo()
    assert "waiting up to" in capsys.readouterr().err


def test_another_machine_that_fell_silent_is_replaced(tmp_path: Path, nfs, monkeypatch) -> None:
    path = tmp_path / "lock"
    monkeypatch.setattr(lock, "_machine", lambda: "another machine")
    with locked(path, wait=False):
        record = lock.record_of(path).read_text()
    monkeypatch.setattr(lock, "_machine", lambda: "this machine")
    lock.record_of(path).write_text(record)
    monkeypatch.setattr(lock, "SILENT_SECONDS", 0.5)
    with locked(path, wait=False):
        assert holder_of(path).machine == "this machine"


def test_without_any_locks_the_record_alone_keeps_two_apart_and_that_is_said(
    tmp_path, nfs, monkeypatch, capsys
) -> None:
    def unsupported(file, flags) -> None:
        raise OSError(lock.errno.ENOLCK, "No locks available")

    lock._say_that_locks_do_not_hold.cache_clear()
    monkeypatch.setattr(lock.fcntl, "lockf", unsupported)
    monkeypatch.setattr(lock.fcntl, "flock", unsupported)
    for _ in range(2):
        with locked(tmp_path / "lock", wait=False), pytest.raises(Busy), locked(tmp_path / "lock", wait=False):
            pass
    assert capsys.readouterr().err.count("(nfs4) does not support locks") == 1


def test_who_waits_gets_the_lock_when_it_is_free(tmp_path: Path, nfs) -> None:
    order = []

    def enter(name: str) -> None:
        with locked(tmp_path / "lock", wait=True):
            order.append(name)

    with locked(tmp_path / "lock", wait=True):
        thread = threading.Thread(target=enter, args=("second",))
        thread.start()
        time.sleep(0.2)
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"]


def test_who_waits_tries_again_where_another_one_was_a_moment_faster(tmp_path: Path, nfs, monkeypatch) -> None:
    real, tried = os.link, []

    def late_once(source: Path, target: Path) -> None:
        tried.append(target)
        if len(tried) % 2:
            raise FileExistsError(target)
        real(source, target)

    monkeypatch.setattr(lock.os, "link", late_once)
    with locked(tmp_path / "lock", wait=True):
        assert len(tried) == 2
    with pytest.raises(Busy, match="a moment faster"), locked(tmp_path / "lock", wait=False):
        pass


def test_a_record_that_came_after_the_dead_one_stays(tmp_path: Path, nfs, monkeypatch) -> None:
    path = tmp_path / "lock"
    with locked(path, wait=False):
        record = lock.record_of(path).read_text()
    lock.record_of(path).write_text(record)
    with pytest.raises(Busy, match="a moment faster"), lock._recorded(path, shared=True, dead=None):
        pass
    assert lock.record_of(path).read_text() == record
