"""What of benchmarks/gpu.py and tests/gpu needs no GPU: operations, speeds, comparisons, reports, commands."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
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
from stages.sft.schema import SFTConfig

sys.path.append(str(ROOT / "benchmarks"))

from gpu_bench import commands, flops, kernels, outcome, report, training
from gpu_bench.outcome import Outcome
from gpu_bench.programs import grpo_step, measured_stage, probe, sampling_gap

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
    found = flops.sizes_of(config_of(training.HYBRID), 1.0)
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


def entries(seconds: list[float]) -> list[dict[str, Any]]:
    return [{"step": n, "loss": 500.0 - n, "seconds": s, "tokens": 100 * n} for n, s in enumerate(seconds, start=1)]


def test_speed_is_the_median_after_the_warm_up() -> None:
    found = outcome.speed_of(
        [*entries([9.0, 10.0, 10.5, 11.0, 14.0, 14.5]), {"step": 6, "valid_loss": 4, "seconds": 99}]
    )
    assert found == outcome.Speed(5, 1, 0.5, 100, 200.0)
    assert outcome.speed_of(entries([9.0, 10.0])) is None
    assert outcome.speed_of([]) is None
    long = outcome.speed_of(entries([float(n) for n in range(200)]))
    assert long is not None
    assert (long.steps, long.warm_up) == (180, 20)


def test_loss_gap() -> None:
    gap = outcome.loss_gap([4.0, 2.0, 1.0], [4.0, 2.2, 1.0, 0.5])
    assert gap is not None
    assert (gap.steps, gap.first, gap.ends) == (3, 0.0, (1.0, 1.0))
    assert gap.largest == pytest.approx(0.1)
    assert outcome.loss_gap([], [1.0]) is None


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


def test_peak_memory_outlasts_resets() -> None:
    torch_peak = [700]
    peak = measured_stage.PeakMemory(lambda: torch_peak[0], lambda: torch_peak.__setitem__(0, 0))
    peak.reset()
    torch_peak[0] = 300
    assert peak.highest() == 700


def bench_in(folder: Path, minutes: float = 10, **problems: list[str]) -> training.Bench:
    none: dict[str, list[str]] = {"transformers": [], "automodel": [], "vllm": ["no vllm"]}
    pythons = dict.fromkeys(none, sys.executable)
    return training.Bench(folder, pythons, none | problems, commands.Clock(minutes), True, 989e12)


@pytest.mark.parametrize("case", [*training.CASES, *training.REHEARSAL], ids=lambda case: f"{case.name} {case.steps}")
def test_cases_are_configurations_of_the_stage(tmp_path: Path, case: training.Case) -> None:
    words = training.command_of(bench_in(tmp_path), case, tmp_path / "memory.json")
    assert words[3:6] == ["sft", "-c", "tiny"]
    composed = compose(ROOT / "stages" / "sft" / "config", "tiny", words[6:])
    config = validate(SFTConfig, OmegaConf.to_container(composed.tree, resolve=True), composed.origins)
    assert (config.engine.name, config.engine.dtype) == (case.engine, case.dtype)
    assert config.engine.name != "automodel" or config.engine.peft is None


@pytest.mark.slow
def test_a_rehearsal_prepares_rows_and_trains_on_them(tmp_path: Path) -> None:
    pythons = dict.fromkeys(training.ENGINES, sys.executable)
    problems = {"transformers": [], "vllm": ["no vllm"]}
    bench = training.Bench(tmp_path, pythons, problems, commands.Clock(30), False, None)
    rows = training.prepare_data(bench, training.REHEARSAL_MODEL)
    assert isinstance(rows, Path), rows
    found = training.run_case(bench, replace(training.REHEARSAL[0], seconds=600))
    assert (found.status, len(found.figures["losses"])) == ("done", 12), found.reason
    assert training.model_sizes(training.REHEARSAL_MODEL, rows).vocabulary == 512


def test_chats_are_the_same_again(tmp_path: Path) -> None:
    one, two = (training.write_chats(tmp_path / name, 20) for name in ("one.jsonl", "two.jsonl"))
    assert one.read_bytes() == two.read_bytes()
    chat = json.loads(one.read_text().splitlines()[0])["messages"]
    assert [turn["role"] for turn in chat] == ["user", "assistant"]


def ended(code: int, in_time: bool, output: str = "") -> commands.Ended:
    return commands.Ended(code, in_time, output, 33.0)


def test_what_the_end_of_a_run_means(tmp_path: Path) -> None:
    case, steps = training.CASES[0], entries([float(n) for n in range(40)])
    memory = tmp_path / "memory.json"
    done = training.judge(case, ended(0, True, "mamba: some kernels\n"), steps, memory)
    assert (done.status, done.figures["kernels"], done.figures["tokens_per_second"]) == ("done", "some kernels", 100.0)
    memory.write_text('{"peak_bytes": 5}')
    cut = training.judge(case, ended(130, False), steps, memory)
    assert (cut.status, cut.reason, cut.figures["peak_bytes"]) == ("cut short", "40 of 300 steps in 33 s", 5)
    assert training.judge(case, ended(-15, False), [], memory) == Outcome(
        case.name, "not run", "0 of 300 steps in 33 s"
    )
    failed = training.judge(case, ended(1, True, "Trace\nValueError: no such thing\nnote\n"), [], memory)
    assert (failed.status, failed.reason) == ("failed", "exit code 1: ValueError: no such thing")
    assert [one.good for one in (done, cut, failed)] == [True, True, False]


def test_cases_that_cannot_run_say_why(tmp_path: Path) -> None:
    case = training.CASES[1]
    lacking = training.run_case(bench_in(tmp_path, automodel=["import nemo_automodel: none"]), case)
    assert (lacking.status, lacking.reason) == ("not run", "import nemo_automodel: none")
    late = training.run_case(bench_in(tmp_path, minutes=0.1), case)
    assert (late.status, late.reason) == ("not run", "the time limit of 0.1 minutes was reached")


def test_the_report_shows_figures_and_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = training.judge(
        training.CASES[0], ended(0, True, "mamba: kernels"), entries([float(n) for n in range(40)]), tmp_path
    )
    training.add_utilisation(done, flops.sizes_of(config_of("super3_tiny"), 10.0), 1e12)
    full = Outcome("tiny transformers float32", "done", figures={"losses": done.figures["losses"]})
    other = Outcome("tiny automodel bfloat16", "not run", "no such package")
    gpu = {"name": "NVIDIA H100", "memory_bytes": 80 * 2**30, "cuda": "13.0", "bf16_matmul_flops": 7.9e14}
    machine = {"gpu": gpu, "peak_flops": None, "engines": {"transformers": {"versions": {"torch": "2"}}}}
    tests = [{"test": "a", "outcome": "passed", "seen": {"difference": 2e-3, "of": "x", "limit": 5e-3}, "reason": ""},
             {"test": "b", "outcome": "skipped", "seen": {}, "reason": "not run: import mamba_ssm: none"}]  # fmt: skip
    seen = {"tokens": 100, "differing": 25, "mean": 1e-7, "largest": 3e-5, "answers": 4, "answer_ratios": [0.9, 1.1]}
    sampling = Outcome("sampling", "done", figures={"float32": seen})
    report.write(tmp_path, machine, tests, [done, other, full], sampling, Outcome("GRPO", "not run", "no vllm"))
    text = (tmp_path / "gpu.txt").read_text()
    assert capsys.readouterr().out.strip() == text.strip()
    for expected in ("data sheet not known", "2.0e-03 (x)", "b  not run: import mamba_ssm: none",
                     "GRPO: not run: no vllm", " not run: no such package", "0.0e+00",
                     "25.0%  1.0e-07  3.0e-05  0.900 to 1.100"):  # fmt: skip
        assert expected in text, expected
    assert json.loads((tmp_path / "gpu.json").read_text())["precision"][0]["steps"] == 40


def test_a_command_is_asked_to_stop_before_it_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    polite = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('saved') or 130))"
    stopped = commands.run([sys.executable, "-c", f"{polite}; print('on'); time.sleep(60)"], 3, tmp_path / "log")
    assert (stopped.code, stopped.in_time, stopped.output) == (130, False, "on\nsaved\n")
    monkeypatch.setattr(commands, "PATIENCE", 0.5)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    assert commands.run([sys.executable, "-c", deaf], 3, tmp_path / "log").code == -9


def test_probing() -> None:
    assert probe.problem_with("json") is None
    assert probe.problem_with("no_such_module") == "import no_such_module: No module named 'no_such_module'"
    assert "torch" in probe.versions()


def test_probing_without_an_interpreter(tmp_path: Path) -> None:
    assert commands.probe(str(tmp_path / "python"), [], tmp_path)["problems"] == [
        f"{tmp_path / 'python'}: No such file or directory"
    ]


def test_grpo_settings_name_vllm_only_where_it_generates(tmp_path: Path) -> None:
    make: Callable[[str], dict[str, Any]] = lambda generator: grpo_step.settings(  # noqa: E731
        SimpleNamespace(folder=tmp_path, steps=1, generator=generator)
    )
    assert make("vllm")["use_vllm"]
    assert not [name for name in make("transformers") if "vllm" in name]


def test_log_probabilities_of_generating_are_compared_token_by_token(tmp_path: Path) -> None:
    model = sampling_gap.load(SimpleNamespace(model=None, folder=tmp_path))
    options = SimpleNamespace(tokens=100, answers=8, length=8)
    gap = sampling_gap.measure(model, "float32", options)
    found = gap.figures()
    assert (found["tokens"], found["answers"]) == (128, 16)
    assert 0 < found["largest"] < 1e-4, "the same numbers, rounded in another order"
    gap.differences[0][0, 0] += 1.0  # a token that training finds likelier by a factor of e
    moved = gap.figures()
    assert moved["answer_ratios"][1] == pytest.approx(2.718, rel=1e-3)
    assert moved["largest"] == pytest.approx(1.0, rel=1e-3)


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
