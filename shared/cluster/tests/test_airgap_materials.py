"""Models, tokenizers and data that come along, against a hub of our own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hub_stand_in import Hub, serving

from nemotron_cluster.airgap.fetch import find_model
from nemotron_shared.system.errors import UserError

pytest.importorskip("huggingface_hub")

HEADER = json.dumps({"a.experts.0.w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
FILES = {
    "config.json": b'{"model_type": "nemotron_h"}',
    "tokenizer.json": b"{}",
    "model.safetensors": len(HEADER).to_bytes(8, "little") + HEADER + b"\0" * 16,
    "model.gguf": b"x",
}
BRING = """
import json, sys
from pathlib import Path
from nemotron_cluster.airgap.fetch import find_model
text, weights, folder = sys.argv[1], sys.argv[2] == "True", Path(sys.argv[3])
found = find_model(text, weights=weights, trusted=False)
(folder / found.place).mkdir(parents=True, exist_ok=True)
missing = found.missing(folder)
found.bring(missing, folder / found.place)
print(json.dumps({"place": found.place, "bytes": found.bytes, "brought": missing, "left": found.missing(folder)}))
"""


@pytest.mark.parametrize(("weights", "kind", "names"), [
    (True, "models", ["config.json", "model.safetensors", "tokenizer.json"]),
    (False, "tokenizers", ["tokenizer.json"]),
])  # fmt: skip
def test_a_model_of_the_hub_becomes_a_folder_of_files(
    tmp_path: Path, weights: bool, kind: str, names: list[str]
) -> None:
    with serving(Hub({}, models={"local/tiny": FILES})) as hub:
        environment = hub.environment(tmp_path / "home")

        def bring() -> dict:
            command = [sys.executable, "-c", BRING, "hf://local/tiny", str(weights), tmp_path]
            return json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)

        told = bring()
        assert sorted(told["brought"]) == names
        assert told["left"] == [] and told["bytes"] == sum(len(FILES[name]) for name in names)
        folder = tmp_path / told["place"]
        assert told["place"] == f"{kind}/hf-local--tiny"
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == {name: FILES[name] for name in names}
        assert not any(path.is_symlink() for path in folder.iterdir()), "links lead nowhere on the other side"
        (folder / "tokenizer.json").write_bytes(b"[]")  # as long as the right one
        assert bring()["brought"] == ["tokenizer.json"]
        assert (folder / "tokenizer.json").read_bytes() == b"{}"


def test_a_folder_of_ones_own_is_a_model_when_it_has_a_config(tmp_path: Path) -> None:
    own = tmp_path / "Own Model"
    own.mkdir()
    with pytest.raises(UserError, match=r"no folder with a config\.json"):
        find_model(str(own), weights=True, trusted=False)
    (own / "config.json").write_text("{}")
    found = find_model(str(own), weights=True, trusted=False)
    assert (found.place, [*found.files]) == ("models/own-model", ["config.json"])
    with pytest.raises(UserError, match=r"no folder with a tokenizer\.json"):
        find_model(str(own), weights=False, trusted=False)
    with pytest.raises(UserError, match="Megatron"):
        find_model("megatron:/checkpoints/iter_1", weights=True, trusted=False)
