"""Resolve RUN of `nemotron check RUN`: its files, its config, and whether it is still active.

sft   super3-sft-model:v2   super3-sft-model-891fc106f3a7   logs/   9453356-logs/ray-driver.log   /models/super49b
"""

import os
import platform
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemotron_app.runs import run_state
from nemotron_app.store_options import Look
from nemotron_app.training_log import folder_that_made, log_in, log_of
from nemotron_shared.artifacts.artifact import Artifact
from nemotron_shared.artifacts.manifest import MANIFEST, Manifest
from nemotron_shared.artifacts.names import LATEST, SHORT_NAMES, is_path, parse_reference
from nemotron_shared.artifacts.verified import manifest_problem
from nemotron_shared.config.files import parsed, read_text
from nemotron_shared.stages import DEFAULT_FAMILY, STAGES
from nemotron_shared.system.atomic import read_json
from nemotron_shared.system.errors import NotFound, UserError
from nemotron_shared.system.hub_errors import HubPlace, hub_errors
from nemotron_shared.tracking.metrics import FILE as METRICS

LOGS = {".log", ".out", ".err", ".txt"}
RECORDS = {METRICS, "training.jsonl", "validation.jsonl"}
SENTINELS = {"STARTED_RAY_HEAD", "ENDED"}
SKIPPED = {"checkpoints", "output", "best", "ray", "tokenizer"}
"""Folders without logs of ours. `ray` holds the logs of all Ray processes, copied there by `ray.sub`."""
DEEPEST = 5
GIVE = "give a run, an artifact, a folder of logs or a log file"
QUIET_SECONDS = 1800
"""A job that has not written anything for this long has ended or hangs."""


@dataclass
class Target:
    """Attributes:
    title, kind: description of what was found.
    files: files to read.
    folders: folders that were listed; missing files are reported only for these.
    state: state of one of our runs; None if unknown.
    is_here: the run's process is on this machine.
    stage, config: of the run, if known.
    scores: metrics from an artifact's manifest.
    model: a model folder, if there is nothing else to check.
    notes: what is damaged.
    """

    title: str
    kind: str
    files: list[Path] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    state: str | None = None
    is_here: bool = False
    stage: str | None = None
    config: dict[str, Any] | None = None
    scores: dict[str, float] = field(default_factory=dict)
    model: Path | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def family(self) -> str:
        """The model family of the run, if known."""
        run = (self.config or {}).get("run")
        return str(run.get("family", DEFAULT_FAMILY)) if isinstance(run, dict) else DEFAULT_FAMILY


def find(wanted: str, look: Look) -> Target:
    """Find one RUN of the command line.

    Raises:
        UserError: nothing found.
    """
    path = Path(wanted).expanduser()
    runs = look.store.home / "runs"
    if "/" not in wanted and not is_path(wanted) and (runs / wanted).is_dir():
        return _run(runs / wanted)
    named = wanted in SHORT_NAMES  # `sft` means the artifact, even if there is a folder of that name
    if path.is_dir() and not named:
        return _folder(path, look)
    if path.is_file() and not named:
        return Target(str(path), "a file", [path])
    if is_path(wanted) or path.suffix in {*LOGS, ".jsonl"}:
        raise NotFound(f"{path}: no such file or folder", GIVE)
    try:
        reference = parse_reference(wanted, look.family)
    except UserError:
        hub = HUB_NAME.fullmatch(wanted)
        if hub is None:
            raise
        return Target(hub[1], "a model of the hub", model=from_hub(hub[1]))
    begun = [folder for folder in runs.glob(f"{reference.name}-*") if folder.name.rpartition("-")[0] == reference.name]
    if reference.version == LATEST:
        running = [folder for folder in begun if run_state(folder).state == "running"]
        if len(running) > 1:
            names = ", ".join(folder.name for folder in running)
            raise UserError(f"'{wanted}' could be: {names}", "write one of these")
        if running:
            return _run(running[0])
    try:
        return _artifact(look.store.resolve(reference, family=look.family), look)
    except NotFound as error:
        stopped = sorted(begun, key=lambda folder: folder.stat().st_mtime)
        if not stopped:
            path_too = f"{wanted}: no such file or folder, and " if "/" in wanted else ""
            raise NotFound(path_too + error.message, GIVE if path_too else error.remedy) from error
        return _run(stopped[-1])


def _folder(path: Path, look: Look) -> Target:
    if (path / MANIFEST).is_file():
        return _artifact(Artifact(Manifest.read(path / MANIFEST), path), look)
    if (path / "config.yaml").is_file() and ((path / "lock").exists() or (path / METRICS).exists()):
        return _run(path)
    if (path / "config.json").is_file():  # a copied result has its metrics next to the weights
        return Target(str(path), "a model folder", list(_listed(path)), [path], model=path)
    return Target(str(path), "a folder of logs", list(_listed(path)), [path])


def _run(folder: Path) -> Target:
    made = folder.name.rpartition("-")[0]
    _refuse_data(made)
    problem = log_in(folder).problem
    notes = [problem] if problem else []
    target = Target(folder.name, "a run", list(_listed(folder)), [folder], notes=notes)
    state = run_state(folder)
    target.state, target.is_here, target.config = state.state, state.host == platform.node(), _config(folder)
    # None if a run's folder was copied under another name
    target.stage = next((stage.name for stage in STAGES.values() if made.endswith(stage.result.kind)), None)
    return target


def _refuse_data(name: str) -> None:
    if any(name.endswith(stage.data.kind) for stage in STAGES.values()):
        raise UserError(
            f"{name} is prepared data, which has no expectations", "docs/inspect.md shows how to look at it"
        )


