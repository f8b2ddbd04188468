"""Reward models: the loss of the README in float64, the same bytes after a stop, their use, and what is refused."""

import json
from math import exp, fsum, log1p
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from support import last_values_win, made_in, make_model, make_reward_model, short
from zoo import write

from nemotron_data.chat.prompt import Prompter
from nemotron_engines.modeling.build import ONLY_MADE, load_tokenizer
from nemotron_engines.modeling.scoring import load_scoring, score_of
from stages.rl import train
from stages.rl.engines.trl.reward import RewardPairTrainer, end_of_answers, up_to_the_end
from stages.rl.engines.trl.trainer import JudgedTrainer

main = last_values_win(train.main)

PAIRS, MICRO, CENTER = 8, 4, 0.05
SHORT = (
    "-c", "reward_tiny", "data_prep.synthetic_problems=20", "data_prep.workers=1", "train.eval_interval=2",
    "train.eval_rows=7", "data_prep.holdout.rows=7", "checkpoint.save_interval=2", "scheduler.lr_warmup_iters=0",
    f"reward_modeling.global_batch_size={PAIRS}", f"reward_modeling.center_rewards_coefficient={CENTER}",
    f"train.micro_batch_size={MICRO}", "optimizer.lr=1e-3", "scheduler.lr_decay_style=constant",
    "logger.tensorboard=false",
)  # fmt: skip
NO_HOLDOUT = (
    "data_prep.holdout.rows=null",
    "data_prep.holdout.fraction=null",
    "data_prep.split.train=1.0",
    "data_prep.split.valid=0.0",
    "data_prep.split.test=0.0",
)

WITH_MODEL = ("rewards=[{name: model, weight: 1.0}]", "run.reward_model=./scores")


