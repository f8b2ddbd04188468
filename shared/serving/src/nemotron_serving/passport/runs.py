"""Run the model and its export side by side: a folder with transformers and vLLM, a GGUF file with llama.cpp.

What a runtime may differ by is measured on that very model, by rounding as the export does: see numbers.py. Types for
which that cannot be done are measured and not judged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from nemotron_engines.modeling.build import load_tokenizer
from nemotron_engines.modeling.stored import Stored, stored_in
from nemotron_serving.gguf_file import Gguf
from nemotron_serving.passport import few_bits, numbers, settings
from nemotron_serving.passport.numbers import Limit, Readings
from nemotron_serving.passport.parts import CONFIG, NUMBERS, TASK, TENSORS, Part, reason
from nemotron_serving.passport.rows import Row, Rows
from nemotron_serving.passport.runtimes import through
from nemotron_serving.programs import LLAMA_CPP, VLLM
from nemotron_shared.artifacts import Artifact
from nemotron_shared.machine.machine import Machine
from nemotron_shared.models.folder import config_of
from nemotron_shared.models.scales import small_in
from nemotron_shared.system.errors import UserError

WEIGHTS_ALONE = (
    "the figures of transformers are those of its weights in float32: what enters a layer is not rounded in them"
)


def compare_runs(
    export: Path | None, files: Sequence[Gguf], source: Artifact, rows: Rows, parts: dict[str, Part]
) -> None:
    """Add what the runtimes show that are installed.

    Args:
        export: a folder for transformers, if there is one. files: for llama.cpp.
    """
    if files and LLAMA_CPP.python is None:
        parts[NUMBERS].not_run.append(LLAMA_CPP.missing)
        files = ()
        if export is None:
            return
    if (model := _read(source, rows, parts)) is None:
        return
    if export is not None:
        model.compare_folder(export)
    for file in files:
        model.compare_file(file)
    if not rows.data:
        parts[NUMBERS].not_run.append("the model's training data is not in this store: random tokens only")


def compare_adapter(adapter: Path, base: Artifact, source: Artifact, rows: Rows, parts: dict[str, Part]) -> None:
    """Compare the merged model with its base and an exported adapter next to it, in vLLM.

    Where merging rounded the weights, how far the two may be apart is not known.
    """
    if VLLM.python is None:
        parts[NUMBERS].not_run.append(f"an adapter alone is run by vLLM: {VLLM.missing}")
    elif model := _read(source, rows, parts):
        rounded = {one.dtype for one in model.tensors.values()} & {"BF16", "F16"}
        model.through_vllm(base.path, None if rounded else Limit(numbers.SAME), adapter)


def _read(source: Artifact, rows: Rows, parts: dict[str, Part]) -> "_Model | None":
    """Run the model on the prompts and the held-out rows; None, and a note, if that is not possible here."""
    tensors, size = stored_in(source.path), int(config_of(source.path).get("vocab_size") or 0)
    try:
        numbers.require_fit(tensors, Machine.here(source.path).memory)
        if not size:
            raise UserError("config.json has no vocab_size, so no prompts can be made", "add it")
        prompts = numbers.prompts_of(size, rows)
        before = numbers.read(source.path, prompts, rows.held, trusted=source.trusted)
    except UserError as error:
        for title in (NUMBERS, TASK):
            parts[title].not_run.append(f"the model was not run: {reason(error)}")
        return None
    if not rows.held:
        parts[TASK].not_run.append("no held-out rows of this model are in the store")
    return _Model(source, tensors, prompts, before, rows, parts)


@dataclass(frozen=True)
class _Model:
    """The model, and what it made of the prompts."""

    source: Artifact
    tensors: dict[str, Stored]
    prompts: dict[str, list[int]]
    before: Readings
    rows: Rows
    parts: dict[str, Part]

    def compare_folder(self, export: Path) -> None:
        """Run the folder with transformers, and with vLLM in float32."""
        made = stored_in(export)
        if small_in(made):
            self._compare_few_bits(export, made)
            return
        both = [(one.dtype, made[name].dtype) for name, one in self.tensors.items() if name in made]
        narrowed = sorted({new for old, new in both if new != old})
        floor = self._changed(numbers.rounded_to(narrowed[0])) if narrowed else None
        allowed = numbers.allowed_for({one.dtype for one in made.values()}, self.before, floor)
        try:
            after = numbers.read(export, self.prompts, self.rows.held, trusted=self.source.trusted)
        except UserError as error:
            if not self.parts[TENSORS].findings:
                self.parts[NUMBERS].find("transformers", f"cannot load the export: {reason(error)}")
            return
        self._add("transformers", after, allowed)
        numbers.compare_layers(self.before, after, floor, self.parts[NUMBERS])
        if not self.parts[TENSORS].findings:
            self.through_vllm(export, allowed)

    def _compare_few_bits(self, export: Path, made: dict[str, Stored]) -> None:
        """Run weights of few bits, times their scales, with transformers in float32; and the folder with vLLM."""
        if self.parts[TENSORS].findings:  # without its scale, a weight of few bits is not known
            return
        part = self.parts[NUMBERS]
        part.not_run.append(WEIGHTS_ALONE)
        floor = allowed = None
        if {made[name].dtype for name in small_in(made)} == {"F8_E4M3"}:
            floor = self._plain(export, few_bits.rounded(self.tensors, made), [])
            allowed = numbers.allowed(self.before, floor)
        after = self._plain(export, few_bits.multiplied(made, config_of(export)), self.rows.held)
        self._add("transformers, weights alone", after, allowed)
        if floor is not None:
            numbers.compare_layers(self.before, after, floor, part)
        if not part.findings:  # it computes in bfloat16 besides, so it is measured and not judged
            self.through_vllm(export, None)

    def _plain(self, export: Path, weights: dict[str, torch.Tensor], held: Sequence[Row]) -> Readings:
        """What transformers makes of a folder with other weights."""
        with TemporaryDirectory() as work:
            return numbers.read(few_bits.plain(export, Path(work) / "plain", weights), self.prompts, held)

    def through_vllm(self, folder: Path, allowed: Limit | None, adapter: Path | None = None) -> None:
        """Run a folder, or an adapter next to it, with vLLM."""
        if VLLM.python is None:
            self.parts[NUMBERS].not_run.append(VLLM.missing)
            return
        try:
            found = through(VLLM, folder, self.prompts, self.rows.held, adapter=adapter)
        except UserError as error:  # it does not run every model on a CPU
            self.parts[NUMBERS].not_run.append(f"vLLM cannot run it: {reason(error)}")
        else:
            self._add(f"vLLM {found.patch}".strip(), found.readings, allowed)

    def compare_file(self, file: Gguf) -> None:
        """Run one GGUF file with llama.cpp, and encode texts with it."""
        texts = [*settings.TEXTS, *self.rows.texts]
        try:
            found = through(LLAMA_CPP, file.file, self.prompts, self.rows.held, texts)
        except UserError as error:
            self.parts[NUMBERS].find("llama.cpp", f"cannot run {file.file.name}: {reason(error)}")
            return
        change = numbers.as_llama_cpp_computes(file.kind)
        allowed = None if change is None else numbers.allowed(self.before, self._changed(change))
        self._add("llama.cpp", found.readings, allowed)
        settings.same_ids("llama.cpp", texts, load_tokenizer(self.source.path), found.texts, self.parts[CONFIG])

    def _changed(self, change: Callable[[Any], Any]) -> Readings:
        """What the model makes of the prompts after a change of its weights."""
        return numbers.read(self.source.path, self.prompts, [], change, trusted=self.source.trusted)

    def _add(self, name: str, after: Readings, allowed: Limit | None) -> None:
        numbers.compare_numbers(name, self.before, after, allowed, self.parts[NUMBERS])
        if self.rows.held:
            numbers.compare_task(name, self.before, after, self.rows, self.parts[TASK], judged=allowed is not None)
