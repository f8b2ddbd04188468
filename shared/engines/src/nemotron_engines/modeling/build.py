"""Make, load and save models: from a config, from a folder, or the one that a training starts from."""

import json
import pickle
import re
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub.errors import StrictDataclassError
from packaging.version import Version
from safetensors import SafetensorError
from torch.distributed.fsdp import FSDPModule
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoTokenizer,
    NemotronHConfig,
    PreTrainedConfig,
    PreTrainedModel,
    conversion_mapping,
    dynamic_module_utils,
    set_seed,
)
from transformers import __version__ as transformers_version
from transformers.core_model_loading import revert_weight_conversion
from transformers.utils import logging as library_logging
from transformers.utils.logging import disable_progress_bar

from nemotron_data.tokenizers.folder import TokenizerFolder, copy_tokenizer
from nemotron_data.tokenizers.limits import require_no_growth
from nemotron_engines.kernels.experts import register_cpu_experts, register_grouped_experts
from nemotron_engines.kernels.mamba_install import (
    announce,
    bound_cached_steps,
    fuse_norms,
    install_cpu_ops,
    is_older,
    lift_time_step_limit,
)
from nemotron_engines.kernels.packed_attention import register_packed_attention
from nemotron_engines.modeling.architecture import NEMOTRON_H, load_architecture
from nemotron_engines.modeling.generation import confine_templates, require_generation
from nemotron_engines.modeling.loaded import (
    is_quantized,
    left_behind,
    require_kept_scales,
    require_numbers,
    require_one_head,
    require_same_tensors,
    restore_float32,
)
from nemotron_engines.modeling.mtp import class_of, say_what_is_there
from nemotron_engines.modeling.sizes import (
    ANOTHER_MODEL,
    NOT_THE_FILE,
    count_parameters,
    first_line,
    no_model,
    require_counts,
    require_few_layers,
    require_sizes,
    require_window,
)
from nemotron_engines.modeling.stored import stored_in
from nemotron_engines.modeling.taken import loss_of_routers
from nemotron_shared.artifacts import Artifact
from nemotron_shared.config.schema import LocalEngine, ModelLoadingEngine, ModelSection
from nemotron_shared.config.training import TrainingConfig
from nemotron_shared.engine.spec import Task
from nemotron_shared.models.folder import FILE as GENERATION
from nemotron_shared.models.folder import IDS, config_of, known_types, needs_code, require_loadable, settings_in
from nemotron_shared.models.scales import BESIDE, QUANTIZED, small_in
from nemotron_shared.models.weights import LARGEST_HEADER
from nemotron_shared.system.atomic import read_json, write_text
from nemotron_shared.system.console import say
from nemotron_shared.system.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from peft import PeftModel
import os

disable_progress_bar()  # our own progress line is the only one
# Loading or saving the first model builds these rules, which takes 0.4 s; built now, forked processes inherit them.
conversion_mapping.get_checkpoint_conversion_mapping("nemotron_h")
# Parts of a composite model do not get our trust_remote_code setting; make transformers refuse instead of prompting.
dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0  # ty: ignore[invalid-assignment]
# Libraries use each other's deprecated settings; the user cannot change that.
warnings.filterwarnings("ignore", message=".*is deprecated and will be removed", category=FutureWarning)

FAST_SINCE = (2, 11)
"""First torch with the grouped product and variable-length attention that our GPU code needs."""
# Deprecated names that NemotronHConfig still accepts and translates.
CONFIG_ALIASES = {"hybrid_override_pattern", "mtp_hybrid_override_pattern"}


def random_model(section: ModelSection, tokenizer: Any, seed: int, engine: ModelLoadingEngine) -> PreTrainedModel:
    """A NemotronH model with random weights from `seed` and the vocabulary of `tokenizer`.

    Args:
        engine: the config's engine section, for `attn_implementation` and `allow_reference_kernels`.
    """
    config = random_config(section, tokenizer)
    announce(count_parameters(config), engine.allow_reference_kernels)
    set_seed(seed)
    return _from_config(config, engine)


