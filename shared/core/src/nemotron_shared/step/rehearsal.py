"""Run one small training step before anything is prepared, loaded or written.

    rehearse_apart(start)     # "rehearsed: one step on the first rows, with random weights (its own size), ..."

A dry run and a start of a training do so where the model, or one that it was trained from, was not made here. The step
runs like the real one, in a temporary store that is removed afterwards: on the first rows, with a small model of the
same architecture with random weights, the real tokenizer, and the real settings except for size and length. It finds
failures that would otherwise appear after minutes, or when hours of training are to be saved. One that passed is
remembered (`step/remembered.py`).

Reinforcement learning samples short answers, whose rewards are made to differ, so that there is a gradient. Rewards of
other packages are not called; those in a file of the user's are, which `--trust-code` has allowed. A teacher or a
reward model is replaced by a small one with random weights, too.
"""

import contextlib
import importlib
import io
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nemotron_shared.artifacts import Artifact
from nemotron_shared.config.compose import write_composed
from nemotron_shared.config.overrides import override, override_key
from nemotron_shared.config.schema import StageConfig
from nemotron_shared.config.training import GRPOConfig, SupervisedConfig, TrainingConfig
from nemotron_shared.engine.engine import Engine, engine_of, import_libraries, refuse
from nemotron_shared.engine.spec import Step
from nemotron_shared.models.folder import config_of, needs_code
from nemotron_shared.step.arguments import Arguments
from nemotron_shared.step.records import CODE
from nemotron_shared.step.remembered import comes_from_elsewhere, digest_of, passed, remember
from nemotron_shared.step.start import Start, load
from nemotron_shared.system.console import say
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.process import ending_with_us, launch_command

Make = Callable[[Start[Any]], tuple[Artifact, bool]]
"""Makes an artifact, or finds that it is there, as in every start."""
NOTHING_LEFT = re.compile(r"no \w+ is left")
SHORT = (
    "data_prep.sample=100", "data_prep.workers=1", "data_prep.split={train: 1.0, valid: 0.0, test: 0.0}",
    "train.train_iters=1", "train.micro_batch_size=1", "train.eval_interval=1",
    "train.eval_rows=1", "scheduler.lr_warmup_iters=0", "scheduler.lr_wsd_decay_iters=0", "checkpoint.save_interval=1",
    "checkpoint.keep_best=false", "checkpoint.publish_best=null", "checkpoint.checkpoint_dir=null",
    "logger.tensorboard=false", "logger.log_dir=null",
    "logger.wandb_project=null", "logger.mlflow_tracking_uri=null", "run.publish_to=null", "run.nproc_per_node=1",
    "run.missing_data=prepare", "run.force=false",
)  # fmt: skip
"""What is other than asked, regardless of the method: size, length, and who hears of it."""
HOME = "home"
"""Folder of the temporary store."""
SHORTEST = 8
"""Tokens of a sampled answer."""
BY_OTHERS = (
    "engine.generation=null", "engine.generation_dtype=null", "grpo.max_staleness=0", "engine.vllm.address=null",
    "engine.vllm.gpus=null", "engine.vllm.python=null",
)  # fmt: skip
"""Settings by which a training with vLLM draws without it."""
PASSED = "rehearsed: one step on the first rows"
NOT_BEGUN = "nothing was begun: this was the rehearsal"
BEFORE = "rehearsed before, with this architecture, these settings and this code"
ANOTHER = "give another model: docs/finetune.md says what was tried with this one"
LAUNCHER = re.compile(r"TORCHELASTIC_.*|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)")
"""Variables of torchrun, which the rehearsal's single process must not see."""


def is_rehearsed(start: Start[Any]) -> bool:
    """Whether a training is rehearsed before it starts: its model comes from elsewhere, and is here."""
    arguments, model, config = start.arguments, start.inputs.get("model"), start.config
    asked = arguments.rehearse or arguments.rehearsed or arguments.machine
    if not start.step.trains or model is None or asked or start.imports:  # its weights may not be here yet
        return False
    if config is None:  # where settings depend on data that does not exist yet, there is no config yet
        return model.is_external or model.manifest.producer.verb == "import"
    rehearses = isinstance(config, TrainingConfig) and engine_of(config).small_models is not None
    return rehearses and comes_from_elsewhere(start, model)


