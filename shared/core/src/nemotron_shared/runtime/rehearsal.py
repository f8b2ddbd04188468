"""Run one small training step before anything is prepared, loaded or written.

    rehearse_apart(checked)     # "rehearsed: one step on the first rows, with random weights (its own size), ..."

A dry run and a start of a training do so where the model was not made here: another model has been trained before. The
step runs like the real one, in a temporary store that is removed afterwards: on the first rows, with a small model
of the same architecture with random weights, the real tokenizer, and the real settings except for size and length. It
finds failures that would otherwise appear after minutes, or when hours of training are to be saved.
"""

import contextlib
import importlib
import io
import os
import re
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
from nemotron_shared.config.training import SupervisedConfig
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.arguments import Arguments
from nemotron_shared.runtime.engine import engine_of, refuse
from nemotron_shared.runtime.preflight import data_settings, preflight
from nemotron_shared.runtime.process import ending_with_us, launch_command
from nemotron_shared.runtime.spec import Made, Step
from nemotron_shared.runtime.start import Preflight, Start, load

NOTHING_LEFT = re.compile(r"no \w+ is left")
SHORT = (
    "data_prep.sample=100", "data_prep.workers=1", "data_prep.split={train: 1.0, valid: 0.0, test: 0.0}",
    "train.train_iters=1", "train.global_batch_size=1", "train.micro_batch_size=1", "train.eval_interval=1",
    "train.eval_rows=1", "scheduler.lr_warmup_iters=0", "scheduler.lr_wsd_decay_iters=0", "checkpoint.save_interval=1",
    "checkpoint.keep_best=false", "checkpoint.checkpoint_dir=null", "logger.tensorboard=false", "logger.log_dir=null",
    "logger.wandb_project=null", "logger.mlflow_tracking_uri=null", "run.publish_to=null", "run.nproc_per_node=1",
    "run.missing_data=prepare", "run.force=false",
)  # fmt: skip
"""What is other than asked: size, length, and who hears of it."""
ANOTHER = "give another model: docs/finetune.md says what was tried with this one"
LAUNCHER = re.compile(r"TORCHELASTIC_.*|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)")
"""Variables of torchrun, which the rehearsal's single process must not see."""


def is_rehearsed(checked: Preflight[Any]) -> bool:
    """Whether a training is rehearsed before it starts: its model comes from elsewhere, and is here."""
    arguments, model, config = checked.start.arguments, checked.inputs.get("model"), checked.config
    foreign = model is not None and (model.is_external or model.manifest.producer.verb == "import")
    asked = arguments.rehearse or arguments.rehearsed or arguments.machine
    if not checked.step.trains or not foreign or asked or checked.imports:  # its weights may not be here yet
        return False
    # where settings depend on data that does not exist yet, there is no config yet
    return config is None or (isinstance(config, SupervisedConfig) and engine_of(config).small_models is not None)


def rehearse_apart(checked: Preflight[Any]) -> str:
    """Rehearse in a process of its own, so that the training finds its own untouched; what `rehearse` returns.

    Raises:
        UserError: the training would fail, and why.
    """
    arguments = checked.start.arguments
    with tempfile.TemporaryDirectory(prefix="nemotron-step-") as folder:
        file = Path(folder) / "composed.yaml"
        write_composed(file, checked.composed)
        command = [*launch_command(checked.step.module, 1), "--composed", str(file), "--rehearse"]
        command += ["--trust-code"] if arguments.trust_code else []
        variables = {key: value for key, value in os.environ.items() if not LAUNCHER.fullmatch(key)}
        done = subprocess.run(ending_with_us(command), capture_output=True, text=True, check=False, env=variables)
    said = done.stderr.strip()
    if done.returncode < 0:
        raise UserError(f"the rehearsal of one step was killed by signal {-done.returncode}", "is there memory for it?")
    if done.returncode:
        message, _, remedy = f"\n{said}".rpartition("\nerror: ")[2].partition("\n")
        raise UserError(message or f"the rehearsal ended with exit code {done.returncode}", remedy.strip() or None)
    told = f"[{checked.step.stage}] "  # libraries may say something after it
    return next(line.removeprefix(told) for line in reversed(said.splitlines()) if line.startswith(told))


