"""Exported models: a folder without paths of the machine that made it, and a model card with recorded facts."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any

import yaml

from nemotron_app.wording import cut, metric_name
from nemotron_app.wording import value as written
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.lineage import Edge, ancestors, edges
from nemotron_shared.artifacts.names import is_path
from nemotron_shared.config.files import LARGEST, parsed, require_bounded
from nemotron_shared.models.folder import MORE_TEMPLATES, config_of, generation_of, needs_code
from nemotron_shared.models.hub import TOKENIZER_FILES
from nemotron_shared.models.references import HUB
from nemotron_shared.models.weights import (
    ADAPTER,
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    INDICES,
    SINGLES,
    weight_files,
)
from nemotron_shared.system.atomic import LONGEST_SHOWN, read_json, require_writable, sync, write_text
from nemotron_shared.system.disk import full_disk_explained
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.lock import Busy, locked
from nemotron_shared.system.redaction import redact

README = "README.md"
STAGED = ".export."
"""Beginning of the names of folders that are being written."""
NAMES_OF_PLACES = ("_name_or_path", "name_or_path", "tokenizer_file", "special_tokens_map_file")
SETTINGS = ("config.json", "generation_config.json", ADAPTER_CONFIG)
READ_TOO = re.compile(
    rf".*\.safetensors.*|(?:pytorch|adapter)_model.*\.bin.*|{re.escape(ADAPTER_CONFIG)}|{TOKENIZER_FILES.pattern}"
    rf"|{MORE_TEMPLATES}/.*|megatron"
)
"""Files that would change how the exported model loads: other weights (also pickles, or a Megatron checkpoint), an
adapter config, or parts of a tokenizer.
"""


def exported_files(artifact: Artifact, *, adapter: bool) -> dict[str, Path]:
    """Files to export, by their exported name.

    Raises:
        UserError: the model has no exportable weights, or no adapter.
    """
    return _adapter_files(artifact) if adapter else _model_files(artifact)


def write_folder(
    artifact: Artifact,
    folder: Path,
    readme: str,
    *,
    adapter: bool,
    force: bool,
    copy: Callable[[Path, Path], object] = shutil.copyfile,
    finish: Callable[[Path], None] = lambda made: None,
) -> list[str]:
    """Write the folder atomically; returns the names of its files.

    Args:
        copy: writes the second file from the first one, of the model's.
        finish: adds what else belongs to the folder, before it is seen; if it raises, nothing is.

    Raises:
        UserError: the folder is not empty, or the model has no adapter.
    """
    require_room(folder, force)
    folder = folder.resolve()  # keep a link to a folder
    wanted = exported_files(artifact, adapter=adapter)
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = folder if folder.is_dir() else folder.parent  # an existing folder may be a mount point
    with full_disk_explained(beside), _staged(folder, beside) as made:
        for name, source in wanted.items():
            (made / name).parent.mkdir(exist_ok=True)
            if source.suffix == ".json" and name not in INDICES and not name.startswith(("tokenizer.", "vocab")):
                try:
                    settings = without_places(read_json(source), texts=name in SETTINGS)
                except RecursionError as error:
                    raise UserError(f"{source}: nested too deep for a model's settings", "correct the file") from error
                write_text(made / name, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
            else:
                copy(source, made / name)
                sync(made / name)
        if not adapter and "generation_config.json" not in wanted:
            write_text(made / "generation_config.json", json.dumps(generation_of(artifact.path), indent=2) + "\n")
        write_text(made / README, readme)
        finish(made)
        names = sorted(path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file())
        _take_place(made, folder, names)
    return names


@contextmanager
def _staged(folder: Path, beside: Path) -> Generator[Path]:
    """A locked folder in another one, to be written in its place; those that killed exports left are removed."""
    prefix = f"{STAGED}{folder.name[:LONGEST_SHOWN]}."
    for left in (one for place in (folder, folder.parent) for one in place.glob(f"{escape(prefix)}*")):
        with suppress(Busy, OSError), locked(left / "lock", wait=False):
            shutil.rmtree(left)
    with (
        tempfile.TemporaryDirectory(prefix=prefix, dir=beside, ignore_cleanup_errors=True) as staged,
        locked(Path(staged) / "lock", wait=False),
    ):
        made = Path(staged) / "made"
        made.mkdir()
        yield made


def require_room(folder: Path, force: bool, kept: tuple[Path, ...] = ()) -> None:
    """Refuse to mix an export with existing files.

    Args:
        kept: folders that must not be written into: the store, and the model itself.

    Raises:
        UserError: not a folder, not empty, inside one of `kept`, or nothing can be written there.
    """
    wrong = next((path for path in (folder, *folder.parents) if path.is_symlink() or path.exists()), folder)
    if not wrong.is_dir():
        raise UserError(f"{wrong}: not a folder", "give the name of a new folder")
    if inside := next((path for path in kept if folder.resolve().is_relative_to(path.resolve())), None):
        raise UserError(f"{folder}: inside {inside}, which an export would damage", "give a folder outside of it")
    if folder.is_dir() and not force and any(not path.name.startswith(STAGED) for path in folder.iterdir()):
        raise UserError(f"{folder}: not empty", "give a new folder, or --force to write into this one")
    require_writable(folder)


def _take_place(made: Path, folder: Path, names: list[str]) -> None:
    """Move the finished files into place, and remove files that a loader would pick up with them."""
    if not folder.is_dir():
        made.rename(folder)
        sync(folder.parent)
        return
    there = [path.relative_to(folder).as_posix() for path in (*folder.iterdir(), *folder.glob(f"{MORE_TEMPLATES}/*"))]
    if others := sorted(name for name in there if READ_TOO.fullmatch(name) and name not in names):
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        what = f"{folder}: holds files that would be read with these: {', '.join(others[:3])}{more}"
        raise UserError(what, "remove them, or give a new folder")
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(made / name, folder / name)  # noqa: PTH105 - one rename each, also over a file that is there
    sync(folder)


def _model_files(artifact: Artifact) -> dict[str, Path]:
    """Files of the whole model, by exported name."""
    folder = artifact.path
    there = {path.name: path for path in sorted(folder.iterdir()) if path.is_file()}
    weights = weight_files(artifact.reference, folder, there)
    if not weights:
        raise UserError(f"{artifact.reference}: holds no weights", "give another model")
    if any(name.endswith(".bin") for name in weights):
        what = f"{artifact.reference}: its weights are pickles, and an export holds safetensors only"
        raise UserError(what, "convert them with transformers: save_pretrained writes safetensors")
    wanted = [*weights, "config.json", "generation_config.json", *(name for name in INDICES if name not in SINGLES)]
    wanted += [name for name in there if TOKENIZER_FILES.fullmatch(name) or name.startswith(("LICENSE", "NOTICE"))]
    if needs_code(config_of(folder)):
        wanted += [name for name in there if name.endswith(".py")]
    return {name: there[name] for name in dict.fromkeys(wanted) if name in there} | _more_templates(folder)


def _adapter_files(artifact: Artifact) -> dict[str, Path]:
    """Files of the adapter and its tokenizer."""
    folder = artifact.path / ADAPTER
    own = [folder / name for name in (ADAPTER_WEIGHTS, ADAPTER_CONFIG)]
    if not all(path.is_file() for path in own):
        what = f"{artifact.reference}: has no adapter; all of its weights were trained, or it was not made here"
        raise UserError(what, "leave --adapter out, which exports the whole weights")
    beside = [path for path in sorted(artifact.path.iterdir()) if TOKENIZER_FILES.fullmatch(path.name)]
    return {path.name: path for path in (*own, *beside)} | _more_templates(artifact.path)


def _more_templates(folder: Path) -> dict[str, Path]:
    return {f"{MORE_TEMPLATES}/{path.name}": path for path in sorted(folder.glob(f"{MORE_TEMPLATES}/*.jinja"))}


def without_places(settings: Any, *, texts: bool) -> Any:
    """Remove local paths from settings.

    Args:
        texts: check every string; in tokenizer files a string may be a token instead.
    """
    if isinstance(settings, dict):
        kept = {}
        for name, value in settings.items():
            if isinstance(value, str) and (name in NAMES_OF_PLACES or (texts and is_path(value))):
                if name == "base_model_name_or_path":  # required by PEFT
                    kept[name] = None
                continue
            kept[name] = without_places(value, texts=texts)
        return kept
    return [without_places(value, texts=texts) for value in settings] if isinstance(settings, list) else settings


UNKNOWN = "unknown"
HELD_OUT, TRAINED_ON = "held_out", "rows that were trained on"
LICENCE = re.compile(r"[a-z0-9][a-z0-9.-]{0,60}")
FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)


def card(
    store: Store, artifact: Artifact, title: str, *, adapter: bool, licence: str | None, servers_only: bool = False
) -> str:
    """The text of README.md.

    Args:
        servers_only: whether transformers cannot load it.

    Raises:
        UserError: the licence is not a valid identifier.
    """
    if licence is not None and not LICENCE.fullmatch(licence):
        raise UserError(f"--licence {licence}: not an identifier of the hub", "write it as the hub does: apache-2.0")
    history = [] if artifact.is_external else ancestors(store, artifact)
    steps = [] if artifact.is_external else list(edges(store, artifact))
    models = [one for one in (*history, artifact) if one.manifest.type == "ModelArtifact"]
    repositories = (one.manifest.metadata.get("repository") for one in models)
    bases = list(dict.fromkeys(name for name in repositories if isinstance(name, str)))
    addresses = {source.uri for one in models if one is not artifact for source in one.manifest.sources}
    labels = (edge.input.label for edge in steps if edge.input.is_source and edge.input.label not in addresses)
    matches = (re.match(r"hf://(?:datasets/)?([\w.-]+/[\w.-]+)", label) for label in labels)
    sets = list(dict.fromkeys(found[1] for found in matches if found))
    scores = scores_of(store, artifact)
    known, why = licence_of(artifact, history, licence)
    front: dict[str, Any] = {**known, "library_name": "peft" if adapter else "transformers",
                             "pipeline_tag": "text-generation"}  # fmt: skip
    if config_of(artifact.path).get("model_type") == "nemotron_h":
        front["tags"] = ["nemotron"]
    if bases:
        front |= {"base_model": bases, "base_model_relation": "adapter" if adapter else "finetune"}
    if sets:
        front["datasets"] = sets
    if scores:
        front["model-index"] = [{"name": title, "results": [_indexed(score) for score in scores]}]
    head = yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=1000)
    parts = [f"---\n{head}---\n", f"# {_plain(title)}\n", _use(title, adapter, bases, servers_only), _scores(scores),
             _history(artifact, steps, [] if bases else models), f"## Licence\n\n{why}\n"]  # fmt: skip
    return redact("\n".join(parts))


def scores_of(store: Store, artifact: Artifact) -> list[dict[str, Any]]:
    """Scores from the newest evaluation of exactly this model; may be empty."""
    if artifact.is_external:
        return []
    this = artifact.reference, artifact.manifest.digest
    evaluations = [
        found
        for found in store.readable("EvalResultsArtifact")
        if this in ((parent.reference, parent.digest) for parent in found.manifest.parents)
    ]
    if not evaluations:
        return []
    newest = max(evaluations, key=lambda one: (one.manifest.created_at, one.manifest.version))
    results = read_json(newest.path / "results.json")
    own = {name for name, about in results["models"].items() if about["reference"] == artifact.reference}
    rows = {HELD_OUT: TRAINED_ON} if _held_nothing_back(store, artifact) else {}
    return [
        {**score, "task": rows.get(score["task"], score["task"]), "from": newest.reference}
        for score in results["scores"] if score["model"] in own
    ]  # fmt: skip


def _held_nothing_back(store: Store, model: Artifact) -> bool:
    """Whether the held-out rows were also trained on, because the model's data has no others."""
    data = [parent.reference for parent in model.manifest.parents if parent.role == "data"]
    try:
        splits = [set(store.resolve(one).manifest.metadata.get("splits", ())) for one in data]
    except UserError:
        return False  # the evaluated data is gone, so this cannot be shown
    return any(known and not known & {"valid", "test"} for known in splits)


