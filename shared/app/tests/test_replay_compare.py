"""How two artifacts are compared: every file by its bytes, weights by how far they are apart, logs without clocks."""

import json
from pathlib import Path

import numpy as np
import pytest

from nemotron_app.replay.compare import compare
from nemotron_shared.artifacts import Artifact, Producer, Store

PRODUCER = Producer("sft", "train", "0", "0", "", "", None, "python -m stages.sft.train", {})


def safetensors(tensors: dict[str, np.ndarray], dtype: str = "F32") -> bytes:
    header, content = {}, b""
    for name, tensor in tensors.items():
        end = len(content) + tensor.nbytes
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [len(content), end]}
        content += tensor.tobytes()
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content


def publish(store: Store, files: dict[str, bytes]) -> Artifact:
    folder = store.home / "work"
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return store.publish(folder, name="super3-sft-model", type="ModelArtifact", fingerprint="f", producer=PRODUCER)


def problems(store: Store, before: dict[str, bytes], after: dict[str, bytes]) -> dict[str, str | None]:
    return {file.name: file.problem for file in compare(publish(store, before), publish(store, after))}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


def test_files_are_the_same_or_another_or_missing(store: Store) -> None:
    found = problems(store, {"a": b"1", "b": b"1", "c": b"1"}, {"a": b"1", "b": b"22", "d": b"1"})
    assert found == {"a": None, "b": "1 bytes, now 2", "c": "not made again", "d": "was not there"}


def test_a_damaged_copy_is_not_looked_into(store: Store) -> None:
    before, after = publish(store, {"m.safetensors": b"1"}), publish(store, {"m.safetensors": b"2"})
    (before.path / "m.safetensors").write_bytes(b"")
    (found,) = compare(before, after)
    assert found.problem == "not what the manifest states, and the stored copy is damaged"


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_the_first_differing_tensors_are_named_with_their_distance(store: Store, dtype: str) -> None:
    def weights(value: float) -> bytes:
        tensors = {"first": np.zeros((2, 2), "<f4"), "second": np.array([1.0, value], "<f4")}
        if dtype == "BF16":  # the upper two bytes of a float32
            tensors = {name: (one.view("<u4") >> 16).astype("<u2") for name, one in tensors.items()}
        return safetensors(tensors, dtype)

    found = problems(store, {"m.safetensors": weights(2.0)}, {"m.safetensors": weights(2.5)})
    assert found == {"m.safetensors": "1 of 2 tensors: second by up to 0.5"}


def test_tensors_of_other_shapes_and_names(store: Store) -> None:
    first, second = safetensors({"a": np.zeros(2, "<f4")}), safetensors({"a": np.zeros(3, "<f4")})
    found = problems(store, {"m.safetensors": first}, {"m.safetensors": second})
    assert found == {"m.safetensors": "1 of 1 tensors: a has the shape (3,), was (2,)"}
    other = safetensors({"b": np.zeros(2, "<f4")})
    found = problems(store, {"m.safetensors": first}, {"m.safetensors": other})
    assert found == {"m.safetensors": "other tensors: a, b"}


def test_of_a_log_only_the_clocks_may_differ(store: Store) -> None:
    def log(loss: float, seconds: float) -> bytes:
        return (json.dumps({"step": 1, "loss": loss, "seconds": seconds}) + "\n").encode()

    assert problems(store, {"metrics.jsonl": log(1.0, 2.0)}, {"metrics.jsonl": log(1.0, 3.0)}) == {
        "metrics.jsonl": None
    }
    found = problems(store, {"metrics.jsonl": log(1.0, 2.0)}, {"metrics.jsonl": log(1.5, 2.0)})
    assert found == {"metrics.jsonl": "step 1: loss 1.0 -> 1.5"}
    found = problems(store, {"metrics.jsonl": log(1.0, 2.0)}, {"metrics.jsonl": log(1.0, 2.0) * 2})
    assert found == {"metrics.jsonl": "1 entries, now 2"}
    nan = log(float("nan"), 1.0), log(float("nan"), 2.0)
    assert problems(store, {"metrics.jsonl": nan[0]}, {"metrics.jsonl": nan[1]}) == {"metrics.jsonl": None}
