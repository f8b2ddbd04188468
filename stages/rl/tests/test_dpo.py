"""DPO: the loss of the README in float64, the same bytes after a stop, and what its settings refuse."""

import json
from math import exp, fsum, log, log1p
from pathlib import Path
from typing import Any

import pytest
import torch
from support import last_values_win, made_in
from zoo import write

from nemotron_data.chat.prompt import Prompter
from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_shared.system.atomic import read_json
from stages.rl import train
from stages.rl.engines.trl.dpo import DPOPairTrainer
from stages.rl.engines.trl.pairs import encoded

main = last_values_win(train.main)

BETA, PAIRS, MICRO = 0.3, 8, 4
SHORT = (
    "-c", "dpo_tiny", "data_prep.synthetic_problems=20", "data_prep.workers=1", "train.eval_interval=2",
    "train.eval_rows=8", "data_prep.holdout.rows=7", "checkpoint.save_interval=2", "scheduler.lr_warmup_iters=0",
    f"dpo.global_batch_size={PAIRS}", f"dpo.reference_policy_kl_penalty={BETA}", f"train.micro_batch_size={MICRO}",
    "optimizer.lr=1e-3", "scheduler.lr_decay_style=constant", "logger.tensorboard=false",
)  # fmt: skip


ALL_TRAIN = ("data_prep.split.train=1.0", "data_prep.split.valid=0.0", "data_prep.split.test=0.0")


