"""Kill a step at any moment and run it again: it finishes, with the bytes of a run that was never killed."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from lanes import slow
from support import Forked, script, short

DATA = {"pretrain": "pretrain-data", "sft": "sft-data", "rl": "rl-data", "eval": "eval-data"}


def digest(home: Path, name: str) -> str:
    """Content of the newest version of an artifact, without its log of timings."""
    versions = sorted((home / "artifacts" / name).glob("v*"), key=lambda path: int(path.name[1:]))
    files = json.loads((versions[-1] / "manifest.json").read_text())["files"]
    return json.dumps({path: entry for path, entry in files.items() if path != "metrics.jsonl"}, sort_keys=True)


def losses(home: Path, name: str) -> list[dict]:
    """The figures of each step, without those of the machine."""
    lines = (home / "artifacts" / name / "v1" / "metrics.jsonl").read_text().splitlines()
    timings = {"seconds", "tokens_per_second", "memory_gb"}
    return [{key: value for key, value in json.loads(line).items() if key not in timings} for line in lines]


def kill_when(command: list[str], home: Path, moment, cwd: Path) -> bool:
    """Start a command, SIGKILL its process group when `moment()` is true; False when it ended before."""
    environment = os.environ | {"NEMOTRON_HOME": str(home)}
    with Path(os.devnull).open("w") as nowhere:
        process = Forked(command, cwd, environment, nowhere, nowhere, group=True)
    while process.poll() is None:
        if moment():
            return process.kill_group()
        time.sleep(0.01)
    return False


PREDICTING = (
    "engine.moe_router_bias_update_rate=1e-2", "engine.moe_aux_loss_coeff=1e-2", "engine.mtp_num_layers=2",
    "engine.mtp_loss_scaling_factor=0.3", "++model.overrides.num_nextn_predict_layers=1",
)  # fmt: skip
PAIRS = (
    "run.data=super3-rl-pairs:latest", "data_prep.pairs=true",
    "dpo={global_batch_size: 8, reference_policy_kl_penalty: 0.1, preference_average_log_probs: false}",
)  # fmt: skip
SCORES = (*PAIRS[:2], "reward_modeling={global_batch_size: 8, center_rewards_coefficient: 0.01}")
OTHER_WORDS = {"predicting": PREDICTING, "pairs": PAIRS, "scores": SCORES}
SLOW = slow(
    "pretrain",
    "pretrain predicting",
    "rl",
    "rl pairs",
    "rl scores",
    "sft engine=transformers_lora run.family=nano3",
    "rl engine=trl_lora",
)


@pytest.mark.parametrize("case", ["sft", *SLOW])
def test_a_killed_training_follows_the_uninterrupted_one_exactly(run, tmp_path: Path, case: str) -> None:
    stage, *words = case.split()
    engine = OTHER_WORDS[words[0]] if words and words[0] in OTHER_WORDS else words
    # an untrained model never earns an exact match, and without rewards no weight would move
    rewarded = ("rewards=[{name: well_formed, weight: 1}]",) if stage == "rl" else ()
    command = [*script(stage), *short(stage), *rewarded, *engine]
    kind = "reward" if engine == SCORES else stage
    name = f"{'nano3' if 'run.family=nano3' in words else 'super3'}-{kind}-model"
    run(*command)
    assert any(entry.get("grad_norm", 0) > 0 for entry in losses(tmp_path / "home", name))
    killed = tmp_path / "killed"
    checkpoint = "checkpoint-2/COMPLETE"
    assert kill_when(command, killed, lambda: any(killed.glob(f"runs/*/checkpoints/{checkpoint}")), tmp_path)
    assert not (killed / "artifacts" / name).exists()
    again = run(*command, env={"NEMOTRON_HOME": str(killed)})
    assert "continuing from step" in again.stderr
    assert losses(killed, name) == losses(tmp_path / "home", name)
    assert digest(killed, name) == digest(tmp_path / "home", name)
    assert ("adapter/adapter_model.safetensors" in digest(killed, name)) == ("lora" in case)
    assert ("mtp_loss/2" in losses(killed, name)[0]) == (engine == PREDICTING)


@pytest.mark.parametrize("stage", ["sft", *slow("pretrain", "rl", "eval")])
def test_data_preparation_killed_at_random_moments_gives_the_same_bytes(run, tmp_path: Path, stage: str) -> None:
    command = [*script(stage, "data_prep"), *short(stage)]
    began = time.monotonic()
    run(*command)
    usual, killed, rng = time.monotonic() - began, tmp_path / "killed", random.Random(stage)
    for _ in range(3):
        until = time.monotonic() + usual * rng.uniform(0.3, 1.0)
        kill_when(command, killed, lambda until=until: time.monotonic() > until, tmp_path)
    run(*command, env={"NEMOTRON_HOME": str(killed)})
    name = f"super3-{DATA[stage]}"
    assert digest(killed, name) == digest(tmp_path / "home", name)


@pytest.mark.slow
def test_sigterm_saves_a_checkpoint_and_a_rerun_continues(run, tmp_path: Path) -> None:
    options = [*short("sft"), "train.train_iters=200", "checkpoint.save_interval=1000", "train.eval_interval=1000"]
    command = [*script("sft"), *options]
    home = tmp_path / "home"
    run(*script("sft", "data_prep"), *options)
    log = tmp_path / "log"
    with log.open("w") as errors:
        process = Forked(command, tmp_path, os.environ | {"NEMOTRON_HOME": str(home)}, errors, errors)
    while not any(path.stat().st_size > 300 for path in home.glob("runs/super3-sft-model-*/metrics.jsonl")):
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 130
    assert "SIGTERM: stopping" in log.read_text()
    assert len(list(home.glob("runs/super3-sft-model-*/checkpoints/checkpoint-*/COMPLETE"))) == 1
    again = run(*command)
    assert "continuing from step" in again.stderr
    assert (home / "artifacts" / "super3-sft-model" / "v1" / "model.safetensors").is_file()


@pytest.mark.slow
def test_an_unfinished_evaluation_asks_only_the_missing_models(run, tmp_path: Path) -> None:
    command = [*script("eval"), *short("eval")]
    run(*script("pretrain"), *short("pretrain"))
    home = tmp_path / "home"
    scored = "runs/super3-eval-results-*/checkpoints/scored/*.json"
    assert kill_when(command, home, lambda: any(home.glob(scored)), tmp_path)
    names = {path.stem for path in home.glob(scored)}  # two may be asked at once, where two cores are there
    again = run(*command)
    assert ("asking random weights" in again.stderr) == ("random" not in names)
    assert ("asking base" in again.stderr) == ("base" not in names)
