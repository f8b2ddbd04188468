"""One training with NeMo-RL, from the sections of a stage to the published model, and its metrics.

    checkpoints/step_40/{training_info.json, config.yaml, policy/weights/..., policy/optimizer/..., train_dataloader.pt}

NeMo-RL always continues from the `step_N` with the highest N in its checkpoint folder.

metrics.jsonl is made from the TensorBoard files that the driver writes. A resumed driver writes another folder
(`exp_002`); its values win over those of the interrupted run. `nemotron check` reads what its programs print:

    ========================= Step 1/50 =========================
      • Loss: 2.4817
    Collecting rollouts:  21%|██        | 428/2048 [02:01<05:42, 4.73it/s]
    Ray: 32 of 32 nodes, 256 of 256 GPUs, 4096 CPUs

These are the words of v0.7.0 and of the branch nano-v3. The patterns accept any bullet, since a terminal without UTF-8
prints another one, and Ray's worker name in front of lines that are not the driver's own.
"""

import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from nemotron_data.tokenizers.folder import FILES as TOKENIZER_FILES
from nemotron_engines.checks import require_alike
from nemotron_engines.nemo_rl.installation import (
    Installation,
    ask,
    find_installation,
    require_known,
    run_driver,
    run_logged,
)
from nemotron_engines.nemo_rl.settings import NeMoRLEngine
from nemotron_engines.nemo_rl.translate import Places, build
from nemotron_engines.nemo_rl.versions import VERSIONS
from nemotron_engines.overrides import at
from nemotron_shared.config.training import GRPOConfig, TrainingConfig
from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.machine.library_output import LibraryLog
from nemotron_shared.system.atomic import link_or_copy, write_text
from nemotron_shared.system.errors import Finding, UserError, problem
from nemotron_shared.system.process import MUST_SAVE_BY
from nemotron_shared.system.redaction import with_references
from nemotron_shared.system.stop import Stopped
from nemotron_shared.tracking.metrics import Metric, read_metrics
from nemotron_shared.tracking.run import Run

# NeMo-RL's metrics, in our metrics.jsonl and as its programs print them.


NAMES: dict[str, Metric] = {
    "train/loss": "loss",
    "train/lr": "lr",
    "train/grad_norm": "grad_norm",
    "train/reward": "reward",
    "train/kl_penalty": "kl",
    "train/global_valid_toks": "tokens",
    "train/token_mult_prob_error": "token_mult_prob_error",
    "performance/tokens_per_sec": "tokens_per_second",
    "timing/train/total_step_time": "step_seconds",
    "validation/accuracy": "valid_reward",
    "validation/val_loss": "valid_loss",
}
GPU = re.compile(r"ray/node\.\d+\.gpu\.\d+\.util")
"""Ray's measurement with `logger.monitor_gpus`, in percent, by seconds instead of steps."""