def random_config(section: ModelSection, tokenizer: Any) -> NemotronHConfig:
    """The config of a model with random weights."""
    return nemotron_config(load_architecture(section.architecture, section.overrides), tokenizer)


# Settings for a model that is only saved here and run elsewhere.
ONLY_MADE = ModelLoadingEngine(name="none", device="cpu", attn_implementation="sdpa", allow_reference_kernels=False)


def save_random_model(section: ModelSection, tokenizer: Path, seed: int, into: Path) -> None:
    """Write a folder with random weights, for engines that start from a folder. `tokenizer` may be the same folder."""
    save_model(random_model(section, load_tokenizer(tokenizer), seed, ONLY_MADE), tokenizer, into)


def random_like(path: Path, seed: int, engine: ModelLoadingEngine) -> PreTrainedModel:
    """A model with a folder's architecture and random weights from `seed`."""
    return random_of(read_config(path), seed, engine)


def random_of(
    config: PreTrainedConfig, seed: int, engine: ModelLoadingEngine, dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    """A model of this config with random weights from `seed`."""
    if isinstance(config, NemotronHConfig):
        config.time_step_min = NemotronHConfig().time_step_min  # the initialisation needs a positive limit
    set_seed(seed)
    return _from_config(config, engine, dtype)


@cache
def install_kernels(model_type: str | None) -> None:
    """Choose the Mamba code once per process; with a GPU, print it for models that use it, and fuse the norms."""
    line = install_cpu_ops()
    if model_type == NEMOTRON_H and torch.cuda.is_available():
        say(line)
    if model_type == "zamba2" and not is_older():
        bound_cached_steps()
    if torch.cuda.is_available():
        fuse_norms()


def _from_config(
    config: PreTrainedConfig, engine: ModelLoadingEngine, dtype: torch.dtype = torch.float32, *, trusted: bool = False
) -> PreTrainedModel:
    install_kernels(config.model_type)
    model = class_of(engine).from_config(
        config, dtype=dtype, trust_remote_code=trusted, **_implementations(config, engine)
    )
    say_what_is_there(model)
    lift_time_step_limit(model)
    return model


def _implementations(config: PreTrainedConfig, engine: ModelLoadingEngine) -> dict[str, str]:
    """Implementations of attention and experts; for Nemotron's experts, our own for each kind of device."""
    attention = engine.attn_implementation
    known: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)  # None: a class from outside transformers
    if attention == "sdpa" and known is not None and not known._supports_sdpa:
        say(f"attention: eager, because {known.__name__} has no sdpa")
        attention = "eager"
    chosen = {"attn_implementation": attention}
    if isinstance(config, NemotronHConfig):
        if not torch.cuda.is_available() or engine.device == "cpu":
            chosen["experts_implementation"] = register_cpu_experts()
        elif Version(torch.__version__).release < FAST_SINCE:
            say("experts and attention: transformers' own; ours are faster, but need torch 2.11 or later")
        else:
            chosen["experts_implementation"] = register_grouped_experts()
            if attention == "sdpa":
                chosen["attn_implementation"] = register_packed_attention()
    return chosen


def nemotron_config(fields: dict[str, Any], tokenizer: Any) -> NemotronHConfig:
    """A model config from architecture fields.

    Raises:
        UserError: a field that NemotronHConfig does not have.
    """
    known = set(NemotronHConfig().to_dict()) | CONFIG_ALIASES
    for field in fields:
        if field not in known:
            raise UserError(f"model: NemotronHConfig has no field '{field}'", did_you_mean(field, known))
    values: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    try:
        return NemotronHConfig(**(values | fields))
    except (StrictDataclassError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"model: not an architecture: {first_line(error)}", "correct its fields") from error


