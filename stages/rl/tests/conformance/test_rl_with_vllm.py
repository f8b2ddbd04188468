"""GRPO draws by vLLM on a CPU: weights, adapters and episodes reach it, and a dead process costs nothing. So does a
server of vLLM's own, by weights that are a step old at every second step.

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
import inspect, json, os, signal, socket, subprocess, sys, time, urllib.request
from pathlib import Path
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Qwen3Config
from nemotron_data.synthetic.episodes import demonstrations
from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_shared.system.process import ending_with_us
from stages.rl.engines.trl import generators, vllm_needs
from stages.rl.train import main

sizes = dict(vocab_size=512, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
             intermediate_size=96, bos_token_id=2, eos_token_id=5, pad_token_id=0, max_position_embeddings=512)
torch.manual_seed(0)
models = {"llama": LlamaConfig(**sizes, tie_word_embeddings=True), "qwen3": Qwen3Config(**sizes, head_dim=32)}
for name, config in models.items():
    save_tokenizer(Path(name))
    AutoModelForCausalLM.from_config(config).save_pretrained(name)
with socket.socket() as one:
    one.bind(("127.0.0.1", 0))
    port = one.getsockname()[1]
os.environ["VLLM_API_KEY"] = "asked-for-by-the-server-and-sent-to-it"
serves = [sys.executable, "-P", "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", "llama",
          "--port", str(port), "--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager"]
told = dict(VLLM_SERVER_DEV_MODE="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind",
            VLLM_NO_USAGE_STATS="1")
server = subprocess.Popen(ending_with_us(serves, group=True), env=os.environ | told, stdout=sys.stderr,
                          start_new_session=True)

def answers():
    if server.poll() is not None:
        raise SystemExit("the server has ended")
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60).status == 200
    except OSError:
        return False

# a model that calls tools, as random weights never do
save_tokenizer(Path("caller"))
tokenizer = AutoTokenizer.from_pretrained("caller")
rows = [torch.tensor(tokenizer.apply_chat_template(one["messages"][:2], return_dict=False))
        for one in demonstrations("drawers", 0, 500) if len(one["messages"]) > 2]
caller = AutoModelForCausalLM.from_config(LlamaConfig(**sizes))
optimizer = torch.optim.AdamW(caller.parameters(), lr=5e-3)
for step in range(200):
    optimizer.param_groups[0]["lr"] = 5e-3 * (1 - step / 200)
    ids = pad_sequence([rows[(16 * step + row) % len(rows)] for row in range(16)], batch_first=True)
    caller(input_ids=ids, attention_mask=(ids != 0).long(), labels=ids.masked_fill(ids == 0, -100)).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
caller.save_pretrained("caller")

short = ["run.family=nano3", "train.train_iters=3", "train.eval_interval=3", "train.eval_rows=4",
         "checkpoint.save_interval=1", "grpo.num_prompts_per_step=2", "grpo.num_generations_per_prompt=4",
         "grpo.truncated_importance_sampling_ratio=2"]
sums = ["-c", "tiny", *short, "grpo.max_new_tokens=8", "optimizer.lr=1e-2", "data_prep.synthetic_problems=60",
        "rewards=[{path: even.py:even}]"]
Path("even.py").write_text("def even(completion, expected):\\n    return len(completion) % 2\\n")

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
codes["episodes"] = trained("episodes-home", "-c", "drawers", *short, "run.model=./caller",
                            "engine.generation=vllm", "data_prep.synthetic_problems=60")
while not answers():
    time.sleep(1)
changed = {"train.train_iters": 4, "train.eval_interval": 4, "checkpoint.save_interval": 2, "grpo.max_staleness": 1}
stale = [f"{key}={value}" for key, value in changed.items()]
sums = [word for word in sums if word.partition("=")[0] not in changed]
elsewhere = ["engine.generation=vllm_server", f"engine.vllm.address=http://127.0.0.1:{port}"]
codes["elsewhere"] = trained("elsewhere-home", *sums, *stale, *elsewhere, "run.model=./llama")
os.killpg(server.pid, signal.SIGKILL)
codes["gone"] = trained("gone-home", *sums, *stale, *elsewhere, "run.model=./llama")
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
    if home == "episodes-home":
        assert all(step["environment/turns"] > 1 and step["environment/calls"] > 0 for step in steps)


def test_a_server_elsewhere_draws_by_weights_of_the_age_that_was_asked_for(
    done: tuple[Path, dict[str, Any], str],
) -> None:
    place, codes, said = done
    assert codes["elsewhere"] == 0, said[-5000:]
    steps = steps_of(place, "elsewhere-home")
    assert [step["stale_steps"] for step in steps] == [0, 1, 0, 1]
    assert all((step["logprob_difference"] < 1e-4) == (not step["stale_steps"]) for step in steps)
    (file,) = (place / "elsewhere-home").glob("artifacts/*-rl-model/v1/manifest.json")
    metadata = json.loads(file.read_text())["metadata"]
    assert metadata["replayable"] is False and metadata["generator"].startswith("vLLM 0.")
    assert codes["gone"] == 2 and "engine.vllm.address: no server at http://127.0.0.1:" in said


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
