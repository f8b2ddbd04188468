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
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from support import ROOT, last_values_win, make_model, short
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from zoo import write

from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_shared.artifacts.manifest import Manifest
from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import resolve
from nemotron_shared.config.validate import validate
from nemotron_shared.engine.engine import engine_of, problems_of
from nemotron_shared.machine.machine import Machine
from nemotron_shared.step.records import what_and_how, why_not_promised
from nemotron_shared.step.rehearsal import BY_OTHERS
from nemotron_shared.system.errors import UserError
from stages.rl import train
from stages.rl.engines.trl import generators, vllm_needs, vllm_program
from stages.rl.engines.trl import train as trl_train
from stages.rl.engines.trl.generators import OwnProcess, added_by_vllm, weights_of
from stages.rl.schema import RLConfig

main = last_values_win(train.main)
HEADS = "++model.overrides.head_dim=64"
DENSE = (HEADS, "++model.overrides.hybrid_override_pattern=M-M*-", "++model.overrides.intermediate_size=96")
STALE = (
    "grpo.max_staleness=2", "grpo.truncated_importance_sampling_ratio=2", "train.eval_interval=6",
    "checkpoint.save_interval=3",
)  # fmt: skip
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
    slow = False
    def take(self, weights):
        if self.slow:
            time.sleep(600)
        self.found = dict(weights)
        if "odd" in self.found:
            raise RuntimeError("Unable to allocate memory")
    def draw(self, prompts, seeds, most):
        if prompts == [[0]]:
            print("about to end", flush=True)
            os._exit(3)
        if prompts == [[1]]:
            time.sleep(600)
        self.slow = prompts == [[2]]
        return [([*one, seed], [float(sum(value.double().sum() for value in self.found.values()))])
                for one, seed in zip(prompts, seeds)]