def load_model(
    path: Path,
    engine: ModelLoadingEngine,
    *,
    trusted: bool = False,
    dtype: torch.dtype = torch.float32,
    class_for: Callable[[type[PreTrainedConfig]], Any] | None = None,
) -> PreTrainedModel:
    """A model from a Hugging Face folder. Pickles are read weights-only.

    Args:
        trusted: the folder's Python files may run, if it cannot be loaded otherwise.
        class_for: the class for a type of config; None for language models.

    Raises:
        UserError: the folder is damaged, its tensors are not finite, or they do not match its config.json.
    """
    install_kernels(config_of(path).get("model_type"))
    model = _load_checked(path, engine, trusted=trusted, dtype=dtype, class_for=class_for)
    say_what_is_there(model)
    lift_time_step_limit(model)
    if model.config.model_type == NEMOTRON_H:
        announce(model.num_parameters(), engine.allow_reference_kernels)
    return model


def require_tensors(path: Path) -> None:
    """Refuse a folder whose tensors do not match its config.json, by name and shape alone.

    Raises:
        UserError: as `load_model`.
    """
    with _without_values(path) as headers:
        _load_checked(path, ONLY_MADE, trusted=False, dtype=torch.float32, headers=headers, device_map="meta")


def require_fit(base: Artifact) -> None:
    """Refuse a model before another library trains on it: tensors and tokens are compared with its config.json.

    Raises:
        UserError: as `load_model` and `require_tokens`.
    """
    if not base.trusted and config_of(base.path).get("model_type") in known_types():
        require_tensors(base.path)
        require_tokens(base.path)


def differing_tensors(path: Path) -> list[tuple[str, str]]:
    """Each tensor that config.json asks for and the weights lack, or the other way round, and what is wrong with it.

    Weights of few bits are compared as if they were not quantised, and without their scales.

    Raises:
        UserError: config.json is not that of a model, or a file is damaged.
    """
    config = read_config(path)
    for key in QUANTIZED:
        config.__dict__.pop(key, None)
    try:
        shell: Any = shell_of(config, ONLY_MADE)
    except (ValueError, TypeError, RuntimeError, OverflowError, ZeroDivisionError) as error:
        what = f"{path / 'config.json'}: no model can be made of it: {first_line(error)}"
        raise UserError(what, ANOTHER_MODEL) from error
    wanted = {name: [*one.shape] for name, one in revert_weight_conversion(shell, shell.state_dict()).items()}
    tensors = stored_in(path)
    small = small_in(tensors)
    weights = {name: one for name, one in tensors.items() if not (small and BESIDE.fullmatch(name))}
    there = {name.removesuffix("_packed"): [*one.shape] for name, one in weights.items()}
    packed = {name.removesuffix("_packed") for name in small if not tensors[name].dtype.startswith("F8_")}
    ignored = [re.compile(pattern) for pattern in shell._keys_to_ignore_on_load_unexpected or ()]
    unknown = [name for name in there if name not in wanted and not any(one.search(name) for one in ignored)]
    faults = []
    for name, shape in wanted.items():
        if name not in there:
            other = next((one for one in unknown if one.endswith(f".{name}")), None)
            faults.append((name, f"is missing; there is {other}" if other else "is missing"))
        elif there[name] != shape and name not in packed:
            faults.append((name, f"has the shape {there[name]}, and config.json asks for {shape}"))
    faults += [(name, "is there, and config.json has no place for it") for name in unknown]
    if small:
        return [one for one in faults if one[0] not in (shell.all_tied_weights_keys or ())]
    try:
        with _few_words():
            require_tensors(path)  # knows older names, and heads that are not stored
    except UserError as error:
        if faults:
            return faults
        where, _, what = error.message.removeprefix(f"{path}").lstrip("/").partition(": ")
        return [(f"{where}: tie_word_embeddings" if what.startswith("tie_word") else "config.json", what or where)]
    return []


@contextmanager
def _few_words() -> Generator[None]:
    """Keep the library's own tables of tensors to itself."""
    level = library_logging.get_verbosity()
    library_logging.set_verbosity_error()
    try:
        yield
    finally:
        library_logging.set_verbosity(level)