def trained(home: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[list[dict[str, Any]], bytes]:
    """The log without times, and the weights, of the newest model."""
    monkeypatch.setenv("NEMOTRON_HOME", str(home))
    assert main((*SHORT, *words)) == 0
    return made_in(home, "super3-rl-model")


def logps(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Log-probability of each token given those before it, (rows, tokens - 1) float64."""
    with torch.no_grad():
        logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], use_cache=False).logits
    return logits[:, :-1].double().log_softmax(-1).gather(2, inputs["input_ids"][:, 1:, None])[..., 0]


@pytest.mark.parametrize("average", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_it_is_the_loss_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, average: bool) -> None:
    """And the figures, of training and of validation, are of what it compares."""
    found: dict[tuple[str, int], list[float]] = {}
    compute = DPOPairTrainer._compute_loss

    def noted(self: DPOPairTrainer, model: Any, inputs: dict[str, Any], return_outputs: bool) -> Any:
        mask = inputs["completion_mask"][:, 1:].bool()
        gained = [
            (fsum((one - start)[of].tolist())) / (int(of.sum()) if average else 1)
            for one, start, of in zip(logps(model, inputs), logps(self.ref_model, inputs), mask, strict=True)
        ]
        size = len(gained) // 2
        margins = [BETA * (better - worse) for better, worse in zip(gained[:size], gained[size:], strict=True)]
        when = ("", self.state.global_step + 1) if model.training else ("valid_", self.state.global_step)
        found.setdefault(when, []).extend(margins)
        return compute(self, model, inputs, return_outputs)

    monkeypatch.setattr(DPOPairTrainer, "_compute_loss", noted)
    words = (f"dpo.preference_average_log_probs={str(average).lower()}", "train.eval_interval=3")
    lines, _ = trained(tmp_path, monkeypatch, "train.train_iters=3", *words)
    logged = {(name, line["step"]): line for line in lines for name in ("", "valid_") if f"{name}loss" in line}
    assert logged.keys() == found.keys() == {("", 1), ("", 2), ("", 3), ("valid_", 3)}
    for (name, step), margins in found.items():
        line = logged[name, step]
        assert len(margins) == (PAIRS if not name else 7)
        loss = fsum(log1p(exp(-one)) for one in margins) / len(margins)
        assert line[f"{name}loss"] == pytest.approx(loss, rel=1e-4)
        if step > 1:  # in the first step both models are the same one
            assert line[f"{name}pair_accuracy"] == sum(one > 0 for one in margins) / len(margins)
        if not name:
            assert line["reward_margin"] == pytest.approx(fsum(margins) / PAIRS, rel=1e-3, abs=1e-6)
    assert logged["", 1]["loss"] == pytest.approx(0.6931, abs=1e-3) and logged["", 3]["loss"] < 0.6


@pytest.mark.parametrize("words", [(), ("engine=trl_lora",)], ids=["whole", "adapters"])
def test_the_loss_of_one_pair_is_that_of_its_margin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """The library would add a loss of the routers, with the weight in config.json; the README's loss has none. With
    the dropout there, the first loss would not be ln 2.
    """
    monkeypatch.chdir(tmp_path)
    file = write("qwen3_moe", tmp_path / "model") / "config.json"
    of_folder = {
        "attention_dropout": 0.5,
        "bos_token_id": None,
        "eos_token_id": 7,
        "pad_token_id": 3,
        "use_cache": True,
    }
    file.write_text(json.dumps(json.loads(file.read_text()) | of_folder))
    ends = {"eos_token_id": [7], "pad_token_id": 3}
    file.with_name("generation_config.json").write_text(json.dumps(ends))
    pair = {"prompt": "2+2?", "chosen": "4", "rejected": "It is 5, as 2+3 is"}
    (tmp_path / "pair.jsonl").write_text(json.dumps(pair) + "\n")
    words = (
        *words,
        "--rehearsed",
        "run.model=./model",
        "data_prep.source=pair.jsonl",
        "data_prep.holdout.rows=null",
        *ALL_TRAIN,
    )
    one = ("dpo.global_batch_size=1", "train.micro_batch_size=1", "dpo.preference_average_log_probs=true")
    lines, _ = trained(tmp_path, monkeypatch, *words, *one, "train.train_iters=3", "optimizer.lr=1e-2")
    steps = [line for line in lines if "loss" in line]
    assert len(steps) == 3 and steps[0]["loss"] == pytest.approx(log(2), abs=1e-6)
    for line in steps:
        assert line["loss"] == pytest.approx(log1p(exp(-line["reward_margin"])), abs=1e-6)
        assert line["pair_accuracy"] == (line["reward_margin"] > 0)
    assert steps[2]["reward_margin"] > 1e-3
    made = tmp_path / "artifacts/super3-rl-model/v1"  # the library has other special tokens, and no cache, in both
    assert {key: read_json(made / "config.json")[key] for key in of_folder} == of_folder
    said = read_json(made / "generation_config.json")
    assert {key: said.get(key) for key in ("bos_token_id", *ends)} == {"bos_token_id": None, **ends}


@pytest.mark.slow
def test_a_stopped_training_ends_with_the_bytes_of_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trained(tmp_path / "whole", monkeypatch, "train.train_iters=4")
    trained(tmp_path / "parts", monkeypatch, "train.train_iters=2")
    assert trained(tmp_path / "parts", monkeypatch, "train.train_iters=4") == whole
    assert [line["step"] for line in whole[0] if "valid_pair_accuracy" in line] == [2, 4]


def test_only_what_fine_tuning_would_learn_of_the_answers_counts(tmp_path: Path) -> None:
    from nemotron_engines.modeling.build import load_tokenizer

    save_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    turns = [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "2+2?"},
    ]
    row = {
        "prompt": turns,
        "chosen": [{"role": "assistant", "reasoning_content": "2+2=4", "content": "4"}],
        "rejected": "5",
    }
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    said: list[str] = []
    (found,), _ = encoded(tmp_path / "train.jsonl", Prompter(tokenizer), said.append)
    learnt = {
        name: tokenizer.decode(
            [token for token, counts in zip(found[name], found[f"{name}_mask"], strict=True) if counts]
        )
        for name in ("chosen", "rejected")
    }
    assert not said, "all of it is shown"
    assert "2+2=4" in learnt["chosen"] and learnt["chosen"].count("4") == 2 and "2+2?" not in learnt["chosen"]
    assert "5" in learnt["rejected"] and tokenizer.eos_token in learnt["rejected"] and "1+1" not in learnt["rejected"]


REFUSED = [
    (("train.micro_batch_size=3",), "dpo.global_batch_size 8 is not a multiple of train.micro_batch_size 3"),
    (("engine.strategy=fsdp2",), "dpo trains whole models"),
    (("engine=trl_lora", "engine.peft.target_modules=[lm_head]"), "adapts lm_head, whose adapter has no effect in dpo"),
    (("engine=nemo_rl", "run.threads=null"), "engine nemo_rl trains by GRPO here, and not by dpo"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_what_cannot_be_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path))
    assert main((*SHORT, *words)) == 2
    assert message in capsys.readouterr().err


def test_pairs_beyond_the_context_of_the_model_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    # 3,000 numbers of two digits are 6,000 tokens and more; the model of the tiny recipes reads 4,096
    rows = [{"prompt": f"{one}+1?", "chosen": "17 " * 3_000 if one == 8 else "2", "rejected": "5"} for one in range(12)]
    source = tmp_path / "pairs.jsonl"
    source.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = (*SHORT, f"data_prep.source={source}", "data_prep.holdout.rows=2")
    assert main(words) == 2
    said = capsys.readouterr().err
    (fault,) = (line for line in said.splitlines() if line.startswith("error: "))
    assert "train.jsonl:9: 9,016 tokens exceed the model's context of 4,096; in all, 1 of 10 pairs" in fault
    source.write_text(source.read_text().replace("17 " * 3_000, "17 " * 400))
    assert main((*words, "train.train_iters=1")) == 0
    assert "up to 1,216 tokens an answer with its prompt, and 4 pairs a pass: if memory" in "".join(capsys.readouterr())
    assert "leave them out" in said


def test_settings_of_grpo_are_said_to_have_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path))
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"prompt": "2+2?", "chosen": "4", "rejected": "5"}))
    unread = f"data_prep.source={tmp_path / 'pairs.jsonl'}"
    assert main((*SHORT, unread, "grpo.temperature=0.7", "--dry-run")) == 0
    said = "".join(capsys.readouterr())
    assert "grpo.temperature has no effect with dpo, which samples nothing" in said
    assert "4 rows of 2048 a pass, each a pair, of two answers that are taken as 1,024 tokens with" in said
