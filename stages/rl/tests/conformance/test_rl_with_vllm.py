"""GRPO draws by vLLM on a CPU: weights, adapters and episodes reach it, and a dead process costs nothing.

Run with `ci/engine.sh vllm_cpu`, which makes an environment with vLLM, TRL and this repository. All trainings are in
one process of it, which imports libraries once.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.vllm_cpu

PROGRAM = """
import inspect, json, os, signal, sys
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config
from nemotron_data.tokenizers.tiny import save_tokenizer
from stages.rl.engines.trl import generators, vllm_needs
from stages.rl.train import main

sizes = dict(vocab_size=512, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
             intermediate_size=96, bos_token_id=2, eos_token_id=5, pad_token_id=0, max_position_embeddings=512)
torch.manual_seed(0)
models = {"llama": LlamaConfig(**sizes, tie_word_embeddings=True), "qwen3": Qwen3Config(**sizes, head_dim=32)}
for name, config in models.items():
    save_tokenizer(Path(name))
    AutoModelForCausalLM.from_config(config).save_pretrained(name)
short = ["run.family=nano3", "train.train_iters=3", "train.eval_interval=3", "train.eval_rows=4",
         "checkpoint.save_interval=1", "grpo.num_prompts_per_step=2", "grpo.num_generations_per_prompt=4",
         "grpo.max_new_tokens=8", "optimizer.lr=1e-2", "grpo.truncated_importance_sampling_ratio=2"]
sums = ["-c", "tiny", *short, "data_prep.synthetic_problems=60", "rewards=[{path: even.py:even}]"]
Path("even.py").write_text("def even(completion, expected):\\n    return len(completion) % 2\\n")
dense = ["++model.overrides.hybrid_override_pattern=M-M*-", "++model.overrides.intermediate_size=96",
         "++model.overrides.head_dim=64"]

def trained(home, *words):
    os.environ["NEMOTRON_HOME"] = str(Path(home).absolute())
    return main([*words, "--trust-code"])

codes = {"llama": trained("llama-home", *sums, "run.model=./llama", "engine.generation=vllm_server")}
draw, drawn = generators.OwnProcess.draw, []

def dying(self, *arguments):
    drawn.append(1)
    if len(drawn) == 3:
        os.killpg(self.pid, signal.SIGKILL)
    return draw(self, *arguments)

generators.OwnProcess.draw = dying
again = [*sums, "run.model=./llama", "engine.generation=vllm_server"]
codes["killed"] = trained("killed-home", *again)
codes["continued"] = trained("killed-home", *again)
codes["lora"] = trained("lora-home", *sums, "run.model=./qwen3", "engine=trl_lora", "engine.generation=vllm_server")
codes["episodes"] = trained("episodes-home", "-c", "drawers", *short, *dense, "run.missing_model=random",
                            "engine.generation=vllm", "data_prep.synthetic_problems=60")
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
heads = tuple(CPUAttentionBackend.get_supported_head_sizes()) == vllm_needs.HEADS_ON_CPU
taken = "weights_iterator" in inspect.signature(GPUModelRunner.reload_weights).parameters
print(json.dumps(codes | {"heads": heads, "taken": taken}))
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """The folder with the stores of all trainings, their exit codes, and what was said."""
    place = tmp_path_factory.mktemp("trainings")
    (place / "program.py").write_text(PROGRAM)
    command = [os.environ["TRL_WITH_VLLM"], "-P", str(place / "program.py")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=place)
    assert ran.returncode == 0, ran.stderr[-5000:]
    return place, json.loads(ran.stdout.splitlines()[-1]), ran.stderr


def steps_of(place: Path, home: str) -> list[dict[str, float]]:
    (file,) = (place / home).glob("artifacts/*-rl-model/v1/metrics.jsonl")
    return [one for one in map(json.loads, file.read_text().splitlines()) if "loss" in one]


@pytest.mark.parametrize("home", ["llama-home", "lora-home", "episodes-home"])
def test_each_step_draws_by_its_own_weights(done: tuple[Path, dict[str, Any], str], home: str) -> None:
    place, codes, said = done
    assert codes[home.removesuffix("-home")] == 0, said[-5000:]
    steps = steps_of(place, home)
    assert len(steps) == 3
    for step in steps:
        # measured: up to 2e-6 nats; by the weights of the step before, above 0.1
        assert 0 < step["logprob_difference"] < 1e-4 and step["bounded_weights"] == 0
        assert step["generation_seconds"] > 0
    if home != "episodes-home":
        assert any(step["grad_norm"] > 0 for step in steps), "the weights change"
    if home == "lora-home":
        assert "adapters: added by vLLM" in said


def test_a_dead_process_is_one_sentence_and_the_same_command_goes_on(done: tuple[Path, dict[str, Any], str]) -> None:
    place, codes, said = done
    assert codes["killed"] == 2 and codes["continued"] == 0
    assert "vLLM's process was ended by signal 9" in said
    times = {"seconds", "memory_gb", "handover_seconds", "generation_seconds"}
    whole, continued = (
        [{key: value for key, value in step.items() if key not in times} for step in steps_of(place, home)]
        for home in ("llama-home", "killed-home")
    )
    assert whole == continued
    one, other = (next((place / home).glob("artifacts/*-rl-model/v1/model.safetensors")) for home in
                  ("llama-home", "killed-home"))  # fmt: skip
    assert one.read_bytes() == other.read_bytes()


def test_the_names_and_sizes_of_vllm_are_those_that_we_know(done: tuple[Path, dict[str, Any], str]) -> None:
    assert done[1]["heads"] and done[1]["taken"]
