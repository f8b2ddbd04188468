"""What is sampled is what is trained, and the log says how far they are apart."""

import json
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from support import last_values_win, short
from transformers import AutoModelForCausalLM, AutoTokenizer
from zoo import write

from stages.rl import train
from stages.rl.engines.trl.batches import Batches
from stages.rl.engines.trl.library import GRPOConfig
from stages.rl.engines.trl.sampling import SamplingTrainer, weighed
from stages.rl.engines.trl.train import named

main = last_values_win(train.main)

NAMES = ("token_mult_prob_error", "differing_tokens", "logprob_difference", "sequence_ratio")


def trained(home: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[dict[str, float]]:
    monkeypatch.setenv("NEMOTRON_HOME", str(home))
    assert main([*short("rl"), "train.train_iters=2", *words]) == 0
    (file,) = home.glob("artifacts/super3-rl-model/v1/metrics.jsonl")
    return [entry for entry in map(json.loads, file.read_text().splitlines()) if "loss" in entry]


def test_sampled_and_trained_are_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for entry in trained(tmp_path, monkeypatch):
        assert [entry[name] for name in NAMES] == [1.0, 0.0, 0.0, 1.0]
        assert entry["router_flips"] == 0.0


def test_where_transformers_samples_the_log_says_what_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for entry in trained(tmp_path / "h", monkeypatch, "engine.exact_sampling=false"):
        assert 0 < entry["logprob_difference"] < 1e-3
        assert 0 < entry["differing_tokens"] <= 1
        assert 1 < entry["token_mult_prob_error"] < 1.001
        assert entry["sequence_ratio"] == pytest.approx(1, abs=1e-3)
        assert 0 <= entry["router_flips"] < 0.05
    limit = "grpo.sampling_mismatch_limit=1.0000000001"
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "stopped"))
    assert main([*short("rl"), "train.train_iters=2", "engine.exact_sampling=false", limit]) == 2
    told = capsys.readouterr().err
    assert "step 1: sampling and training disagree" in told
    assert "grpo.sampling_mismatch_limit=null" in told


def test_more_threads_are_said_to_keep_it_from_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path, monkeypatch, "run.threads=2")
    said = "sampling: transformers' generate (torch uses more than one thread; set run.threads=1)"
    assert said in capsys.readouterr().err


def test_truncated_importance_sampling_weighs_tokens_that_training_would_have_drawn_more_or_less() -> None:
    inputs = {
        "advantages": torch.tensor([1.0, -2.0]),
        "completion_mask": torch.tensor([[1, 1, 1], [1, 0, 0]]),
        "sampling_per_token_logps": torch.tensor([[0.5, 0.5, 0.5], [0.25, 1, 1]]).log(),
    }
    trained = torch.tensor([[0.5, 0.25, 0.9], [1.0, 0.1, 0.1]]).log()
    expected = [[1.0, 0.5, 1.5], [-3.0, -2.0, -2.0]]  # 0.9 / 0.5 and 1 / 0.25 are more than 1.5; padding stays
    torch.testing.assert_close(weighed(inputs, trained, 1.5), torch.tensor(expected))


def test_completions_are_drawn_without_the_dropout_of_adapters(tmp_path: Path) -> None:
    """Their probabilities, and those that updates of a step are compared with, are the model's own; the loss drops."""
    folder = write("qwen3", tmp_path / "model")
    settings = {"output_dir": str(folder / "out"), "report_to": [], "use_cpu": True, "bf16": False, "max_steps": 1}
    trainer = SamplingTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder),
        reward_funcs=[named("strict")],
        args=GRPOConfig(**settings, max_completion_length=8, num_generations=2, per_device_train_batch_size=2),
        train_dataset=Dataset.from_list([{"prompt": "a", "expected": "b"}]),
        processing_class=AutoTokenizer.from_pretrained(folder),
        peft_config=LoraConfig(r=4, lora_dropout=0.9, target_modules=["q_proj", "v_proj"], init_lora_weights=False),
    )
    model = trainer.model.train()
    trainer.batches, trainer.rows, prompts = Batches(4, 2, 2, 1, 0), [0, 1], [[5, 6, 7, 8], [9, 10, 11, 12]]
    completions, drawn = trainer._generate_single_turn(prompts, None, {}, 1)
    assert model.training, "the next pass is of a training"
    ids = torch.tensor([one + said for one, said in zip(prompts, completions, strict=True)])

    def logps(training: bool) -> torch.Tensor:
        with torch.no_grad():
            every = model.train(training)(input_ids=ids, use_cache=False).logits[:, 3:-1].log_softmax(-1)
        return every.gather(2, ids[:, 4:, None])[..., 0]

    torch.testing.assert_close(torch.tensor(drawn), logps(False), rtol=0, atol=1e-4)
    assert (logps(True) - logps(False)).abs().max() > 1e-2, "a training drops values"
    with torch.no_grad():
        before, *_ = trainer._get_per_token_logps_and_entropies(model.train(), ids, torch.ones_like(ids), 8)
    torch.testing.assert_close(before, logps(False), rtol=0, atol=1e-4)


def test_bits_that_dropout_changes_are_not_said_to_be_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("engine=trl_lora", "engine.peft.dropout=0.5", "engine.peft.layers=[attention]", "train.train_iters=1")
    (entry,) = trained(tmp_path, monkeypatch, *words)
    told = capsys.readouterr().err
    assert "engine.peft.dropout=0.5: completions are drawn without it and learnt with it" in told
    assert "sampling: transformers' generate (adapters drop values in training)" in told
    assert entry["differing_tokens"] > 0
