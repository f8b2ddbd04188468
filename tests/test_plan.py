"""`nemotron plan`, for every config of every training."""

import json
from pathlib import Path

import pytest
from support import ROOT

from nemotron_app.main import dispatch, main
from nemotron_app.plan import parse_gpus
from nemotron_shared.errors import UserError
from stages.pretrain.train import STEP

CONFIGS = [
    f"{stage}/{file.stem}"
    for stage in ("pretrain", "sft", "rl")
    for file in sorted((ROOT / "stages" / stage / "config").glob("*.yaml"))
]
FEW = ("pretrain/super3", "sft/tiny", "rl/nano3")
NO_SIZE = ("one_gpu", "local", "qa", "nano3_lora_automodel", "nano3_lora_one_gpu")
"""Configs that say nothing of GPUs: they are planned for the machine that asks."""


@pytest.fixture(autouse=True)
def empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict]:
    capsys.readouterr()
    assert main(["plan", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "config", [one if one in FEW else pytest.param(one, marks=pytest.mark.slow) for one in CONFIGS]
)
def test_every_config_has_a_plan(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = plan(capsys, config)
    estimate = found["estimate"]
    assert estimate["parameters"] >= estimate["active"] > 0
    assert estimate["seconds"] > 0 and estimate["disk"] >= estimate["result"] > 0
    assert estimate["assumptions"]
    if config.endswith("tiny"):
        assert estimate["device"] == "CPU core" and estimate["seconds"] < 300
    elif not config.endswith(NO_SIZE):
        assert estimate["device"] == "H100" and estimate["fits"], estimate["memory"]
        assert not any("cannot be shared out" in problem for problem in found["problems"])


def test_gpus_are_those_that_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    (few,), (many,) = (plan(capsys, "pretrain/super3", gpus) for gpus in ("64xGB200", "128xGB200"))
    assert [few["estimate"]["devices"], many["estimate"]["devices"]] == [64, 128]
    assert few["estimate"]["device"] == "GB200"
    assert few["estimate"]["seconds"] > 1.8 * many["estimate"]["seconds"]


def test_settings_change_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    (usual,), (long) = plan(capsys, "pretrain/tiny"), plan(capsys, "pretrain/tiny", "train.train_iters=4800")[0]
    assert long["estimate"]["seconds"] == pytest.approx(10 * usual["estimate"]["seconds"])


def test_a_name_alone_is_every_training_that_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert [one["stage"] for one in plan(capsys, "tiny")] == ["pretrain", "sft", "rl"]


def test_a_file_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("defaults: [tiny, _self_]\ntrain:\n  train_iters: 7\n")
    (found,) = plan(capsys, str(file), "--stage", "sft")
    assert found["estimate"]["steps"] == 7
    with pytest.raises(UserError, match="of which stage"):
        dispatch(["plan", str(file)])


def test_what_does_not_fit_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "sft/nano3", "L40S"]) == 0
    shown = capsys.readouterr().out
    assert "DOES NOT FIT" in shown and "what stands in its way" in shown and "assumed" in shown


def test_an_unknown_gpu_has_no_time_and_names_those_that_have(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = plan(capsys, "sft/nano3", "8xH10")
    assert found["estimate"]["seconds"] is None
    assert any("no GPU named 'H10' is known; known: A100" in said for said in found["estimate"]["assumptions"])


@pytest.mark.parametrize(
    ("words", "said", "remedy"),
    [
        (["pretrain/supr3"], "no config named 'supr3'", "super3"),
        (["pretain/super3"], "no stage 'pretain'", "pretrain"),
        (["none.yaml"], "there is no file none.yaml", "STAGE/NAME"),
        (["sft/nano3", "0xH100"], "says no GPUs", "64xH100"),
        (["sft/nano3", "H100", "A100"], "two words for the GPUs", "64xH100"),
        (["sft/tiny", "train.train_itrs=3"], "train.train_itrs", "train_iters"),
        (["sft/nano3", "train.train_iters=x"], "train.train_iters", ""),
    ],
)
def test_what_makes_no_sense_is_refused(
    words: list[str], said: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words]) == 2
    told = capsys.readouterr().err
    assert said in told and remedy in told


@pytest.mark.parametrize(
    ("text", "meant"),
    [("64xH100", (64, "H100")), ("64", (64, "H100")), ("GB300", (1, "GB300")), ("2 x RTX 4090", (2, "RTX 4090"))],
)
def test_words_for_gpus(text: str, meant: tuple[int, str]) -> None:
    assert parse_gpus(text) == meant


def test_a_dry_run_shows_the_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    assert STEP.main(["-c", "tiny", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "# estimate, by arithmetic (docs/plan.md)\nparameters: 306k, 232k active" in shown
    assert "all steps: " in shown
