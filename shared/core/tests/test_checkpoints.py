"""Checkpoints: marked last, verified before anything older goes, set aside by name where they are damaged."""

import errno
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nemotron_shared.engine import checkpoints
from nemotron_shared.engine.checkpoints import COMPLETE, Layout, Validation, damage_of, mark_complete, prune, read_mark
from nemotron_shared.system import disk
from nemotron_shared.system.errors import UserError

ANY = Layout()
NEEDS_OPTIMIZER = Layout(
    missing=lambda checkpoint, mark: None if "optimizer.pt" in mark.files else "optimizer.pt missing"
)


def make(folder: Path, step: int, *, marked: bool = True, loss: float | None = None) -> Path:
    """A checkpoint of a few small files, one of them in a folder of its own."""
    path = folder / f"checkpoint-{step}"
    (path / "shards").mkdir(parents=True)
    drawn = random.Random(step)
    for name, size in (("model.safetensors", 400), ("optimizer.pt", 900), ("shards/0.bin", 30), ("empty", 0)):
        (path / name).write_bytes(drawn.randbytes(size))
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step, "epoch": 0.5}))
    if marked:
        validation = None if loss is None else Validation(step, "valid_loss", loss)
        mark_complete(path, ANY, world_size=2, validation=validation)
    return path


def resume(folder: Path, layout: Layout = ANY) -> tuple[Path | None, list[str]]:
    said: list[str] = []
    return checkpoints.resume_point(folder, layout, said.append), said


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_mark_holds_step_processes_files_and_the_last_validation(tmp_path: Path) -> None:
    path = make(tmp_path, 40, loss=1.25)
    mark = read_mark(path)
    assert (mark.step, mark.world_size, mark.validation) == (40, 2, Validation(40, "valid_loss", 1.25))
    assert sorted(mark.files) == ["empty", "model.safetensors", "optimizer.pt", "shards/0.bin", "trainer_state.json"]
    assert mark.files["optimizer.pt"].bytes == 900
    assert (path / COMPLETE).read_text() == mark.text()
    assert damage_of(path, ANY) is None


def test_every_single_damaged_byte_is_found(tmp_path: Path) -> None:
    path = make(tmp_path, 40, loss=0.75)
    drawn = random.Random(0)
    files = [file for file in path.rglob("*") if file.is_file() and file.stat().st_size]
    for number in range(600):
        # each file in turn, the mark and the smallest ones too
        file = files[number % len(files)]
        whole = file.read_bytes()
        place, change = drawn.randrange(len(whole)), drawn.randrange(1, 256)
        file.write_bytes(whole[:place] + bytes([whole[place] ^ change]) + whole[place + 1 :])
        assert damage_of(path, ANY), f"{file.name}: byte {place} of {len(whole)} changed by {change}"
        file.write_bytes(whole)
    assert damage_of(path, ANY) is None


def test_every_byte_of_the_mark_counts(tmp_path: Path) -> None:
    path = make(tmp_path, 40, loss=0.75)
    whole = (path / COMPLETE).read_bytes()
    for place in range(len(whole)):
        for changed in (whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :], whole[:place]):
            (path / COMPLETE).write_bytes(changed)
            assert damage_of(path, ANY), f"byte {place}"


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def only_the_mark(checkpoint: Path) -> None:
    for path in checkpoint.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != COMPLETE:
            path.unlink()