def licence_of(artifact: Artifact, history: list[Artifact], given: str | None) -> tuple[dict[str, str], str]:
    """The licence fields of the front matter, and a sentence about their source."""
    if given is not None:
        return {"license": given}, f"{given}, as stated in the export command."
    for one in (artifact, *reversed(history)):
        if one.manifest.type != "ModelArtifact":
            continue
        whose = "The model" if one is artifact else f"The base model {_shown(one.reference)}"
        name = _front_matter(one.path / "README.md").get("license") or config_of(one.path).get("license")
        if isinstance(name, str) and LICENCE.fullmatch(name):
            return {"license": name}, f"{name}. {whose} states this."
        if (one.path / "LICENSE").is_file():
            fields = {"license": "other", "license_name": "license-file"}
            if one is artifact:
                fields["license_link"] = "LICENSE"
            return fields, f"{whose} comes with a file LICENSE, which says what is allowed."
    return {"license": UNKNOWN}, "Unknown: neither the model nor what it was made from names a licence."


def _front_matter(readme: Path) -> dict[str, Any]:
    """Front matter of a third-party card; empty if it cannot be parsed."""
    if not readme.is_file():
        return {}
    try:
        with readme.open(encoding="utf-8", errors="replace") as file:
            front = FRONT_MATTER.match(file.read(LARGEST))
        if front is None:
            return {}
        require_bounded(readme, front[1])
        said = parsed(readme, front[1])
    except (UserError, OSError):
        return {}
    return said if isinstance(said, dict) else {}