@contextmanager
def _without_values(path: Path) -> Generator[Path]:
    """The folder with files of weights that are as long as its own, and empty behind their headers.

    The library maps a file, and whole stretches of it may then count as memory, although no value is looked at.
    """
    with TemporaryDirectory(ignore_cleanup_errors=True) as made:
        for file in filter(Path.is_file, path.iterdir()):
            target = Path(made) / file.name
            if file.suffix != ".safetensors":
                target.symlink_to(file.resolve())
                continue
            with file.open("rb") as source, target.open("wb") as sparse:
                length = source.read(8)
                sparse.write(length + source.read(min(int.from_bytes(length, "little"), LARGEST_HEADER)))
                sparse.truncate(file.stat().st_size)
        yield Path(made)


def _load_checked(
    path: Path,
    engine: ModelLoadingEngine,
    *,
    trusted: bool,
    dtype: torch.dtype,
    headers: Path | None = None,
    class_for: Callable[[type[PreTrainedConfig]], Any] | None = None,
    **placed: Any,
) -> PreTrainedModel:
    """Load the model, and check that its folder matches its config.

    Args:
        headers: a folder to load in its place, whose weights have no values.
    """
    config = read_config(path, trusted=trusted)
    if isinstance(config, NemotronHConfig):
        # Missing tensors are initialised before we can refuse them, and the initialisation of time steps fails with
        # the limit 0 that `lift_time_step_limit` sets and saves.
        config.time_step_min = NemotronHConfig().time_step_min
    code = trusted and needs_code(config_of(path))
    require_generation(path)
    require_window(path, config)
    require_sizes(path, config, count=not code)
    if is_quantized(config_of(path)):
        require_kept_scales(path)
    try:
        # Mismatched sizes are accepted here, and reported below with all other differences.
        loaded: Any = (class_for(type(config)) if class_for else class_of(engine)).from_pretrained(
            headers or path,
            config=config,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=code,
            weights_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **_implementations(config, engine),
            **placed,
        )
    except NOT_THE_FILE:
        raise
    except (OSError, SafetensorError, ValueError, KeyError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise UserError(f"{path}: its weights cannot be read: {first_line(error)}", ANOTHER_MODEL) from error
    except Exception as error:  # configs can be wrong in many ways, with many kinds of errors
        raise no_model(path, error) from error
    model, found = loaded
    if is_quantized(config_of(path)) and not getattr(model, "is_quantized", False):
        # without a GPU, the library turns weights of 8 bits into bfloat16, and would save them in 8 bits again
        model._weight_conversions = None
        for one in model.parameters():
            one.data = one.data.to(dtype)
    require_same_tensors(path, found)
    if dtype != torch.float32:
        restore_float32(path, model)
    require_numbers(path, model)
    require_one_head(path, model)
    return model


def shell_of(config: PreTrainedConfig, engine: ModelLoadingEngine, *, trusted: bool = False) -> PreTrainedModel:
    """A model of this config without weights, to be filled from another process."""
    with torch.device("meta"):
        return _from_config(config, engine, trusted=trusted)


def read_config(path: Path, *, trusted: bool = False) -> Any:
    """The `config.json` of a model folder.

    Raises:
        UserError: it is missing, damaged, of an unknown model type, or needs untrusted code.
    """
    found = config_of(path)
    require_few_layers(path, found)
    require_counts(path, found)
    needs = needs_code(found)
    if needs:
        require_loadable(str(path), found, trusted=trusted)
    try:
        # never None, which would prompt; and no custom code for models that the library knows
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=trusted and needs)
        # for its parts, too: we choose the implementation of the layers
        config._attn_implementation = config._experts_implementation = None
        return config
    except NOT_THE_FILE:
        raise
    except Exception as error:  # as above
        raise UserError(f"{path / 'config.json'}: not a model's config: {first_line(error)}", ANOTHER_MODEL) from error


