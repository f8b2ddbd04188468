"""Checks of every training that need no torch: its model, its tokenizer, its size in memory, and, while it runs,
whether what is sampled is still what is trained.

training_problems(config, inputs, "nano3")     what is wrong on any machine; the stages hand it to their step
local_needs(config, inputs, machine)           what an engine over transformers' classes needs of a machine
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from nemotron_data.chat.template import find_template
from nemotron_data.formats.json_lines import parse, read_lines
from nemotron_data.tokenizers.embedded import ids_of, no_embedding, rows_of, unembedded
from nemotron_data.tokenizers.folder import TINY, TokenizerFolder, save_tokenizer
from nemotron_data.tokenizers.tiny import VOCAB_SIZE as TINY_VOCABULARY
from nemotron_engines.kernels import HOW_TO_COMPILE, LARGEST_REFERENCE_MODEL
from nemotron_engines.lora.kinds import is_chosen, kind_of, tied_fault
from nemotron_engines.modeling.architecture import (
    NEMOTRON_H,
    Parameters,
    differences,
    headers_in,
    load_architecture,
    parameters_in,
    parameters_of,
)
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.artifact import is_folder
from nemotron_shared.artifacts.names import is_path
from nemotron_shared.config.schema import (
    LocalEngine,
    LoraSection,
    ModelLoadingEngine,
    RandomModelSection,
    StageConfig,
    TransformersEngine,
)
from nemotron_shared.config.training import GRPOConfig, TrainingConfig
from nemotron_shared.engine.engine import Inputs
from nemotron_shared.engine.needs import Needs, count, requirements
from nemotron_shared.families import TWIN
from nemotron_shared.machine.machine import Machine
from nemotron_shared.models.folder import config_of, require_loadable
from nemotron_shared.system.atomic import read_json
from nemotron_shared.system.digest import file_digest
from nemotron_shared.system.errors import Finding, UserError, how_to_add, problem

TOKENIZER = "tokenizer.json"
VOCABULARY = 131_072
"""Vocabulary size of Nemotron 3."""
# Float32 weights, gradients and two Adam moments; then the parts in a checkpoint and in a published model.
TRAINING_BYTES, CHECKPOINT_BYTES, RESULT_BYTES = 16, 12, 4
# Frozen weights, with adapters.
FROZEN_BYTES = {"float32": 4, "bfloat16": 2}
KERNELS = ("mamba-ssm", "causal-conv1d")
LOOKED_AT = 100
"""Rows of a user's file that are checked before a start; training reads all of them."""
Fault = Callable[[Mapping[str, Any]], str | None]
"""Returns the problem with a row, or None."""


def training_problems(
    config: TrainingConfig, inputs: Inputs, recipe: str | None, *, chats: bool = True
) -> Iterator[Finding]:
    """Problems with the starting model, or with its combination with the data.

    Args:
        recipe: the family that the config is a recipe for; None if it accepts any model.
        chats: whether a chat template makes the data, or the prompts.
    """
    section, model = config.model, inputs.get("model")
    if config.run.memory is not None and not isinstance(config.engine, LocalEngine):
        what = f"run.memory={config.run.memory} bounds nothing with engine={config.engine.name}, which counts no memory"
        yield problem(what, "set run.memory=null, and train.micro_batch_size to the rows of a pass", "run.memory")
    fields = load_architecture(section.architecture, section.overrides)
    if model is None:
        starts_random = config.run.model is None or config.run.missing_model == "random"
        if starts_random and fields.get("model_type", NEMOTRON_H) != NEMOTRON_H:
            what = f"model.architecture: {section.architecture} cannot be built from scratch, so it needs run.model"
            yield problem(what, "give run.model=FOLDER", "model.architecture")
        return
    if not (model.path / "config.json").is_file():
        yield problem(f"run.model: {model.path} has no config.json", "set run.model to a Hugging Face model folder")
        return
    described = read_json(model.path / "config.json")
    if isinstance(config.engine, LocalEngine):  # other engines may have a newer transformers
        require_loadable(f"run.model: {model.reference}", described, trusted=model.trusted)
    if recipe == section.architecture and (wrong := differences(described, fields)):
        what = f"run.model: {model.reference} does not fit this recipe of {recipe}: {', '.join(wrong)}"
        yield problem(what, "use a model of that size, or train this one with -c local or -c tiny")
    data = inputs.get("data")
    ours, theirs = _data_tokenizer(config, data), model.manifest.files.get(TOKENIZER)
    if ours is not None and theirs is not None and ours != theirs.sha256:
        yield _other_tokenizer(config, model, data, theirs.sha256)
    ids, rows = data.manifest.metadata.get("vocab_size", 0) if data else 0, rows_of(described)
    if rows is None:
        return
    if ids > rows:
        yield problem(f"run.model: {model.reference} has {rows} token ids, but the data has {ids}", "check run.data")
    elif wrong := _unembedded(config, model, data, rows, chats):
        yield problem(wrong.message, wrong.remedy or "", "run.model")