def _use(title: str, adapter: bool, bases: list[str], servers_only: bool) -> str:
    if servers_only:
        return (f"## Use\n\n```bash\nvllm serve {title}\n```\n\n"
                "Do not load it with transformers, which drops the scales of its weights.\n")  # fmt: skip
    if adapter:
        base = bases[0] if bases else "PATH_OF_THE_BASE_MODEL"
        lines = ["from peft import PeftModel", "from transformers import AutoModelForCausalLM", "",
                 f'base = AutoModelForCausalLM.from_pretrained("{base}")',
                 f'model = PeftModel.from_pretrained(base, "{title}")']  # fmt: skip
    else:
        lines = ["from transformers import AutoModelForCausalLM, AutoTokenizer", "",
                 f'tokenizer = AutoTokenizer.from_pretrained("{title}")',
                 f'model = AutoModelForCausalLM.from_pretrained("{title}")']  # fmt: skip
    return "## Use\n\n```python\n" + "\n".join(lines) + "\n```\n"


def _scores(scores: list[dict[str, Any]]) -> str:
    if not scores:
        return "## Scores\n\nThis model was not evaluated.\n"
    rows = ["| task | metric | n | value | 95% interval |", "|---|---|--:|--:|---|"]
    for score in scores:
        value, low, high = (written(score["metric"], number) for number in (score["value"], *score["ci95"]))
        value += f", {cut(share)}" if (share := score.get("cut")) else ""
        rows.append(
            f"| {_plain(score['task'])} | {metric_name(score['metric'])} | {score['n']} | {value} | {low} to {high} |"
        )
    return "## Scores\n\n" + "\n".join(rows) + f"\n\nFrom {_shown(scores[0]['from'])}.\n"


