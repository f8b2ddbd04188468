"""vLLM as the generator: what is refused before a start, what is handed over, and the life of its process.

vLLM itself is in the lane `vllm_cpu`; here a stand-in has its place, so what is tested is ours alone.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from support import ROOT, last_values_win, make_model, short
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from zoo import write

from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import resolve
from nemotron_shared.config.validate import validate
from nemotron_shared.engine.engine import engine_of, problems_of
from nemotron_shared.machine.machine import Machine
from nemotron_shared.step.records import what_and_how
from nemotron_shared.system.errors import UserError
from stages.rl import train
from stages.rl.engines.trl import generators, vllm_needs, vllm_program
from stages.rl.engines.trl.generators import OwnProcess, added_by_vllm, weights_of
from stages.rl.schema import RLConfig

main = last_values_win(train.main)
HEADS = "++model.overrides.head_dim=64"
DENSE = (HEADS, "++model.overrides.hybrid_override_pattern=M-M*-", "++model.overrides.intermediate_size=96")
SMALL: Any = {
    "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96,
    "bos_token_id": 2, "eos_token_id": 5, "pad_token_id": 0, "max_position_embeddings": 512,
}  # fmt: skip
PROGRAM = f"""
import importlib.util, os, sys, time
spec = importlib.util.spec_from_file_location("vllm_program", {vllm_program.__file__!r})
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)

class Sampler:
    def __init__(self, folder, settings):
        print("loading", folder, flush=True)
        if settings["dtype"] == "refused":
            raise ValueError("no such type\\nand more")
    def take(self, weights):
        self.found = dict(weights)
        if "odd" in self.found:
            raise RuntimeError("Unable to allocate memory")
    def draw(self, prompts, seeds, most):
        if prompts == [[0]]:
            print("about to end", flush=True)
            os._exit(3)
        if prompts == [[1]]:
            time.sleep(600)
        return [([*one, seed], [float(sum(value.double().sum() for value in self.found.values()))])
                for one, seed in zip(prompts, seeds)]

