"""Files of the artifact store: manifests, and the notes beside the versions."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path, PurePosixPath
from random import Random
from typing import Any

from nemotron_prove.input.second import fault_of, is_count, json_value, require, require_shape
from nemotron_prove.input.target import Files, Target
from nemotron_prove.input.values import changed
from nemotron_shared.artifacts import Artifact, FileEntry, Manifest, Parent, Producer, Source, Store
from nemotron_shared.artifacts.artifact import problems, table_digest
from nemotron_shared.digest import file_digest

PAYLOAD = b"weights"
SHELF = "artifacts/super3-sft-model"
TEXT, OBJECT, SHA = {"type": "string"}, {"type": "object"}, {"type": "string", "pattern": "^[0-9a-f]{64}$"}
NAME = "^[a-z0-9][a-z0-9._-]{0,99}$"


def _record(required: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": required, "required": list(required), "additionalProperties": False}


PRODUCER = ("stage", "verb", "stage_version", "shared_version", "config_digest", "code_digest", "command")
SCHEMA = _record(
    {
        "schema_version": {"const": 2},
        "name": {"type": "string", "pattern": NAME},
        "version": {"type": "integer", "minimum": 1},
        "type": {
            "enum": [
                "PretrainBlendsArtifact",
                "ModelArtifact",
                "SFTDataArtifact",
                "SplitJsonlDataArtifact",
                "EvalDataArtifact",
                "EvalResultsArtifact",
            ]
        },
        "created_at": TEXT,
        "fingerprint": TEXT,
        "digest": SHA,
        "files": {
            "type": "object",
            "additionalProperties": _record({"sha256": SHA, "bytes": {"minimum": 0, "type": "integer"}}),
        },
        "producer": _record(
            {**dict.fromkeys(PRODUCER, TEXT), "git": {"type": ["string", "null"]}, "environment": OBJECT}
        ),
        "parents": {"type": "array", "items": _record({"reference": TEXT, "digest": SHA, "role": TEXT})},
        "sources": {"type": "array", "items": _record({"uri": TEXT, "digest": TEXT, "detail": OBJECT})},
        "metadata": OBJECT,
        "metrics": OBJECT,
        "segments": {"type": "array"},
        "self_digest": SHA,
    }
)
"""docs/artifacts.md, The manifest."""


def manifest() -> Manifest:
    """A valid one, of the one file `model.safetensors`."""
    sha = hashlib.sha256(PAYLOAD).hexdigest()
    files = {"model.safetensors": FileEntry(sha, len(PAYLOAD))}
    made = Producer("sft", "train", "0.1.0", "0.1.0", sha, sha, None, "stages/sft/train.py -c tiny", {"a": "1"})
    return Manifest(
        name="super3-sft-model",
        version=1,
        type="ModelArtifact",
        created_at="2026-01-31T12:00:00+00:00",
        fingerprint=sha,
        digest=table_digest(files),
        files=files,
        producer=made,
        parents=(Parent("super3-sft-data:v1", sha, "data"),),
        sources=(Source("hf://org/set", sha, {"rows": 10}),),
        metadata={"step": 40},
        metrics={"final_loss": 2.31},
        segments=[],
    )


def _examples() -> list[Files]:
    other = replace(manifest(), parents=(), sources=(), metrics={})
    return [{"manifest.json": one.to_bytes(), "model.safetensors": PAYLOAD} for one in (manifest(), other)]


def _sealed(files: Files, random: Random) -> Files:
    """A change of a value whose digest is taken anew: what somebody writes who knows the format."""
    value = json.loads(files["manifest.json"])
    value = changed(value, random)
    if isinstance(value, dict):
        value.pop("self_digest", None)
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        value["self_digest"] = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    text = json.dumps(value, indent=2, sort_keys=True)
    return {**files, "manifest.json": text.encode("utf-8", "surrogatepass")}


def _read(folder: Path, files: Files) -> Manifest:
    return Manifest.read(folder / "manifest.json")


def _fault(files: Files, made: object) -> str | None:
    def read() -> None:
        value = json_value(files["manifest.json"], strict=False)
        require_shape(value, SCHEMA, "manifest")
        for name in value["files"]:
            path = PurePosixPath(name)
            require(name and not path.is_absolute() and ".." not in path.parts, "a file outside of the folder")
            require("\0" not in name and str(path) == name, "a file's name that is no path")
        try:
            then = datetime.fromisoformat(value["created_at"])
        except ValueError:
            then = None
        require(then is not None and then.tzinfo is not None, "created_at is no moment")
        require(all(is_count(one["bytes"]) for one in value["files"].values()), "a size that is none")

    return fault_of(read)


def _notes() -> list[Files]:
    shelf = {f"{SHELF}/v{version}/manifest.json": replace(manifest(), version=version).to_bytes() for version in (1, 2)}
    notes = {"aliases.json": {"best": 1}, "reused.json": {"version": 1, "newest": 2}, "index.json": {"1": None}}
    return [{**shelf, **{f"{SHELF}/{name}": json.dumps(value).encode() for name, value in notes.items()}}]


def _in_notes(files: Files, random: Random) -> Files:
    from nemotron_prove.input.mutate import mutated

    name = random.choice([name for name in files if "/v" not in name])
    return {**files, **mutated({name: files[name]}, random, ("best", "v1", "3"))}


def _resolve(folder: Path, files: Files) -> list[Artifact]:
    store = Store(folder)
    known = store.aliases("super3-sft-model")
    store.find_by_fingerprint("super3-sft-model", manifest().fingerprint)
    return [store.resolve("sft"), *(store.resolve(f"sft:{alias}") for alias in known)]


def _resolve_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        assert isinstance(made, list)
        content = files.get(f"{SHELF}/aliases.json")
        aliases = json_value(content, strict=False) if content is not None else {}
        require(isinstance(aliases, dict), "aliases.json is no object")
        for _alias, version in aliases.items():
            require(type(version) is int and version in (1, 2), "an alias of no version")
        reused = json_value(files.get(f"{SHELF}/reused.json", b"{}"), strict=False)
        require(isinstance(reused, dict), "reused.json is no object")
        again = reused.get("newest") == 2 and type(reused.get("version")) is int and reused["version"] in (1, 2)
        complete = [one for one in (1, 2) if f"{SHELF}/v{one}/manifest.json" in files]
        latest = reused["version"] if again and reused["version"] in complete else max(complete)
        require(made[0].manifest.version == latest, "another version than the newest, or the one used again")

    return fault_of(read)


def _intact(folder: Path, files: Files) -> list[str]:
    return problems(Artifact(Manifest.read(folder / "manifest.json"), folder), digest=file_digest)


def _intact_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        value = json_value(files["manifest.json"], strict=False)
        said = {name: (entry["sha256"], entry["bytes"]) for name, entry in value["files"].items()}
        there = {
            name: (hashlib.sha256(content).hexdigest(), len(content))
            for name, content in files.items()
            if name != "manifest.json"
        }
        body = {key: one for key, one in value.items() if key != "self_digest"}
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        own = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() == value["self_digest"]
        require(made or (said == there and own), "damage that is not seen")

    return fault_of(read)


MUTATE: Callable[[Files, Random], Files] = _sealed
TARGETS = (
    Target("manifest", "manifest.json", _examples, _read, _fault, ("../x", "v0", "name:v1"), share=2, mutate=MUTATE),
    Target("intact", "an artifact against its manifest", _examples, _intact, _intact_fault, mutate=MUTATE, share=1),
    Target("notes", "aliases, reused and index", _notes, _resolve, _resolve_fault, share=0.5, mutate=_in_notes),
)
