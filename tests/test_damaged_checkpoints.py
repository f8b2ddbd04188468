"""Damage checkpoints, fill the disk, let the loss explode: nothing wrong is published, no good checkpoint is lost."""

import random
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support import script, short
from test_resume import digest, kill_when

from nemotron_engines.transformers.checkpoints import LAYOUT
from nemotron_shared.engine.checkpoints import damage_of, resume_point

MODEL = "super3-sft-model"
OPTIONS = (*short("sft"), "train.train_iters=8", "checkpoint.most_recent_k=3")
COMMAND = [*script("sft"), *OPTIONS]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a run that was killed; its checkpoints are of the steps 2 and 4."""
    folder = tmp_path_factory.mktemp("killed")
    home = folder / "home"
    assert kill_when(COMMAND, home, lambda: any(home.glob("runs/*/checkpoints/checkpoint-4/COMPLETE")), folder)
    kept = checkpoints_of(home)
    for newer in kept.glob("checkpoint-*"):
        if newer.name not in ("checkpoint-2", "checkpoint-4"):
            shutil.rmtree(newer)
    return home


@pytest.fixture
def home(killed: Path, tmp_path: Path) -> Path:
    """A copy to damage, where the fixture `run` looks for it."""
    return Path(shutil.copytree(killed, tmp_path / "home", symlinks=True))


def checkpoints_of(home: Path) -> Path:
    (found,) = home.glob(f"runs/{MODEL}-*/checkpoints")
    return found


def names(home: Path) -> list[str]:
    return sorted(path.name for path in checkpoints_of(home).glob("*checkpoint-*"))


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path, seed: int) -> None:
    drawn, content = random.Random(seed), bytearray(path.read_bytes())
    content[drawn.randrange(len(content))] ^= 1 << drawn.randrange(8)
    path.write_bytes(content)


def only_the_mark(checkpoint: Path) -> None:
    for path in checkpoint.iterdir():
        if path.name != "COMPLETE":
            path.unlink()


def edit_the_step(checkpoint: Path) -> None:
    state = checkpoint / "trainer_state.json"
    state.write_text(state.read_text().replace('"global_step": 4', '"global_step": 7'))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "model.safetensors has": lambda path: halve(path / "model.safetensors"),
    "optimizer.pt has": lambda path: halve(path / "optimizer.pt"),
    "optimizer.pt is missing": lambda path: (path / "optimizer.pt").unlink(),
    "is missing": only_the_mark,
    "of model.safetensors have changed": lambda path: flip(path / "model.safetensors", 1),
    "of optimizer.pt have changed": lambda path: flip(path / "optimizer.pt", 2),
    "of trainer_state.json have changed": edit_the_step,
    "COMPLETE is empty": lambda path: (path / "COMPLETE").write_text(""),
}


def test_every_damage_is_found_and_the_checkpoint_before_is_used(killed: Path, tmp_path: Path) -> None:
    for number, (says, damage) in enumerate(DAMAGES.items()):
        folder = Path(shutil.copytree(checkpoints_of(killed), tmp_path / str(number)))
        damage(folder / "checkpoint-4")
        said: list[str] = []
        assert resume_point(folder, LAYOUT, said.append) == folder / "checkpoint-2"
        assert len(said) == 1
        assert says in said[0]
        assert (folder / "damaged-checkpoint-4").is_dir()


def test_a_hundred_damaged_bytes_are_found(killed: Path, tmp_path: Path) -> None:
    checkpoint = Path(shutil.copytree(checkpoints_of(killed) / "checkpoint-4", tmp_path / "checkpoint-4"))
    files = sorted(checkpoint.iterdir())
    for number in range(100):
        file = files[number % len(files)]
        whole = file.read_bytes()
        flip(file, number)
        assert damage_of(checkpoint, LAYOUT), file
        file.write_bytes(whole)
    assert damage_of(checkpoint, LAYOUT) is None


@pytest.mark.slow
def test_a_run_goes_on_from_before_the_damage_to_the_same_result(run, home: Path, tmp_path: Path) -> None:
    whole = Path(shutil.copytree(home, tmp_path / "whole", symlinks=True))
    assert "continuing from step 4" in run(*COMMAND, env={"NEMOTRON_HOME": str(whole)}).stderr
    (checkpoints_of(home) / "checkpoint-4" / "optimizer.pt").unlink()
    said = run(*COMMAND).stderr
    assert "checkpoint-4 is damaged (optimizer.pt is missing): set aside as damaged-checkpoint-4" in said
    assert "continuing from step 2" in said
    assert digest(home, MODEL) == digest(whole, MODEL)


@pytest.mark.slow
def test_with_every_checkpoint_damaged_the_run_ends_until_it_is_forced(run, home: Path) -> None:
    for step in (2, 4):
        halve(checkpoints_of(home) / f"checkpoint-{step}" / "model.safetensors")
    for _ in range(2):
        ended = run(*COMMAND, ok=False)
        assert (ended.returncode, "Traceback" in ended.stderr) == (2, False)
        assert "no whole checkpoint is left (damaged-checkpoint-2, damaged-checkpoint-4)" in ended.stderr
        assert "--force" in ended.stderr
    ahead = run(*COMMAND, "--dry-run", ok=False)
    assert (ahead.returncode, "no whole checkpoint is left" in ahead.stdout) == (1, True)
    assert not (home / "artifacts" / MODEL).exists()


@pytest.mark.slow
# larger than metrics.jsonl; smaller than the weights, and between them and the optimizer's state
@pytest.mark.parametrize(("limit", "reason"), [(200_000, "File too large"), (2_000_000, "not all bytes were taken")])
def test_a_full_disk_is_one_error_and_loses_nothing(run, home: Path, limit: int, reason: str) -> None:
    """A limit on the size of files stands for the disk: the system refuses to write beyond it in the same way."""
    limited = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, 2 * (int(sys.argv[1]),)); " \
              "os.execv(sys.argv[2], sys.argv[2:])"  # fmt: skip
    ended = run(sys.executable, "-c", limited, str(limit), *COMMAND, ok=False)
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False), ended.stderr
    assert re.search(rf"checkpoint-6 could not be written: {reason} \(.* are free\)", ended.stderr), ended.stderr
    assert names(home) == ["checkpoint-2", "checkpoint-4"]


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_the_run_with_the_last_good_state(run, home: Path) -> None:
    shutil.rmtree(home / "runs")
    ended = run(*COMMAND, "checkpoint.save_interval=1", "optimizer.lr=1e30", ok=False)
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False)
    found = re.search(r"step (\d+): .* is (nan|inf).*; the last good checkpoint is \S*checkpoint-(\d+)", ended.stderr)
    assert found, ended.stderr
    assert int(found[3]) == int(found[1]) - 1
    assert names(home)[-1] == f"checkpoint-{found[3]}"
    assert not (home / "artifacts" / MODEL).exists()


@pytest.mark.slow
def test_an_earlier_step_that_validated_better_is_named_and_its_model_kept(run, home: Path) -> None:
    shutil.rmtree(home / "runs")
    worse = ("optimizer.lr=0.5", "train.eval_interval=2", "checkpoint.most_recent_k=1", "train.train_iters=6")
    said = run(*COMMAND, *worse).stderr
    found = re.search(
        r"published is the last step; step (\d) validated better: .*\n"
        r".* the model of step (\d) stays: nemotron chat (\S+)",
        said,
    )
    assert found, said
    assert found[1] == found[2]
    kept = Path(found[3])
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= {path.name for path in kept.iterdir()}
    assert f'"best_step": {found[1]}' in (home / "artifacts" / MODEL / "v1" / "manifest.json").read_text()
    again = run(*COMMAND, *worse, f"run.model={kept}", "train.train_iters=2")
    assert "published" in again.stderr


@pytest.mark.slow
def test_the_step_that_validated_best_is_published_where_it_is_asked_for(run, home: Path) -> None:
    shutil.rmtree(home / "runs")
    worse = ("optimizer.lr=0.5", "train.eval_interval=2", "checkpoint.most_recent_k=1", "train.train_iters=6")
    run(*COMMAND, *worse)
    best = next((home / "runs").glob("*/best"))
    said = run(*COMMAND, *worse, "checkpoint.publish_best=always").stderr
    found = re.search(
        r"published is step (\d), which validated best: .*\n.* the model of step 6 stays: nemotron chat (\S+)", said
    )
    assert found, said
    versions = home / "artifacts" / MODEL
    assert f'"step": {found[1]}' in (versions / "v2" / "manifest.json").read_text()
    for one, other in ((versions / "v2", best), (Path(found[2]), versions / "v1")):  # two trainings alike
        tensors, expected = (load_file(folder / "model.safetensors") for folder in (one, other))
        assert tensors.keys() == expected.keys() and all(torch.equal(tensors[name], expected[name]) for name in tensors)
