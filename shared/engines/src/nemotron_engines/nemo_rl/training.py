"""One training with NeMo-RL, from the sections of a stage to the published model.

Everything that can be checked without a GPU is checked first, by us and by NeMo-RL's own code.
"""

import math
import os
from pathlib import Path
from typing import Any

import yaml

from nemotron_engines.mismatch import require_alike
from nemotron_engines.nemo_rl.checkpoints import adopt, newest, to_hugging_face
from nemotron_engines.nemo_rl.checks import check
from nemotron_engines.nemo_rl.compose import build
from nemotron_engines.nemo_rl.driver import ask, run_driver
from nemotron_engines.nemo_rl.installation import Installation, find_installation
from nemotron_engines.nemo_rl.metrics import write_metrics
from nemotron_engines.nemo_rl.settings import NeMoRLEngine
from nemotron_engines.nemo_rl.table import at, load_table
from nemotron_engines.nemo_rl.translate import Places
from nemotron_engines.nemo_rl.versions import VERSIONS
from nemotron_shared.atomic import write_text
from nemotron_shared.config.training import GRPOConfig, TrainingConfig
from nemotron_shared.errors import UserError
from nemotron_shared.redaction import with_references
from nemotron_shared.runtime.metrics import read_metrics
from nemotron_shared.runtime.process import MUST_SAVE_BY
from nemotron_shared.runtime.run import Run
from nemotron_shared.runtime.spec import Outcome, Task
from nemotron_shared.runtime.stop import Stopped


class PreflightDone(SystemExit):
    """All that needs no GPU went well and the config asked for no more; there is nothing to publish."""


def check_config(config: TrainingConfig[NeMoRLEngine], algorithm: str, places: Places) -> dict[str, Any]:
    """What a dry run checks, from the table alone; returns the config that NeMo-RL would get.

    Raises:
        UserError: NeMo-RL would refuse it, or would do something else than it says.
    """
    table = load_table(config.engine.version)
    base = table.bases[config.engine.base]
    if base.algorithm != algorithm:
        raise UserError(
            f"engine.base: {config.engine.base} is a config of {base.algorithm}, this stage runs {algorithm}"
        )
    values = build(config, algorithm, places, base.values, complete=False)
    check(values, table.schemas[algorithm], config.engine, algorithm)
    return values


def train_with_nemo_rl(
    task: Task[TrainingConfig[NeMoRLEngine]], algorithm: str, places: Places, *, environment: str
) -> Outcome:
    """Train and convert. The caller has checked its rows and has made `places`."""
    config, run = task.config, task.run
    installation = find_installation(config.engine)
    script = installation.checkout / VERSIONS[config.engine.version].scripts[environment]
    if code := code_in(Path(places.model)):
        run.say(f"--trust-code: NeMo-RL runs {', '.join(code)} of {places.model}")
    values = build(config, algorithm, places, installation.base)
    if by := os.environ.get(MUST_SAVE_BY):  # when, not what: it is no setting that a result is known by
        values["checkpointing"]["checkpoint_must_save_by"] = by
    file = run.directory / "nemo_rl.yaml"
    write_text(file, yaml.safe_dump(with_references(values), sort_keys=False, allow_unicode=True))
    run.say(f"NeMo-RL {config.engine.version} in {installation.checkout}; its config: {file}")
    if config.engine.stop_before_training:
        preflight(installation, run, file, algorithm, script)
    train(task, installation, values, installation.command(script, "--config", str(file)))
    return publish(task, installation, places, int(at(values, f"{algorithm}.max_num_epochs", 0)))


def render(config: TrainingConfig[NeMoRLEngine], algorithm: str, places: Places) -> str:
    """The config that NeMo-RL would get, as far as it can be known without a run."""
    return yaml.safe_dump(check_config(config, algorithm, places), sort_keys=False, allow_unicode=True)


def code_in(model: Path) -> list[str]:
    """Python files of a model folder; NeMo-RL would run them, for it always loads with trust_remote_code."""
    return sorted(path.name for path in model.glob("*.py")) if model.is_dir() else []