def load_tokenizer(path: Path) -> Any:
    """The tokenizer of a model or a data set, with limits on its chat template.

    Raises:
        UserError: it is missing or damaged.
    """
    confine_templates()
    for file in sorted(path.glob("tokenizer*.json")):  # the config may name a different one
        if file.is_file():
            require_no_growth(file)
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the libraries raise many kinds of errors for unreadable files
        what = f"{path}: its tokenizer cannot be loaded: {first_line(error)}"
        raise UserError(what, "put the model's tokenizer.json and tokenizer_config.json there") from error
    if type(tokenizer.model_max_length) not in (int, float):  # the library compares with it without checking its type
        what = f"{path / 'tokenizer_config.json'}: model_max_length is not a number"
        raise UserError(what, "correct the value, or remove the key")
    return tokenizer


TEXTS = (
    "It is 18: the 1st of 12345.678, isn't it?",
    "naïve café,  ÅNGSTRÖM\n\n\tЗима 東京 ½",
    "def f(x):\n    return x",
)
"""On these, ways to split text differ: numbers, apostrophes, spaces, other scripts."""
SAVE_AGAIN = "save it again with transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"


def require_tokens(path: Path) -> None:
    """Check the tokenizer and the end tokens of a model that was not made here.

    Data is prepared with `tokenizer.json`. Other programs, and our own answers, use the class that transformers has for
    this type of model, and some classes bring their own way to split text.

    Raises:
        UserError: the two give different ids, or a token that ends texts is outside the vocabulary.
    """
    for where, what, remedy in token_faults(path):
        raise UserError(f"{path / where} {what}", remedy)


def token_faults(path: Path) -> Iterator[tuple[str, str, str]]:
    """What `require_tokens` refuses: the file and key, what is wrong, and what to do."""
    vocabulary = read_config(path).get_text_config().vocab_size
    for name in ("config.json", GENERATION):
        told = settings_in(path / name) if (path / name).is_file() else {}
        for key in IDS:
            given = told.get(key)
            for number in given if isinstance(given, list) else [given]:
                if isinstance(number, int) and number >= vocabulary and (key == IDS[1] or name == "config.json"):
                    what = f"is {number}, outside the vocabulary of {vocabulary:,} tokens"
                    yield f"{name}: {key}", what, "correct the number, or remove the key"
    if not (path / "tokenizer.json").is_file():
        return
    tokenizer, folder = load_tokenizer(path), TokenizerFolder(path)
    end = folder.special_text("eos_token")
    if end is not None and folder.tokenizer.token_to_id(end) is None:
        what = f"'{end}' is not a token of tokenizer.json"
        yield "tokenizer_config.json: eos_token", what, "name a token of its vocabulary"
    for text in TEXTS:
        ours, theirs = (one.encode(text, add_special_tokens=False) for one in (folder.tokenizer, tokenizer))
        if ours.ids != theirs:
            what = f"splits '{text[:9]}...' into other tokens than {type(tokenizer).__name__} of transformers"
            yield "tokenizer.json", f"{what}, so the model would learn what it never sees", SAVE_AGAIN
            return


def save_model(
    model: PreTrainedModel, tokenizer: Path, directory: Path, weights: dict[str, torch.Tensor] | None = None
) -> None:
    """Write a Hugging Face folder: safetensors, config, and the tokenizer's own files, unchanged.

    Args:
        weights: used instead of the model's own.
    """
    # transformers finds the published tensor names by class name, but FSDP2 derives a class with another name
    derived = type(model)
    own = next(kind for kind in derived.__mro__ if not issubclass(kind, FSDPModule))
    model.__class__ = own
    try:
        model.save_pretrained(directory, safe_serialization=True, state_dict=weights)
    finally:
        model.__class__ = derived
    values = Counter[torch.dtype]()
    for one in (model.state_dict() if weights is None else weights).values():
        values[one.dtype] += one.numel() if one.is_floating_point() else 0
    # the library records that of one of the model's own weights, and a few may have another
    _correct(directory / "config.json", model, max(values, key=values.__getitem__))
    if own.__module__.startswith("transformers_modules."):  # custom code is saved along with the model
        for file in Path(str(model.name_or_path)).glob("*.py"):
            shutil.copyfile(file, directory / file.name)
    copy_tokenizer(tokenizer, directory)


