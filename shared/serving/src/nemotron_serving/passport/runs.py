"""Run the model and its export side by side: a folder with transformers and vLLM, a GGUF file with llama.cpp.

What a runtime may differ by is measured on that very model, by rounding as the export does: see numbers.py. Types for
which that cannot be done are measured and not judged.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nemotron_engines.modeling.build import load_tokenizer
from nemotron_engines.modeling.stored import Stored, stored_in
from nemotron_serving.gguf_file import Gguf
from nemotron_serving.passport import few_bits, numbers, runtimes, settings
from nemotron_serving.passport.numbers import Limit, Readings
from nemotron_serving.passport.parts import CONFIG, NUMBERS, TASK, TENSORS, Part, reason
from nemotron_serving.passport.rows import Rows
from nemotron_serving.programs import LLAMA_CPP, VLLM
from nemotron_shared.artifacts import Artifact
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.machine import Machine
from nemotron_shared.runtime.models.folder import config_of
from nemotron_shared.runtime.models.scales import small_in

Change = Callable[[Any], Any]
"""What is done with the loaded model first."""
WEIGHTS_ALONE = (
    "the figures of transformers are those of its weights in float32: what enters a layer is not rounded in them"
)
NO_ROWS = "no held-out rows of this model are in the store"


def compare_runs(
    export: Path | None, files: Sequence[Gguf], source: Artifact, rows: Rows | None, parts: dict[str, Part]
) -> None:
    """Add what the runtimes show that are installed.

    Args:
        export: a folder for transformers, if there is one. files: for llama.cpp.
        rows: of the model's data, if they are known.
    """
    if files and LLAMA_CPP.python is None:
        parts[NUMBERS].not_run.append(LLAMA_CPP.missing)
        files = ()
        if export is None:
            return
    held = rows.held if rows else []
    try:
        prompts = _prompts(source, rows)
        before = numbers.read(source.path, prompts, held, trusted=source.trusted)
    except UserError as error:
        for title in (NUMBERS, TASK):
            parts[title].not_run.append(f"the model was not run: {reason(error)}")
        return

    def changed(change: Change) -> Readings:
        return numbers.read(source.path, prompts, [], change, trusted=source.trusted)

    if export is not None:
        _compare_folder(export, source, prompts, before, changed, rows, parts)
    for file in files:
        _compare_file(file, source, prompts, before, changed, rows, parts)
    if rows is None:
        parts[NUMBERS].not_run.append("the model's training data is not in this store: random tokens only")
    if not held:
        parts[TASK].not_run.append(NO_ROWS)


def _prompts(source: Artifact, rows: Rows | None) -> dict[str, list[int]]:
    """What both are given.

    Raises:
        UserError: the model cannot be run here.
    """
    own, size = stored_in(source.path), int(config_of(source.path).get("vocab_size") or 0)
    if not numbers.fits(own, Machine.here(source.path).memory):
        raise UserError(numbers.memory_text(own), "use a larger machine")
    if not size:
        raise UserError("config.json has no vocab_size, so there are no prompts", "add it")
    return numbers.prompts_of(size, rows)


def _compare_folder(
    export: Path, source: Artifact, prompts: dict[str, list[int]], before: Readings,
    changed: Callable[[Change], Readings], rows: Rows | None, parts: dict[str, Part],
) -> None:  # fmt: skip
    """Run the folder with transformers, and with vLLM in float32."""
    own, made = stored_in(source.path), stored_in(export)
    if small_in(made):
        _compare_few_bits(export, own, made, prompts, before, rows, parts)
        return
    narrowed = sorted({made[name].dtype for name, one in own.items() if name in made and made[name].dtype != one.dtype})
    floor = changed(numbers.rounded_to(narrowed[0])) if narrowed else None
    allowed = numbers.allowed_for({one.dtype for one in made.values()}, before, floor)
    try:
        after = numbers.read(export, prompts, rows.held if rows else [], trusted=source.trusted)
    except UserError as error:
        if not parts[TENSORS].findings:
            parts[NUMBERS].find("transformers", f"cannot load the export: {reason(error)}")
        return
    numbers.compare("transformers", before, after, allowed, rows, parts)
    numbers.compare_layers(before, after, floor, parts[NUMBERS])
    if not parts[TENSORS].findings:
        _through_vllm(export, prompts, before, allowed, rows, parts)


def _compare_few_bits(
    export: Path, own: dict[str, Stored], made: dict[str, Stored], prompts: dict[str, list[int]], before: Readings,
    rows: Rows | None, parts: dict[str, Part],
) -> None:  # fmt: skip
    """Run weights of few bits, times their scales, with transformers in float32; and the folder with vLLM."""
    if parts[TENSORS].findings:  # what they would be times a scale that is lost is no number
        return
    held = rows.held if rows else []
    parts[NUMBERS].not_run.append(WEIGHTS_ALONE)
    with TemporaryDirectory() as work:
        floor, allowed = None, None
        if {made[name].dtype for name in small_in(made)} == {"F8_E4M3"}:
            floor = numbers.read(few_bits.plain(export, Path(work) / "model", few_bits.rounded(own, made)), prompts, [])
            allowed = numbers.allowed(before, floor)
        weights = few_bits.multiplied(made, config_of(export))
        after = numbers.read(few_bits.plain(export, Path(work) / "export", weights), prompts, held)
    numbers.compare("transformers, weights alone", before, after, allowed, rows, parts)
    if floor is not None:
        numbers.compare_layers(before, after, floor, parts[NUMBERS])
    if not parts[NUMBERS].findings:  # it computes in bfloat16 besides, so it is measured and not judged
        _through_vllm(export, prompts, before, None, rows, parts)


def compare_adapter(adapter: Path, base: Artifact, source: Artifact, rows: Rows | None, parts: dict[str, Part]) -> None:
    """Compare the merged model with its base and an exported adapter beside it, in vLLM.

    Where merging rounded the weights, how far the two may be apart is not known.
    """
    held = rows.held if rows else []
    try:
        if VLLM.python is None:
            raise UserError(VLLM.missing, "install it")
        prompts = _prompts(source, rows)
        before = numbers.read(source.path, prompts, held, trusted=source.trusted)
    except UserError as error:
        parts[NUMBERS].not_run.append(f"an adapter alone is run by vLLM: {reason(error)}")
    else:
        rounded = {one.dtype for one in stored_in(source.path).values()} & {"BF16", "F16"}
        _through_vllm(base.path, prompts, before, None if rounded else Limit(numbers.SAME), rows, parts, adapter)
    if not held:
        parts[TASK].not_run.append(NO_ROWS)


def _through_vllm(
    folder: Path, prompts: dict[str, list[int]], before: Readings, allowed: Limit | None, rows: Rows | None,
    parts: dict[str, Part], adapter: Path | None = None,
) -> None:  # fmt: skip
    if VLLM.python is None:
        parts[NUMBERS].not_run.append(VLLM.missing)
        return
    try:
        found = runtimes.through(VLLM, folder, prompts, rows.held if rows else [], adapter=adapter)
    except UserError as error:  # it does not run every model on a CPU
        parts[NUMBERS].not_run.append(f"vLLM cannot run it: {reason(error)}")
    else:
        numbers.compare(f"vLLM {found.patch}".strip(), before, found.readings, allowed, rows, parts)


def _compare_file(
    file: Gguf, source: Artifact, prompts: dict[str, list[int]], before: Readings,
    changed: Callable[[Change], Readings], rows: Rows | None, parts: dict[str, Part],
) -> None:  # fmt: skip
    """Run one GGUF file with llama.cpp, and encode texts with it."""
    texts = [*settings.TEXTS, *(rows.texts if rows else [])]
    try:
        found = runtimes.through(LLAMA_CPP, file.file, prompts, rows.held if rows else [], texts)
    except UserError as error:
        parts[NUMBERS].find("llama.cpp", f"cannot run {file.file.name}: {reason(error)}")
        return
    change = numbers.as_llama_cpp_computes(file.kind)
    floor = None if change is None else changed(change)
    allowed = None if floor is None else numbers.allowed(before, floor)
    numbers.compare("llama.cpp", before, found.readings, allowed, rows, parts)
    tokenizer = load_tokenizer(source.path)
    settings.same_ids("llama.cpp", texts, tokenizer, found.texts, parts[CONFIG])