def _other_tokenizer(config: TrainingConfig, model: Artifact, data: Artifact | None, wanted: str) -> Finding:
    """The problem that the data has another tokenizer, with the newest version of it that has the model's, if any."""
    of_data = "" if data is None else f"{data.reference}, "
    what = f"the data was made with a different tokenizer than the model's ({of_data}{model.reference})"
    text = str(config.run.model)
    tokenizer = text if "://" in text else model.reference if model.is_external else f"art://{model.reference}"
    again = f"prepare the data again with data_prep.tokenizer.model={tokenizer}"
    fits = None if data is None or data.is_external else _version_with(config, data.manifest.name, wanted)
    return problem(what, again if fits is None else f"take run.data={fits}, which has the model's, or {again}")


def _version_with(config: TrainingConfig, name: str, tokenizer: str) -> str | None:
    """The newest version of some data whose tokenizer has this digest."""
    store = Store.open(config.run.home)
    for version in reversed(store.versions(name)):
        with suppress(UserError):  # damaged
            found = store.load(name, version)
            entry = found.manifest.files.get(f"tokenizer/{TOKENIZER}")
            if entry is not None and entry.sha256 == tokenizer:
                return found.reference
    return None


def _unembedded(
    config: TrainingConfig, model: Artifact, data: Artifact | None, rows: int, chats: bool
) -> UserError | None:
    """The error about a token that the data has, or will have, but the model has no embedding for."""
    of_data = TokenizerFolder(data.path / "tokenizer") if data else None
    folder = of_data if of_data and (of_data.path / TOKENIZER).is_file() else TokenizerFolder(model.path)
    if ids_of(folder) <= rows:
        return None
    packed = data.path / "train.parquet" if data else None
    if packed is not None and packed.is_file():
        from nemotron_data.formats.packed import largest_id  # pyarrow takes a moment

        most = largest_id(packed)
        return no_embedding(f"{packed}: holds", None, most, rows, ids_of(folder)) if most and most >= rows else None
    try:
        named = getattr(getattr(config, "data_prep", None), "chat_template", None) if folder is not of_data else None
        template = (find_template(named) if named else folder.own_template()) if chats else None
        return unembedded(folder, rows, template) if template or not chats else None
    except UserError:
        return None  # rendering reports it with its cause


def bad_rows(files: Mapping[str, str | None], fault: Fault, remedy: str) -> Iterator[Finding]:
    """Problems with the user's row files, by config key: missing files, or unusable first rows."""
    for key, file in files.items():
        if file is None:
            continue
        path = Path(file).expanduser()
        if not path.is_file():
            yield problem(f"file {file} not found", f"correct its path: {key}=FILE", key)
        elif path.suffix in {".jsonl", ".json"} and (wrong := next(_faults(path, fault), None)):
            yield problem(wrong, f"{remedy}: {key}=FILE", key)


def _faults(file: Path, fault: Fault) -> Iterator[str]:
    line = None
    for line in islice(read_lines(file), LOOKED_AT):
        if line.raw.lstrip().startswith(b"["):
            return  # one list of all rows, which the libraries read as well
        row, wrong = parse(line.raw)
        if wrong := wrong if row is None else fault(row):
            yield f"{line.place}: {wrong}"
    if line is None:
        yield f"{file}: no rows"


def no_chats(files: Mapping[str, str | None]) -> Iterator[Finding]:
    """Problems with the user's chat files: missing files, or a first row that is not a chat."""
    return bad_rows(files, _no_chat, "use a JSONL file with OpenAI messages")


