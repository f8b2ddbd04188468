"""An unfinished run goes on after changes of how it is done; a finished training can be extended."""

import json
import os
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support import ROOT, Forked, nemotron, run_forked, script, short, torchrun

MODEL, DATA = "super3-sft-model", "super3-sft-data"
WEIGHTS = "model.safetensors"
STEPS = 8
OPTIONS = [
    *short("sft"),
    "optimizer.lr=2e-3",
    f"train.train_iters={STEPS}",
    f"train.eval_interval={STEPS}",
    "checkpoint.save_interval=100",
]


def losses(home: Path, version: int = 1) -> dict[tuple[int, str], float]:
    lines = (home / "artifacts" / MODEL / f"v{version}" / "metrics.jsonl").read_text().splitlines()
    return {
        (entry["step"], name): entry[name]
        for entry in map(json.loads, lines)
        for name in ("loss", "valid_loss")
        if name in entry
    }


def manifest(home: Path, version: int = 1) -> dict:
    return json.loads((home / "artifacts" / MODEL / f"v{version}" / "manifest.json").read_text())


def stop_after(step: int, command: list[str], home: Path, cwd: Path, env: dict[str, str] | None = None) -> None:
    """Run a command and ask it to stop once it has logged `step`."""
    environment = os.environ | {"NEMOTRON_HOME": str(home)} | (env or {})
    with (cwd / "stopped.log").open("w") as log:
        process = Forked(command, cwd, environment, log, log)
    while not any(len(path.read_text().splitlines()) >= step for path in home.glob(f"runs/{MODEL}-*/metrics.jsonl")):
        assert process.poll() is None, (cwd / "stopped.log").read_text()
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.wait()


def recording(batches: Path, *options: str, processes: int = 1) -> list[str]:
    """The training, which also writes down the rows of each step."""
    *launcher, _ = torchrun("sft", processes)
    return [*launcher, str(ROOT / "tests" / "programs" / "record_batches.py"), str(batches), *OPTIONS, *options]


