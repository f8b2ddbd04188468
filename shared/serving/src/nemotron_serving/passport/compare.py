"""Compare an export with its model, in the four parts of a passport; or check a folder alone."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from nemotron_engines.modeling.stored import Stored, stored_in
from nemotron_serving import megatron
from nemotron_serving.gguf_file import Gguf
from nemotron_serving.passport import few_bits, settings, targets, tensors
from nemotron_serving.passport.parts import CONFIG, NUMBERS, TASK, TENSORS, Part, Passport, reason
from nemotron_serving.passport.rows import Rows, rows_of
from nemotron_serving.passport.runs import compare_adapter, compare_runs
from nemotron_serving.programs import MEGATRON_BRIDGE
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.lineage import inputs
from nemotron_shared.models.folder import config_of
from nemotron_shared.models.weights import ADAPTER, ADAPTER_CONFIG
from nemotron_shared.system.console import say
from nemotron_shared.system.errors import UserError


def verified(store: Store, export: Path, source: Artifact, *, run: bool = True) -> Passport:
    """Compare an export with its model, in the four parts.

    Args:
        run: whether both are run; without it, numbers and task are not looked at.
    """
    parts = {title: Part(title) for title in (TENSORS, CONFIG, NUMBERS, TASK)}
    try:
        rows = rows_of(store, source)
    except UserError as error:  # the data may be older than this program, or damaged
        rows = Rows()
        parts[TASK].not_run.append(f"the rows of the model's data cannot be read: {reason(error)}")
    about = {} if source.is_external else {"reference": source.reference, "digest": source.manifest.digest}
    files = [export] if export.suffix == ".gguf" else sorted(export.glob("*.gguf"))
    has_folder = export.is_dir() and (export / "config.json").is_file()
    is_adapter = export.is_dir() and (export / ADAPTER_CONFIG).is_file() and not has_folder
    if not files and not has_folder and not is_adapter:
        raise UserError(f"{export}: holds no config.json, no adapter and no GGUF file", "give what was exported")
    say(f"[{source.reference}] comparing {export.name} with it")
    own = stored_in(source.path)
    if is_adapter:
        _adapter(store, export, source, rows, parts, run=run)
    if has_folder:
        tensors.compare(targets.in_folder(own, export, parts[TENSORS]), own, parts[TENSORS])
        tensors.check_types(export, source.path, parts[TENSORS])
        few_bits.check_scales(made := stored_in(export), config_of(export), parts[TENSORS], parts[CONFIG])
        few_bits.check_list(made, export, parts[CONFIG])
        _merge(store, export, source, parts[TENSORS])
        settings.compare_folders(source.path, export, rows.texts, parts[CONFIG])
        _by_itself(export, source.path, parts[CONFIG])
    if has_folder and (export / megatron.FOLDER).is_dir():
        _checkpoint(export, own, parts)
    read = [Gguf(file) for file in files]
    for file in read:
        tensors.compare(targets.in_gguf(own, file, config_of(source.path), parts[TENSORS]), own, parts[TENSORS])
        settings.compare_gguf(source.path, file, parts[CONFIG])
    if is_adapter:
        return Passport(export.name, about, list(parts.values()))
    differ = bool(parts[TENSORS].findings)
    if run and (has_folder or not differ):
        compare_runs(export if has_folder else None, [] if differ else read, source, rows, parts)
    for title in (NUMBERS, TASK) if differ or not run else ():
        what = "in transformers alone" if has_folder else "not run"
        parts[title].not_run.append(f"{what}, because tensors differ" if run else "not asked for")
    return Passport(export.name, about, list(parts.values()))


def _checkpoint(export: Path, own: Mapping[str, Stored], parts: dict[str, Part]) -> None:
    """The tensors of the Megatron checkpoint, read back by Megatron-Bridge."""
    part, name = Part(TENSORS), megatron.FOLDER
    try:
        MEGATRON_BRIDGE.require()
    except UserError as error:
        parts[TENSORS].not_run.append(f"{name}: {error.message}: {error.remedy}")
        return
    try:
        with megatron.read_back(export) as folder:
            tensors.compare(targets.in_folder(own, folder, part), own, part)
    except UserError as error:
        parts[TENSORS].find(name, reason(error))
    parts[TENSORS].findings += [replace(one, key=f"{name}: {one.key}") for one in part.findings]
    parts[TENSORS].facts += [(f"{name}: {fact}", told) for fact, told in part.facts]
    parts[CONFIG].not_run.append(f"{name}: each setting of run_config.yaml; Megatron-Bridge built the model by it")
    parts[NUMBERS].not_run.append(f"{name}: the checkpoint was read back, and not run")


def _adapter(store: Store, export: Path, source: Artifact, rows: Rows, parts: dict[str, Part], *, run: bool) -> None:
    trained = source.path / ADAPTER
    if not trained.is_dir():
        raise UserError(f"{source.reference}: has no adapter that {export} could be", "give another --against")
    pairs = targets.in_adapter(source.path, trained, export, parts[TENSORS])
    tensors.compare(pairs, stored_in(trained), parts[TENSORS])
    settings.compare_adapters(trained, export, parts[CONFIG])
    settings.compare_tokenizers(source.path, export, rows.texts, parts[CONFIG])
    base = _base(store, source)
    if base is None or not run or parts[TENSORS].findings:
        why = "not asked for" if not run else "tensors differ" if base else "its base model is not in this store"
        for title in (NUMBERS, TASK):
            parts[title].not_run.append(f"not run: {why}")
    else:
        compare_adapter(export, base, source, rows, parts)


def _base(store: Store, source: Artifact) -> Artifact | None:
    return next((one.artifact for one in inputs(store, source) if one.role == "model" and one.artifact), None)


def _merge(store: Store, export: Path, source: Artifact, part: Part) -> None:
    """Whether merged weights are the base model's with the adapter, if there is one."""
    adapter = source.path / ADAPTER
    if not (adapter / ADAPTER_CONFIG).is_file():
        return
    base = _base(store, source)
    if base is None:
        part.not_run.append("the base model is not in this store, so the merge of the adapter was not checked")
        return
    try:
        tensors.check_merge(source.path, base.path, stored_in(export), adapter, part)
    except UserError as error:
        part.not_run.append(f"the merge of the adapter: {reason(error)}")


def _by_itself(folder: Path, source: Path, part: Part) -> None:
    """Problems of a folder alone; those that the model has as well are listed as facts."""
    here, there = Part(part.title), Part(part.title)
    settings.check_folder(folder, here)
    settings.check_folder(source, there)
    part.findings += [one for one in here.findings if one not in there.findings]
    part.facts += [*here.facts, *((str(one.key), f"{one.message}; so in the model") for one in there.findings)]
    part.not_run += here.not_run
