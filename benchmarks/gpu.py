"""Measure our models on one NVIDIA GPU: training on two engines, LoRA of Nano, answers, and where sampling differs.

    python benchmarks/gpu.py results/                                   needs a GPU
    python benchmarks/gpu.py results/ --rehearse                        all parts at toy sizes on a CPU
    python benchmarks/gpu.py results/ --only training,lora --minutes 5
    python benchmarks/gpu.py results/ --before ../older-checkout        the same training with older sources, too

Every part is a program with its own time limit, and a failure does not stop the next part. Results are written as they
come, to results/gpu.json and results/gpu.txt; logs are in --work. Programs load in parallel but use the GPU one at a
time.
"""

import argparse
import json
import os
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_bench import commands, flops, report
from gpu_bench.measure import TURN
from gpu_bench.parts import HYBRID, MEASURED, REHEARSED, Part, data_family, parts, prepare

AHEAD = 2
"""Programs that load while another one has the GPU."""
ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="gpu-bench-") as temporary:
        work = Path(options.work or temporary)
        work.mkdir(parents=True, exist_ok=True)
        machine = commands.probe(options.python, ["torch"], work, environment_of("automodel", options))
        if machine["gpu"] is None and not options.rehearse:
            sys.exit("no GPU: torch.cuda.is_available() is false, so nothing was measured; --rehearse runs without one")
        sizes = MEASURED if machine["gpu"] else REHEARSED
        wanted = parts(work / "home", sizes, before=options.before is not None, on_gpu=machine["gpu"] is not None)
        if options.only:
            wanted = chosen(options.only.split(","), wanted)
        questions = any(part.name == "grpo" for part in wanted)
        if problem := prepare(
            options.python, work, sizes, environment_of("transformers", options), questions=questions
        ):
            sys.exit(problem)
        found = Results(options.out, machine, operations_of(work, sizes.row) if machine["gpu"] else None)
        run_parts(wanted, options, work, end, found)
    return 0 if all(one["status"] == "done" for one in found.parts.values()) else 1


def chosen(names: Sequence[str], found: Sequence[Part]) -> list[Part]:
    """The parts of these names or groups, in the order of the names."""
    known = list(dict.fromkeys(name for part in found for name in (part.letter, part.name)))
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"--only: no part is called {', '.join(unknown)}; there are: {', '.join(known)}")
    return [part for name in names for part in found if name in (part.letter, part.name)]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for gpu.json and gpu.txt")
    parser.add_argument("--minutes", type=float, default=12.0, help="time for all parts together (default: 12)")
    parser.add_argument("--only", help="groups or names of parts, in their order: training,nano lora,answers")
    parser.add_argument("--before", type=Path, help="older sources, to measure the same training with them")
    parser.add_argument("--python", default=sys.executable, help="interpreter of all parts (default: this one)")
    parser.add_argument("--automodel-python", help="interpreter that has nemo-automodel (default: --python)")
    parser.add_argument("--newer-transformers", default=os.environ.get("NEWER_TRANSFORMERS"),
                        help="folder with the transformers of all parts but Automodel's")  # fmt: skip
    parser.add_argument("--automodel-transformers", default=os.environ.get("AUTOMODEL_TRANSFORMERS"),
                        help="folder with that of Automodel's")  # fmt: skip
    parser.add_argument("--work", type=Path, help="keep data, logs and results of single parts here")
    parser.add_argument("--rehearse", action="store_true", help="a few steps of tiny models on the CPU")
    return parser.parse_args()


