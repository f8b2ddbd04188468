"""What of benchmarks/gpu.py and tests/gpu needs no GPU: operations, speeds, comparisons, reports, commands."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from packed_support import write_packed
from support import ROOT
from transformers import NemotronHConfig

from nemotron_engines.kernels import mamba_ops
from nemotron_engines.modeling.architecture import load_architecture
from nemotron_shared.config.compose import compose
from nemotron_shared.config.validate import validate
from stages.rl.schema import RLConfig
from stages.sft.schema import SFTConfig

sys.path.append(str(ROOT / "benchmarks"))

import gpu as gpu_program
from gpu_bench import commands, flops, kernels, measure, parts
from gpu_bench.programs import answers, layers, probe

SCHEMAS = {"sft": SFTConfig, "rl": RLConfig}
TINY = kernels.SHAPES["tiny"]


def config_of(architecture: str, **fields: Any) -> NemotronHConfig:
    return NemotronHConfig(**load_architecture(architecture, fields))


def test_operations_of_the_tiny_model_by_hand() -> None:
    found = flops.sizes_of(config_of("super3_tiny", vocab_size=100), keys_per_token=10.0)
    mamba = 64 * (2 * 128 + 2 * 2 * 16 + 8) + 128 * 64 + (128 + 2 * 2 * 16) * 4
    attention = 64 * 64 * 2 + 64 * 32 * 2
    experts = 2 * (2 * 32 * 64)  # two of eight, up and down in the latent space
    mixture = 64 * 8 + 2 * 64 * 32 + 2 * 64 * 64 + experts
    assert found.operations.matrices == 2 * (3 * mamba + attention + 3 * mixture + 100 * 64)
    assert found.operations.attention == 4 * 4 * 16 * 10
    assert found.operations.scan == 3 * 7 * 8 * 16 * 16
    parts = found.operations
    assert parts.per_training_token() == 3 * (parts.matrices + parts.attention + parts.scan)


def test_published_sizes_are_found() -> None:
    nano = flops.sizes_of(config_of("nano3", vocab_size=131072), 1.0)
    assert nano.parameters / 1e9 == pytest.approx(31.6, rel=0.01)
    assert nano.active / 1e9 == pytest.approx(3.6, rel=0.03)  # 3.2 without the embedding table


def test_the_larger_model_may_run_on_the_reference_kernels() -> None:
    found = flops.sizes_of(config_of(parts.HYBRID), 1.0)
    assert 0.9e9 < found.parameters < 1e9
    assert found.vocabulary == 131072


def test_keys_are_those_of_the_own_document(tmp_path: Path) -> None:
    sequences = [([5, 6, 7], [0, 1, 1]), ([8, 9], [0, 1]), ([1, 2, 3, 4], [0, 0, 1, 1])]
    write_packed(tmp_path / "rows.parquet", sequences, [[0, 1], [2]])
    lengths = flops.packed_document_lengths(tmp_path / "rows.parquet")
    assert sorted(lengths) == [2, 3, 4]
    assert flops.keys_per_token(lengths) == (3 + 6 + 10) / 9


@pytest.mark.parametrize(
    ("name", "tflops"),
    [("NVIDIA H100 80GB HBM3", 989.4), ("NVIDIA H100 PCIe", 756.5), ("NVIDIA L40S", 362.0), ("NVIDIA L4", 121.0),
     ("NVIDIA A100-SXM4-80GB", 312.0), ("NVIDIA GB200", 2500.0), ("NVIDIA H200", 989.4), ("Quadro P400", None)],
)  # fmt: skip
def test_peak_of_a_gpu(name: str, tflops: float | None) -> None:
    assert flops.peak_of(name) == (None if tflops is None else 1e12 * tflops)


def test_utilisation() -> None:
    operations = flops.Operations(matrices=800.0, attention=150.0, scan=50.0)
    assert flops.utilisation(1e9, operations, 6e12) == 0.5
    assert flops.utilisation(1e9, operations, None) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_function_agrees_with_itself_and_a_leak_is_seen(dtype: torch.dtype) -> None:
    cases = [
        (kernels.scan_inputs, mamba_ops.mamba_chunk_scan_combined),
        (kernels.convolution_inputs, mamba_ops.causal_conv1d_fn),
    ]
    for make, function in cases:
        packed, whole = (make(TINY, dtype, "cpu", packed=packed) for packed in (True, False))
        expected = kernels.results(function, packed)
        assert set(expected) == {"output", *packed.leaves()}
        assert kernels.worst(kernels.differences(kernels.results(function, packed), expected))[1] == 0
        leaking = kernels.differences(kernels.results(function, whole), expected)
        assert leaking["output"] > kernels.TOLERANCES[dtype]
        assert leaking["x"] > kernels.TOLERANCES[dtype]


def test_one_token_updates_change_a_copy_of_the_state() -> None:
    cases = [(kernels.step_inputs, mamba_ops.selective_state_update, "state"),
             (kernels.convolution_step_inputs, mamba_ops.causal_conv1d_update, "conv_state")]  # fmt: skip
    for make, function, state in cases:
        inputs = make(TINY, torch.float32, "cpu")
        before = inputs.positional[state].clone()
        found = kernels.step_results(function, inputs, state)
        assert torch.equal(inputs.positional[state], before)
        assert not torch.equal(found[state], before)


def test_what_is_not_finite_or_not_comparable_is_no_agreement() -> None:
    one = {"output": torch.tensor([1.0, float("nan")])}
    assert kernels.differences(one, {"output": torch.ones(2)}) == {"output": float("inf")}
    with pytest.raises(ValueError, match="different shapes"):
        kernels.differences(one, {"output": torch.ones(3)})


@pytest.mark.parametrize("sizes", [parts.MEASURED, parts.REHEARSED], ids=["measured", "rehearsed"])
def test_trainings_are_configurations_of_the_stages(tmp_path: Path, sizes: parts.Sizes) -> None:
    found = parts.parts(tmp_path, sizes, before=True, on_gpu=sizes is parts.MEASURED)
    assert [part.name for part in found][:4] == ["transformers", "before", "automodel", "nano lora"]
    for part in found:
        if part.program != "measured_stage":
            continue
        stage, *words = part.words[list(part.words).index("--") + 1 :]
        name = words[words.index("-c") + 1]
        settings = [word for word in words if word not in ("-c", name)]
        composed = compose(ROOT / "stages" / stage / "config", name, settings)
        config = validate(SCHEMAS[stage], OmegaConf.to_container(composed.tree, resolve=True), composed.origins)
        assert config.engine.dtype == "bfloat16"
        assert config.run.model is None


def test_parts_are_chosen_by_group_or_name(tmp_path: Path) -> None:
    found = parts.parts(tmp_path, parts.MEASURED, before=False, on_gpu=True)
    assert [part.name for part in gpu_program.chosen(["answers", "training"], found)] == [
        "answers", "transformers", "automodel",
    ]  # fmt: skip
    with pytest.raises(SystemExit, match="no part is called answer; there are: training, transformers"):
        gpu_program.chosen(["answer"], found)


def test_chats_are_the_same_again(tmp_path: Path) -> None:
    one, two = (parts.write_chats(tmp_path / name, 20) for name in ("one.jsonl", "two.jsonl"))
    assert one.read_bytes() == two.read_bytes()
    chat = json.loads(one.read_text().splitlines()[0])["messages"]
    assert [turn["role"] for turn in chat] == ["user", "assistant"]


def test_steps_are_measured_from_within(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    measured = measure.Measure(tmp_path / "result.json", 2, 3, 2, last=False)
    for _ in range(2 + 3 + 2):
        weight.grad = torch.full((3,), weight.sum().item())
        optimizer.step()
    found = json.loads((tmp_path / "result.json").read_text())
    assert len(found["steps_ms"]) == 3
    assert found["waits"] == {"aten::_local_scalar_dense": 1.0}
    assert found["top"]
    assert measured.done == 7


def test_a_program_waits_for_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure.wait_for_turn()
    monkeypatch.setenv(measure.TURN, str(tmp_path / "turn"))
    monkeypatch.setattr(measure.time, "sleep", lambda _: (tmp_path / "turn").touch())
    measure.wait_for_turn()
    assert (tmp_path / "turn").exists()


def test_the_report_shows_figures_and_reasons(tmp_path: Path) -> None:
    gpu = {"name": "NVIDIA H100", "memory_bytes": 80 * 2**30, "cuda": "13.0", "bf16_matmul_flops": 7.9e14}
    results = gpu_program.Results(
        tmp_path, {"gpu": gpu, "versions": {"torch": "2"}}, flops.Operations(1e9 / 3, 0.0, 0.0)
    )
    step = {"step_ms": 100.0, "seconds_to_first_step": 9.0, "peak_bytes": 2**31, "top": [["a_kernel", 5.0, 7.0]]}
    one, *_ = (part for part in parts.parts(tmp_path, parts.MEASURED, before=False, on_gpu=True))
    results.add(one, "done", step)
    results.add(parts.Part("answers", "answers", "transformers", "answers", (), 1.0), "stopped after 1 s", {"a": 3})
    text = (tmp_path / "gpu.txt").read_text()
    for expected in ("NVIDIA H100", "81,920", "81.9", "8.3%", "a_kernel", "stopped after 1 s", "a: 3"):
        assert expected in text, expected
    assert json.loads((tmp_path / "gpu.json").read_text())["parts"]["transformers"]["mfu"] == 0.0828


def test_a_command_ends_at_its_limit_with_its_children(tmp_path: Path) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    found = commands.run([sys.executable, "-c", f"print('on', flush=True); {code}"], 5, tmp_path / "log", {})
    assert (found.code, found.in_time, found.output) == (-9, False, "on\n")


def test_both_ways_of_a_small_model_agree_but_for_rounding() -> None:
    model = answers.load("super3_tiny")
    options = SimpleNamespace(rows=2, length=24, dtype="float32")
    found = layers.compare(model, options)
    assert 0 < max(found["blocks"].values()) < 1e-5
    assert found["logprob"]["max"] < 1e-4
    assert set(found["tokens_to_other_experts"].values()) == {0.0}


def test_probing() -> None:
    assert probe.problem_with("json") is None
    assert probe.problem_with("no_such_module") == "import no_such_module: No module named 'no_such_module'"
    assert "torch" in probe.versions()


def test_probing_without_an_interpreter(tmp_path: Path) -> None:
    assert commands.probe(str(tmp_path / "python"), [], tmp_path, {})["problems"] == [
        f"{tmp_path / 'python'}: No such file or directory"
    ]


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_gpu_tests_fail_where_there_is_no_gpu() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-m", "gpu", "tests/gpu"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "none of the 27 GPU checks was run" in found.stdout


def test_the_script_explains_itself() -> None:
    script = str(ROOT / "ci" / "gpu.sh")
    found = subprocess.run([script, "--no-such-option"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr.startswith("usage: ci/gpu.sh")) == (2, True)