def rehearse_apart(start: Start[Any]) -> str:
    """Rehearse in a separate process, so that the training finds its own untouched; what `rehearse` returns.

    Raises:
        UserError: the training would fail, and why.
    """
    arguments = start.arguments
    if has_passed(start):
        return BEFORE
    say(f"[{start.step.stage}] rehearsing one step with random weights")
    with tempfile.TemporaryDirectory(prefix="nemotron-step-") as folder:
        file = Path(folder) / "composed.yaml"
        write_composed(file, start.composed)
        command = [*launch_command(start.step.module, 1), "--composed", str(file), "--rehearse"]
        command += ["--trust-code"] if arguments.trust_code else []
        variables = {key: value for key, value in os.environ.items() if not LAUNCHER.fullmatch(key)}
        try:
            done = subprocess.run(ending_with_us(command), capture_output=True, text=True, check=False, env=variables)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(NOT_BEGUN) from None
    said = done.stderr.strip()
    if done.returncode < 0:
        raise UserError(f"the rehearsal of one step was killed by signal {-done.returncode}", "is there memory for it?")
    if done.returncode:
        message, _, remedy = f"\n{said}".rpartition("\nerror: ")[2].partition("\n")
        raise UserError(message or f"the rehearsal ended with exit code {done.returncode}", remedy.strip() or None)
    told = f"[{start.step.stage}] "  # libraries may say something after it
    return next(line.removeprefix(told) for line in reversed(said.splitlines()) if line.startswith(told))


def has_passed(start: Start[Any]) -> bool:
    """Whether the same rehearsal has passed before, which needs no library of the engine."""
    return start.config is not None and passed(start.store.home, digest_of(start, _short(start.config)))


def rehearse(start: Start[Any], preparation: Start[Any] | None, make: Make) -> str:
    """What was rehearsed, or why nothing was.

    Args:
        start: checked, as that of a dry run.
        preparation: of its data, checked too; None if the step prepares none.
        make: makes an artifact, as in every start.

    Raises:
        UserError: the training would fail, and why.
    """
    step, arguments = start.step, start.arguments
    refuse(start.problems)  # not what is lacking: the training may have more processes, and was checked with them
    if why := _why_not(start):
        return f"not rehearsed: {why}"
    config: Any = start.config
    engine, model = engine_of(config), start.inputs["model"]
    assert engine.small_models is not None and model is not None, "see _why_not"
    remembered_as = digest_of(start, _short(config))
    if passed(start.store.home, remembered_as):
        return BEFORE
    import_libraries(type(engine))  # before anything else imports them, with all that is not needed
    small_models, said = importlib.import_module(engine.small_models), "no model of its kind is small enough"
    # data would be refused together with settings that are not its own, so prepare some with these, of fewer rows
    data = None if start.data_settings else start.inputs.get("data")
    tokenizer = _tokenizer(preparation)
    with _silent(), tempfile.TemporaryDirectory(prefix="rehearsal-") as place, _rehearsing(engine):
        small_models.require_tensors(model.path)
        small_models.require_tokens(model.path)
        for number, small in enumerate(small_models.smaller(model.path)):
            folder = Path(place) / str(number) / "model"
            try:
                small.write(folder, config.run.seed)
                others = _others(start, small_models, folder.parent)
                short = [word for word in _short(config) if data is None or not word.startswith("data_prep.")]
                where = _places(folder, data, step, config, tokenizer)
                _lend_digests(start.store.home, folder.parent / HOME)
                made = _train(step, make, arguments, [*short, *where, *others])
                small_models.load_again(made.path)
            except UserError as error:
                if NOTHING_LEFT.match(error.message):  # the preparation reads more, and lists what it cannot use
                    return "not rehearsed: none of the first rows can be trained on"
                raise _as_in_the_training(error, folder, model.path, tokenizer) from error
            except (MemoryError, ModuleNotFoundError):
                raise
            except Exception as error:
                first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
                said = f"one step of this training fails with {type(error).__name__}: {first}"
                if not small.narrow:
                    raise UserError(f"{model.reference}: {said}", ANOTHER) from error
                said = f"{small.told}, {said}"
            else:
                told = f"{PASSED}, with random weights ({small.told}), saved and loaded"
                remember(start.store.home, remembered_as, told)
                return told
    return f"not rehearsed: {said}; with its own sizes it may well run"


def _why_not(start: Start[Any]) -> str | None:
    """Why a training cannot be rehearsed; None if it can."""
    config, model = start.config, start.inputs.get("model")
    if not isinstance(config, TrainingConfig):
        return "its settings depend on data that does not exist yet"
    if engine_of(config).small_models is None:
        return f"the engine {config.engine.name} trains with other libraries"
    if model is None:
        return "the model is not here yet, or has random weights"
    runs_its_files = model.trusted and needs_code(config_of(model.path))
    return "only the training itself runs the model's Python files" if runs_its_files else None