def edit_the_step(checkpoint: Path) -> None:
    state = checkpoint / "trainer_state.json"
    state.write_text(state.read_text().replace("40", "55"))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights cut in half": (lambda path: halve(path / "model.safetensors"), "200 bytes instead of 400"),
    "optimizer cut in half": (lambda path: halve(path / "optimizer.pt"), "optimizer.pt has 450 bytes"),
    "no optimizer": (lambda path: (path / "optimizer.pt").unlink(), "optimizer.pt is missing"),
    "only the mark": (only_the_mark, "is missing"),
    "another step": (edit_the_step, "the bytes of trainer_state.json have changed"),
    "an older layout": (lambda path: (path / COMPLETE).write_text(""), "COMPLETE is empty: an older version"),
    "renamed": (lambda path: path.rename(path.with_name("checkpoint-55")), "COMPLETE is of step 40"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_used(tmp_path: Path, damage: str) -> None:
    before, newest = make(tmp_path, 30), make(tmp_path, 40)
    change, says = DAMAGES[damage]
    change(newest)
    point, said = resume(tmp_path)
    assert point == before
    name = "checkpoint-55" if damage == "renamed" else "checkpoint-40"
    assert len(said) == 1
    assert f"{name} is damaged (" in said[0]
    assert says in said[0]
    assert said[0].endswith(f"set aside as damaged-{name}")
    assert names(tmp_path) == ["checkpoint-30", f"damaged-{name}"]
    assert resume(tmp_path) == (before, [])  # a rerun finds the same and has nothing more to say


def test_without_a_whole_checkpoint_no_run_begins_anew_in_silence(tmp_path: Path) -> None:
    for step in (30, 40):
        halve(make(tmp_path, step) / "optimizer.pt")
    for _ in range(2):
        with pytest.raises(UserError, match=r"no whole checkpoint is left \(damaged-checkpoint-30, damaged") as caught:
            resume(tmp_path)
        assert "--force" in str(caught.value)
        with pytest.raises(UserError, match="no whole checkpoint is left"):
            checkpoints.require_one_left(tmp_path)
    assert names(tmp_path) == ["damaged-checkpoint-30", "damaged-checkpoint-40"]
    make(tmp_path, 50)
    checkpoints.require_one_left(tmp_path)


def test_a_second_damage_of_the_same_step_keeps_the_first(tmp_path: Path) -> None:
    make(tmp_path, 30)
    for _ in range(2):
        halve(make(tmp_path, 40) / "optimizer.pt")
        resume(tmp_path)
    assert names(tmp_path) == ["checkpoint-30", "damaged-checkpoint-40", "damaged-checkpoint-40-2"]


def test_a_resume_deletes_what_is_unfinished_and_nothing_else(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        make(tmp_path, step)
    make(tmp_path, 40, marked=False)
    (tmp_path / "other").mkdir()
    assert resume(tmp_path) == (tmp_path / "checkpoint-30", [])
    assert names(tmp_path) == ["checkpoint-10", "checkpoint-20", "checkpoint-30", "other"]


def test_only_unfinished_checkpoints_are_a_start_from_the_beginning(tmp_path: Path) -> None:
    assert resume(tmp_path / "none") == (None, [])
    make(tmp_path, 10, marked=False)
    assert resume(tmp_path) == (None, [])
    assert names(tmp_path) == []


def test_state_that_was_never_written_is_an_error_and_older_checkpoints_stay(tmp_path: Path) -> None:
    before, newest = make(tmp_path, 30), make(tmp_path, 40, marked=False)
    (newest / "optimizer.pt").unlink()
    with pytest.raises(UserError, match=r"checkpoint-40 is of no use \(optimizer.pt missing\)"):
        mark_complete(newest, NEEDS_OPTIMIZER, world_size=1)
    assert resume(tmp_path, NEEDS_OPTIMIZER) == (before, [])
    assert names(tmp_path) == ["checkpoint-30", "damaged-checkpoint-40"]


def test_pruning_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    for step, loss in ((10, 3.0), (20, 1.0), (30, 2.0), (40, 2.5)):
        make(tmp_path, step, loss=loss)
    make(tmp_path, 50, marked=False)
    prune(tmp_path, ANY, keep=1, keep_best=True)
    assert names(tmp_path) == ["checkpoint-20", "checkpoint-40"]
    assert checkpoints.best(tmp_path, ANY) == (tmp_path / "checkpoint-20", Validation(20, "valid_loss", 1.0))
    prune(tmp_path, ANY, keep=1, keep_best=False)
    assert names(tmp_path) == ["checkpoint-40"]


def test_the_first_checkpoint_after_the_best_validation_holds_it(tmp_path: Path) -> None:
    for step in (20, 30):
        mark_complete(
            make(tmp_path, step, marked=False), ANY, world_size=1, validation=Validation(15, "valid_reward", 0.5)
        )
    mark_complete(make(tmp_path, 40, marked=False), ANY, world_size=1, validation=Validation(35, "valid_reward", 0.25))
    prune(tmp_path, ANY, keep=1, keep_best=True)
    assert names(tmp_path) == ["checkpoint-20", "checkpoint-40"]


def test_too_little_room_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=1_500_000))
    disk.require_room(tmp_path, 1_500_000, "checkpoint-4")
    with pytest.raises(UserError) as caught:
        disk.require_room(tmp_path, 2_500_000_000, "checkpoint-4")
    assert f"checkpoint-4 needs about 2.5 GB in {tmp_path}; 1.5 MB are free" in str(caught.value)
    assert "free some space" in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"),
        RuntimeError("PytorchStreamWriter failed writing file data/3: file write failed (inline_container.cc)"),
        ValueError("Error while serializing: I/O error: No space left on device (os error 28)"),
        RuntimeError("basic_ios::clear: iostream error"),  # torch.save where it may not write
    ],
)
def test_a_disk_that_fills_up_leaves_no_part_of_a_checkpoint(tmp_path: Path, error: Exception) -> None:
    before, unfinished = make(tmp_path, 30), make(tmp_path, 40, marked=False)
    with (
        pytest.raises(UserError, match=r"checkpoint-40 could not be written: .* are free"),
        checkpoints.removed_when_disk_is_full(unfinished),
    ):
        raise error
    assert names(tmp_path) == [before.name]


