"""Records that a bad disk has changed: one error that says what to do, or nothing where nobody needs them."""

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from store_support import MODEL, publish

from nemotron_shared.artifacts import Reference, Store
from nemotron_shared.artifacts.housekeeping import plan_cleanup, state_folder
from nemotron_shared.engine.checkpoints import COMPLETE, read_mark
from nemotron_shared.engine.spec import LENGTH, Task
from nemotron_shared.step import attempts
from nemotron_shared.step.plan import extension_of, find_extension
from nemotron_shared.step.records import what_it_was
from nemotron_shared.system import atomic
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.file_cache import FileCache
from nemotron_shared.system.lock import holder_of, record_of
from nemotron_shared.tracking.metrics import MetricsLog
from nemotron_shared.tracking.run import Run
from nemotron_shared.tracking.segments import SEGMENTS, read_segments

DEEP = "[" * 100_000
RUN = SimpleNamespace(run=SimpleNamespace(on_change="continue"))


def task(home: Path, folder: Path, name: str, what: dict[str, Any] | None = None) -> Task[Any]:
    config: Any = RUN
    return Task(config, {}, Run(folder, name), Store(home), name=name, what=what or {})


DAMAGED_LINES = (b'{"stdp": 1}', b"[1]", b"3", b'{"step": "1"}', b'{"step": 1, "loss": ', b'{"step": \xf0}')


@pytest.mark.parametrize("line", DAMAGED_LINES)
def test_a_damaged_line_of_metrics_is_named(tmp_path: Path, line: bytes) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append(1, loss=2.0)
    with log.path.open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl:2: .*\n.*run again"):
        log.read()


@pytest.mark.parametrize("content", ["{", "[1]", '[{"begam": 1}]'])
def test_damaged_segments_are_named(tmp_path: Path, content: str) -> None:
    (tmp_path / SEGMENTS).write_text(content)
    with pytest.raises(UserError, match=r"segments\.json.*\n.*--force"):
        read_segments(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"what": 1, "modules": {}}', "{}"])
def test_a_damaged_record_of_another_run_is_left_out(tmp_path: Path, content: str) -> None:
    (tmp_path / "what.json").write_text(content)
    assert what_it_was(tmp_path / "what.json") is None
    whole = {"what": {"a": 1}, "modules": {}}
    (tmp_path / "what.json").write_text(json.dumps(whole))
    assert what_it_was(tmp_path / "what.json") == whole


@pytest.mark.parametrize("extends", [None, 1, {}, {"reference": "x", "step": 1}, {"reference": "a:v1", "step": 1}])
def test_a_shorter_training_that_nobody_can_name_is_none(tmp_path: Path, extends: object) -> None:
    (tmp_path / "what.json").write_text(json.dumps({"what": {}, "modules": {}, "extends": extends}))
    assert extension_of(task(tmp_path, tmp_path, "a")) is None


def test_a_state_without_a_whole_checkpoint_is_no_offer(tmp_path: Path) -> None:
    store = Store(tmp_path)
    publish(store, {"a": "x"})
    longer = task(tmp_path, tmp_path, MODEL, {LENGTH: 12})
    state = state_folder(store, Reference(MODEL, 1))
    (mark := state / "checkpoints" / "checkpoint-10" / COMPLETE).parent.mkdir(parents=True)
    (state / "state.json").write_text(json.dumps({"series": longer.series, "step": 10}))
    mark.touch()
    assert (offered := find_extension(longer)) and offered.step == 10
    mark.unlink()
    assert find_extension(longer) is None


def test_a_state_that_cannot_be_copied_is_named(tmp_path: Path) -> None:
    (checkpoints := tmp_path / "state" / "checkpoints").mkdir(parents=True)
    (checkpoints / "loop").symlink_to("loop")
    shorter = SimpleNamespace(folder=tmp_path / "state")
    run = SimpleNamespace(directory=tmp_path, checkpoints=tmp_path / "checkpoints")
    with pytest.raises(UserError, match=r"checkpoints/loop: cannot be copied: .*\n.*--force"):
        attempts._take_over(shorter, run)


@pytest.mark.parametrize("content", [DEEP, "[]", '{"step": "x", "series": ""}', "1" * 10_000])
def test_records_that_no_parser_reads_count_as_none(tmp_path: Path, content: str) -> None:
    state = tmp_path / "states" / "a" / "v1" / "state.json"
    state.parent.mkdir(parents=True)
    for path in (state, record_of(tmp_path / "lock"), tmp_path / "cache", tmp_path / COMPLETE):
        path.write_text(content)
    assert holder_of(tmp_path / "lock") is None
    assert find_extension(task(tmp_path, tmp_path, "a")) is None
    assert FileCache(tmp_path / "cache").get(state, lambda _: 1) == 1
    with pytest.raises(ValueError, match="has changed since it was written"):
        read_mark(tmp_path)


def test_damaged_aliases_say_what_to_do(tmp_path: Path) -> None:
    shelf = tmp_path / "artifacts" / "a"
    shelf.mkdir(parents=True)
    (shelf / "aliases.json").write_text("")
    with pytest.raises(UserError, match="correct the file, or delete it: its aliases are lost then"):
        Store(tmp_path).aliases("a")


@pytest.mark.parametrize("folder", ["", "cache", "cache/verified", "runs/a", "artifacts/a", "states/a/v1"])
def test_what_a_kill_leaves_anywhere_is_swept(tmp_path: Path, folder: str) -> None:
    left = tmp_path / folder / ".tmp-index.json.x"
    left.parent.mkdir(parents=True, exist_ok=True)
    left.touch()
    os.utime(left, (0, 0))
    assert left in plan_cleanup(Store(tmp_path), 1).leftovers


def test_a_disk_that_fails_while_a_file_is_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match=r"a\.json: Input/output error while it was written"):
        atomic.write_json(tmp_path / "a.json", {})
    assert not list(tmp_path.iterdir())
    with pytest.raises(OSError, match=str(tmp_path)):
        atomic.sync(tmp_path)
