"""An export stands by itself: no trace of the machine, a card that invents nothing, nothing overwritten."""

import base64
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save

from nemotron_app.export import card
from nemotron_app.main import main
from nemotron_shared.artifacts import Parent, Producer, Source, Store
from nemotron_shared.system.lock import locked

TOKEN = "hf_neverinamessageofanykind0000000"


def producer(stage: str, verb: str = "train") -> Producer:
    return Producer(stage, verb, "0", "0", "", "", "0123456789abcdef", f"python -m stages.{stage}.train", {})


def publish(store: Store, name: str, type: Any, files: dict[str, Any], made_by: Producer, **more: Any) -> Any:
    folder = store.home / "work"
    for file, content in files.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return store.publish(folder, name=name, type=type, fingerprint=name, producer=made_by, **more)


LLAMA = {
    "model_type": "llama", "vocab_size": 4, "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
    "num_attention_heads": 1, "num_key_value_heads": 1,
}  # fmt: skip


def tensors(**changed: Any) -> bytes:
    """The weights of LLAMA; what is given by the last part but one of its name is in the place of ones."""
    squares = [f"layers.0.self_attn.{part}_proj" for part in "qkvo"]
    squares += [f"layers.0.mlp.{part}_proj" for part in ("gate", "up", "down")]
    vectors = ["layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm"]
    made = {f"model.{name}.weight": np.ones((4, 4), np.float32) for name in (*squares, "embed_tokens")}
    made |= {f"model.{name}.weight": np.ones(4, np.float32) for name in vectors}
    made["lm_head.weight"] = np.zeros((4, 4), np.float32)
    return save({name: changed.get(name.split(".")[-2], value) for name, value in made.items()})


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A base model of the hub, data of the hub and of a disk, a model that was fine-tuned with both, and its scores."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    store = Store(tmp_path / "home")
    store.home.mkdir()
    config = LLAMA | {"_name_or_path": "/home/ann/secret", "eos_token_id": 3, "seen": "~/x"}
    base = publish(store, "hf-org--base", "ModelArtifact", {"config.json": config, "model.safetensors": tensors()},
                   producer("model", "import"), metadata={"repository": "org/base"},
                   sources=[Source("hf://org/base@0123", "ab", {})])  # fmt: skip
    data = publish(store, "super3-sft-data", "SFTDataArtifact", {"train.jsonl": {}}, producer("sft", "data_prep"),
                   sources=[Source("hf://org/chats", "cd", {}), Source("/home/ann/chats.jsonl", "ef", {})])  # fmt: skip
    tokenizer = {"bos_token": "~", "name_or_path": "/home/ann/tokenizer", "added": [{"content": "/x"}]}
    files = {"config.json": config, "model.safetensors": tensors(), "tokenizer_config.json": tokenizer,
             "tokenizer.json": {}, "metrics.jsonl": {}, "adapter/adapter_model.safetensors": tensors(),
             "adapter/adapter_config.json": {"base_model_name_or_path": "/home/ann/base", "r": 8}}  # fmt: skip
    parents = [
        Parent(base.reference, base.manifest.digest, "model"),
        Parent(data.reference, data.manifest.digest, "data"),
    ]
    sft = publish(store, "super3-sft-model", "ModelArtifact", files, producer("sft"), parents=parents)
    score = {"model": "sft", "task": "sums", "metric": "right", "value": 0.535, "ci95": [0.486, 0.583], "n": 400}
    results = {"models": {"sft": {"reference": sft.reference}, "random": {"reference": None}},
               "scores": [score, score | {"model": "random", "value": 0.0}]}  # fmt: skip
    publish(store, "super3-eval-results", "EvalResultsArtifact", {"results.json": results}, producer("eval"),
            parents=[Parent(sft.reference, sft.manifest.digest, "model")])  # fmt: skip
    return store


def front(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])


def test_scores_of_rows_that_were_trained_on_are_called_so(store: Store, tmp_path: Path) -> None:
    data = publish(store, "nano3-sft-data", "SFTDataArtifact", {"train.jsonl": {}}, producer("sft", "data_prep"),
                   metadata={"splits": {"train": {}}})  # fmt: skip
    files = {"config.json": LLAMA, "model.safetensors": tensors()}
    model = publish(store, "nano3-sft-model", "ModelArtifact", files, producer("sft"),
                    parents=[Parent(data.reference, data.manifest.digest, "data")])  # fmt: skip
    score = {"model": "sft", "task": "held_out", "metric": "bits_per_byte", "value": 0.9, "ci95": [0.8, 1.0], "n": 9}
    results = {"models": {"sft": {"reference": model.reference}}, "scores": [score]}
    publish(store, "nano3-eval-results", "EvalResultsArtifact", {"results.json": results}, producer("eval"),
            parents=[Parent(model.reference, model.manifest.digest, "model")])  # fmt: skip
    assert main(["export", model.reference, "made"]) == 0
    assert "| rows that were trained on | bits per byte |" in (tmp_path / "made" / "README.md").read_text()


