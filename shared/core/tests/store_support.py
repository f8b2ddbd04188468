"""A store for tests: what is published into it, and by whom."""

import tempfile
from pathlib import Path

from nemotron_shared.artifacts import Artifact, Producer, Store

MODEL = "super3-sft-model"
PRODUCER = Producer("sft", "train", "0.1.0", "0.1.0", "c" * 64, "d" * 64, None, "nemotron super3 sft", {"cpu": 1})


def folder_with(parent: Path, files: dict[str, str]) -> Path:
    """A new folder below `parent` that holds these files."""
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=parent))
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def publish(store: Store, files: dict[str, str], name: str = MODEL, fingerprint: str = "f", **more) -> Artifact:
    """The next version of `name`."""
    folder = folder_with(store.home, files)
    more = {"type": "ModelArtifact", "producer": PRODUCER} | more
    return store.publish(folder, name=name, fingerprint=fingerprint, **more)


def everything(store: Store) -> list[Artifact]:
    """Every version, by name and then age."""
    return [store.load(name, version) for name, versions in store.shelves().items() for version in versions]