def rows(*files: Path) -> Counter[tuple[int, str]]:
    """How often each row was trained on in each step."""
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return Counter((line["step"], row) for line in lines for row in line["rows"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the store `home` of a training that was never stopped, and its rows in `rows.jsonl`."""
    folder = tmp_path_factory.mktemp("whole")
    environment = os.environ | {"NEMOTRON_HOME": str(folder / "home")}
    done = run_forked(recording(folder / "rows.jsonl"), folder, environment)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_how_may_change_and_what_may_not(run, whole: Path, tmp_path: Path) -> None:
    expected = losses(whole / "home")
    home = tmp_path / "stopped"
    there = {"NEMOTRON_HOME": str(home)}
    stop_after(2, [*script("sft"), *OPTIONS], home, tmp_path)

    refused = run(*script("sft"), *OPTIONS, "train.micro_batch_size=4", "run.on_change=refuse", ok=False, env=there)
    assert refused.returncode == 2
    assert "train.micro_batch_size None -> 4" in refused.stderr

    other = [*OPTIONS, "optimizer.lr=1e-4", "train.train_iters=1"]
    assert "a new run, not the unfinished" in (new := run(*script("sft"), *other, env=there).stderr)
    assert "optimizer.lr 0.002 -> 0.0001" in new

    changed = [*OPTIONS, "train.micro_batch_size=4", "checkpoint.save_interval=3"]
    again = run(*script("sft"), *changed, env=there).stderr
    assert "going on with an unfinished run; since then" in again
    assert "train.micro_batch_size None -> 4" in again
    assert "checkpoint.save_interval 100 -> 3" in again
    assert "continuing from step" in again
    made = manifest(home, 2)
    assert [bool(segment["from_step"]) for segment in made["segments"]] == [False, True]
    assert made["fingerprint"] == manifest(whole / "home")["fingerprint"]
    assert (STEPS, "valid_loss") in expected
    assert losses(home, 2) == pytest.approx(expected, abs=1e-5)

    finished = run(*script("sft"), *changed, "optimizer.lr=1e-3", "train.train_iters=1", env=there).stderr
    assert "a new run, not the finished super3-sft-model-" in finished
    assert "optimizer.lr 0.002 -> 0.001" in finished


@pytest.mark.slow
def test_a_training_that_an_older_version_began_under_another_rule_is_not_continued(run, tmp_path: Path) -> None:
    home = tmp_path / "home"
    there = {"NEMOTRON_HOME": str(home)}
    stop_after(2, [*script("sft"), *OPTIONS], home, tmp_path)
    (begun,) = home.glob("runs/super3-sft-model-*")
    older = begun.rename(begun.with_name("super3-sft-model-000000000000"))
    record = json.loads((older / "what.json").read_text())
    assert record["what"].pop("rule of weight decay") == "by role"
    (older / "what.json").write_text(json.dumps(record))
    kept = sorted(path.relative_to(older) for path in older.rglob("*"))

    told = "the unfinished super3-sft-model-000000000000 began under another rule, weight decay (none) -> by role"
    assert told in run(*script("sft"), *OPTIONS, "--dry-run", env=there).stdout
    refused = run(*script("sft"), *OPTIONS, "run.on_change=refuse", ok=False, env=there)
    assert refused.returncode == 2 and "began under another rule, weight decay" in refused.stderr
    said = run(*script("sft"), *OPTIONS, env=there).stderr
    assert told in said and "continuing from step" not in said
    assert [one["from_step"] for one in manifest(home, 1)["segments"]] == [None]
    assert sorted(path.relative_to(older) for path in older.rglob("*")) == kept


@pytest.mark.slow
def test_a_finished_training_is_extended_by_more_steps(run, tmp_path: Path) -> None:
    constant = ["scheduler.lr_decay_style=constant", "scheduler.lr_warmup_iters=2"]
    run(*nemotron("super3", "sft"), *OPTIONS, *constant)
    longer = [*OPTIONS, *constant, f"train.train_iters={STEPS + 4}"]
    said = run(*nemotron("super3", "sft"), *longer).stderr
    assert f"extending {MODEL}:v1 from step {STEPS} to {STEPS + 4}" in said
    home = tmp_path / "home"
    assert {"reference": f"{MODEL}:v1", "role": "extends"}.items() <= manifest(home, 2)["parents"][-1].items()
    assert "made in 2 segments: its bytes may differ" in said
    assert manifest(home, 2)["segments"][0]["how"]["train.train_iters"] == STEPS
    (replayed,) = json.loads(run(*nemotron("artifacts", "replay", f"{MODEL}:v2", "--json"), ok=False).stdout)
    assert replayed["promised"] is False
    longest = [*OPTIONS, *constant, f"train.train_iters={STEPS + 30}"]
    stop_after(STEPS + 12, [*script("sft"), *longest], home, tmp_path)
    assert f"extending {MODEL}:v2" in (tmp_path / "stopped.log").read_text()
    run(*script("sft"), *longest)
    assert {"reference": f"{MODEL}:v2", "role": "extends"}.items() <= manifest(home, 3)["parents"][-1].items()
    run(*nemotron("super3", "sft"), *longer, "--force")
    assert losses(home, 4) == losses(home, 2)
    assert len(manifest(home, 4)["segments"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_another_number_of_processes_goes_on_with_the_same_rows(
    run, whole: Path, tmp_path: Path, strategy: str
) -> None:
    how, stopped = f"engine.strategy={strategy}", tmp_path / "stopped"
    shutil.copytree(whole / "home" / "artifacts" / DATA, stopped / "artifacts" / DATA)
    stop_after(3, recording(tmp_path / "two.jsonl", how, processes=2), stopped, tmp_path)
    for then in (1, 4):
        home, trained = tmp_path / f"home{then}", tmp_path / f"{then}.jsonl"
        shutil.copytree(stopped, home, symlinks=True)
        said = run(*recording(trained, how, processes=then), env={"NEMOTRON_HOME": str(home)}).stderr
        assert f"processes 2 -> {then}" in said
        assert f"2 processes before, {then} now: the result has other bytes than an undisturbed run" in said
        assert (f"{strategy.upper()} over {then} process" in said) == (strategy == "fsdp2" or then > 1)
        assert rows(tmp_path / "two.jsonl", trained) == rows(whole / "rows.jsonl")
        assert losses(home) == pytest.approx(losses(whole / "home"), abs=1e-4)
        found, wanted = (load_file(one / "artifacts" / MODEL / "v1" / WEIGHTS) for one in (home, whole / "home"))
        assert found.keys() == wanted.keys()
        assert all(torch.allclose(found[name], wanted[name], atol=1e-3) for name in wanted)
