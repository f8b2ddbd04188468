"""Model cards: front matter for the hub, and a page for people. Contains only recorded facts.

card(store, artifact, "my-model", adapter=False, licence=None)      the text of README.md
"""

import re
from pathlib import Path
from typing import Any

import yaml

from nemotron_app.report.wording import cut, metric_name
from nemotron_app.report.wording import value as written
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.lineage import Edge, ancestors, edges
from nemotron_shared.artifacts.names import is_path
from nemotron_shared.atomic import read_json
from nemotron_shared.config.files import LARGEST, parsed, require_bounded
from nemotron_shared.errors import UserError
from nemotron_shared.redaction import redact
from nemotron_shared.runtime.models.code import config_of
from nemotron_shared.runtime.models.references import HUB

UNKNOWN = "unknown"
HELD_OUT, TRAINED_ON = "held_out", "rows that were trained on"
LICENCE = re.compile(r"[a-z0-9][a-z0-9.-]{0,60}")
FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)


def card(store: Store, artifact: Artifact, title: str, *, adapter: bool, licence: str | None) -> str:
    """The text of README.md.

    Raises:
        UserError: the licence is not a valid identifier.
    """
    if licence is not None and not LICENCE.fullmatch(licence):
        raise UserError(f"--licence {licence}: not an identifier of the hub", "write it as the hub does: apache-2.0")
    history = [] if artifact.is_external else ancestors(store, artifact)
    steps = [] if artifact.is_external else list(edges(store, artifact))
    bases, sets = base_models(artifact, history), hub_sets(history, steps)
    scores = scores_of(store, artifact)
    known, why = licence_of(artifact, history, licence)
    front: dict[str, Any] = {**known, "library_name": "peft" if adapter else "transformers",
                             "pipeline_tag": "text-generation", "tags": ["nemotron"]}  # fmt: skip
    if bases:
        front |= {"base_model": bases, "base_model_relation": "adapter" if adapter else "finetune"}
    if sets:
        front["datasets"] = sets
    if scores:
        front["model-index"] = [{"name": title, "results": [_indexed(score) for score in scores]}]
    head = yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=1000)
    parts = [f"---\n{head}---\n", f"# {_plain(title)}\n", _use(title, adapter, bases), _scores(scores),
             _history(artifact, steps), f"## Licence\n\n{why}\n"]  # fmt: skip
    return redact("\n".join(parts))


def base_models(artifact: Artifact, history: list[Artifact]) -> list[str]:
    """Hub models that this model is, or derives from."""
    found = (one.manifest.metadata.get("repository") for one in (*history, artifact)
             if one.manifest.type == "ModelArtifact")  # fmt: skip
    return list(dict.fromkeys(name for name in found if isinstance(name, str)))


def hub_sets(history: list[Artifact], steps: list[Edge]) -> list[str]:
    """Hub data sets that a model was trained on, excluding model addresses."""
    models = {source.uri for one in history if one.manifest.type == "ModelArtifact"
              for source in one.manifest.sources}  # fmt: skip
    labels = (edge.input.label for edge in steps if edge.input.is_source)
    matches = (re.match(r"hf://(?:datasets/)?([\w.-]+/[\w.-]+)", label) for label in labels if label not in models)
    return list(dict.fromkeys(found[1] for found in matches if found))


def scores_of(store: Store, artifact: Artifact) -> list[dict[str, Any]]:
    """Scores from the newest evaluation of exactly this model; may be empty."""
    if artifact.is_external:
        return []
    asked = [found for found in store.readable("EvalResultsArtifact") if _asked(found, artifact)]
    if not asked:
        return []
    newest = max(asked, key=lambda one: (one.manifest.created_at, one.manifest.version))
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
        return False  # the evaluated data is gone, so there is no evidence
    return any(known and not known & {"valid", "test"} for known in splits)


def _asked(results: Artifact, artifact: Artifact) -> bool:
    parents = ((parent.reference, parent.digest) for parent in results.manifest.parents)
    return (artifact.reference, artifact.manifest.digest) in parents


def licence_of(artifact: Artifact, history: list[Artifact], given: str | None) -> tuple[dict[str, str], str]:
    """The licence fields of the front matter, and a sentence about their source."""
    if given is not None:
        return {"license": given}, f"{given}, as whoever exported the model says."
    for one in (artifact, *reversed(history)):
        if one.manifest.type != "ModelArtifact":
            continue
        whose = "The model" if one is artifact else f"The base model {_shown(one.reference)}"
        name = _front_matter(one.path / "README.md").get("license") or config_of(one.path).get("license")
        if isinstance(name, str) and LICENCE.fullmatch(name):
            return {"license": name}, f"{name}. {whose} says so."
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


def _use(title: str, adapter: bool, bases: list[str]) -> str:
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


def _history(artifact: Artifact, steps: list[Edge]) -> str:
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
    return f"## Data and history\n\n{made} at {artifact.manifest.created_at}{code}. {digest}\n\n{listed}\n"


def _shown(label: str) -> str:
    """A reference or an address as code. Local paths are reduced to their last part."""
    if not HUB.fullmatch(label) and (is_path(label) or label.startswith("file:")):
        label = f".../{Path(label).name}"
    return f"`{_plain(label)}`"


def _plain(text: str) -> str:
    """Remove Markdown markup and line breaks."""
    return re.sub(r"[`|<>\n\r]", " ", text)