class Results:
    """What is known so far, in files from the first part on."""

    def __init__(self, folder: Path, machine: dict[str, Any], operations: flops.Operations | None) -> None:
        self.folder, self.machine, self.operations = folder, machine, operations
        self.peak = flops.peak_of(machine["gpu"]["name"]) if machine["gpu"] else None
        self.parts: dict[str, dict[str, Any]] = {}

    def add(self, part: Part, status: str, figures: Any) -> None:
        """Note a part's result and write all files."""
        found: dict[str, Any] = {"group": part.letter, "status": status, "figures": figures}
        if isinstance(figures, dict) and part.tokens and figures.get("step_ms"):
            rate = 1e3 * part.tokens / figures["step_ms"]
            found["tokens_per_second"] = round(rate)
            if part.letter == "training" and self.operations:
                found["tflops"] = round(rate * self.operations.per_training_token() / 1e12, 1)
                mfu = flops.utilisation(rate, self.operations, self.peak)
                found["mfu"] = None if mfu is None else round(mfu, 4)
        self.parts[part.name] = found
        everything = {"machine": self.machine, "parts": self.parts}
        (self.folder / "gpu.json").write_text(json.dumps(everything, indent=1), encoding="utf-8")
        (self.folder / "gpu.txt").write_text(report.as_text(self.machine, self.parts), encoding="utf-8")


def run_parts(wanted: list[Part], options: argparse.Namespace, work: Path, end: float, found: Results) -> None:
    """Run the parts in order; the next ones load while one is measured."""
    loading: dict[str, commands.Started] = {}
    for place, part in enumerate(wanted):
        for ahead in wanted[place : place + 1 + AHEAD]:
            if ahead.name not in loading and time.monotonic() < end:
                loading[ahead.name] = start(ahead, options, work)
        if part.name not in loading:
            found.add(part, "not run: no time was left", None)
            continue
        (work / f"{part.file}.turn").touch()
        limit = min(part.seconds, end - time.monotonic())
        print(f"{part.name}: at most {limit:.0f} s", flush=True)
        ended = loading[part.name].wait(max(1.0, limit))
        result = work / f"{part.file}.json"
        figures = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else None
        status = "done" if ended.in_time and ended.code == 0 else f"stopped after {limit:.0f} s"
        if ended.in_time and ended.code:
            status = f"exit code {ended.code}: {commands.last_words(ended.output)}"
        found.add(part, status, figures)
        print(f"{part.name}: {status} ({ended.seconds:.0f} s with loading)", flush=True)
        if status != "done":
            print(textwrap.indent("\n".join(ended.output.splitlines()[-25:]), "    "), flush=True)


def start(part: Part, options: argparse.Namespace, work: Path) -> commands.Started:
    python = options.automodel_python if part.engine == "automodel" and options.automodel_python else options.python
    program = commands.PROGRAMS / f"{part.program}.py"
    environment = environment_of(part.engine, options) | part.environment
    environment[TURN] = str(work / f"{part.file}.turn")
    words = [python, str(program), str(work / f"{part.file}.json"), *part.words]
    return commands.Started(words, work / f"{part.file}.log", environment)


def environment_of(engine: str, options: argparse.Namespace) -> dict[str, str]:
    """PYTHONPATH: sources of ours, or older ones; transformers for all but Automodel; then what was there."""
    sources = options.before.resolve() if engine == "before" else ROOT
    folders = [str(folder) for folder in sorted(sources.glob("shared/*/src"))] + [str(sources)]
    library = options.automodel_transformers if engine == "automodel" else options.newer_transformers
    folders += [library] if library else []
    return {"PYTHONPATH": os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}


def operations_of(work: Path, row: int) -> flops.Operations:
    """Operations that one token of the trained rows needs."""
    from transformers import NemotronHConfig

    sys.path[:0] = [str(folder) for folder in ROOT.glob("shared/*/src")]
    from nemotron_engines.modeling.architecture import load_architecture

    file = max((work / "home" / "artifacts" / f"{data_family(row)}-sft-data").glob("v*")) / "train.parquet"
    keys = flops.keys_per_token(flops.packed_document_lengths(file))
    return flops.sizes_of(NemotronHConfig(**load_architecture(HYBRID, {})), keys).operations


if __name__ == "__main__":
    sys.exit(main())