def too_few_rows(key: str, file: str | None, asked: int) -> Iterator[Finding]:
    """Report a user's file with fewer rows than a step, for libraries that drop incomplete steps."""
    path = Path(file).expanduser() if file is not None else None
    if path is None or path.suffix != ".jsonl" or not path.is_file():
        return
    there = sum(1 for _ in islice(read_lines(path), asked))
    if 0 < there < asked:
        what = f"{key}: {file} has {there} rows, but a step takes {asked}"
        yield problem(what, f"add rows, or set train.global_batch_size={there}", "train.global_batch_size")


def _no_chat(row: Mapping[str, Any]) -> str | None:
    messages = row.get("messages")
    if messages and isinstance(messages, list) and all(isinstance(one, dict) for one in messages):
        return None
    return 'not a chat like {"messages": [{"role": ..., "content": ...}]}'


def _data_tokenizer(config: StageConfig, data: Artifact | None) -> str | None:
    """Digest of the data's present or future tokenizer; None if it has none or it is unknown."""
    if data is not None:
        entry = data.manifest.files.get(f"tokenizer/{TOKENIZER}")
        return entry.sha256 if entry else None
    tokenizer = getattr(getattr(config, "data_prep", None), "tokenizer", None)
    if config.run.data is None or tokenizer is None or tokenizer.model is None:
        return None
    if tokenizer.model == TINY:
        with tempfile.TemporaryDirectory() as folder:
            save_tokenizer(Path(folder))
            return file_digest(Path(folder) / TOKENIZER)
    file = Path(tokenizer.model) / TOKENIZER
    return file_digest(file) if file.is_file() else None


def size_of(config: StageConfig, inputs: Inputs) -> Parameters:
    """Parameter count of the model that a run trains, or of the largest model of an evaluation."""
    models = [artifact for role, artifact in inputs.items() if artifact is not None and role != "data"]
    if models:  # models in other weight formats are not counted
        found = [size for size in (_parameters(model) for model in models) if size is not None]
        return max(found, key=lambda size: size.total, default=Parameters(0))
    section: RandomModelSection = config.model  # ty: ignore[missing-attribute]
    fields = load_architecture(section.architecture, section.overrides)
    if fields.get("model_type", NEMOTRON_H) != NEMOTRON_H:
        return Parameters(0)
    return parameters_of(fields, vocabulary_of(config, fields, inputs.get("data")))


def is_unknown(config: StageConfig, inputs: Inputs, machine: Machine) -> bool:
    """Whether `run.model` names a folder that is missing, cannot be used or is not seen from here, so that the model's
    size is unknown. Recipes of a cluster's engines state the architecture of theirs."""
    named = getattr(config.run, "model", None)
    counts = machine.sees_files or isinstance(config.engine, LocalEngine)
    return named is not None and counts and (is_path(named) or is_folder(named)) and inputs.get("model") is None


def vocabulary_of(config: StageConfig, fields: Mapping[str, Any], data: Artifact | None) -> int:
    """Vocabulary size from the architecture or the data, else from the tokenizer that will be made."""
    told = fields.get("vocab_size") or (data.manifest.metadata.get("vocab_size") if data else None)
    if told:
        return told
    section: Any = config
    tokenizer = getattr(getattr(section, "data_prep", None), "tokenizer", None)
    is_tiny = tokenizer.model == TINY if tokenizer is not None else section.model.architecture.endswith(TWIN)
    return TINY_VOCABULARY if is_tiny else VOCABULARY


def _parameters(model: Artifact) -> Parameters | None:
    """Parameters of a model; for an imported model, from its manifest."""
    known = model.manifest.metadata.get("weights")
    return Parameters(**known) if known else parameters_in(model.path)


def _runs_our_mamba(model: Artifact | None) -> bool:
    """Whether a model has the Mamba layers that our reference code replaces; other architectures bring their own."""
    if model is None or not (model.path / "config.json").is_file():
        return True
    return config_of(model.path).get("model_type") == NEMOTRON_H


