"""`--rehearse`: one step of this very training, before anything is prepared, loaded or written.

The step is run as it would be, in a store of its own that is removed afterwards: on the first rows, with a small model
of the same architecture that has random weights, the real tokenizer and the real settings of everything but size and
length. What fails there would have failed after minutes, or when hours of training were to be saved.
"""

import contextlib
import importlib
import io
import tempfile
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nemotron_shared.artifacts import Artifact
from nemotron_shared.config.overrides import override, override_key
from nemotron_shared.config.training import SupervisedConfig
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.arguments import Arguments
from nemotron_shared.runtime.console import say
from nemotron_shared.runtime.engine import engine_of, refuse
from nemotron_shared.runtime.preflight import preflight

if TYPE_CHECKING:
    from nemotron_shared.runtime.step import Step

ROWS = 8
"""The first rows, which are trained on; where none of them can be, all are prepared."""
SHORT = (
    "data_prep.workers=1", "data_prep.split={train: 1.0, valid: 0.0, test: 0.0}", "train.train_iters=1",
    "train.global_batch_size=1", "train.micro_batch_size=1", "train.eval_interval=1", "train.eval_rows=1",
    "scheduler.lr_warmup_iters=0", "scheduler.lr_wsd_decay_iters=0", "checkpoint.save_interval=1",
    "checkpoint.keep_best=false", "checkpoint.checkpoint_dir=null", "logger.tensorboard=false", "logger.log_dir=null",
    "logger.wandb_project=null", "logger.mlflow_tracking_uri=null", "run.publish_to=null", "run.nproc_per_node=1",
    "run.missing_data=prepare", "run.force=false",
)  # fmt: skip
"""What is other than asked: size, length, and who hears of it."""
ANOTHER = "give another model, or engine=automodel, whose libraries know others (docs/finetune.md)"


def rehearse(step: "Step", arguments: Arguments) -> str:
    """What was rehearsed, or why nothing was.

    Raises:
        UserError: the training would fail, and why.
    """
    checked = preflight(step, replace(arguments, dry_run=True))
    refuse(checked.problems + checked.lacking)
    config, model = checked.config, checked.inputs.get("model")
    if not isinstance(config, SupervisedConfig):
        return "not rehearsed: its settings follow from data that is not there yet"
    engine = engine_of(config)
    if engine.small_models is None:
        return f"not rehearsed: the engine {config.engine.name} trains with libraries of its own"
    if model is None:
        return "not rehearsed: the model is not here yet, or is made of random weights"
    if model.trusted:
        return "not rehearsed: the model's own Python files are run by the training alone"
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as place, _explained(Path(place), model):
        small_models, small = importlib.import_module(engine.small_models), Path(place) / "model"
        small_models.require_tensors(model.path)
        try:
            told = small_models.cut_model(model.path, small, config.run.seed)
        except LookupError as error:
            return f"not rehearsed: {error}"
        changes = [*SHORT, override("run.home", str(Path(place) / "home")), override("run.model", str(small))]
        changes += _same_data(checked.inputs.get("data"), config.run.family, step.stage)
        keep = [one for one in changes if not one.startswith("data_prep.") or step.prepare is not None]
        made = _train(step, arguments, keep)
        small_models.load_model(made.path, small_models.ONLY_MADE)
    return f"rehearsed: one step on the first rows, with random weights ({told}), saved and loaded again"


def _train(step: "Step", arguments: Arguments, changes: Sequence[str]) -> Artifact:
    """Run the step, on few rows, or on all where these leave nothing to train on."""
    given = {override_key(word) for word in changes}
    asked = [word for word in arguments.overrides if override_key(word) not in given]
    try:
        return step.make(replace(arguments, overrides=(*asked, *changes, f"data_prep.sample={ROWS}")))[0]
    except UserError as error:
        if "left" not in error.message:
            raise
        return step.make(replace(arguments, overrides=(*asked, *changes)))[0]


def _same_data(data: Artifact | None, family: str, stage: str) -> list[str]:
    """The prepared data where there is some, else what preparation names in the store of the rehearsal."""
    return [override("run.data", str(data.path) if data is not None else f"{family}-{stage}-data:latest")]


@contextlib.contextmanager
def _explained(place: Path, model: Artifact) -> Generator[None]:
    """Keep what the step says to itself, and say what fails in one sentence that speaks of the user's own model."""
    kept = io.StringIO()
    try:
        with contextlib.redirect_stderr(kept):
            yield
    except UserError as error:
        message, remedy = (text and text.replace(str(place / "model"), str(model.path))
                           for text in (error.message, error.remedy))  # fmt: skip
        raise UserError(message or "", remedy) from error
    except (MemoryError, KeyboardInterrupt):
        raise
    except Exception as error:
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        what = f"one step of this training fails with {type(error).__name__}: {first.strip()}"
        raise UserError(f"{model.reference}: {what}", ANOTHER) from error


def tell(step: "Step", arguments: Arguments) -> int:
    """The whole of `--rehearse`; the exit code."""
    say(f"[{step.stage}] {rehearse(step, arguments)}")
    return 0
