"""What is chosen for a model, its rows and a machine."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from nemotron_engines import defaults
from nemotron_engines.modeling.architecture import Parameters
from nemotron_shared.config.files import Choice, write_choices
from nemotron_shared.machine.machine import GB, GPU, Machine

LAPTOP = Machine(python="3.12", processes=1, gpus=(), memory=16 * GB, free_disk=100 * GB)
CARD = replace(LAPTOP, gpus=(GPU("H100", 80 * GB),))


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """What is chosen for a model of so many parameters."""

    def choose(
        parameters: int, rows: int, machine: Machine, *, steps: int | None = None, text: bool = False,
        engine: str = "transformers",
    ) -> dict[str, Any]:  # fmt: skip
        monkeypatch.setattr(defaults, "parameters_in", lambda folder: Parameters(parameters))
        config: Any = SimpleNamespace(
            engine=SimpleNamespace(name=engine, peft=None), train=SimpleNamespace(train_iters=steps),
            checkpoint=SimpleNamespace(keep_best=True),
        )  # fmt: skip
        is_said = {"train.train_iters"}.__contains__ if steps else set().__contains__
        found = defaults.training_choices(config, tmp_path, rows, 128, machine, f"{rows} rows", is_said, text=text)
        return {choice.key: choice.value for choice in found}

    return choose


def test_adapters_are_chosen_where_memory_is_short(chosen) -> None:
    assert "engine.peft" not in chosen(100_000_000, 100, LAPTOP)
    assert chosen(8_000_000_000, 100, CARD)["engine.peft"] == defaults.LORA
    assert chosen(8_000_000_000, 100, CARD)["optimizer.lr"] == defaults.ADAPTER_RATE
    assert "engine.peft" not in chosen(8_000_000_000, 100, CARD, text=True)
    assert "engine.peft" not in chosen(3_000_000_000, 100, CARD)


def test_a_small_model_sees_a_file_often_and_a_large_one_three_times(chosen) -> None:
    steps = {rows: chosen(300_000, rows, LAPTOP)["train.train_iters"] for rows in (3, 24, 144, 2_000, 100_000)}
    assert steps[3] == steps[24] == defaults.LEAST_OF_SMALL
    assert steps[144] == 48 * 144 // 8
    assert steps[2_000] == defaults.MOST_TOKENS_OF_SMALL // (16 * 128) < 48 * 2_000 // 16
    assert steps[100_000] == 3 * 100_000 // 32  # three epochs in any case
    assert chosen(3_000_000, 144, LAPTOP)["train.train_iters"] == 24 * 144 // 8
    assert chosen(300_000, 24, LAPTOP, text=True)["train.train_iters"] == defaults.LEAST_OF_SMALL_ON_TEXT
    assert chosen(300_000_000, 24, LAPTOP)["train.train_iters"] == defaults.LEAST_STEPS
    large = chosen(300_000_000, 32_000, CARD)
    assert large["train.train_iters"] == 3 * 32_000 // large["train.global_batch_size"]


def test_the_step_that_validated_best_is_published_if_the_rows_are_known_by_then(chosen) -> None:
    key = "checkpoint.publish_best"
    assert chosen(300_000, 300, LAPTOP)[key] == "when_learnt"
    assert chosen(300_000, 300, LAPTOP, text=True)[key] == chosen(300_000_000, 300, CARD)[key] == "always"


def test_the_rows_of_a_pass_are_left_open_where_the_training_chooses_them_well(chosen) -> None:
    key = "train.micro_batch_size"
    small, large = 300_000, 300_000_000
    assert [key in chosen(size, 300, machine) for size in (small, large) for machine in (LAPTOP, CARD)] == [
        True, True, True, False,
    ]  # fmt: skip
    assert [key in chosen(size, 300, LAPTOP, engine="automodel") for size in (small, large)] == [True, False]


def test_warm_up_and_intervals_fit_the_steps_that_somebody_asked_for(chosen) -> None:
    found = chosen(300_000, 24, LAPTOP, steps=10)
    assert (found["scheduler.lr_warmup_iters"], found["train.eval_interval"]) == (1, 2)
    assert chosen(300_000, 24, LAPTOP, steps=10, text=True)["scheduler.lr_wsd_decay_iters"] == 4


def test_rows_are_as_long_as_they_need_to_be_and_the_model_allows(tmp_path: Path) -> None:
    for said in ({"max_position_embeddings": 2048}, {"n_positions": 2048}, {"text_config": {"max_seq_len": 2048}}):
        (tmp_path / "config.json").write_text(json.dumps(said))
        assert [defaults.power_of_two(tokens, tmp_path) for tokens in (5, 129, 2000, 9000)] == [128, 256, 2048, 2048]


def test_choices_are_kept_with_their_reasons_and_can_be_read_again(tmp_path: Path) -> None:
    file = tmp_path / "data.yaml"
    write_choices(file, "local", [Choice("data_prep.pack_size", 256, "the longest has 212")], {"run.model": "./a b"})
    text = file.read_text()
    assert "#   data_prep.pack_size=256  (the longest has 212)" in text
    assert yaml.safe_load(text) == {
        "defaults": ["local", "_self_"], "run": {"model": "./a b"}, "data_prep": {"pack_size": 256}
    }  # fmt: skip