program.Sampler = Sampler
program.main()
"""


def config_of(*words: str) -> Any:
    composed = compose(train.STEP.directory / "config", "tiny", ["run.family=nano3", *words])
    return validate(RLConfig, resolve(composed.tree, lambda role, field: "x"), composed.origins)


REFUSED = [
    (
        (*DENSE, "++model.overrides.head_dim=16"),
        "heads of 32, 64, .*, and this model's are of 16\n  set engine.generation=null",
    ),
    ((HEADS,), "on a CPU, vLLM computes no experts without a gate"),
    ((*DENSE, "grpo.top_p=0.9", "grpo.temperature=0.8"), "no probabilities before top_p .0.9. at a temperature of 0.8"),
    ((*DENSE, "engine.vllm.sleep=true"), "vLLM gives no memory free on a CPU\n  set engine.vllm.sleep=false"),
    ((*DENSE, "engine.strategy=fsdp2"), "vLLM draws for one process with a whole model"),
    ((*DENSE, "engine.vllm.gpus='1'"), "vLLM in the process of the training is on its GPU"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_what_vllm_cannot_do_is_refused_before_a_start(words: tuple[str, ...], message: str) -> None:
    (problem,) = problems_of(config_of("engine.generation=vllm", *words), {}, machine(), {})
    assert re.search(message, str(problem)), problem


def machine(**packages: str) -> Machine:
    return replace(Machine.here(Path()), gpus=(), packages={"torch": "2.13.0", **packages})


def test_a_dense_model_with_heads_that_vllm_takes_is_not_refused() -> None:
    assert not problems_of(config_of("engine.generation=vllm", *DENSE), {}, machine(), {})


@pytest.mark.parametrize(
    ("packages", "message"),
    [({}, "vLLM is not installed in this environment\n  add it with uv sync"),
     ({"vllm": "0.30.1"}, "vLLM 0.30.1 is not >=0.31"),
     ({"vllm-cpu": "0.32.0"}, None), ({"vllm": "0.33.0+cu130"}, None)],
)  # fmt: skip
def test_a_dry_run_says_whether_vllm_is_there_and_new_enough(packages: dict[str, str], message: str | None) -> None:
    config = config_of("engine.generation=vllm", *DENSE)
    said = [str(one) for one in engine_of(config).needs(config, {}, machine(**packages)).others]
    assert [message] == [message for one in said if message in one] if message else not said


def test_the_generator_belongs_to_a_results_identity_and_its_place_does_not() -> None:
    def identity(*words: str) -> dict[str, Any]:
        section = config_of(*DENSE, *words).engine
        return what_and_how(section.model_dump(), section)[0]

    plain = identity()
    assert not {"generation", "generation_dtype", "vllm"} & plain.keys(), "results from before have their names"
    chosen = identity("engine.generation=vllm_server", "engine.vllm.python=/venv/bin/python")
    assert chosen == plain | {"generation": "vllm_server"}


@pytest.mark.parametrize(
    ("words", "reason"),
    [(("engine.dtype=bfloat16",), "engine.dtype is bfloat16"), (("run.threads=2",), "run.threads is not 1"),
     (("engine=trl_lora", "engine.peft.dropout=0.1"), "adapters drop values")],
)  # fmt: skip
def test_exact_is_refused_where_it_is_impossible(words: tuple[str, ...], reason: str) -> None:
    (problem,) = problems_of(config_of(*words, "engine.generation=exact"), {}, machine(), {})
    assert reason in str(problem) and "engine.generation=transformers" in str(problem)
    assert not problems_of(config_of(*words), {}, machine(), {}), "without a name it takes the other"


def as_saved(model: PreTrainedModel, folder: Path) -> dict[str, torch.Tensor]:
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("kind", ["qwen3", "llama_tied", "mixtral", "ours"])
def test_weights_are_handed_over_as_a_checkpoint_has_them(kind: str, tmp_path: Path) -> None:
    model = model_of(kind, tmp_path / "model")
    saved, handed = as_saved(model, tmp_path / "saved"), weights_of(model)
    tied = {"lm_head.weight"} if kind == "llama_tied" else set()
    assert handed.keys() - saved.keys() == tied and saved.keys() <= handed.keys() and len(saved) > 10
    assert all(torch.equal(handed[name], model.state_dict()[name]) for name in tied)
    assert all(torch.equal(saved[name], handed[name]) for name in saved)


def model_of(kind: str, folder: Path) -> PreTrainedModel:
    if kind == "ours":
        make_model(folder)
    else:
        write(kind, folder)
    return AutoModelForCausalLM.from_pretrained(folder)


def test_adapters_are_merged_or_left_to_vllm(tmp_path: Path) -> None:
    model = model_of("qwen3", tmp_path / "model")
    plain = {name: value.clone() for name, value in weights_of(model).items()}
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj"], init_lora_weights=False)
    adapted: Any = get_peft_model(model, lora)
    alone, handed = weights_of(adapted, merged=False), weights_of(adapted)
    assert all(torch.equal(plain[name], alone[name]) for name in plain) and plain.keys() == alone.keys()
    assert {name for name in plain if not torch.equal(plain[name], handed[name])} == {
        name for name in plain if name.endswith("q_proj.weight")
    }
    assert added_by_vllm(adapted) == 4 and added_by_vllm(model_of("qwen3", tmp_path / "other")) == 0
    whole = adapted.merge_and_unload()
    for name, value in weights_of(whole).items():
        torch.testing.assert_close(handed[name], value)
    head = LoraConfig(r=4, target_modules=["q_proj", "lm_head"])
    assert added_by_vllm(get_peft_model(model_of("qwen3", tmp_path / "third"), head)) == 0, "vLLM adapts no head"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., OwnProcess]]:
    """Starts the stand-in in a process of its own."""
    made: list[OwnProcess] = []

    def started(dtype: str = "float32") -> OwnProcess:
        program = [sys.executable, "-P", "-c", PROGRAM]
        made.append(OwnProcess(program, tmp_path, {"dtype": dtype}, tmp_path / "vllm.log", 60, {}))
        return made[-1]

    yield started
    for one in made:
        one.close()


def test_weights_reach_a_process_whole_and_each_prompt_gets_its_seed(start: Callable[..., OwnProcess]) -> None:
    weights = {"a": torch.tensor([[1.0, 2.5]]), "empty": torch.zeros(0, 3), "scalar": torch.tensor(0.125)}
    server = start()
    server.take(weights)
    assert server.draw([[7, 8], [9]], [11, 12], 4) == [([7, 8, 11], [3.625]), ([9, 12], [3.625])]
    rounded = start("bfloat16")
    rounded.take({"a": torch.tensor([1 + 2**-10])})
    assert rounded.draw([[7]], [1], 4) == [([7, 1], [1.0])]


def test_what_goes_wrong_is_one_sentence(start: Callable[..., OwnProcess], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^vLLM: ValueError: no such type"):
        start("refused")
    server = start()
    with pytest.raises(UserError, match=r"Unable to allocate memory\n  lower engine.vllm.gpu_memory_utilization"):
        server.take({"odd": torch.zeros(2), "rest": torch.zeros(3)})
    server.take({"a": torch.ones(2)})  # it goes on
    assert server.draw([[5]], [1], 4) == [([5, 1], [2.0])]
    with pytest.raises(UserError, match=r"ended with exit code 3: about to end\n  see .*vllm.log; run the same"):
        server.draw([[0]], [1], 4)
    hung = start()
    hung._patience = 2
    with pytest.raises(UserError, match=r"has not answered for 2 s .engine.vllm.patience_seconds"):
        hung.draw([[1]], [1], 4)
    hung.close()
    with pytest.raises(ProcessLookupError):
        os.killpg(hung.pid, 0)


def test_a_killed_training_leaves_no_process(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from stages.rl.engines.trl.generators import OwnProcess\n"
        f"one = OwnProcess([sys.executable, '-P', '-c', {PROGRAM!r}], Path({str(tmp_path)!r}), {{'dtype': 'float32'}},"
        f" Path({str(tmp_path / 'log')!r}), 60, {{}})\n"
        "print(one.pid, flush=True); time.sleep(600)"
    )
    training = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert training.stdout is not None
    pid = int(training.stdout.readline())
    os.killpg(pid, 0)  # it is there
    training.send_signal(signal.SIGKILL)
    training.wait()
    for _ in range(600):
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise AssertionError("it is still there")


class StandIn:
    """What vLLM would do, by transformers: tokens that follow from the weights and the seeds."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.settings, self.taken = settings, 0
        self.model: Any = LlamaForCausalLM(LlamaConfig.from_pretrained(folder)).eval()

    def take(self, weights: dict[str, torch.Tensor]) -> None:
        self.taken += 1
        self.model.load_state_dict(weights)

    def draw(self, prompts: list[list[int]], seeds: list[int], most: int) -> list[tuple[list[int], list[float]]]:
        return [self._one(prompt, seed, most) for prompt, seed in zip(prompts, seeds, strict=True)]

    @torch.no_grad()
    def _one(self, prompt: list[int], seed: int, most: int) -> tuple[list[int], list[float]]:
        ids, logps = list[int](), list[float]()
        draws = torch.Generator().manual_seed(seed)
        while len(ids) < most and not {*ids[-1:]} & {*self.settings["ends"]}:
            spread = self.model(torch.tensor([[*prompt, *ids]])).logits[0, -1].log_softmax(-1)
            ids.append(int(torch.multinomial(spread.exp(), 1, generator=draws)))
            logps.append(float(spread[ids[-1]]))
        return ids, logps

    def rest(self) -> None:
        raise AssertionError("nobody asked for sleep")