def read_scalars(file: Path) -> Iterator[tuple[str, int, float]]:
    """(metric, step, value) for all of our metrics in a TensorBoard file, and `gpu_utilization`."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(file), size_guidance={"scalars": 0})
    events.Reload()
    steps: dict[int, dict[str, float]] = {}
    for theirs in sorted(events.Tags()["scalars"]):
        for event in events.Scalars(theirs) if theirs in NAMES else ():
            steps.setdefault(event.step, {})[NAMES[theirs]] = float(event.value)
        for event in events.Scalars(theirs) if GPU.fullmatch(theirs) else ():
            yield "gpu_utilization", event.step, float(event.value)
    for step, values in steps.items():
        if values.get("step_seconds"):  # its fine-tuning writes tokens and time, but not their ratio
            values.setdefault("tokens_per_second", values.get("tokens", 0.0) / values["step_seconds"])
        for name, value in values.items():
            yield name, step, value


def write_metrics(logs: Path, file: Path) -> list[tuple[int, str, float]]:
    """Rewrite metrics.jsonl from all `exp_*` folders.

    Returns step, name and value of non-finite values, which are left out because JSON cannot represent them.
    """
    unwritten: list[tuple[int, str, float]] = []
    steps: dict[int, dict[str, float]] = {}
    folders = [path for path in logs.glob("exp_*") if re.fullmatch(r"exp_\d+", path.name)]
    for folder in sorted(folders, key=lambda path: int(path.name[4:])):
        for log in sorted((folder / "tensorboard").glob("events.out.*")):
            for name, step, value in read_scalars(log):
                if name in NAMES.values() and not math.isfinite(value):
                    unwritten.append((step, name, value))
                elif name in NAMES.values():
                    steps.setdefault(step, {})[name] = value
    tokens = seconds = 0.0
    lines = []
    for step, values in sorted(steps.items()):
        # NeMo-RL counts both per step; metrics.jsonl has running totals with every engine
        if "tokens" in values:
            values["tokens"] = tokens = tokens + values["tokens"]
        if "step_seconds" in values:
            values["seconds"] = seconds = seconds + values["step_seconds"]
        lines.append(json.dumps({"step": step, **values}) + "\n")
    if lines:
        write_text(file, "".join(lines))
    return unwritten


BULLET = r"(?:^|\))\W*"
LOG = LibraryLog(
    title="NeMo-RL",
    lines={
        "tep ": r"(?:=+ |Training )[Ss]tep (?P<step>\d+)/(?P<steps>\d+)",
        "Loss: ": rf"{BULLET}Loss: (?P<loss>\S+)",
        "Validation loss: ": rf"{BULLET}Validation loss: (?P<valid_loss>\S+)",
        "Accuracy: ": rf"{BULLET}Accuracy: (?P<valid_reward>\S+)",
        "Reward: ": rf"{BULLET}Avg (?:Total )?Reward: (?P<reward>\S+)",
        "Generation Length: ": rf"{BULLET}Mean Generation Length: (?P<completion_length>\S+)",
        "step time: ": rf"{BULLET}Total step time: (?P<step_seconds>[\d.]+)s",
        "Collecting rollouts": r"Collecting rollouts:.*?\| *(?P<rollouts>\d+)/(?P<rollouts_wanted>\d+) \[",
        " GPUs, ": r"\bRay: \d+ of \d+ nodes, (?P<actors>\d+) of (?P<actors_wanted>\d+) GPUs",  # one actor each
        "actors online": r"Number of actors online: (?P<actors>\d+)/(?P<actors_wanted>\d+)",
    },
    scalars=read_scalars,
)


class PreflightDone(SystemExit):
    """Everything that needs no GPU succeeded, and the config asks for no more; nothing is published."""


def train_with_nemo_rl(
    task: Task[TrainingConfig[NeMoRLEngine]], algorithm: str, places: Places, *, environment: str
) -> Outcome:
    """Train and convert. The caller has checked its rows and made `places`."""
    config, run, base = task.config, task.run, task.inputs["model"]
    if base is not None and not config.engine.stop_before_training:
        from nemotron_engines.modeling.build import require_fit

        require_fit(base)
    installation = find_installation(config.engine)
    script = installation.checkout / VERSIONS[config.engine.version].scripts[environment]
    if code := code_in(Path(places.model)):
        run.say(f"--trust-code: NeMo-RL runs {', '.join(code)} of {places.model}")
    require_known(installation, config.engine, algorithm, task.origins, run.directory / "keys.log")
    values = build(config, algorithm, places, installation.base)
    if by := os.environ.get(MUST_SAVE_BY):  # affects only the time, so it is not part of the result's identity
        values["checkpointing"]["checkpoint_must_save_by"] = by
    file = run.directory / "nemo_rl.yaml"
    write_text(file, yaml.safe_dump(with_references(values), sort_keys=False, allow_unicode=True))
    run.say(f"NeMo-RL {config.engine.version} in {installation.checkout}; its config: {file}")
    if config.engine.stop_before_training:
        preflight(installation, run, file, algorithm, script)
    train(task, installation, values, installation.command(script, "--config", str(file)))
    return publish(task, installation, places, int(at(values, f"{algorithm}.max_num_epochs", 0)))


def code_in(model: Path) -> list[str]:
    """Python files of a model folder, which NeMo-RL would run: it always loads with trust_remote_code."""
    return sorted(path.name for path in model.glob("*.py")) if model.is_dir() else []


def preflight(installation: Installation, run: Run, file: Path, algorithm: str, script: Path) -> None:
    """Let NeMo-RL read config, tokenizer and data, report the result, and stop."""
    arguments = ("--config", str(file), "--algorithm", algorithm, "--script", str(script))
    found = ask(installation, run.directory / "preflight.log", *arguments)
    checked = "accepts the config and " if found["checked"] else ""
    length = f", the longest has {found['longest']} tokens" if found["longest"] else ""  # Gym counts tokens later
    run.say(
        f"NeMo-RL {checked}reads {found['train_rows']} rows to train and {found['valid_rows']} to validate; "
        f"its processor took the first {found['looked_at']}{length}"
    )
    run.say("stopped before training (engine.stop_before_training); nothing is published")
    raise PreflightDone(0)


def train(
    task: Task[TrainingConfig[NeMoRLEngine]], installation: Installation, values: dict[str, Any], command: list[str]
) -> None:
    """Run the driver until the last step has its checkpoint.

    Raises:
        Stopped: the run received a stop; a rerun continues from the newest checkpoint.
        UserError: a metric is not finite, or sampling and training disagree too much; checked about once a minute.
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
                raise UserError(f"step {step}: {name} is {value}", "lower optimizer.lr, or check the data")
            require_alike(step, math.inf, limit)
        if limit is not None and run.metrics.path.is_file():
            for entry in read_metrics(run.metrics.path):
                require_alike(entry["step"], entry.get("token_mult_prob_error", 1.0), limit)

    log = run.directory / "nemo_rl.log"
    run.say(f"starting one driver; its output: {log}" + (f"; continuing from step {last[0]}" if last else ""))
    run_driver(installation, run, command, log, note)
    note()
    if run.stop_requested:
        last = newest(folder)
        kept = f"step {last[0]} is kept, later steps are lost" if last else "no checkpoint was saved yet"
        raise Stopped(f"[{run.name}] stopped: {kept}", "run the same command again to continue")


