"""llama.cpp on our exports: every tensor, setting and token is in its file, and it computes what the model does.

Run with `ci/engine.sh llama_cpp`, which makes the environments of its converter and its library.
"""

import json
from pathlib import Path

import pytest
import torch
from conformance_support import answers_as_the_model_does, through
from passport_support import make, with_adapters
from safetensors.torch import load_file, save_file
from zoo import MATRIX, write_kind

from nemotron_app.main import main
from nemotron_serving.gguf_file import Gguf
from nemotron_serving.passport.numbers import GREEDY

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
    kl, greedy = through(told, "llama.cpp")
    assert kl < (1e-8 if dtype == "float32" else 1e-2)
    assert greedy == GREEDY or dtype != "float32"
    assert "llama.cpp, texts encoded" in dict(told["parts"][1]["facts"])


@pytest.mark.parametrize("kind", ["llama_tied", "granitemoehybrid"])
def test_a_folder_that_transformers_5_wrote_is_read_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_kind(MATRIX[kind], tmp_path / "model")
    assert main(["export", "./model", "out", "--home", "home", "--for", "llama.cpp"]) == 0
    told = json.loads((tmp_path / "out" / "passport.json").read_text())
    assert "llama.cpp, texts encoded" in dict(told["parts"][1]["facts"])


def test_a_dry_run_refuses_what_llama_cpp_cannot_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = make(tmp_path / "model", "llama")
    words = ["export", "./model", "out", "--home", "home", "--for", "llama.cpp", "--dry-run"]
    assert main(words) == 0
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"architectures": ["UnheardOfForCausalLM"]}))
    assert main(words) == 2
    assert "llama-cpp-python 0.3.36 cannot convert it: NotImplementedError: Architecture" in capsys.readouterr().err
    turned = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4, "truncate": False}
    (model / "config.json").write_text(json.dumps(config | {"rope_parameters": turned}))
    assert main(words) == 2
    assert "llama.cpp of llama-cpp-python 0.3.36 rounds the limits of YaRN" in capsys.readouterr().err


def test_merged_adapters_are_what_llama_cpp_computes(tmp_path: Path) -> None:
    store = with_adapters(tmp_path)
    words = ["export", "trained", str(tmp_path / "out"), "--home", str(store.home), "--for", "llama.cpp"]
    assert main(words) == 0
    kl, greedy = through(json.loads((tmp_path / "out" / "passport.json").read_text()), "llama.cpp")
    assert kl < 1e-8 and greedy == GREEDY


@pytest.mark.parametrize("kind", ["super3_tiny", "llama64"])
def test_quantised_files_are_smaller_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "model", kind)
    sizes, kls = [], []
    for asked in ("Q8_0", "Q4_K_M"):
        assert main(["export", "./model", asked, "--home", "home", "--for", "llama.cpp", "--quantize", asked]) == 0
        told = json.loads((tmp_path / asked / "passport.json").read_text())
        kls.append(through(told, "llama.cpp")[0])
        sizes.append((tmp_path / asked / f"{asked}-{asked}.gguf").stat().st_size)
        assert told["parts"][2]["verdict"] == ("the same" if asked == "Q8_0" else "measured")
    assert sizes[1] < sizes[0] < (tmp_path / "model" / "model.safetensors").stat().st_size
    assert kls[0] < kls[1]


def test_llama_cpp_serves_the_file_that_was_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "model", "super3_tiny")
    assert main(["export", "./model", "out", "--home", "home", "--for", "llama.cpp", "--no-verify"]) == 0
    answers_as_the_model_does(tmp_path / "model", ["--engine", "llama.cpp", "--gguf", "out/out-F32.gguf"])


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
