"""Results as one JSON object and as text for people. Cases that were not run are printed with the reason."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gpu_bench.outcome import LossGap, Outcome, loss_gap

GIB = 2**30


def lines_of_tests(file: Path | None) -> list[dict[str, Any]]:
    """Output of tests/gpu/conftest.py: one object per test."""
    if file is None or not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def heading(machine: dict[str, Any]) -> list[str]:
    """The GPU, and the packages of each interpreter."""
    gpu = machine["gpu"]
    lines = ["no GPU: a rehearsal on the CPU; its figures say nothing about a GPU"]
    if gpu:
        reached = gpu["bf16_matmul_flops"] / 1e12
        peak = f"{machine['peak_flops'] / 1e12:,.0f}" if machine["peak_flops"] else "not known"
        lines = [
            f"{gpu['name']}, {gpu['memory_bytes'] / GIB:.0f} GiB, CUDA {gpu['cuda']}",
            f"bfloat16 TFLOP/s: data sheet {peak}, reached by a matrix product {reached:,.0f}",
        ]
    for engine, probe in machine["engines"].items():
        versions = ", ".join(f"{name} {version}" for name, version in probe["versions"].items())
        lines.append(f"{engine}: python {probe.get('python', '?')}, {versions or 'nothing found'}")
    return lines


def tests_table(tests: Sequence[dict[str, Any]]) -> list[str]:
    """Each test of `pytest -m gpu` with its largest difference and times."""
    if not tests:
        return ["not run: pytest -m gpu (ci/gpu.sh runs it and hands its results on)"]
    width = max(len(test["test"]) for test in tests)
    lines = [f"{'':{width}}  {'outcome':8} {'largest difference':24} {'limit':>7} {'kernel ms':>10} {'ref. ms':>9}"]
    for test in tests:
        if test["outcome"] == "skipped":
            lines.append(f"{test['test']:{width}}  {test['reason']}")
            continue
        seen = test["seen"]
        difference = f"{seen['difference']:.1e} ({seen['of']})" if "difference" in seen else "-"
        cells = [f"{seen[key]:{form}}" if key in seen else "-" for key, form in
                 (("limit", ".0e"), ("kernel_ms", ".3f"), ("reference_ms", ".3f"))]  # fmt: skip
        lines.append(f"{test['test']:{width}}  {test['outcome']:8} {difference:24} {cells[0]:>7} {cells[1]:>10} "
                     f"{cells[2]:>9}")  # fmt: skip
        if test["outcome"] == "failed":
            lines.append(f"  {test['reason']}")
    return lines


def training_table(outcomes: Sequence[Outcome]) -> list[str]:
    """Speed, utilisation and memory of the cases, side by side."""
    width = max(len(one.name) for one in outcomes)
    lines = [f"{'':{width}} {'steps':>6} {'ms/step':>9} {'tokens/s':>10} {'TFLOP/s':>8} {'MFU':>6} {'GiB':>6}  status"]
    for one in outcomes:
        if "tokens_per_second" not in one.figures:
            lines.append(f"{one.name:{width}} {one.status}: {one.reason or 'too few steps to measure'}")
            continue
        figures = one.figures
        mfu = f"{figures['mfu']:.1%}" if figures.get("mfu") is not None else "-"
        memory = f"{figures['peak_bytes'] / GIB:.1f}" if "peak_bytes" in figures else "-"
        reached = f"{figures['model_flops_per_second'] / 1e12:.1f}" if "model_flops_per_second" in figures else "-"
        lines.append(
            f"{one.name:{width}} {figures['steps']:6} {1e3 * figures['step_seconds']:9.1f} "
            f"{figures['tokens_per_second']:10,.0f} {reached:>8} {mfu:>6} {memory:>6}  {ending(one)}"
        )
    return lines


def ending(one: Outcome) -> str:
    """How a case with figures ended, and which Mamba code it used."""
    end = one.status if one.status == "done" else f"{one.status}: {one.reason}"
    return f"{end} ({one.figures['kernels']})"


def precision_table(gaps: Iterable[tuple[str, LossGap | str]]) -> list[str]:
    """bfloat16 compared with float32, over the same rows from the same weights."""
    lines = [f"{'':26} {'steps':>6} {'first step':>11} {'largest':>9} {'end, float32':>13} {'end, bfloat16':>14}"]
    for name, gap in gaps:
        if isinstance(gap, str):
            lines.append(f"{name:26} not run: {gap}")
            continue
        lines.append(f"{name:26} {gap.steps:6} {gap.first:11.1e} {gap.largest:9.1e} {gap.ends[0]:13.4f} "
                     f"{gap.ends[1]:14.4f}")  # fmt: skip
    return lines


def sampling_table(one: Outcome) -> list[str]:
    """Gap between the two log-probabilities of a token, and between the two probabilities of an answer."""
    if one.status != "done":
        return [f"{one.name}: {one.status}: {one.reason}"]
    lines = [
        f"{'':9} {'tokens':>8} {'differ':>8} {'mean':>8} {'largest':>8}  an answer's probability, trained/generated"
    ]
    for dtype, seen in one.figures.items():
        low, high = seen["answer_ratios"]
        lines.append(f"{dtype:9} {seen['tokens']:8,} {seen['differing'] / seen['tokens']:8.1%} {seen['mean']:8.1e} "
                     f"{seen['largest']:8.1e}  {low:.3f} to {high:.3f} ({seen['answers']:,} answers)")  # fmt: skip
    return lines


def grpo_lines(one: Outcome) -> list[str]:
    """The step of TRL with vLLM, in one line."""
    if one.status != "done":
        return [f"{one.name}: {one.status}: {one.reason}"]
    return [f"{one.name}: " + ", ".join(f"{name} {value}" for name, value in one.figures.items())]


def as_text(sections: dict[str, list[str]]) -> str:
    """Titles with their indented lines."""
    return "\n".join("\n".join([title, *(f"  {line}" for line in lines), ""]) for title, lines in sections.items())


def precision_gaps(outcomes: Sequence[Outcome]) -> list[tuple[str, LossGap | str]]:
    """bfloat16 compared with float32 for each model and engine that ran in both."""
    by_name = {one.name: one for one in outcomes}
    gaps: list[tuple[str, LossGap | str]] = []
    for name, one in by_name.items():
        stem, _, dtype = name.rpartition(" ")
        other = by_name.get(f"{stem} bfloat16")
        if dtype != "float32" or other is None:
            continue
        gap = loss_gap(one.figures.get("losses", []), other.figures.get("losses", []))
        reason = next((run.reason for run in (one, other) if not run.figures.get("losses")), "no common step")
        gaps.append((stem, gap or reason))
    return gaps


def write(
    out: Path,
    machine: dict[str, Any],
    tests: list[dict[str, Any]],
    cases: Sequence[Outcome],
    sampling: Outcome,
    grpo: Outcome,
) -> None:
    """Write gpu.json and gpu.txt, and print the text."""
    gaps = precision_gaps(cases)
    text = as_text(
        {
            "machine": heading(machine),
            "kernels and models (pytest -m gpu)": tests_table(tests),
            "training, all weights, packed rows": training_table(cases),
            "bfloat16 against float32: relative difference of the loss, same rows and weights": precision_table(gaps),
            "log-probabilities of generating against those of a training pass, nats": sampling_table(sampling),
            "generation with vLLM": grpo_lines(grpo),
        }
    )
    values = {
        "machine": machine,
        "tests": tests,
        "training": [vars(one) for one in cases],
        "precision": [
            {"case": name, **(gap._asdict() if isinstance(gap, LossGap) else {"not_run": gap})} for name, gap in gaps
        ],
        "sampling": vars(sampling),
        "grpo": vars(grpo),
    }
    (out / "gpu.json").write_text(json.dumps(values, indent=2), encoding="utf-8")
    (out / "gpu.txt").write_text(text, encoding="utf-8")
    print(text)