def local_needs(
    config: StageConfig[ModelLoadingEngine], inputs: Inputs, machine: Machine, more: Sequence[Requirement] = ()
) -> Needs:
    """Requirements of an engine over transformers' model classes.

    Args:
        more: packages in addition to those that all engines share.
    """
    engine, known = config.engine, not is_unknown(config, inputs, machine)
    parameters = size_of(config, inputs).total if known else 0
    kernels = bool(machine.gpus) and engine.device != "cpu" and all(map(machine.version_of, KERNELS))
    others: list[Finding] = []
    slow = parameters > LARGEST_REFERENCE_MODEL and not (kernels or engine.allow_reference_kernels)
    if slow and _runs_our_mamba(inputs.get("model")):
        what = f"a model of {parameters / 1e9:.1f}B parameters would run on the pure-torch Mamba reference code"
        remedy = f"{HOW_TO_COMPILE}, or set engine.allow_reference_kernels=true if slow is fine"
        others.append(problem(what, remedy))
    project = config.logger.wandb_project if isinstance(config, TrainingConfig) else None
    if project is not None and machine.version_of("wandb") is None:
        what = f"logger.wandb_project={project}: the package wandb is not installed"
        others.append(problem(what, how_to_add("wandb")))
    others += _no_block(config, inputs)
    others += _promised_tie(config, inputs)
    others += _adapters_of_a_tied_head(config, inputs)
    others += _shards_of_shared_layers(config, inputs, machine)
    bytes_of_moments = isinstance(engine, LocalEngine) and engine.optimizer == "adamw_8bit"
    if bytes_of_moments and machine.version_of("bitsandbytes") is None:
        what = "engine.optimizer=adamw_8bit: the package bitsandbytes is not installed"
        others.append(problem(what, how_to_add("bitsandbytes")))
    shared: dict[str, Any] = {
        "packages": (*base_packages(), *more),
        "device": engine.device,
        "others": tuple(others),
    }
    if not isinstance(config, TrainingConfig):
        kept = f"the weights of {in_billions(parameters)}"
        return Needs(process_bytes=RESULT_BYTES * parameters, kept=kept, **shared)
    if isinstance(engine, LocalEngine) and engine.peft is not None:
        # The frozen weights have no gradients or moments, and double as the reference model.
        weights = parameters * FROZEN_BYTES[engine.dtype]
        return Needs(
            rows=config.rows_per_update,
            micro=config.micro_rows(machine.processes),
            process_bytes=weights,
            kept=f"the frozen weights of {in_billions(parameters)} in {engine.dtype}",
            **disk_bytes(config, 0, weights),
            **shared,
        )
    further = config.further_models if isinstance(config, GRPOConfig) else 0
    sharded = isinstance(engine, LocalEngine) and engine.strategy == "fsdp2"
    shards, which = (machine.processes, "its shards of ") if sharded and machine.processes > 1 else (1, "")
    return Needs(
        rows=config.rows_per_update,
        micro=config.micro_rows(machine.processes),
        process_bytes=(TRAINING_BYTES - 6 * bytes_of_moments + RESULT_BYTES * further) * parameters // shards,
        kept=f"{which}weights, gradients and optimizer of {in_billions(parameters)}",
        **disk_bytes(config, CHECKPOINT_BYTES * parameters, RESULT_BYTES * parameters),
        **shared,
    )


def _no_block(config: StageConfig[ModelLoadingEngine], inputs: Inputs) -> Iterator[Finding]:
    """Report multi-token prediction with a model that lacks the block for it."""
    if not (isinstance(config, TrainingConfig) and isinstance(config.engine, TransformersEngine)):
        return
    model, depths = inputs.get("model"), config.engine.mtp_num_layers
    if model is not None:
        fields, whose = read_json(model.path / "config.json"), f"run.model: {model.reference}"
    else:
        section = config.model
        fields, whose = load_architecture(section.architecture, section.overrides), "model.architecture"
    blocks = fields.get("num_nextn_predict_layers") or 0
    if depths and blocks != 1:
        what = f"{whose} has {blocks} prediction blocks, but {depths} depths need exactly one, which is repeated"
        remedy = "set engine.mtp_num_layers=0 engine.mtp_loss_scaling_factor=0"
        remedy += ", or ++model.overrides.num_nextn_predict_layers=1" if model is None else ""
        yield problem(what, remedy, "engine.mtp_num_layers")