def rehearse(step: Step, train: Callable[..., Any], arguments: Arguments) -> str:
    """What was rehearsed, or why nothing was; `train` is the script of the step.

    Raises:
        UserError: the training would fail, and why.
    """
    start = load(step, replace(arguments, dry_run=True))
    arguments, checked = start.arguments, preflight(step, start)
    refuse(checked.problems)  # not what is lacking: the training may have more processes, and was checked with them
    config, model = checked.config, checked.inputs.get("model")
    if not isinstance(config, SupervisedConfig):
        return "not rehearsed: its settings depend on data that does not exist yet"
    engine = engine_of(config)
    if engine.small_models is None:
        return f"not rehearsed: the engine {config.engine.name} trains with other libraries"
    if model is None:
        return "not rehearsed: the model is not here yet, or has random weights"
    if model.trusted:
        return "not rehearsed: only the training itself runs the model's Python files"
    small_models, said = importlib.import_module(engine.small_models), "no model of its kind is small enough"
    # data would be refused together with settings that are not its own, so prepare some with these, of fewer rows
    data = None if data_settings(checked) else checked.inputs.get("data")
    tokenizer = _tokenizer(step, start)
    with _silent(), tempfile.TemporaryDirectory(prefix="rehearsal-") as place:
        small_models.require_tensors(model.path)
        small_models.require_tokens(model.path)
        for number, small in enumerate(small_models.smaller(model.path)):
            folder = Path(place) / str(number) / "model"
            try:
                small.write(folder, config.run.seed)
                short = [word for word in SHORT if data is None or not word.startswith("data_prep.")]
                made = _train(step, train, arguments, [*short, *_places(folder, data, step, config, tokenizer)])
                small_models.load_model(made.path, small_models.ONLY_MADE)
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
                return f"rehearsed: one step on the first rows, with random weights ({small.told}), saved and loaded"
    return f"not rehearsed: {said}; with its own sizes it may well run"


def _as_in_the_training(error: UserError, small: Path, model: Path, tokenizer: str | None) -> UserError:
    """The same error, with the user's model and tokenizer in place of the rehearsal's."""

    def named(text: str) -> str:
        text = text.replace(str(small), str(model))
        prepared = rf"{re.escape(str(small.parent))}\S*/tokenizer\b"
        return re.sub(prepared, lambda _: tokenizer or str(model), text)

    return UserError(named(error.message), named(error.remedy or "") or None)


def _tokenizer(step: Step, start: Start) -> str | None:
    """The folder of the tokenizer that the preparation takes, which may be named by an artifact of the real store."""
    if step.prepare is None:
        return None
    config: Any = preflight(step.prepare, start).config
    return None if config is None else config.data_prep.tokenizer.model


def _places(folder: Path, data: Artifact | None, step: Step, config: StageConfig, tokenizer: str | None) -> list[str]:
    """Where the rehearsal reads and writes: prepared data where there is some, else what preparation makes there."""
    named = f"{config.run.family}-{step.stage}-data:latest" if data is None else str(data.path)
    there = {"run.home": str(folder.parent / "home"), "run.model": str(folder), "run.data": named}
    if tokenizer is not None and data is None:  # prepared data has its own
        there["data_prep.tokenizer.model"] = tokenizer
    return [override(key, value) for key, value in there.items()]


@contextlib.contextmanager
def _silent() -> Generator[None]:
    """Keep what the step says to itself."""
    with contextlib.redirect_stderr(io.StringIO()):
        yield


def _train(step: Step, train: Callable[..., Any], arguments: Arguments, changes: Sequence[str]) -> Artifact:
    given = {override_key(word) for word in changes}
    asked = [word for word in arguments.overrides if override_key(word) not in given]
    made: Made = train(load(step, replace(arguments, dry_run=False, overrides=(*asked, *changes))))
    return made.artifact