def _wants_vllm(config: StageConfig) -> bool:
    return getattr(config.engine, "wants_vllm", False)


def _short(config: StageConfig) -> list[str]:
    """Overrides that make a training one small step of its method."""
    if isinstance(config, SupervisedConfig):
        return [*SHORT, "train.global_batch_size=1"]
    if not isinstance(config, GRPOConfig):
        return [*SHORT]
    found = [*SHORT, "data_prep.holdout.rows=null", "data_prep.holdout.fraction=null"]
    if config.on_pairs is not None:
        return [*found, f"{config.other_method}.global_batch_size=1"]
    grpo = config.grpo
    return [
        *found,
        f"grpo.num_prompts_per_step={grpo.updates_per_step}",
        "grpo.num_generations_per_prompt=2",
        f"grpo.max_new_tokens={min(grpo.max_new_tokens, SHORTEST)}",
        f"grpo.overlong_buffer_length={min(grpo.overlong_buffer_length, 1)}",
        "grpo.overlong_filtering=false",  # answers of random weights are cut, and would teach nothing
        "grpo.sampling_mismatch_limit=null",
        # vLLM would take longer to start than all the rest, and may not take the sizes of a small model
        *(BY_OTHERS if _wants_vllm(config) else []),
    ]


def _others(start: Start[Any], small_models: Any, place: Path) -> list[str]:
    """Small models in the place of a teacher and of a reward model, with weights of their own."""
    found = []
    for number, role in enumerate(start.step.extra, start=1):
        if (model := start.inputs.get(role)) is not None:
            folder = place / role
            next(small_models.smaller(model.path)).write(folder, start.run.seed + number)
            found.append(override(f"run.{role}", str(folder)))
    return found


@contextlib.contextmanager
def _rehearsing(engine: Engine[Any]) -> Generator[None]:
    """What an engine changes for a rehearsal."""
    if engine.rehearsing is None:
        yield
        return
    module, _, name = engine.rehearsing.partition(":")
    with getattr(importlib.import_module(module), name)():
        yield


def _as_in_the_training(error: UserError, small: Path, model: Path, tokenizer: str | None) -> UserError:
    """The same error, with the user's model and tokenizer in place of the rehearsal's."""

    def named(text: str) -> str:
        text = text.replace(str(small), str(model))
        prepared = rf"{re.escape(str(small.parent))}\S*/tokenizer\b"
        return re.sub(prepared, lambda _: tokenizer or str(model), text)

    return UserError(named(error.message), named(error.remedy or "") or None)


def _tokenizer(preparation: Start[Any] | None) -> str | None:
    """The folder of the tokenizer that the preparation takes, which may be named by an artifact of the real store."""
    config: Any = preparation.config if preparation is not None else None
    return None if config is None or not hasattr(config.data_prep, "tokenizer") else config.data_prep.tokenizer.model


def _places(folder: Path, data: Artifact | None, step: Step, config: StageConfig, tokenizer: str | None) -> list[str]:
    """Where the rehearsal reads and writes: prepared data where there is some, else what preparation makes there."""
    named = f"{config.run.name}-{step.stage}-data:latest" if data is None else str(data.path)
    there = {"run.home": str(folder.parent / HOME), "run.model": str(folder), "run.data": named}
    if tokenizer is not None and data is None:  # prepared data has its own
        there["data_prep.tokenizer.model"] = tokenizer
    return [override(key, value) for key, value in there.items()]


def _lend_digests(home: Path, there: Path) -> None:
    """Give the temporary store the digests of our code that the real one keeps: finding them out takes a second."""
    if (home / CODE).is_file():
        (there / CODE).parent.mkdir(parents=True)
        shutil.copyfile(home / CODE, there / CODE)


@contextlib.contextmanager
def _silent() -> Generator[None]:
    """Keep what the step says to itself."""
    with contextlib.redirect_stderr(io.StringIO()):
        yield


def _train(step: Step, make: Make, arguments: Arguments, changes: Sequence[str]) -> Artifact:
    given = {override_key(word) for word in changes}
    asked = [word for word in arguments.overrides if override_key(word) not in given]
    return make(load(step, replace(arguments, dry_run=False, overrides=(*asked, *changes))))[0]
