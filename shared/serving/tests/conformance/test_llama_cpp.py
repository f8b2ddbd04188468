"""llama.cpp's own converter on our exports: every tensor, setting and token is in its file.

Run with `ci/engine.sh llama_cpp`, which makes the converter's environment.
"""

import json
from pathlib import Path

import pytest
import torch
from passport_support import make
from safetensors.torch import load_file, save_file

from nemotron_app.main import main
from nemotron_serving.gguf_file import Gguf

pytestmark = pytest.mark.llama_cpp


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("super3_tiny", "float32"), ("super3_tiny", "bfloat16"), ("nano3_tiny", "float16"), ("llama", "bfloat16"),
     ("qwen2", "float32")],
)  # fmt: skip
def test_a_converted_file_is_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, dtype: str) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "model", kind)
    words = ["export", "./model", "out", "--home", "home", "--for", "llama.cpp", "--dtype", dtype]
    assert main(words) == 0
    told = json.loads((tmp_path / "out" / "passport.json").read_text())
    assert told["same"]
    files = sorted(path.suffix for path in (tmp_path / "out").iterdir())
    assert files == [".gguf", ".html", ".json", ".md"]
    file = next((tmp_path / "out").glob("*.gguf"))
    assert str(tmp_path).encode() not in file.read_bytes()
    assert Gguf(file).settings["context_length"] == 4096


def test_a_dense_model_is_no_mixture_and_a_prediction_block_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = make(tmp_path / "model", "super3_tiny")
    config = json.loads((model / "config.json").read_text())
    kinds = ["mlp" if kind == "moe" else kind for kind in config["layers_block_type"]]
    config |= {"layers_block_type": kinds, "intermediate_size": 96}
    (model / "config.json").write_text(json.dumps(config))
    tensors = load_file(model / "model.safetensors")
    for number, kind in enumerate(kinds):
        if kind == "mlp":
            start = f"backbone.layers.{number}.mixer."
            tensors = {name: value for name, value in tensors.items() if not name.startswith(start)}
            tensors |= {f"{start}up_proj.weight": torch.randn(96, 64), f"{start}down_proj.weight": torch.randn(64, 96)}
    tensors["mtp.layers.0.eh_proj.weight"] = torch.randn(64, 128)
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    assert main(["export", "./model", "out", "--home", "home", "--for", "llama.cpp"]) == 0
    assert "predicts further tokens (mtp.*) is left out" in "".join(capsys.readouterr())
    assert Gguf(next((tmp_path / "out").glob("*.gguf"))).settings["general.architecture"] == "nemotron_h"