def _indexed(score: dict[str, Any]) -> dict[str, Any]:
    low, high = score["ci95"]
    name = f"{metric_name(score['metric'])} (95% interval {low:.4f} to {high:.4f}, n={score['n']})"
    metric = {"type": score["metric"], "value": round(score["value"], 4), "name": name}
    dataset = {"name": score["task"], "type": score["task"]}
    return {"task": {"type": "text-generation"}, "dataset": dataset, "metrics": [metric]}


def _history(artifact: Artifact, steps: list[Edge], models: list[Artifact]) -> str:
    """How it was made, and of what.

    Args:
        models: of its line, where the hub has none of them.
    """
    if artifact.is_external:
        return "## Data and history\n\nNot known: the model was exported from a folder.\n"
    lines = [
        f"- {_shown(edge.made)} from {edge.input.role} {_shown(edge.input.label)}"
        + (f", {edge.input.problem}" if edge.input.problem else "")
        for edge in steps
    ]
    producer = artifact.manifest.producer
    how = "imported" if producer.verb == "import" else f"made by the stage {producer.stage}"
    made = f"{_shown(artifact.reference)} was {how}"
    code = f", code {producer.git[:12]}" if producer.git else ""
    digest = f"SHA-256 of its table of files: `{artifact.manifest.digest}`."
    listed = "\n".join(dict.fromkeys(lines)) or "Nothing is known of what it was made from."
    sources = (Path(source.uri) for one in models for source in one.manifest.sources if is_path(source.uri))
    folders = dict.fromkeys(_shown(place.name) for place in sources if place.is_dir())
    digest += f" Folders that it was made with: {', '.join(folders)}." if folders else ""
    return f"## Data and history\n\n{made} at {artifact.manifest.created_at}{code}. {digest}\n\n{listed}\n"


def _shown(label: str) -> str:
    """A reference or an address as code. Local paths are reduced to their last part."""
    if not HUB.fullmatch(label) and (is_path(label) or label.startswith("file:")):
        label = f".../{Path(label).name}"
    return f"`{_plain(label)}`"


def _plain(text: str) -> str:
    """Remove Markdown markup and line breaks."""
    return re.sub(r"[`|<>\n\r]", " ", text)
