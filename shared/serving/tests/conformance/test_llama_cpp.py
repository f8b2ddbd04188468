"""llama.cpp on our exports: every tensor, setting and token is in its file, and it computes what the model does.

Run with `ci/engine.sh llama_cpp`, which makes the environments of its converter and its library.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from passport_support import make, with_adapters
from safetensors.torch import load_file, save_file

from nemotron_app.main import main
from nemotron_engines.modeling.build import ONLY_MADE, load_model, load_tokenizer
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
    kl, greedy = through_llama_cpp(told)
    assert kl < (1e-8 if dtype == "float32" else 1e-2)
    assert greedy == GREEDY or dtype != "float32"
    assert "llama.cpp, texts encoded" in dict(told["parts"][1]["facts"])


def through_llama_cpp(told: dict[str, Any]) -> tuple[float, int]:
    """KL and equal greedy tokens on the random prompt, from a passport."""
    said = dict(told["parts"][2]["facts"])["llama.cpp, random tokens"]
    found = re.fullmatch(r"KL (\S+) \(.*\), likeliest token the same in .*, (\d+) of 16 greedy tokens", said)
    assert found, said
    return float(found[1]), int(found[2])


def test_merged_adapters_are_what_llama_cpp_computes(tmp_path: Path) -> None:
    store = with_adapters(tmp_path)
    words = ["export", "trained", str(tmp_path / "out"), "--home", str(store.home), "--for", "llama.cpp"]
    assert main(words) == 0
    kl, greedy = through_llama_cpp(json.loads((tmp_path / "out" / "passport.json").read_text()))
    assert kl < 1e-8 and greedy == GREEDY


@pytest.mark.parametrize("kind", ["super3_tiny", "llama64"])
def test_quantised_files_are_smaller_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "model", kind)
    sizes, kls = [], []
    for asked in ("Q8_0", "Q4_K_M"):
        assert main(["export", "./model", asked, "--home", "home", "--for", "llama.cpp", "--quantize", asked]) == 0
        told = json.loads((tmp_path / asked / "passport.json").read_text())
        kls.append(through_llama_cpp(told)[0])
        sizes.append((tmp_path / asked / f"{asked}-{asked}.gguf").stat().st_size)
        assert told["parts"][2]["verdict"] == ("the same" if asked == "Q8_0" else "measured")
    assert sizes[1] < sizes[0] < (tmp_path / "model" / "model.safetensors").stat().st_size
    assert kls[0] < kls[1]


def test_llama_cpp_serves_the_file_that_was_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "model", "super3_tiny")
    assert main(["export", "./model", "out", "--home", "home", "--for", "llama.cpp", "--no-verify"]) == 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "nemotron_app.main", "serve", "./model", "--home", "home", "--port", str(port)]
    command += ["--engine", "llama.cpp", "--gguf", "out/out-F32.gguf", "--api-key-env", "KEY", "--name", "mine"]
    key = "a-key-that-is-long-enough"
    process = subprocess.Popen(command, env=os.environ | {"KEY": key}, start_new_session=True)
    try:
        model: Any = load_model(tmp_path / "model", ONLY_MADE)
        tokenizer = load_tokenizer(tmp_path / "model")
        asked = {"model": "mine", "max_tokens": 8, "temperature": 0}
        messages = [{"role": "user", "content": "What is 3+5?"}]
        templated = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        for place, body, text in (
            ("completions", {"prompt": "What is 3+5?"}, "What is 3+5?"),
            ("chat/completions", {"messages": messages}, templated),
        ):
            answer = ask(f"http://127.0.0.1:{port}/v1/{place}", asked | body, key, process)
            given = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
            start = given.shape[1]
            with torch.no_grad():
                for _ in range(8):
                    given = torch.cat([given, model(given, use_cache=False).logits[:, -1:].argmax(-1)], 1)
            assert answer["usage"]["prompt_tokens"] == start
            made = answer["choices"][0]
            said = made["text"] if "text" in made else made["message"]["content"]
            wanted = tokenizer.decode(given[0, start:], skip_special_tokens=True)
            assert said == wanted.replace("\ufffd", "")  # that server leaves out what is no whole character
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        process.kill()


def ask(url: str, body: dict[str, Any], key: str, process: "subprocess.Popen[bytes]") -> dict[str, Any]:
    """The answer of a server, which may still be starting."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    while process.poll() is None:
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return json.load(answer)
        except ConnectionRefusedError:
            time.sleep(0.2)
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionRefusedError):
                raise
            time.sleep(0.2)
    raise AssertionError(f"the server ended with {process.returncode}")


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