def test_a_training_draws_by_it_and_says_how_far_apart_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = list[StandIn]()

    def started(*args: Any) -> StandIn:
        made.append(StandIn(*args))
        return made[-1]

    assert main(words_for(tmp_path, monkeypatch, started)) == 0
    (file,) = (tmp_path / "home").glob("artifacts/super3-rl-model/v1/metrics.jsonl")
    lines = [one for one in map(json.loads, file.read_text().splitlines()) if "loss" in one]
    for one in lines:
        assert one["generation_seconds"] > 0 and one["handover_seconds"] > 0 and one["bounded_weights"] == 0
        assert 0 < one["differing_tokens"] < 1 and one["logprob_difference"] < 1e-4, "the weights of this step"
    assert len(lines) == 2
    assert made[0].taken == 3, "before each step, and before the last validation"
    assert "sampling: vLLM in this process, in float32 (engine.generation)" in capsys.readouterr().err


def words_for(place: Path, monkeypatch: pytest.MonkeyPatch, started: Callable[..., StandIn]) -> list[str]:
    """The words of a short training of a small Llama by a stand-in for vLLM."""
    save_tokenizer(place / "model")
    LlamaForCausalLM(LlamaConfig(**SMALL)).save_pretrained(place / "model")
    monkeypatch.setattr(generators, "InProcess", started)
    monkeypatch.setattr(vllm_needs, "DISTRIBUTIONS", ("torch",))
    monkeypatch.setenv("NEMOTRON_HOME", str(place / "home"))
    return [
        *short("rl"), "--rehearsed", "engine.generation=vllm", "train.train_iters=2", "train.eval_interval=2",
        f"run.model={place / 'model'}", "grpo.truncated_importance_sampling_ratio=2",
        "rewards=[{name: well_formed, weight: 1.0}]",
    ]  # fmt: skip


class Deaf(StandIn):
    """It keeps its random weights, whatever it is handed, and says nothing."""

    def take(self, weights: dict[str, torch.Tensor]) -> None:
        torch.manual_seed(1)
        for value in self.model.parameters():
            value.data.normal_(std=0.5)


def test_a_generator_that_takes_no_weights_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words_for(tmp_path, monkeypatch, Deaf)) == 2
    assert "step 1: vLLM computes another model than the one that is trained" in capsys.readouterr().err