def trained(home: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[list[dict[str, Any]], bytes]:
    """The log without times, and the weights, of the newest reward model."""
    monkeypatch.setenv("NEMOTRON_HOME", str(home))
    assert main((*SHORT, *words)) == 0
    return made_in(home, "super3-reward-model")


def test_it_is_the_loss_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: dict[int, list[tuple[float, float]]] = {}
    compute = RewardPairTrainer.compute_loss

    def noted(self: RewardPairTrainer, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if model.training:
            rewards = []
            for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True):
                whole = ids[: int(mask.sum())][None]
                with torch.no_grad():  # the row alone, without its padding
                    hidden = model.model(whole, use_cache=False).last_hidden_state[0, -1].double()
                rewards.append(float(hidden @ model.score.weight[0].detach().double()))
            half = len(rewards) // 2
            passes.setdefault(self.state.global_step + 1, []).extend(zip(rewards[:half], rewards[half:], strict=True))
        return compute(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(RewardPairTrainer, "compute_loss", noted)
    lines, _ = trained(tmp_path, monkeypatch, "train.train_iters=3")
    steps = {line["step"]: line for line in lines if "loss" in line}
    assert steps.keys() == passes.keys() == {1, 2, 3} and all(len(one) == PAIRS for one in passes.values())
    for step, pairs in passes.items():
        terms = [log1p(exp(worse - better)) + CENTER * (better + worse) ** 2 for better, worse in pairs]
        assert steps[step]["loss"] == pytest.approx(fsum(terms) / PAIRS, rel=1e-4)
        assert steps[step]["pair_accuracy"] == sum(better > worse for better, worse in pairs) / PAIRS
        margin = fsum(better - worse for better, worse in pairs) / PAIRS
        assert steps[step]["reward_margin"] == pytest.approx(margin, rel=1e-4, abs=1e-5)
    assert steps[3]["loss"] < steps[1]["loss"]


@pytest.mark.slow
def test_a_stopped_training_ends_with_the_bytes_of_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trained(tmp_path / "whole", monkeypatch, "train.train_iters=4")
    trained(tmp_path / "parts", monkeypatch, "train.train_iters=2")
    assert trained(tmp_path / "parts", monkeypatch, "train.train_iters=4") == whole
    assert [line["step"] for line in whole[0] if "valid_pair_accuracy" in line] == [2, 4]


def test_a_reward_model_says_what_it_is_and_rewards_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rewards of a step are the scores of its conversations, one by one; nothing takes it for a language model."""
    monkeypatch.chdir(tmp_path)
    trained(tmp_path, monkeypatch, "train.train_iters=2")
    made = tmp_path / "artifacts" / "super3-reward-model" / "v1"
    manifest, config = (json.loads((made / name).read_text()) for name in ("manifest.json", "config.json"))
    assert manifest["type"] == "RewardModelArtifact" and manifest["metrics"].keys() >= {"valid_pair_accuracy_before"}
    assert config["architectures"] == ["NemotronHForSequenceClassification"] and len(config["id2label"]) == 1

    model, batches = load_scoring(made, ONLY_MADE), list[tuple[list[Any], np.ndarray]]()
    judged = JudgedTrainer._judged

    def noted(self: JudgedTrainer, prompts: Any, completions: Any, expected: Any, ids: Any) -> np.ndarray:
        found = judged(self, prompts, completions, expected, ids)
        asked = [self.prompts[name].ids for name in prompts]
        batches.append(([[*one, *own] for one, own in zip(asked, ids, strict=True)], found))
        return found

    monkeypatch.setattr(JudgedTrainer, "_judged", noted)
    words = ("run.reward_model=super3-reward-model:latest", WITH_MODEL[0], "train.train_iters=1")
    assert main((*short("rl"), *words)) == 0
    assert len(batches) == 2, "a step and its validation"
    for conversations, rewards in batches:
        assert rewards.shape == (len(conversations), 1)
        assert [float(one) for one in rewards[:, 0]] == [score_of(model, ids) for ids in conversations]
    lineage = json.loads((tmp_path / "artifacts/super3-rl-model/v1/manifest.json").read_text())["parents"]
    assert {one["role"]: one["reference"] for one in lineage}["reward_model"] == "super3-reward-model:v1"

    capsys.readouterr()
    for refused in ("run.model=super3-reward-model:v1", f"run.model={made}"):
        assert main((*short("rl"), refused)) == 2
        assert "is a reward model, which scores answers and writes none" in capsys.readouterr().err
    assert main((*short("rl"), "run.reward_model=super3-rl-model:v1", WITH_MODEL[0])) == 2
    assert "super3-rl-model:v1 is a language model, which writes answers" in capsys.readouterr().err


@pytest.mark.slow
def test_a_stopped_training_by_scores_ends_with_the_bytes_of_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_reward_model(tmp_path / "scores")
    flat = ("scheduler.lr_decay_style=constant", "scheduler.lr_warmup_iters=0", "optimizer.lr=1e-3")
    found = []
    for folder, parts in (("whole", (4,)), ("parts", (2, 4))):
        monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / folder))
        for steps in parts:
            assert main((*short("rl"), *WITH_MODEL, *flat, f"train.train_iters={steps}")) == 0
        newest = max((tmp_path / folder).glob("artifacts/super3-rl-model/v*"))
        found.append((newest / "model.safetensors").read_bytes())
    assert found[0] == found[1]


def test_a_padding_token_that_ends_answers_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that tells the last token by it would read the reward one token too early."""
    make_model(tmp_path / "base")
    for file in (tmp_path / "base").glob("*token*.json"):
        if "pad_token" in (known := json.loads(file.read_text())):
            file.write_text(json.dumps(known | {"pad_token": known["eos_token"]}))
    trained(tmp_path, monkeypatch, "--rehearsed", "train.train_iters=1", f"run.model={tmp_path / 'base'}")
    made = tmp_path / "artifacts" / "super3-reward-model" / "v1"
    assert json.loads((made / "config.json").read_text())["pad_token_id"] is None
    assert np.isfinite(score_of(load_scoring(made, ONLY_MADE), [4, 7, 5]))


REFUSED = [
    ((*SHORT, "train.micro_batch_size=3"), "reward_modeling.global_batch_size 8 is not a multiple of"),
    ((*SHORT, "engine.strategy=fsdp2"), "reward_modeling trains whole models"),
    ((*SHORT, "engine=trl_lora"), "reward models are trained whole"),
    ((*SHORT, "engine=nemo_rl", "run.threads=null"), "engine nemo_rl trains by GRPO here, and not by reward_modeling"),
    ((*SHORT, "distillation={kl_type: reverse}"), "are 2 methods"),
    ((*short("rl"), WITH_MODEL[0]), "the reward 'model' and run.reward_model belong together"),
    ((*short("rl"), WITH_MODEL[1]), "the reward 'model' and run.reward_model belong together"),
    ((*short("rl"), WITH_MODEL[0], "run.reward_model=./language"), "is a language model, which writes answers"),
    ((*short("rl"), *WITH_MODEL, "engine=nemo_rl", "run.threads=null"), "engine nemo_rl has its own rewards"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_what_cannot_be_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path))
    make_reward_model(tmp_path / "scores")
    make_model(tmp_path / "language")
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_few_pairs_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("train.train_iters=1", "data_prep.synthetic_problems=5", *NO_HOLDOUT)
    trained(tmp_path, monkeypatch, *words)
    started = capsys.readouterr().err
    assert main((*SHORT, *words, "--dry-run")) == 0
    for said in (started, capsys.readouterr().out):
        assert said.count(f"5 training pairs: a step takes {PAIRS}, so it takes some more than once") == 1
        assert said.count("no validation pairs") == 1


def test_a_reward_model_of_another_vocabulary_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path))
    make_reward_model(tmp_path / "scores")
    file = tmp_path / "scores" / "tokenizer.json"
    file.write_text(file.read_text().replace("<|im_start|>", "<|begins|>"))
    assert main((*short("rl"), *WITH_MODEL)) == 2
    assert "run.reward_model: " in (said := capsys.readouterr().err) and "has another vocabulary" in said
    make_model(tmp_path / "policy")
    assert main((*short("rl"), *WITH_MODEL, "run.model=./policy", "--dry-run")) == 1
    assert "run.reward_model: " in (said := capsys.readouterr().out) and said.count("has another vocabulary") == 1


def test_a_reward_is_read_where_sampled_answers_end(tmp_path: Path) -> None:
    """Behind the token that closes an answer, ChatML has a line feed, which is learnt if both are one piece."""
    write("qwen2", tmp_path / "model")  # another token ends its texts
    write("llama", tmp_path / "plain")  # no template
    tokenizer = load_tokenizer(tmp_path / "model")
    closing = tokenizer.convert_tokens_to_ids("<|im_end|>")
    row: dict[str, list[int]] = {}
    for name, said in (("chosen", "In Oslo."), ("rejected", "In Rome, or Bonn.")):
        turns = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": said}]
        row[name], row[f"{name}_mask"] = Prompter(tokenizer).answered(turns, None)
        assert row[name][-1] != closing and row[f"{name}_mask"][-1] == 1
    rows, end = Dataset.from_list([row]), end_of_answers(tmp_path / "model")
    assert end == closing and end_of_answers(tmp_path / "plain") is None
    assert up_to_the_end(rows)[0] == row
    for name, found in up_to_the_end(rows, end)[0].items():
        assert found == row[name][:-1]
