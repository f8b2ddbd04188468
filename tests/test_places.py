"""Paths that the user chose for results, logs and checkpoints: through a kill, a rerun, and other paths."""

import os
import time
from pathlib import Path

from support import Forked, last_json, nemotron, script, short, torchrun

MODEL = "super3-sft-model"
PLACES = ("run.publish_to=results/mine", "logger.log_dir=logs", "checkpoint.checkpoint_dir=checkpoints")


def test_links_outlive_a_kill_and_a_rerun_makes_those_that_are_missing(run, tmp_path: Path) -> None:
    home, command = tmp_path / "home", [*script("sft"), *short("sft")]
    run(*script("sft", "data_prep"), *short("sft"))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "slurm-7.out").touch()
    environment = os.environ | {"NEMOTRON_HOME": str(home)}
    with (tmp_path / "killed.log").open("w") as log:
        process = Forked([*command, *PLACES], tmp_path, environment, log, log, group=True)
        while not list(tmp_path.glob("checkpoints/*/COMPLETE")):
            assert process.poll() is None, (tmp_path / "killed.log").read_text()
            time.sleep(0.02)
        assert process.kill_group()
    (folder,) = home.glob(f"runs/{MODEL}-*")
    assert (tmp_path / "checkpoints").readlink() == folder / "checkpoints"
    assert (tmp_path / "logs" / folder.name).readlink() == folder
    assert not (tmp_path / "results").exists()

    done = run(*command, *PLACES)
    assert "continuing from step" in done.stderr
    version = home / "artifacts" / MODEL / "v1"
    assert (tmp_path / "results/mine").readlink() == version == (tmp_path / "checkpoints").readlink()

    (tmp_path / "results/mine").unlink()
    for places in (PLACES, ("run.publish_to=elsewhere",), ()):
        # no identity depends on them, and none on the number of processes
        assert f"unchanged: using {MODEL}:v1 (--force makes it again)" in run(*command, *places).stderr
    told = run(*torchrun("sft", 2), *short("sft")).stderr
    assert told.count(f"unchanged: using {MODEL}:v1, made by 1 process (--force makes it again by 2)") == 1
    assert (tmp_path / "results/mine").readlink() == version == (tmp_path / "elsewhere").readlink()

    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").touch()
    words = ("run.publish_to=taken", "train.train_iters=7")
    refused = run(*command, *words, ok=False)
    assert refused.returncode == 2 and f"run.publish_to: {tmp_path}/taken holds something already" in refused.stderr
    (problem,) = last_json(run(*command, *words, "--dry-run", "--json", ok=False))["problems"]
    assert "holds something already\n  name a path that does not exist, or remove what is there" in problem
    assert len(list(home.glob(f"runs/{MODEL}-*"))) == 1, "nothing was begun"


def test_the_launch_lines_of_the_guides_set_them(run) -> None:
    words = ("++logger.log_dir=logs", "++checkpointing.checkpoint_dir=checkpoints", "++logger.wandb.name=mine")
    command = nemotron("nano3", "rl", "-c", "nano3", *words, "--dry-run", "--json")
    shown = last_json(run(*command, ok=False, env={"HF_HUB_OFFLINE": "1"}))
    config = shown["config"]
    assert (config["logger"]["log_dir"], config["logger"]["wandb_name"]) == ("logs", "mine")
    assert config["checkpoint"]["checkpoint_dir"] == "checkpoints"
    assert not [note for note in shown["notes"] if "has no effect here" in note]