def _promised_tie(config: StageConfig[ModelLoadingEngine], inputs: Inputs) -> Iterator[Finding]:
    """Report random weights whose config.json would promise a tied head: transformers 5.23 ties none of NemotronH."""
    if inputs.get("model") is not None or not isinstance(config, TrainingConfig):
        return
    section = config.model
    if load_architecture(section.architecture, section.overrides).get("tie_word_embeddings"):
        what = "model.architecture: tie_word_embeddings is true, and transformers 5.23 trains a separate head"
        yield problem(what, "set it to false, or leave it out of model.overrides", "model.overrides")


def _adapters_of_a_tied_head(config: StageConfig[ModelLoadingEngine], inputs: Inputs) -> Iterator[Finding]:
    """Report adapters of a head that is also the embeddings, by the tensors in the model's files.

    A folder without a tensor for the head is one whose head is tied, also where config.json leaves that to the default
    of its architecture. What else may be tied is found when the model is loaded.
    """
    section, model = getattr(config.engine, "peft", None), inputs.get("model")
    if not isinstance(section, LoraSection) or model is None:
        return
    described = config_of(model.path)
    shapes = {name.removesuffix(".weight"): one.shape for name, one in headers_in(model.path).items()}
    heads = [name for name in shapes if kind_of(name) == "lm_head"]
    if not shapes or (heads and not described.get("tie_word_embeddings")):
        return
    matrices, rows = [name for name, shape in shapes.items() if len(shape) > 1], rows_of(described)
    pair = [name for name in matrices if kind_of(name) == "embeddings" and shapes[name][0] == rows]
    pair += heads or ["lm_head"]
    wanted = [name for name in {*matrices, *pair} if is_chosen(name, section.layers or (), section)]
    if fault := tied_fault(sorted(wanted), pair):
        yield problem(f"{model.reference}: {fault.message}", fault.remedy, "engine.peft.target_modules")


def _shards_of_shared_layers(
    config: StageConfig[ModelLoadingEngine], inputs: Inputs, machine: Machine
) -> Iterator[Finding]:
    """Report shards of a model of which several layers have the same weights: one group of shards has to hold those."""
    engine, model = config.engine, inputs.get("model")
    several = isinstance(engine, LocalEngine) and engine.strategy == "fsdp2" and machine.processes > 1
    described = config_of(model.path) if several and model is not None else {}
    kind = described.get("model_type")
    if model is None or kind not in ("zamba", "zamba2"):
        return
    layers = described.get("layers_block_type") or described.get("layer_types") or []
    blocks = described.get("num_mem_blocks", 1) if kind == "zamba2" else 1
    if not layers or layers.count("hybrid") > blocks:
        what = f"{model.reference}: layers of {kind} share their weights, and FSDP2 of torch 2.13 shards no such layers"
        yield problem(what, "set engine.strategy=ddp", "engine.strategy")


def own_packages(distribution: str) -> tuple[Requirement, ...]:
    """Dependencies of one of our distributions, without our own packages."""
    return tuple(one for one in requirements(distribution) if not one.name.startswith("nemotron-"))


def base_packages() -> tuple[Requirement, ...]:
    """Packages that every engine in this process imports."""
    return own_packages("nemotron-engines")


def disk_bytes(config: TrainingConfig, checkpoint: int, result: int) -> dict[str, Any]:
    """Disk sizes among an engine's needs. A new checkpoint is complete before an older one is deleted."""
    several = config.train.train_iters > config.checkpoint.save_interval
    whole = checkpoint * (2 if several else 1) + result
    return {"checkpoint_bytes": checkpoint, "result_bytes": result, "disk_bytes": whole}


def in_billions(parameters: int) -> str:
    """`31.6B parameters`."""
    return f"{count(parameters)} parameters"


# When what is sampled is too far from what is trained.


def require_alike(step: int, error: float, limit: float | None) -> None:
    """Check a step's `token_mult_prob_error` against the configured limit; None means no limit.

    Raises:
        UserError: the limit is exceeded.
    """
    if limit is not None and error > limit:
        # enough digits to tell the two apart
        shown = next((text for n in range(4, 17) if float(text := f"{error:.{n}g}") > limit), repr(error))
        raise UserError(
            f"step {step}: sampling and training disagree: token_mult_prob_error is {shown}, more than "
            f"grpo.sampling_mismatch_limit={limit}",
            "raise the limit, or leave it out: grpo.sampling_mismatch_limit=null",
        )