def test_an_export_has_no_trace_of_the_machine(store: Store, tmp_path: Path) -> None:
    assert main(["export", "sft", "out"]) == 0
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md", "config.json", "generation_config.json", "model.safetensors", "passport.html", "passport.json",
        "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert not [path for path in out.iterdir() if "/home/ann" in path.read_text(errors="replace")]
    assert json.loads((out / "config.json").read_text()) == LLAMA | {"eos_token_id": 3}
    kept = json.loads((out / "tokenizer_config.json").read_text())
    assert kept == {"bos_token": "~", "added": [{"content": "/x"}]}  # tokens are no paths
    assert json.loads((out / "generation_config.json").read_text()) == {"eos_token_id": 3}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_settings_that_are_nested_too_deep_are_one_error(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    for depth in (600, 3000):
        nested = f'{{"model_type": "llama", "a": {"[" * depth}{"]" * depth}}}'.encode()
        publish(
            store, "deep", "ModelArtifact", {"config.json": nested, "model.safetensors": tensors()}, producer("sft")
        )
        assert main(["export", "deep:latest", f"out-{depth}"]) == 2
        assert "config.json: n" in capsys.readouterr().err


def test_the_card_says_what_is_known(store: Store, tmp_path: Path) -> None:
    assert main(["export", "sft", "out"]) == 0
    about, text = front(tmp_path / "out"), (tmp_path / "out" / "README.md").read_text()
    assert about["base_model"] == ["org/base"] and "tags" not in about
    assert about["datasets"] == ["org/chats"]
    assert about["license"] == "unknown"
    assert about["model-index"][0]["results"][0]["metrics"][0]["value"] == 0.535
    assert "| sums | right answers | 400 | 53.5% | 48.6% to 58.3% |" in text
    assert "`.../chats.jsonl`" in text
    assert "names a licence" in text
    from huggingface_hub import ModelCard  # what the hub itself reads

    assert ModelCard(text).data.eval_results[0].metric_value == 0.535


def test_the_card_names_a_folder_that_the_model_was_made_from(store: Store, tmp_path: Path) -> None:
    base = tmp_path / "my-model"
    base.mkdir()
    config = LLAMA | {"model_type": "nemotron_h"}
    publish(store, "own-sft-model", "ModelArtifact", {"config.json": config, "model.safetensors": tensors()},
            producer("sft"), sources=[Source(str(base), "ab", {})])  # fmt: skip
    text = card(store, store.resolve("own-sft-model:v1"), "title", adapter=False, licence=None)
    about = yaml.safe_load(text.split("---\n")[1])
    assert "Folders that it was made with: `my-model`." in text and str(tmp_path) not in text
    assert about["tags"] == ["nemotron"] and "base_model" not in about


def test_a_licence_is_taken_from_who_has_one(store: Store, tmp_path: Path) -> None:
    assert main(["export", "sft", "said", "--licence", "mit"]) == 0
    assert front(tmp_path / "said")["license"] == "mit"
    assert main(["export", "sft", "wrong", "--licence", "MIT\nx: y"]) == 2
    base = store.resolve("hf-org--base").path
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in base.glob("*.*"):
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Mine\n")
    assert main(["export", "./copy", "from-card"]) == 0
    assert front(tmp_path / "from-card")["license"] == "apache-2.0"
    (folder / "README.md").unlink()
    (folder / "LICENSE").write_text("All rights reserved.")
    assert main(["export", "./copy", "from-file"]) == 0
    assert (tmp_path / "from-file" / "LICENSE").is_file()
    assert front(tmp_path / "from-file")["license"] == "other"
    assert "not evaluated" in (tmp_path / "from-file" / "README.md").read_text()


@pytest.mark.parametrize(
    "front",
    ["license: 2026-99-99", f"license: {'9' * 5000}", f"license: {'[' * 3000}", "license: [mit", "license: &a [*a]",
     "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n}\n  <<: [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))],
)  # fmt: skip
def test_a_card_that_cannot_be_read_says_nothing(store: Store, tmp_path: Path, front: str) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in store.resolve("hf-org--base").path.glob("*.*"):
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "README.md").write_text(f"---\n{front}\n---\n# Mine\n")
    assert main(["export", "./copy", "made", "--no-verify"]) == 0
    assert "license: unknown" in (tmp_path / "made" / "README.md").read_text()


def exported(store: Store, changed: Any, config: Any) -> int:
    """Exit code of the export, into `out`, of a model with other tensors or another config."""
    files = {"config.json": LLAMA | config, "model.safetensors": tensors(**changed)}
    publish(store, "changed", "ModelArtifact", files, producer("sft"))
    return main(["export", "changed", "out"])


@pytest.mark.parametrize(
    ("changed", "config", "said"),
    [
        ({"up_proj": np.full((4, 4), np.nan, np.float32)}, {}, "model.safetensors: its weights are damaged: model.lay"),
        ({"norm": np.full(4, np.inf, np.float32)}, {}, "model.norm.weight holds NaN or infinity"),
        ({"up_proj": np.full((4, 4), 1e300)}, {}, "up_proj.weight holds numbers beyond the range of float32"),
        ({"lm_head": np.zeros((5, 4), np.float32)}, {}, "of another shape: lm_head.weight [5, 4], not [4, 4]"),
        ({}, {"num_hidden_layers": 2}, "9 tensors missing: model.layers.1."),
        ({}, {"tie_word_embeddings": True}, "tie_word_embeddings is true, but the weights contain a separate head"),
        ({"up_proj": np.full((4, 4), np.nan, np.float32)}, {"quantization_config": {}}, "up_proj.weight holds NaN"),
        ({"up_proj": np.full((4, 4), np.nan, np.float32)}, {"model_type": "unheard"}, "up_proj.weight holds NaN"),
    ],
)  # fmt: skip
def test_weights_that_nobody_could_load_are_not_exported(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: Any, config: Any, said: str
) -> None:
    assert exported(store, changed, config) == 2
    told = capsys.readouterr().err
    assert said in told and "Traceback" not in told
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changed", "config", "noted"),
    [
        ({"lm_head": np.ones((4, 4), np.float32)}, {"tie_word_embeddings": True}, ""),
        ({"up_proj": np.ones((4, 4), np.float64)}, {}, ""),
        ({}, {"quantization_config": {}}, "config.json was not compared with the weights: its weights are quantised"),
        ({}, {"model_type": "unheard"}, "config.json was not compared with the weights: transformers does not know"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_exported_and_noted(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: Any, config: Any, noted: str
) -> None:
    assert exported(store, changed, config) == 0
    said = "".join(capsys.readouterr())
    assert noted in said and ("was not compared" in said) == bool(noted)
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_a_damaged_adapter_is_not_exported(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"config.json": LLAMA, "model.safetensors": tensors(), "adapter/adapter_config.json": {"r": 8},
             "adapter/adapter_model.safetensors": save({"a": np.full(1, np.nan, np.float32)})}  # fmt: skip
    publish(store, "damaged", "ModelArtifact", files, producer("sft"))
    assert main(["export", "damaged", "out", "--adapter"]) == 2
    assert "adapter_model.safetensors: its weights are damaged: a holds NaN" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_adapter_alone(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "sft", "out", "--adapter"]) == 0
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text()) == {
        "base_model_name_or_path": None,
        "r": 8,
    }
    assert not (tmp_path / "out" / "model.safetensors").exists()
    assert front(tmp_path / "out")["base_model_relation"] == "adapter"
    assert main(["export", "hf-org--base", "none", "--adapter"]) == 2
    assert "has no adapter" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_nothing_is_overwritten_unasked(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    assert main(["export", "sft", "out"]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["export", "sft", "out", "--force", "--no-verify"]) == 0
    assert main(["export", "sft", "out", "--force", "--no-verify"]) == 0
    assert (out / "mine.txt").read_text() == "mine"
    for foreign in (
        "model-00001-of-00002.safetensors", "pytorch_model.bin", "adapter_config.json", "chat_template.jinja",
        "megatron",
    ):  # fmt: skip
        (out / foreign).write_bytes(b"")
        assert main(["export", "sft", "out", "--force", "--no-verify"]) == 2
        assert f"holds files that would be read with these: {foreign}" in capsys.readouterr().err
        (out / foreign).unlink()
    (tmp_path / "file").write_text("")
    assert main(["export", "sft", "file"]) == 2
    assert main(["export", "sft", "new", "--push", "no-organisation"]) == 2
    assert main(["export", "sft", "new", "--public"]) == 2
    assert not (tmp_path / "new").exists()


def test_an_export_writes_nothing_into_the_store(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = store.root / "super3-sft-model/v1"
    (tmp_path / "link").symlink_to(store.root)
    for place in (model, model.with_name("v2"), store.root / "super3-new/v1", Path("link/other")):
        assert main(["export", "sft", str(place), "--force"]) == 2
        assert f"{place}: inside" in capsys.readouterr().err
    assert main(["artifacts", "verify", "super3-sft-model"]) == 0


def test_a_folder_that_is_there_or_is_linked_to_takes_an_export(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    kept = (tmp_path / "real").stat().st_ino  # it may be a disk of its own, which nothing can be renamed to
    assert main(["export", "sft", "link"]) == 0
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").stat().st_ino == kept
    assert "model.safetensors" in {path.name for path in (tmp_path / "real").iterdir()}
    assert not list(tmp_path.glob("**/.export.*"))


@pytest.mark.parametrize("there", [False, True])
def test_what_a_killed_export_left_is_removed_by_the_next_one(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    out = tmp_path / "out"
    if there:
        out.mkdir()
    words = ["export", "sft", "out"]
    killed = (
        "import os, signal, sys; from nemotron_app.main import main; from nemotron_serving.layouts import Layout\n"
        "Layout.finish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "main(sys.argv[1:])"
    )
    assert subprocess.run([sys.executable, "-c", killed, *words], check=False).returncode == -signal.SIGKILL
    (left,) = tmp_path.glob("**/.export.out.*")
    assert (left / "made" / "model.safetensors").is_file()
    with locked(left / "lock", wait=False):  # as long as a process owns it, it stays
        assert main([*words, "--no-verify"]) == 0 and left.is_dir()
    assert main([*words, "--no-verify", "--force"]) == 0
    assert not list(tmp_path.glob("**/.export.*"))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's /proc")
def test_a_folder_that_takes_no_files_is_one_message(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["export", "sft", "/proc/out"], ["verify", str(store.root), "--alone", "--page", "/proc/out"]):
        assert main(words) == 2
        assert "/proc/out: cannot be written: its folder takes no files" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("nowhere", "nowhere: not a folder"),
        ("file/below", "file: not a folder"),
        ("n" * 300, "File name too long\n  give a shorter name"),
    ],
)
def test_a_place_that_is_none_is_one_message(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str, said: str
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "nowhere").symlink_to("nothing")
    assert main(["export", "sft", place]) == 2
    assert said in capsys.readouterr().err


class Taking(BaseHTTPRequestHandler):
    """As much of the hub as a push asks for."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server: Any = self.server
        server.asked.append((self.path, self.headers.get("Authorization"), body))
        port = server.server_port
        if self.path == "/api/repos/create":
            self._tell({"url": f"http://127.0.0.1:{port}/org/name", "name": "org/name", "private": True})
        elif self.path.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            self._tell(
                {"files": [{"path": one["path"], "uploadMode": "regular", "shouldIgnore": False} for one in files]}
            )
        elif self.path.startswith("/api/models/org/name/commit/"):
            self._tell(
                {"commitUrl": f"http://127.0.0.1:{port}/org/name/commit/0123", "commitOid": "0123", "success": True}
            )
        else:
            self._tell({"valid": True})

    def do_GET(self) -> None:
        self._tell({"id": "org/name", "sha": "0123", "siblings": [], "tags": []})

    def _tell(self, value: Any) -> None:
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
    server.asked = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # lm-eval in this process is offline
    monkeypatch.setattr("huggingface_hub.hf_api.ENDPOINT", address, raising=False)
    monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", address)
    yield server
    server.shutdown()
    server.server_close()


def test_a_push_sends_the_folder_and_no_secret(
    store: Store, tmp_path: Path, hub: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "sft", "out", "--push", "org/name", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["pushed"].endswith("/org/name/commit/0123")
    created = next(json.loads(body) for path, _, body in hub.asked if path == "/api/repos/create")
    assert created.get("private") is True or created.get("visibility") == "private"
    commit = next(body for path, _, body in hub.asked if "/commit/" in path)
    sent = [json.loads(line) for line in commit.splitlines()]
    files = {one["value"]["path"]: base64.b64decode(one["value"]["content"]) for one in sent if one["key"] == "file"}
    assert files["README.md"] == (tmp_path / "out" / "README.md").read_bytes()
    assert sorted(files) == sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_file())
    assert all(key == f"Bearer {TOKEN}" for _, key, _ in hub.asked)
    assert TOKEN not in said.out + said.err + commit.decode()


def test_a_push_needs_a_token(
    store: Store, hub: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "/nowhere/token")
    assert main(["export", "sft", "out", "--push", "org/name"]) == 2
    assert "no token" in capsys.readouterr().err
    assert hub.asked == []
