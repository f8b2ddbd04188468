"""`manifest.json` is read strictly, wrong keys named with their file; folders from outside get one in memory."""

import json
import os
import tempfile
from pathlib import Path

import pytest

from nemotron_shared.artifacts import Artifact, Manifest, Parent, Producer, Source, Store
from nemotron_shared.system.errors import UserError

MODEL = "super3-sft-model"
PARENT = Parent("super3-sft-data:v1", "e" * 64, "data")
SOURCE = Source("hf://org/set", "f" * 64, {"rows": [1, 2]})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path / "home"))


@pytest.fixture
def published(store: Store) -> Artifact:
    store.home.mkdir()
    folder = Path(tempfile.mkdtemp(dir=store.home))
    (folder / "a").write_text("1")
    producer = Producer("sft", "train", "0", "0", "c", "d", "abc123", "nemotron super3 sft", {"python": "3.11"})
    return store.publish(
        folder, name=MODEL, type="ModelArtifact", fingerprint="f", producer=producer, parents=[PARENT], sources=[SOURCE]
    )


def change(manifest: dict, path: str, value: object) -> None:
    """Set the key at a dotted path, or delete it where the value is None."""
    *folders, key = path.split(".")
    for folder in folders:
        manifest = manifest[int(folder) if folder.isdigit() else folder]
    if value is None:
        del manifest[key]
    else:
        manifest[key] = value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("nmae", "x", "unknown key 'nmae'\n  did you mean 'name'"),
        ("digest", None, "key 'digest' is missing"),
        ("version", "1", "key 'version' has the wrong type"),
        ("schema_version", 3, "schema_version is 3"),
        ("schema_version", 1, "an older layout: schema_version is 1"),
        ("self_digest", None, "key 'self_digest' is missing"),
        ("files.a.sha256", "12", "'files.a.sha256' is not a SHA-256 digest"),
        ("parents.0.digest", "E" * 64, r"'parents\[0\].digest' is not a SHA-256 digest"),
        ("type", "ModelArtefact", "did you mean 'ModelArtifact'"),
        ("producer.stage", None, "key 'producer.stage' is missing"),
        ("producer.extra", 1, "unknown key 'producer.extra'"),
        ("files.a.bytes", "1", "key 'files.a.bytes' has the wrong type"),
        ("files.a", "1", "files.a: not a JSON object"),
        ("files", [], "key 'files' has the wrong type"),
        ("parents.0.role", None, r"key 'parents\[0\].role' is missing"),
        ("parents.0.reference", "x", "'x' is not of the form name:v1"),
        ("sources.0.size", 1, r"unknown key 'sources\[0\].size'"),
        ("name", "other", "describes other:v1, not super3-sft-model:v1"),
    ],
)
def test_a_damaged_manifest_is_named_with_its_key(
    store: Store, published: Artifact, path: str, value: object, message: str
) -> None:
    file = published.path / "manifest.json"
    content = json.loads(file.read_text())
    change(content, path, value)
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match=message) as caught:
        store.resolve(MODEL)
    assert str(file) in caught.value.message and caught.value.remedy


@pytest.mark.parametrize("content", ["1" * 10_000, "[" * 100_000])
def test_a_manifest_that_no_parser_reads_is_named(store: Store, published: Artifact, content: str) -> None:
    file = published.path / "manifest.json"
    file.write_text(file.read_text().replace('"c"', content))
    with pytest.raises(UserError, match=r"manifest\.json: not valid JSON"):
        store.resolve(MODEL)


def test_a_manifest_survives_being_written_and_read(published: Artifact) -> None:
    again = Manifest.parse(json.dumps(published.manifest.to_json()).encode(), published.path)
    assert again == published.manifest == Manifest.read(published.path / "manifest.json")


def test_a_manifest_cannot_point_out_of_its_folder(store: Store, published: Artifact) -> None:
    file = published.path / "manifest.json"
    file.write_text(file.read_text().replace('"a": {', '"../a": {'))
    with pytest.raises(UserError, match="leads out of the artifact"):
        store.resolve(MODEL)


def test_verify_notices_an_edited_list_of_files(store: Store, published: Artifact) -> None:
    path = published.path / "manifest.json"
    path.write_text(path.read_text().replace('"bytes": 1', '"bytes": 2'))
    problems = store.verify(store.resolve(MODEL), fast=True)
    assert problems == ["a: 1 bytes, was 2", "manifest.json: its digest does not match its own list of files"]


def test_a_folder_from_outside_is_an_artifact_without_a_version(store: Store, tmp_path: Path) -> None:
    blob, folder, empty = tmp_path / "blob", tmp_path / "My Model", tmp_path / "empty"
    blob.write_text("weights")
    (folder / ".cache").mkdir(parents=True)
    (folder / ".cache" / "x").write_text("1")
    (folder / "config.json").write_text("{}")
    empty.mkdir()
    (folder / "model.safetensors").symlink_to(os.path.relpath(blob, folder))
    found = store.resolve(str(folder))
    assert found.is_external and found.reference == str(folder) and found.manifest.type == "ModelArtifact"
    assert sorted(found.manifest.files) == ["config.json", "model.safetensors"]
    assert store.verify(found) == []
    assert found.size == 9
    blob.write_text("other!!")
    assert store.verify(found) == ["model.safetensors: content changed"]
    assert store.resolve(str(folder), expect="SFTDataArtifact").manifest.type == "SFTDataArtifact"
    for wrong in (tmp_path / "none", folder / "config.json", empty):
        with pytest.raises(UserError):
            store.resolve(str(wrong))