def publish(
    task: Task[TrainingConfig[NeMoRLEngine]], installation: Installation, places: Places, epochs: int
) -> Outcome:
    """The newest checkpoint as a Hugging Face folder.

    Args:
        epochs: number of epochs after which NeMo-RL stops, even if steps are left.
    """
    run, asked = task.run, task.config.train.train_iters
    last = newest(Path(places.checkpoints))
    if last is None:
        raise UserError("NeMo-RL ended without a checkpoint", f"see {run.directory / 'nemo_rl.log'}")
    if last[0] < asked and epochs >= asked:  # an epoch has at least one step, so the step limit comes first
        if os.environ.get(MUST_SAVE_BY):
            message = f"[{run.name}] stopped after step {last[0]} of {asked}, to finish before the job's time limit"
            raise Stopped(message, "run the same command again to continue")
        run.require_all_steps(last[0], asked)
    elif last[0] < asked:
        run.say(f"NeMo-RL stopped after step {last[0]} of {asked}: its rows were read {epochs} times (max_num_epochs)")
    output = run.fresh_output()
    to_hugging_face(installation, last[1], Path(places.model), output, run.directory / "convert.log")
    engine = task.config.engine
    return Outcome(output, {"step": last[0], "engine": "nemo_rl", "nemo_rl": engine.version})