@pytest.mark.parametrize("text", [OSError(errno.EIO, ""), ValueError("I/O error: Input/output error (os error 5)")])
def test_a_disk_that_fails_leaves_no_part_of_a_checkpoint_either(tmp_path: Path, text: Exception) -> None:
    before, unfinished = make(tmp_path, 30), make(tmp_path, 40, marked=False)
    with (
        pytest.raises(UserError, match=r"checkpoint-40: Input/output error as it was written or read\n.*file server"),
        checkpoints.removed_when_disk_is_full(unfinished),
    ):
        raise text
    assert names(tmp_path) == [before.name]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOENT, "No such file or directory"),
        RuntimeError("PytorchStreamReader failed reading zip archive (inline_container.cc)"),
        UserError("something else"),
    ],
)
def test_any_other_error_stays_what_it_is(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)) as caught, disk.full_disk_explained(tmp_path):
        raise error
    assert caught.value is error


@pytest.mark.parametrize(
    ("when", "loss", "last", "published"),
    [
        ("always", 1.0, 2.0, 20), ("when_learnt", 0.05, 2.0, 20), ("when_learnt", 1.0, 2.0, None),
        ("always", 1.0, 0.5, None), (None, 0.05, 2.0, None),
    ],
)  # fmt: skip
def test_the_best_step_is_published_where_it_was_asked_for_and_the_rows_were_known(
    when: Any, loss: float, last: float, published: int | None, tmp_path: Path
) -> None:
    figures = []
    for step, valid in ((10, 3.0), (20, 1.0), (30, last)):
        make(tmp_path, step, loss=valid)
        figures += [{"step": step - 1, "loss": loss if step < 30 else 0.001}, {"step": step, "valid_loss": valid}]
    said: list[str] = []
    run: Any = SimpleNamespace(metrics=SimpleNamespace(read=lambda: figures), checkpoints=tmp_path, say=said.append)
    found = checkpoints.best_to_publish(run, ANY, when)
    assert (found and found[1].step) == published and not said
    (tmp_path / "checkpoint-20" / "model.safetensors").write_bytes(b"damaged")
    assert checkpoints.best_to_publish(run, ANY, when) is None
    assert len(said) == (published is not None)


def test_a_line_names_the_step_that_is_not_published(tmp_path: Path) -> None:
    figures, said = [{"step": 20, "valid_loss": 1.0}, {"step": 30, "valid_loss": 2.0}], list[str]()
    run: Any = SimpleNamespace(metrics=SimpleNamespace(read=lambda: figures), say=said.append)
    best = Validation(20, "valid_loss", 1.0)
    assert checkpoints.report_best(run, lambda best: "see there") == {"best_step": 20, "best_valid_loss": 1.0}
    checkpoints.report_best(run, lambda best: "", best)
    figures[:] = [{"step": 20, "valid_reward": 0.5}, {"step": 30, "valid_reward": 0.25}]
    checkpoints.report_best(run, lambda best: "", prompts=13)
    assert said == [
        "published is the last step; step 20 validated better: valid_loss 1, at the end 2",
        "see there",
        "published is step 20, which validated best: valid_loss 1, at the end 2",
        "published is the last step; step 20 validated better: "
        "valid_reward 0.5, at the end 0.25 (means over 13 prompts)",
    ]
