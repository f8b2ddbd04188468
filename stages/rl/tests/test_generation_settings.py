"""A model's generation_config.json changes nothing of what is sampled but where answers end."""

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from support import last_values_win, short
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from zoo import write

from stages.rl import train
from stages.rl.engines.trl.batches import Batches
from stages.rl.engines.trl.library import GRPOConfig
from stages.rl.engines.trl.sampling import SamplingTrainer
from stages.rl.engines.trl.scheduled import ScheduledGRPOTrainer
from stages.rl.engines.trl.train import named

main = last_values_win(train.main)


PROMPTS = [[5, 6, 7, 8], [9, 10, 11]]
PLANTED: dict[str, Any] = {
    "min_p": 0.9, "no_repeat_ngram_size": 1, "min_new_tokens": 9, "min_length": 12, "typical_p": 0.1,
    "suppress_tokens": [*range(200)], "begin_suppress_tokens": [*range(200)], "sequence_bias": [[[7], 50.0]],
    "bad_words_ids": [[number] for number in range(200)], "epsilon_cutoff": 0.5, "eta_cutoff": 0.5, "top_h": 0.1,
    "temperature": 0.01, "top_k": 1, "top_p": 0.1, "repetition_penalty": 50.0, "num_beams": 2, "max_new_tokens": 2,
    "max_length": 3, "exponential_decay_length_penalty": [1, 9.0], "forced_eos_token_id": 7, "guidance_scale": 9.0,
    "prefill_chunk_size": 2, "num_return_sequences": 2, "do_sample": False, "stop_strings": ["a"],
    "output_scores": True, "return_dict_in_generate": True, "cache_implementation": "static",
}  # fmt: skip


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> SamplingTrainer:
    """A trainer whose model samples with transformers."""
    folder = write("qwen3", tmp_path_factory.mktemp("settings") / "model")
    settings = {"output_dir": str(folder / "out"), "report_to": [], "use_cpu": True, "bf16": False, "max_steps": 1}
    return SamplingTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder),
        reward_funcs=[named("strict")],
        args=GRPOConfig(**settings, max_completion_length=8, num_generations=2, per_device_train_batch_size=2,
                        temperature=1.3, top_p=0.95),
        train_dataset=Dataset.from_list([{"prompt": "a", "expected": "b"}]),
        processing_class=AutoTokenizer.from_pretrained(folder),
    )  # fmt: skip


def sampled(trainer: SamplingTrainer, **planted: Any) -> tuple[list[list[int]], list[list[float]]]:
    """Completions and log-probabilities of a model whose file has these settings; of a validation's turn."""
    ends = {"eos_token_id": trainer.eos_token_ids, "pad_token_id": 0, "do_sample": True}
    own = trainer.model.generation_config = GenerationConfig.from_dict(ends | planted)
    trainer.batches, trainer.rows = Batches(4, 2, 2, 1, 0), [0, 1]
    found = trainer._generate_single_turn(PROMPTS, None, {}, 1)
    assert trainer.model.generation_config is own, "it is published with the model"
    return found


@pytest.mark.parametrize("key", PLANTED)
def test_no_setting_of_the_file_changes_what_is_sampled(trainer: SamplingTrainer, key: str) -> None:
    ids, logps = sampled(trainer)
    assert {len(one) for one in ids} == {8} and ids[0] != ids[1]
    assert sampled(trainer, **{key: PLANTED[key]}) == (ids, logps)


def test_one_process_trains_on_one_gpu_where_it_sees_several(trainer: SamplingTrainer, tmp_path: Path) -> None:
    """The library would copy the model to each, which TRL refuses."""
    args = GRPOConfig(output_dir=str(tmp_path), report_to=[], use_cpu=True, bf16=False, max_steps=1,
                      num_generations=2, per_device_train_batch_size=2)  # fmt: skip
    assert args.n_gpu == 0
    args._n_gpu = 2
    again = ScheduledGRPOTrainer(
        model=trainer.model, reward_funcs=[named("strict")], args=args, train_dataset=trainer.train_dataset,
        processing_class=trainer.processing_class,
    )  # fmt: skip
    assert again.args.n_gpu == 1 and again._train_batch_size == 2


def test_a_start_and_a_dry_run_say_what_is_left_out_and_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The library would refuse to save `min_p` without `do_sample`, and put the tokenizer's tokens into both files."""
    folder = write("qwen3", tmp_path / "model")
    asked = {"eos_token_id": [2, 9], "pad_token_id": 7, "min_p": 0.9}
    (folder / "generation_config.json").write_text(json.dumps(asked))
    named = {"eos_token_id": 5, "pad_token_id": None, "bos_token_id": 6}
    (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | named))
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    words = [*short("rl"), "--rehearsed", f"run.model={folder}"]
    assert main([*words, "--dry-run"]) == 0
    told = "its generation_config.json asks for min_p 0.9: left out, grpo.temperature and grpo.top_p alone decide"
    ahead = capsys.readouterr().out
    assert "leaves no room for a prompt" not in ahead
    assert main([*words, "--dry-run", "grpo.max_new_tokens=512"]) == 0
    assert "WARNING: grpo.max_new_tokens=512 leaves no room for a prompt in the model's context of 512 tokens" in (
        capsys.readouterr().out
    )
    assert told in ahead and "its chat template tool_use is left out: default is used with tools, too" in ahead
    seen = list[list[int]]()
    monkeypatch.setattr(SamplingTrainer, "log", lambda self, *_: seen.append(self.eos_token_ids))
    assert main([*words, "train.train_iters=1", "train.eval_interval=9"]) == 0
    assert capsys.readouterr().err.count(told) == 1
    assert [sorted(ids) for ids in seen[:1]] == [[0, 2, 5, 9]], "of the file, the tokenizer and config.json"
    made, config = (
        json.loads((tmp_path / "home/artifacts/super3-rl-model/v1" / name).read_text())
        for name in ("generation_config.json", "config.json")
    )
    assert made | asked == made and {name: config[name] for name in named} == named