program.Sampler = Sampler
program.main()
"""


def config_of(*words: str, name: str = "tiny") -> Any:
    composed = compose(train.STEP.directory / "config", name, ["run.family=nano3", *words])
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
    (
        (*DENSE, "engine.dtype=bfloat16"),
        "in bfloat16 otherwise than training does\n  set engine.generation_dtype=float32",
    ),
    ((*DENSE, "engine.vllm.gpus=1"), "vLLM in the process of the training is on its GPU"),
    (
        (*DENSE, "engine.vllm.address=http://gpu2:8000"),
        "vLLM in the process of the training has no address\n  set engine.generation=vllm_server",
    ),
    (
        (*DENSE, "engine.generation=vllm_server", "engine.vllm.address=http://gpu2:8000", "engine.vllm.gpus=1"),
        "was started by somebody else, and engine.vllm.gpus is for one of our own\n  leave one of the two out",
    ),
    (
        (*DENSE, "engine.generation=vllm_server", "engine.vllm.gpus='1,2'"),
        "vLLM computes on one GPU, and engine.vllm.gpus=1,2 does not name one\n  give its place",
    ),
    ((*DENSE, "engine.generation=vllm_server", "engine.vllm.gpus=-1"), "engine.vllm.gpus=-1 does not name one"),
    ((*DENSE, "engine.vllm.python=/venv/bin/python"), "vLLM in the process of the training is started by its Python"),
    ((*DENSE, "grpo.temperature=0.001"), "a temperature of 0.01 for lower ones\n  set grpo.temperature=0.01"),
    (
        (*DENSE, "++model.overrides.max_position_embeddings=20"),
        "context of 20 tokens, and 20 leave no room for a prompt",
    ),
    (
        (*DENSE, *STALE, "train.eval_interval=8"),
        "every step that 3 divides, and train.eval_interval is 8\n  set train.eval_interval to a multiple of 3",
    ),
    (
        (*DENSE, *STALE, "checkpoint.save_interval=8"),
        "every step that 3 divides, and checkpoint.save_interval is 8",
    ),
    ((*DENSE, "distillation={kl_type: reverse}", "run.teacher=t"), "distillation does not measure whether vLLM draws"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_what_vllm_cannot_do_is_refused_before_a_start(words: tuple[str, ...], message: str) -> None:
    (problem,) = problems_of(config_of("engine.generation=vllm", *words), {}, machine(), {})
    assert re.search(message, str(problem)), problem


def machine(*, gpus: tuple[Any, ...] = (), sees_files: bool = True, **packages: str) -> Machine:
    told = {"torch": "2.13.0", **packages}
    return replace(Machine.here(Path()), gpus=gpus, sees_files=sees_files, packages=told)


OTHERS = [
    ("tiny", "engine.generation_dtype=bfloat16", "only vLLM draws in another type than engine.dtype"),
    (
        "local",
        "grpo.max_staleness=1",
        "only vLLM draws by weights of an earlier step: other generators draw by those that learn\n"
        "  set grpo.max_staleness=0, or engine.generation=vllm",
    ),
    (
        "local",
        "engine.vllm.address=http://gpu2:8000",
        "engine.vllm.address is set, and vLLM does not draw\n"
        "  set engine.generation=vllm_server, or engine.vllm.address=null",
    ),
    ("local", "engine.vllm.gpus=0", "engine.vllm.gpus is set, and vLLM does not draw"),
    ("dpo_tiny", "engine.vllm.python=/venv/bin/python", "engine.vllm.python is set, and vLLM does not draw"),
    ("dpo_tiny", "engine.generation=vllm", "dpo draws no completions\n  set engine.generation=null"),
    ("dpo_tiny", "engine.generation=transformers", "dpo draws no completions"),
]


@pytest.mark.parametrize(("name", "word", "message"), OTHERS)
def test_what_would_have_no_effect_is_refused(name: str, word: str, message: str) -> None:
    (problem,) = problems_of(config_of(word, name=name), {}, machine(), {})
    assert message in str(problem)


@pytest.mark.parametrize(
    "place", ["engine.vllm.address=http://gpu2:8000", "engine.vllm.gpus=1", "engine.vllm.python=p"]
)
def test_a_rehearsal_draws_without_vllm_wherever_that_is(place: str) -> None:
    words = (*DENSE, *STALE, "engine.generation=vllm_server", "engine.generation_dtype=float32", place)
    assert not problems_of(config_of(*words), {}, machine(), {})
    rehearsed = config_of(*words, *BY_OTHERS)
    assert not rehearsed.engine.wants_vllm and not problems_of(rehearsed, {}, machine(), {})


def test_a_model_that_is_elsewhere_is_not_judged(tmp_path: Path) -> None:
    model: Any = {"model": SimpleNamespace(path=tmp_path / "elsewhere", reference="there")}
    for words in (("engine.generation=vllm",), ("engine.generation=exact",)):
        config = config_of(*words)
        assert not [
            one for one in problems_of(config, model, machine(sees_files=False), {}) if "generation" in str(one)
        ]


def test_a_server_elsewhere_may_have_a_gpu() -> None:
    words = ("engine.generation=vllm_server", "++model.overrides.head_dim=16", "engine.dtype=bfloat16")
    assert problems_of(config_of(*words), {}, machine(), {})
    assert not problems_of(config_of(*words, "engine.vllm.address=http://gpu2:8000"), {}, machine(), {})


def test_a_dense_model_with_heads_that_vllm_takes_is_not_refused() -> None:
    assert not problems_of(config_of("engine.generation=vllm", *DENSE), {}, machine(), {})
    mixed = config_of("engine.generation=vllm", *DENSE, "engine.dtype=bfloat16", "engine.generation_dtype=float32")
    assert not problems_of(mixed, {}, machine(), {})


@pytest.mark.parametrize(
    ("packages", "message"),
    [({}, "vLLM is not installed in this environment\n  set engine.generation=vllm_server, and make its environment"),
     ({"vllm": "0.30.1"}, "vLLM 0.30.1 is not >=0.31"),
     ({"vllm-cpu": "0.32.0"}, None), ({"vllm": "0.33.0+cu130"}, None)],
)  # fmt: skip
def test_a_dry_run_says_whether_vllm_is_there_and_new_enough(packages: dict[str, str], message: str | None) -> None:
    config = config_of("engine.generation=vllm", *DENSE)
    said = [str(one) for one in engine_of(config).needs(config, {}, machine(**packages)).others]
    assert [message] == [message for one in said if message in one] if message else not said


@pytest.mark.parametrize(
    ("packages", "message"),
    [({"vllm-cpu": "0.32.0"}, "the vLLM of this environment is for CPUs, and a GPU trains\n  add it with uv sync"),
     ({"vllm": "0.32.0"}, None)],
)  # fmt: skip
def test_vllm_for_cpus_is_not_taken_for_one_for_gpus(packages: dict[str, str], message: str | None) -> None:
    gpus: Any = (SimpleNamespace(name="GPU", memory=80 << 30),)
    found = vllm_needs.vllm_lacking(config_of("engine.generation=vllm"), machine(gpus=gpus, **packages))
    said = [str(one) for one in found]
    assert [message] == [message for one in said if message in one] if message else not said


def test_the_generator_belongs_to_a_results_identity_and_its_place_does_not() -> None:
    def identity(*words: str) -> dict[str, Any]:
        section = config_of(*DENSE, *words).engine
        return what_and_how(section.model_dump(), section)[0]

    plain = identity()
    assert not {"generation", "generation_dtype", "vllm"} & plain.keys(), "results from before have their names"
    chosen = identity("engine.generation=vllm_server", "engine.vllm.python=/venv/bin/python")
    assert chosen == plain | {"generation": "vllm_server"}
    fresh, stale = (config_of(*words).grpo for words in (STALE[1:], STALE))
    kept = [what_and_how(one.model_dump(), one)[0] for one in (fresh, stale)]
    assert kept[1] == kept[0] | {"max_staleness": 2} and "max_staleness" not in kept[0]


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
    fine = torch.tensor([1 + 2**-10])
    for value, summed in ((fine, 1 + 2**-10), (fine.bfloat16(), 1.0), (torch.tensor([3]), 3.0)):
        server.take({"a": value})
        assert server.draw([[7]], [1], 4) == [([7, 1], [summed])], "in the type of training"


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


@pytest.mark.parametrize("prompt", [1, 2], ids=["without an answer", "without reading"])
def test_a_process_that_hangs_is_ended(start: Callable[..., OwnProcess], prompt: int) -> None:
    hung = start()
    hung.take({"a": torch.ones(2)})
    if prompt == 2:
        hung.draw([[prompt]], [1], 4)
    hung.wait_for(1)
    with pytest.raises(UserError, match=r"has not answered for 1 s .engine.vllm.patience_seconds"):
        hung.draw([[prompt]], [1], 4) if prompt == 1 else hung.take({"a": torch.zeros(1 << 22)})
    hung.close()
    with pytest.raises(ProcessLookupError):
        os.killpg(hung.pid, 0)


def test_a_setting_that_vllm_refuses_is_named() -> None:
    said = "1 validation error for ModelConfig\n  Value error, max_model_len (9) is too long. [type=value_error]\n more"
    assert vllm_program.sentence(ValueError(said)) == "ValueError: Value error, max_model_len (9) is too long."
    assert vllm_program.sentence(ValueError("first\nsecond")) == "ValueError: first"


class Noted:
    """Notes what it is asked; the rest of a step needs no vLLM."""

    version = "1.0"

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder, self.settings, self.adapters = folder, settings, list[set[str]]()

    def take(self, weights: dict[str, torch.Tensor]) -> None:
        self.weights = weights

    def take_adapter(self, folder: str, number: int) -> None:
        assert {one.name for one in Path(folder).iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}

    def draw(self, prompts: Any, seeds: Any, most: int) -> list[Any]:
        self.adapters.append({one.name for one in self.folder.iterdir() if one.is_dir()})
        return []

    def rest(self) -> None:
        raise AssertionError("nobody asked for sleep")


@pytest.mark.parametrize(("alike", "error"), [(True, 1.06), (False, 1.6)])
def test_random_weights_are_noticed_where_vllm_rounds_otherwise_too(alike: bool, error: float) -> None:
    vllm = generators.VLLM(Noted(Path(), {}), 4, alike=alike)
    with pytest.raises(UserError, match=f"step 1: vLLM computes another model .* are {error:.3g} times apart"):
        vllm.require_same_model(1, error)


def test_no_completion_is_cut_in_silence() -> None:
    noted = Noted(Path(), {})
    vllm, model = generators.VLLM(noted, 4, longest=6), SimpleNamespace(training=True)
    vllm._taken = 0
    with pytest.raises(UserError, match=r"takes 7 tokens with its completion, and vLLM was started for 6\n  raise"):
        vllm.draw(model, 0, [[1], [1, 2, 3]], [1, 2])
    vllm.draw(model, 0, [[1], [1, 2]], [1, 2])


def test_an_environment_that_speaks_first_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trl_train, "EpisodeTrainer", SimpleNamespace)
    prompts = {"one": SimpleNamespace(ids=[1] * 10), "other": SimpleNamespace(ids=[1] * 30)}
    with_environment = config_of("engine.environments.max_episode_tokens=100", name="drawers")
    for kind, context, longest in (("simple_agent", None, 130), ("gymnasium_agent", None, 230),
                                   ("gymnasium_agent", 200, 200), ("gymnasium_agent", 50, 130)):  # fmt: skip
        asked = {"one": SimpleNamespace(agent=SimpleNamespace(kind=kind))}
        trainer: Any = SimpleNamespace(prompts=prompts, asked=asked)
        assert trl_train.longest_text(trainer, with_environment, context) == longest
        assert trl_train.longest_text(trainer, config_of("grpo.max_new_tokens=20"), context) == 50


def test_one_adapter_is_kept_and_its_dropout_is_no_other_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[Noted]()
    monkeypatch.setattr(generators, "InProcess", lambda *told: made.append(Noted(*told)) or made[-1])
    (tmp_path / "vllm/left").mkdir(parents=True)  # by a killed run
    lora = LoraConfig(r=4, target_modules=["q_proj"])
    model = get_peft_model(model_of("qwen3", tmp_path / "model"), lora)
    for dropout in ("0", "0.1"):
        config = config_of("engine=trl_lora", f"engine.peft.dropout={dropout}", "engine.generation=vllm", "run.seed=7")
        with generators.vllm_for(config, model, 32, [5], tmp_path / "vllm.log") as vllm:
            for step in range(3):
                vllm.draw(model, step, [[1]], [1])
            if dropout == "0":
                with pytest.raises(UserError, match="another model"):
                    vllm.require_same_model(3, 1.2)
            else:
                vllm.require_same_model(3, 1.2)
                vllm.require_same_model(4, 20.0)  # a few tokens that are far apart
        assert made[-1].adapters == [{"1"}, {"2"}, {"3"}] and made[-1].settings["seed"] == 7
        assert not (tmp_path / "vllm").exists()
    wide = get_peft_model(model_of("qwen3", tmp_path / "wide"), LoraConfig(r=513, target_modules=["q_proj"]))
    assert added_by_vllm(wide) == 0, "more than vLLM takes"


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


def test_its_gpus_are_counted_among_those_of_the_job() -> None:
    assert [generators.among(seen, "1") for seen in (None, "", "2,3", "GPU-a,GPU-b")] == ["1", "1", "3", "GPU-b"]
    assert generators.among("4, 5,6", "1") == "5" and generators.among("4", "GPU-c") == "GPU-c"
    with pytest.raises(UserError, match=r"engine.vllm.gpus=1: CUDA_VISIBLE_DEVICES=7 has 1 GPU, counted from 0\n"):
        generators.among("7", "1")
    two, config = (
        config_of(*DENSE, "engine.generation=vllm_server", f"engine.vllm.gpus={word}") for word in ("GPU-c", "1")
    )
    gpus: Any = (SimpleNamespace(name="GPU", memory=80 << 30),)
    found = [str(one) for one in vllm_needs.vllm_lacking(config, machine(gpus=gpus, vllm="0.32.0"))]
    assert found == [
        "engine.vllm.gpus=1: the run sees 1 GPU, counted from 0\n"
        "  name another, or ask the scheduler for more (gpus_per_node)"
    ]
    for one, seen in ((config, 2 * gpus), (config, ()), (two, gpus)):
        assert not [*vllm_needs.vllm_lacking(one, machine(gpus=seen, vllm="0.32.0"))]
    first, *_ = vllm_needs.vllm_notes(config)
    assert "in a process of its own on GPU 1 of those that the run sees" in str(first)


class StandIn:
    """What vLLM would do, by transformers: tokens that follow from the weights and the seeds."""

    version = "1.0"

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
    assert {one["stale_steps"] for one in lines} == {0}
    said = capsys.readouterr().err
    assert "sampling: vLLM in this process, in float32 (engine.generation)" in said
    assert "replayable: no, vLLM does not promise it" in said
    manifest = Manifest.read(file.parent / "manifest.json")
    assert manifest.metadata["generator"] == "vLLM 1.0" and manifest.metadata["replayable"] is False
    assert why_not_promised(manifest) == "replayable: no, drawn by vLLM 1.0"


def test_older_weights_draw_where_that_is_asked_for_and_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whole, and stopped after the checkpoint of the third step: both have the same metrics."""
    made, drawn = list[StandIn](), list[dict[str, torch.Tensor]]()

    class Kept(StandIn):
        def take(self, weights: dict[str, torch.Tensor]) -> None:
            super().take(weights)
            drawn.append({name: value.clone() for name, value in weights.items()})

        def draw(self, *asked: Any) -> list[tuple[list[int], list[float]]]:
            if ends and self.taken > 1:
                raise UserError("vLLM: gone", "start again")
            return super().draw(*asked)

    def started(*args: Any) -> StandIn:
        made.append(Kept(*args))
        return made[-1]

    longer = ["train.train_iters=6", *STALE, "optimizer.lr=1e-2"]
    words, ends = [*words_for(tmp_path, monkeypatch, started), *longer], False
    assert main([*words, "--dry-run"]) == 0
    assert "weights of up to 2 steps before draw completions (grpo.max_staleness)" in capsys.readouterr().out
    found = []
    for home in ("whole", "stopped"):
        monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / home))
        if home == "stopped":
            ends = True
            assert main(words) == 2
            ends = False
        # the first is rehearsed, too, which has no vLLM
        assert main(words if home == "stopped" else [word for word in words if word != "--rehearsed"]) == 0
        (file,) = (tmp_path / home).glob("artifacts/super3-rl-model/v1/metrics.jsonl")
        lines = [one for one in map(json.loads, file.read_text().splitlines()) if "loss" in one]
        times = {"seconds", "memory_gb", "handover_seconds", "generation_seconds"}
        found.append([{key: value for key, value in one.items() if key not in times} for one in lines])
    whole, stopped = found
    assert [one["stale_steps"] for one in whole] == [0, 1, 2, 0, 1, 2]
    assert made[0].taken == 3, "at steps 0 and 3, and before the last validation"
    assert not torch.equal(*(one["lm_head.weight"] for one in drawn[:2])), "the weights change"
    apart = [one["logprob_difference"] for one in whole]
    assert max(apart[0], apart[3]) < 1e-4 < 1e-2 < min(apart[2], apart[5]), "measured against what learns"
    assert whole == stopped


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