STEP = re.compile(r"step_(\d+)")
FROM_MODEL = ("config.json", "generation_config.json", *TOKENIZER_FILES)


def steps(folder: Path) -> dict[int, Path]:
    """Finished checkpoints by step; an interrupted one has a different name (`tmp_step_N`)."""
    found = {path: STEP.fullmatch(path.name) for path in folder.glob("step_*")}
    return {int(match[1]): path for path, match in found.items() if match}


def newest(folder: Path) -> tuple[int, Path] | None:
    """The last checkpoint and its step."""
    found = steps(folder)
    return max(found.items()) if found else None


def not_finished(load_path: str) -> Iterator[Finding]:
    """Report a `load_path` that is not a complete checkpoint."""
    source = Path(load_path).expanduser().resolve()
    whole = (source / "training_info.json").is_file() and (source / "policy" / "weights").is_dir()
    if not (STEP.fullmatch(source.name) and whole):
        what = f"{source} is not a finished NeMo-RL checkpoint" if source.exists() else f"folder {source} not found"
        remedy = "use a folder named step_N with training_info.json and policy/weights in it"
        yield problem(what, remedy, "engine.load_path")


def adopt(load_path: str | None, folder: Path) -> int | None:
    """Put an earlier run's checkpoint where NeMo-RL looks for its own; returns the step, None if nothing was done.

    A run with its own checkpoints continues from those. Files are linked if the file system supports it.

    The caller has already called `not_finished`.
    """
    if load_path is None or steps(folder):
        return None
    source = Path(load_path).expanduser().resolve()
    waiting = folder / f"tmp_{source.name}"
    shutil.rmtree(waiting, ignore_errors=True)
    shutil.copytree(source, waiting, copy_function=link_or_copy)
    waiting.rename(folder / source.name)
    return max(steps(folder))


def to_hugging_face(installation: Installation, step: Path, model: Path, output: Path, log: Path) -> None:
    """Write the model of a checkpoint as a Hugging Face folder with safetensors, tokenizer and chat template.

    Raises:
        UserError: the converter failed, or wrote no weights.
    """
    weights = step / "policy" / "weights"
    whole = weights / "model" / "consolidated"
    if whole.is_dir():
        shutil.copytree(whole, output, dirs_exist_ok=True)
    else:
        raw = output.with_name(f"{output.name}-converted")  # the converters refuse an existing folder
        shutil.rmtree(raw, ignore_errors=True)
        programs = installation.checkout / "examples" / "converters"
        common = ["--config", str(step / "config.yaml"), "--hf-ckpt-path", str(raw)]
        if megatron := sorted(weights.glob("iter_*")):
            common += ["--hf-model-name", str(model), "--megatron-ckpt-path", str(megatron[-1])]
            command = installation.command(programs / "convert_megatron_to_hf.py", *common, extra="mcore")
        else:  # torch's distributed checkpoints
            command = installation.command(programs / "convert_dcp_to_hf.py", *common, "--dcp-ckpt-path", str(weights))
        run_logged(installation, command, log, "NeMo-RL's converter failed")
        shutil.copytree(raw, output, dirs_exist_ok=True)
        shutil.rmtree(raw)
    # torch's converter writes `pytorch_model.bin`; our artifacts hold safetensors only
    pickled = output / "pytorch_model.bin"
    if pickled.is_file():
        import torch
        from safetensors.torch import save_file

        tensors = torch.load(pickled, map_location="cpu", weights_only=True, mmap=True)
        # safetensors refuses shared memory
        own = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
        save_file(own, output / "model.safetensors", metadata={"format": "pt"})
        pickled.unlink()
    for name in FROM_MODEL:
        if (model / name).is_file() and not (output / name).exists():
            shutil.copyfile(model / name, output / name)
    if not any(output.glob("*.safetensors")):
        raise UserError(f"{step}: the conversion wrote no weights", f"the whole log: {log}")