def _correct(file: Path, model: PreTrainedModel, kind: torch.dtype) -> None:
    """Write the type of the weights, and of the folder that the model is from the setting that trainers switch off."""
    config, told = read_json(file), {"dtype": str(kind).removeprefix("torch.")}
    before = config_of(Path(model.name_or_path)) if model.name_or_path else {}
    if "use_cache" in before:
        told["use_cache"] = before["use_cache"]
    if told != {key: config.get(key) for key in told}:
        write_text(file, json.dumps(config | told, indent=2, sort_keys=True) + "\n")


# What a training starts from: the model of `run.model`, or random weights; with adapters where they are trained.


def starting_model(task: Task[TrainingConfig[LocalEngine]]) -> "PreTrainedModel | PeftModel":
    """The model to train with transformers."""
    config = task.config
    model = starting_weights(task, task.input("data").path / "tokenizer")
    if weight := loss_of_routers(model.config):
        task.run.say(f"config.json asks for a loss of the routers (router_aux_loss_coef {weight:g}), which is left out")
    if config.engine.peft is None:
        return model
    from nemotron_engines.lora.adapt import adapted

    return adapted(model, config.engine.peft, config.run.seed)


def starting_weights(task: Task[Any], tokenizer: Path) -> PreTrainedModel:
    """The model without adapters: in float32, or frozen in the compute dtype.

    Args:
        tokenizer: folder of the tokenizer that random weights are made for.
    """
    config: TrainingConfig[LocalEngine] = task.config
    engine = config.engine
    if engine.strategy == "ddp":
        return with_every_row_trained(_whole(task, tokenizer))
    from nemotron_engines.modeling.sharded import spread

    model = spread(lambda: _whole(task, tokenizer), lambda: _shell(task, tokenizer), engine.dtype, engine.device)
    return with_every_row_trained(model)


def with_every_row_trained(model: PreTrainedModel) -> PreTrainedModel:
    """The model, whose embedding of the padding token gets gradients like any other.

    transformers 5.23 makes embeddings with `padding_idx`, so that torch drops that row's gradient. Where the padding
    is also the end of a turn, the model would never learn what follows one. Real padding has no labels and is seen by
    no other token, so it needs no such exception.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.padding_idx = None
    return model


def _whole(task: Task[Any], tokenizer: Path) -> PreTrainedModel:
    config: TrainingConfig[LocalEngine] = task.config
    base, engine = task.inputs["model"], config.engine
    frozen = engine.peft is not None and engine.dtype == "bfloat16"
    dtype = torch.bfloat16 if frozen else torch.float32
    if base is not None:
        if not base.trusted:
            require_tokens(base.path)
        model = load_model(base.path, engine, trusted=base.trusted, dtype=dtype)
        if small := next((name for name, one in model.named_parameters() if one.itemsize == 1), None):
            raise UserError(f"{base.path}: {small} has 8 bits, which cannot be trained", "give the model in bfloat16")
        if lost := left_behind(base.path, model):
            why = f"transformers {transformers_version} has no place for them"
            task.run.say(f"{lost} of the starting model are neither trained nor published: {why}")
        return model
    made: Any = random_model(config.model, load_tokenizer(tokenizer), config.run.seed, engine)
    return made.to(dtype)


def _shell(task: Task[Any], tokenizer: Path) -> PreTrainedModel:
    config: TrainingConfig[LocalEngine] = task.config
    if (base := task.inputs["model"]) is not None:
        return shell_of(read_config(base.path, trusted=base.trusted), config.engine, trusted=base.trusted)
    return shell_of(random_config(config.model, load_tokenizer(tokenizer)), config.engine)


# CPU threads.


def set_threads(threads: int | None) -> None:
    """Use the configured number of threads; None leaves the choice to torch.

    Tiny models need one: a second gains nothing, and on a busy machine it was measured four times slower.
    """
    if threads is not None:
        torch.set_num_threads(threads)
        os.environ["OMP_NUM_THREADS"] = str(threads)  # otherwise accelerate uses one thread per core