def preflight(installation: Installation, run: Run, file: Path, algorithm: str, script: Path) -> None:
    """Let NeMo-RL read config, tokenizer and data, say what it found, and end."""
    arguments = ("--config", str(file), "--algorithm", algorithm, "--script", str(script))
    found = ask(installation, run.directory / "preflight.log", *arguments)
    checked = "accepts the config and " if found["checked"] else ""
    length = f", the longest of {found['longest']} tokens" if found["longest"] else ""  # Gym counts tokens later
    run.say(
        f"NeMo-RL {checked}reads {found['train_rows']} rows to train and {found['valid_rows']} to validate; "
        f"its processor took the first {found['looked_at']}{length}"
    )
    run.say("stopped before training, as engine.stop_before_training says; nothing is published")
    raise PreflightDone(0)


def train(
    task: Task[TrainingConfig[NeMoRLEngine]], installation: Installation, values: dict[str, Any], command: list[str]
) -> None:
    """Run the driver until the last step has its checkpoint.

    Raises:
        Stopped: the run was asked to end; a rerun continues from the newest checkpoint.
        UserError: a figure is not finite, or what it samples is too far from what it trains; looked at about once a
            minute.
    """
    config, run = task.config, task.run
    folder = Path(values["checkpointing"]["checkpoint_dir"])
    folder.mkdir(parents=True, exist_ok=True)
    adopted = adopt(config.engine.load_path, folder)
    if adopted is not None:
        run.say(f"continuing from step {adopted} of {config.engine.load_path}")
    last = newest(folder)
    if last is not None and last[0] >= config.train.train_iters:
        return

    limit = config.grpo.sampling_mismatch_limit if isinstance(config, GRPOConfig) else None

    def note() -> None:
        for step, name, value in write_metrics(Path(values["logger"]["log_dir"]), run.metrics.path):
            if name != "token_mult_prob_error":
                raise UserError(f"step {step}: {name} is {value}", "lower optimizer.lr, or look at the data")
            require_alike(step, math.inf, limit)
        if limit is not None and run.metrics.path.is_file():
            for entry in read_metrics(run.metrics.path):
                require_alike(entry["step"], entry.get("token_mult_prob_error", 1.0), limit)

    log = run.directory / "nemo_rl.log"
    run.say(f"one driver starts; its output: {log}" + (f"; it continues from step {last[0]}" if last else ""))
    run_driver(installation, run, command, log, note)
    note()
    if run.stop_requested:
        last = newest(folder)
        kept = f"step {last[0]} is kept, later steps are lost" if last else "there was no checkpoint yet"
        raise Stopped(f"[{run.name}] stopped: {kept}", "run the same command again to continue")


def publish(
    task: Task[TrainingConfig[NeMoRLEngine]], installation: Installation, places: Places, epochs: int
) -> Outcome:
    """The newest checkpoint as a Hugging Face folder.

    Args:
        epochs: after how many NeMo-RL ends, whatever steps are left.
    """
    run, asked = task.run, task.config.train.train_iters
    last = newest(Path(places.checkpoints))
    if last is None:
        raise UserError("NeMo-RL ended without a checkpoint", f"see {run.directory / 'nemo_rl.log'}")
    if last[0] < asked and epochs >= asked:  # an epoch has a step at least, so that steps end it
        if os.environ.get(MUST_SAVE_BY):
            message = f"[{run.name}] stopped after step {last[0]} of {asked}, before the job's time is over"
            raise Stopped(message, "run the same command again to continue")
        run.require_all_steps(last[0], asked)
    elif last[0] < asked:
        run.say(f"NeMo-RL ended after step {last[0]} of {asked}: its rows were read {epochs} times (max_num_epochs)")
    output = run.fresh_output()
    to_hugging_face(installation, last[1], Path(places.model), output, run.directory / "convert.log")
    engine = task.config.engine
    return Outcome(output, {"step": last[0], "engine": "nemo_rl", "nemo_rl": engine.version})