def _config(folder: Path) -> dict[str, Any] | None:
    try:
        config = parsed(folder / "config.yaml", read_text(folder / "config.yaml"))
    except UserError:
        return None  # a run that has not started yet has no config
    return config if isinstance(config, dict) else None


def _artifact(artifact: Artifact, look: Look) -> Target:
    """A result with its metrics, plus the config and logs of its run while these still exist."""
    manifest = artifact.manifest
    _refuse_data(manifest.name)
    target = Target(artifact.reference, "an artifact", state="finished")
    producer = manifest.producer
    run = folder_that_made(artifact, look.store)
    problem = log_of(artifact, look.store).problem
    target.notes += filter(None, (manifest_problem(artifact), problem))
    if run.is_dir() and producer.config_digest:
        target.config = _config(run)
        target.files = [file for file in _listed(run) if file.name != METRICS]
        target.folders = [run]
    if (artifact.path / METRICS).is_file():
        target.files.append(artifact.path / METRICS)
    elif not manifest.metrics and (artifact.path / "config.json").is_file():
        target.model = artifact.path
    target.stage = producer.stage or None
    target.scores = {name: float(value) for name, value in manifest.metrics.items() if isinstance(value, int | float)}
    trained, total = (manifest.metadata.get(name) for name in ("trained_parameters", "parameters"))
    if trained and total:
        target.scores["trained_percent"] = 100 * trained / total
    return target


def _listed(folder: Path) -> Iterator[Path]:
    """Files that may be logs, at most `DEEPEST` folders deep."""
    for place, folders, names in os.walk(folder):
        depth = len(Path(place).relative_to(folder).parts)
        folders[:] = sorted(
            name for name in folders if depth < DEEPEST and name not in SKIPPED and not name.startswith(".")
        )
        for name in sorted(names):
            known = name in RECORDS | SENTINELS or "tfevents" in name or Path(name).suffix in LOGS
            if known and not name.startswith("."):
                yield Path(place) / name


def merged(targets: Sequence[Target]) -> Target:
    """Merge several RUNs into one, e.g. a log, TensorBoard files and GPU statistics in separate places."""
    first = targets[0]
    described = next((one for one in targets if one.config is not None), first)
    return Target(
        title=", ".join(one.title for one in targets),
        kind=", ".join(dict.fromkeys(one.kind for one in targets)),
        # without duplicates
        files=list({os.path.realpath(file): file for one in targets for file in one.files}.values()),
        folders=[folder for one in targets for folder in one.folders],
        state=described.state,
        is_here=described.is_here,
        stage=described.stage,
        config=described.config,
        scores={name: value for one in targets for name, value in one.scores.items()},
        model=first.model if len(targets) == 1 else None,
        notes=[note for one in targets for note in one.notes],
    )


def is_quiet(newest: float) -> bool:
    """Whether nothing has been written for a long time; `newest` is a modification time."""
    return time.time() - newest > QUIET_SECONDS


# Facts from a model's config.json. Code from the model folder is never run.

HUB_NAME = re.compile(r"(?:hf://)?([\w.-]+/[\w.-]+)")

HETEROGENEOUS = "DeciLMForCausalLM"
"""A class whose layers are described one by one in `block_configs`: some lack attention, and MLP widths vary."""


def probe(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the facts as JSON and as text lines. `ok` is false if the model cannot be used.

    Raises:
        UserError: config.json is not a JSON object.
    """
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise UserError(f"{folder / 'config.json'}: not a JSON object", "download the model again")
    names = config.get("architectures")
    architecture = str(names[0]) if isinstance(names, list) and names else None
    blocks = config.get("block_configs")
    has_blocks = isinstance(blocks, list) and bool(blocks)
    layers = config.get("num_hidden_layers")
    ok = has_blocks or architecture != HETEROGENEOUS
    if has_blocks and isinstance(layers, int) and len(blocks) != layers:
        ok = False
        described = f"yes, but of {len(blocks)} layers, and num_hidden_layers is {layers}: config.json is damaged"
    elif has_blocks:
        different = len({repr(block) for block in blocks})
        described = f"yes: {len(blocks)} layers of {different} different kinds, which need a parallel plan of their own"
    elif ok:
        described = "no: standard tensor parallelism fits"
    else:
        described = f"no, although {architecture} cannot be built without it"
    facts = {"model_type": config.get("model_type"), "architecture": architecture, "block_configs": has_blocks}
    lines = [
        f"model type: {facts['model_type'] or 'not said'}",
        f"architecture: {architecture or 'not said'}{' (heterogeneous)' if has_blocks else ''}",
        f"has block_configs: {described}",
    ]
    if not ok:
        lines.append("  download config.json again, from the model's own page")
    return {"ok": ok, **facts}, lines


def from_hub(name: str) -> Path:
    """Download only config.json of a model on the Hugging Face hub; returns its folder.

    Raises:
        UserError: unknown model, no access to it, or no connection to the hub.
    """
    address = f"hf://{name}"
    with hub_errors(address, HubPlace(name, None, "model")):
        from huggingface_hub import HfApi, constants, hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, HFValidationError, LocalEntryNotFoundError

        try:
            if not constants.HF_HUB_OFFLINE:
                HfApi().model_info(name)  # fails fast, whereas a download is retried several times
            return Path(hf_hub_download(name, "config.json")).parent
        except LocalEntryNotFoundError:
            raise
        except (EntryNotFoundError, HFValidationError) as error:
            what = f"{address}: holds no config.json of a model"
            raise UserError(what, "check the name, or give the model's folder") from error
