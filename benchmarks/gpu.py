"""Measure our models on one NVIDIA GPU: speed, utilisation and memory on each engine, and the effect of bfloat16.

    python benchmarks/gpu.py results/ [--minutes 9] [--automodel-python .venv-automodel/bin/python]
    python benchmarks/gpu.py results/ --rehearse          on a machine without a GPU: all steps, at toy sizes

Writes results/gpu.json and results/gpu.txt. `ci/gpu.sh` makes the environments, runs `pytest -m gpu` and then this.
Every case is one of our own commands, `stages/sft/train.py`, in an interpreter of its engine; cases that an
interpreter cannot run, or for which there is no time, are printed as "not run" with the reason.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_bench import commands, flops, report, training
from gpu_bench.commands import Clock
from gpu_bench.outcome import Outcome
from gpu_bench.training import Bench, Case

GRPO = "GRPO of TRL, vLLM generates"
GRPO_MODULES = ["trl", "vllm", "nemotron_engines.modeling.build"]
GRPO_SECONDS = 120.0
SAMPLING = "log-probabilities, generated against trained"
SAMPLING_SECONDS = 180.0


def main() -> int:
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-bench-") as temporary:
        work = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        clock = Clock(options.minutes)
        machine = look_around(options, work)
        if machine["gpu"] is None and not options.rehearse:
            sys.exit("no GPU: torch.cuda.is_available() is false, so nothing was measured; --rehearse runs without one")
        bench = bench_of(machine, work, clock)
        sampling = run_sampling(bench, options)
        training_outcomes = run_cases(bench, training.REHEARSAL if options.rehearse else training.CASES)
        grpo = run_grpo(bench, rehearse=options.rehearse)
    tests = report.lines_of_tests(options.tests)
    report.write(options.out, machine, tests, training_outcomes, sampling, grpo)
    bad = [test for test in tests if test["outcome"] == "failed"]
    return 0 if all(one.good for one in (*training_outcomes, sampling, grpo)) and not bad else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for gpu.json and gpu.txt")
    parser.add_argument("--minutes", type=float, default=9.0, help="time for all cases together (default: 9)")
    parser.add_argument("--transformers-python", default=sys.executable, help="interpreter (default: this one)")
    parser.add_argument("--automodel-python", default=sys.executable, help="interpreter that has nemo-automodel")
    parser.add_argument("--vllm-python", default=sys.executable, help="interpreter that has trl and vllm")
    parser.add_argument("--peak-tflops", type=float, help="dense bfloat16 peak of a GPU that is not in the table")
    parser.add_argument("--model", type=Path, help="model folder that is sampled from (default: random weights)")
    parser.add_argument("--tests", type=Path, help="results of pytest -m gpu, to put beside the figures")
    parser.add_argument("--work", type=Path, help="keep data and logs here (default: a temporary folder)")
    parser.add_argument("--rehearse", action="store_true", help="a few steps of the tiny model on the CPU")
    return parser.parse_args()


def look_around(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """The GPU, its peak, and what each interpreter can run."""
    pythons = {engine: getattr(options, f"{engine}_python") for engine in (*training.ENGINES, "vllm")}
    modules = {**training.MODULES, "vllm": GRPO_MODULES}
    probes = {engine: commands.probe(python, modules[engine], work) for engine, python in pythons.items()}
    gpu = None if options.rehearse else next((probe["gpu"] for probe in probes.values() if probe["gpu"]), None)
    peak = flops.peak_of(gpu["name"]) if gpu else None
    peak = 1e12 * options.peak_tflops if gpu and options.peak_tflops else peak
    return {"gpu": gpu, "peak_flops": peak, "pythons": pythons, "engines": probes}


def bench_of(machine: dict[str, Any], work: Path, clock: Clock) -> Bench:
    problems = {engine: list(probe["problems"]) for engine, probe in machine["engines"].items()}
    for engine, probe in machine["engines"].items():
        if machine["gpu"] and not probe["gpu"] and not problems[engine]:
            problems[engine].append(f"torch of {machine['pythons'][engine]} sees no GPU")
    return Bench(work, machine["pythons"], problems, clock, machine["gpu"] is not None, machine["peak_flops"])


def run_cases(bench: Bench, cases: Sequence[Case]) -> list[Outcome]:
    """All cases, each with its utilisation."""
    outcomes, sizes = [], {}
    for model in dict.fromkeys(case.model for case in cases):
        rows = training.prepare_data(bench, model) if not bench.problems["transformers"] else "see transformers"
        sizes[model] = rows if isinstance(rows, str) else training.model_sizes(model, rows)
    for case in cases:
        found = sizes[case.model]
        if isinstance(found, str):
            why = "; ".join(bench.problems["transformers"]) or found
            outcomes.append(Outcome(case.name, "not run", f"no data: {why}"))
            continue
        print(f"{case.name} ...", file=sys.stderr, flush=True)
        one = training.run_case(bench, case)
        training.add_utilisation(one, found, bench.peak_flops)
        one.figures["model"] = found.as_json()
        training.forget(bench, case)
        outcomes.append(one)
    return outcomes


def run_sampling(bench: Bench, options: argparse.Namespace) -> Outcome:
    """Gap between log-probabilities of generation and of training, with this device's kernels."""
    if bench.problems["transformers"]:
        return Outcome(SAMPLING, "not run", "; ".join(bench.problems["transformers"]))
    words = ["--folder", str(bench.work / "sampling")]
    words += ["--model", str(options.model.resolve())] if options.model else []
    words += ["--tokens", "1000", "--answers", "32", "--length", "16"] if options.rehearse else []
    return run_program(bench, SAMPLING, "transformers", "sampling_gap", words, SAMPLING_SECONDS)


def run_grpo(bench: Bench, *, rehearse: bool) -> Outcome:
    """Two steps of GRPO with vLLM in the training process."""
    if bench.problems["vllm"]:
        return Outcome(GRPO, "not run", "; ".join(bench.problems["vllm"]))
    if rehearse:
        return Outcome(GRPO, "not run", "a rehearsal has no GPU")
    return run_program(bench, GRPO, "vllm", "grpo_step", ["--folder", str(bench.work / "grpo")], GRPO_SECONDS)


def run_program(bench: Bench, name: str, engine: str, program: str, words: list[str], most: float) -> Outcome:
    """Run one of `programs/` in an engine's interpreter for at most `most` seconds; its result file has the figures."""
    limit = min(most, bench.clock.left())
    if limit < training.LEAST:
        return Outcome(name, "not run", f"the time limit of {bench.clock.minutes:g} minutes was reached")
    result = bench.work / f"{program}.json"
    command = [bench.pythons[engine], str(commands.PROGRAMS / f"{program}.py"), str(result), *words]
    ended = commands.run(command, limit, bench.work / f"{program}.log")
    if not ended.in_time:
        return Outcome(name, "not run", f"it did not end within {limit:.0f} s")
    if ended.code:
        return Outcome(name, "failed", f"exit code {ended.code}: {commands.last_words(ended.output)}")
    return Outcome(name, "done", "", json.loads(result.read_text(encoding="utf-8")))


if __name__ == "__main__":
    sys.exit(main())
