"""vLLM's own HTTP server as the generator: what it is asked, and each thing that can be wrong with it, in a sentence.

vLLM's own is in the lane `vllm_cpu`; here a stand-in answers as vLLM 0.32.0 did.
"""

import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support import last_values_win

from nemotron_shared.system.errors import UserError
from stages.rl import train
from stages.rl.engines.trl import vllm_http
from stages.rl.engines.trl.vllm_http import Elsewhere

main = last_values_win(train.main)
TOKENS = 512
SETTINGS: dict[str, Any] = {
    "dtype": "float32", "longest": 32, "temperature": 1.0, "top_p": 1.0, "ends": [5], "vocabulary": TOKENS,
}  # fmt: skip


class Answers(BaseHTTPRequestHandler):
    """Answers as the server's `behaviour` says, and otherwise like vLLM 0.32.0."""

    server: Any

    def do_GET(self) -> None:
        told, path = self.server.told, self.path.partition("?")[0]
        if path.startswith("/v1") and not self.has_key():
            return
        found: dict[str, Any] = {
            "/version": {"version": told.get("version", "0.32.0")},
            "/server_info": {"vllm_config": {"model_config": {
                "dtype": told.get("dtype", "torch.float32"), "max_model_len": told.get("room", 64),
                "logprobs_mode": told.get("logprobs", "raw_logprobs"),
            }}},
            "/v1/models": told.get("models", {"data": [{"id": "theirs"}]}),
            "/weight_info": {"weight_version": self.server.named},
        }  # fmt: skip
        self.answer(*((404, {}) if path in told.get("lacks", ()) else (200, found[path])))

    def has_key(self) -> bool:
        """Guards the paths that vLLM guards."""
        if (key := self.server.told.get("key")) in (None, self.headers["Authorization"]):
            return True
        assert key
        self.answer(401, {"error": "Unauthorized"})
        return False

    def do_POST(self) -> None:
        asked, server = json.loads(self.rfile.read(int(self.headers["Content-Length"]))), self.server
        if self.path in server.told.get("lacks", ()):
            self.answer(404, {})
        elif self.path == "/collective_rpc":
            assert asked["method"] == "reload_weights"
            if why := server.told.get("refuses"):
                self.answer(500, {"error": {"message": f"{why}\nand more"}})
                return
            (file,) = Path(asked["kwargs"]["weights_path"]).glob("*.safetensors")
            server.weights = load_file(file)
            self.answer(200, {"results": [None]})
        elif self.path == "/reset_prefix_cache":
            self.answer(200, {"success": server.told.get("forgets", True)})
        elif self.path == "/update_weight_version":
            server.named = asked["new_version"]
            self.answer(200, {"success": True})
        else:
            self.complete(asked)

    def complete(self, asked: dict[str, Any]) -> None:
        assert self.path == "/v1/completions" and asked["model"] == "theirs"
        if not self.has_key():
            return
        if status := self.server.told.get("status"):
            self.answer(status, {"error": {"message": "EngineCore has ended"}})
            return
        if max(asked["prompt"]) >= self.server.told.get("tokens", TOKENS):
            self.answer(400, {"error": {"message": f"Token id {max(asked['prompt'])} is out of vocabulary"}})
            return
        if "seed" in asked:
            self.server.drawn += 1
            time.sleep(self.server.told.get("sleeps", 0))
            if asked["seed"] == self.server.told.get("waits"):
                self.server.waited = self.server.released.wait(30)
            if self.server.drawn == self.server.told.get("started_again"):
                self.server.named = "default"
        total = float(sum(one.sum() for one in self.server.weights.values()))
        ids = [*asked["prompt"], asked.get("seed", 0), *self.server.told.get("ends", [5])]
        logprobs = {"token_logprobs": [total] * len(ids)}
        made = {"token_ids": ids, "logprobs": logprobs, "finish_reason": "length"}
        self.answer(200, {"choices": [made if self.server.tells else {}]})

    def answer(self, status: int, told: dict[str, Any]) -> None:
        content = json.dumps(told)[: self.server.told.get("characters")].encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *values: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Any]:
    """A stand-in for vLLM's server, with `told`, how it behaves."""
    one: Any = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    one.told, one.named, one.weights, one.drawn, one.tells = {}, "default", {}, 0, True
    one.released, one.waited = Event(), None
    one.handle_error = lambda *_: None  # who asked has hung up
    Thread(target=one.serve_forever, daemon=True).start()
    yield one
    one.shutdown()
    one.server_close()


def reached(server: Any, folder: Path, patience: float = 60, **other: Any) -> Elsewhere:
    return Elsewhere(f"http://127.0.0.1:{server.server_port}", folder, SETTINGS | other, patience)


def test_weights_go_through_a_folder_and_each_prompt_has_its_seed(server: Any, tmp_path: Path) -> None:
    vllm = reached(server, tmp_path)
    shared = torch.tensor([[1.0, 2.5]])
    vllm.take({"a": shared, "tied": shared, "b": torch.tensor([0.25]).bfloat16()})
    assert server.weights["b"].dtype == torch.bfloat16 and server.weights.keys() == {"a", "tied", "b"}
    assert vllm.draw([[7, 8], [9]], [11, 12], 4) == [([7, 8, 11, 5], [7.25] * 4), ([9, 12, 5], [7.25] * 3)]
    vllm.take({"a": torch.tensor([2.0])})
    assert vllm.draw([[7]], [1 << 61], 4) == [([7, 1 << 61, 5], [2.0] * 3)]
    server.told = {"ends": []}
    assert vllm.draw([[7]], [1], 2) == [([7, 1], [2.0] * 2)], "as long as they may be"
    assert not [*tmp_path.iterdir()], "nothing is left"


WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"version": "0.30.1"}, {}, r"vLLM 0.30.1 is not >=0.31\n  start a newer one"),
    ({"lacks": ["/server_info"]}, {}, r"it has no /server_info\n  start the server with VLLM_SERVER_DEV_MODE=1"),
    ({"lacks": ["/weight_info"]}, {}, r"it has no /weight_info\n  start the server with VLLM_SERVER_DEV_MODE=1, and a"),
    (
        {"dtype": "torch.bfloat16"},
        {},
        r"computes in bfloat16, not in float32\n  start it by vllm serve with --dtype float32",
    ),
    (
        {"room": 16},
        {},
        r"takes 16 tokens, and a prompt with its completion may have 32\n  start it by vllm serve with --max-model",
    ),
    (
        {},
        {"temperature": 0.5},
        r"tells raw_logprobs, .*\n  start it by vllm serve with --logprobs-mode processed_logprobs",
    ),
    ({"tokens": 400}, {}, r"another vocabulary than the 512 tokens of this one: Token id 511 is out of vocabulary"),
    ({"tokens": 600}, {}, r"another vocabulary than the 512 tokens of this one\n"),
    (
        {"refuses": "Repo id must be a name"},
        {},
        r"it took no weights from /.*/weights-1: Repo id must be a name\n  it must see that folder, .*; start it again",
    ),
    ({"lacks": ["/collective_rpc"]}, {}, r"it has no /collective_rpc\n  start the server with VLLM_SERVER_DEV_MODE=1"),
    ({"status": 500}, {}, r"/v1/completions failed: EngineCore has ended\n  start it again"),
    ({"key": "Bearer theirs"}, {}, r"it wants the key that is in VLLM_API_KEY\n  export VLLM_API_KEY"),
    ({"ends": []}, {}, r"it ended a completion after 2 of 4 tokens .length.\n  start it without a max_new_tokens"),
    ({"characters": 9}, {}, "vLLM of an unknown version does not answer as this program knows it .JSONDecodeError"),
    ({"room": "much"}, {}, "vLLM 0.32.0 does not answer as this program knows it .ValueError"),
    ({"models": {"data": []}}, {}, "vLLM 0.32.0 does not answer as this program knows it .IndexError"),
    ({"forgets": False}, {}, "keeps what it had cached of older weights: others ask it, too"),
    ({"started_again": 2}, {}, "has other weights than those that it was handed: it was started again, or another run"),
]


@pytest.mark.parametrize(("behaviour", "other", "message"), WRONG)
def test_what_is_wrong_with_it_is_one_sentence(
    server: Any, tmp_path: Path, behaviour: dict[str, Any], other: dict[str, Any], message: str
) -> None:
    server.told = behaviour

    def asked() -> None:
        vllm = reached(server, tmp_path, **other)
        vllm.take({"a": torch.ones(2)})
        vllm.draw([[7], [8]], [1, 2], 4)

    with pytest.raises(UserError, match=rf"^http://127.0.0.1:\d+: .*{message}"):
        asked()


def test_the_key_of_the_environment_is_sent_and_not_told(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.told = {"key": "Bearer sesame-of-this-server"}
    monkeypatch.setenv(vllm_http.KEY, "sesame-of-another")
    with pytest.raises(UserError, match=r"it wants another key than that of VLLM_API_KEY\n") as refused:
        reached(server, tmp_path)
    assert "sesame" not in str(refused.value)
    monkeypatch.setenv(vllm_http.KEY, "sesame-of-this-server\n")
    vllm = reached(server, tmp_path)
    vllm.take({"a": torch.ones(2)})
    assert vllm.draw([[7]], [1], 4) == [([7, 1, 5], [2.0] * 3)]


def test_an_error_does_not_wait_for_the_other_completions(server: Any, tmp_path: Path) -> None:
    """Nor does a signal, which leaves by the same way."""
    server.told = {"ends": [], "waits": 2}
    vllm = reached(server, tmp_path)
    vllm.take({"a": torch.ones(2)})
    with pytest.raises(UserError, match="ended a completion after 2 of 4 tokens"):
        vllm.draw([[7], [8], [9]], [1, 2, 3], 4)
    assert server.waited is None
    server.released.set()
    server.told = {}
    assert vllm.draw([[7]], [1], 4) == [([7, 1, 5], [2.0] * 3)], "the server goes on"


def test_a_server_that_is_asked_by_another_run_before_a_step_is_noticed(server: Any, tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    one, other = reached(server, tmp_path / "one"), reached(server, tmp_path / "other")
    one.take({"a": torch.ones(2)})
    other.take({"a": torch.zeros(2)})
    with pytest.raises(UserError, match="another run uses it"):
        one.draw([[7]], [1], 4)


def test_a_dead_and_a_hung_server_and_one_that_answers_otherwise_are_told(server: Any, tmp_path: Path) -> None:
    vllm = reached(server, tmp_path, patience=1)
    vllm.take({"a": torch.ones(2)})
    server.tells = False
    with pytest.raises(UserError, match=r"vLLM 0.32.0 does not answer as this program knows it .KeyError"):
        vllm.draw([[7]], [1], 4)
    server.told = {"sleeps": 3}
    with pytest.raises(UserError, match=r"has not answered /v1/completions for 1 s .engine.vllm.patience_seconds"):
        vllm.draw([[7]], [1], 4)
    server.shutdown()
    server.server_close()
    with pytest.raises(UserError, match=r"no vLLM answers: .*Connection refused\n  start it again, and run the same"):
        vllm.draw([[7]], [1], 4)


def test_what_an_error_says_is_short() -> None:
    assert vllm_http.said('{"detail": "Not Found"}') == "Not Found"
    assert vllm_http.said("") == "without a word" and len(vllm_http.said("x" * 999)) == vllm_http.MOST_SAID


def test_a_dry_run_looks_for_it_and_says_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], server: Any
) -> None:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    words = [
        "-c", "tiny", "run.missing_data=prepare", "run.missing_model=random", "engine.generation=vllm_server",
        "++model.overrides.head_dim=64", "++model.overrides.hybrid_override_pattern=M-M*-",
        "++model.overrides.intermediate_size=96", "grpo.max_staleness=1", "grpo.truncated_importance_sampling_ratio=2",
        "--dry-run",
    ]  # fmt: skip
    address = f"http://127.0.0.1:{server.server_port}"
    assert main([*words, f"engine.vllm.address={address}"]) == 0
    assert f"sampling: vLLM in the server at {address}, in float32" in capsys.readouterr().out
    server.shutdown()
    server.server_close()
    assert main([*words, f"engine.vllm.address={address}"]) == 1
    assert f"engine.vllm.address: no server at {address}: Connection refused" in capsys.readouterr().out
    assert main([*words, f"engine.vllm.address=http://{'a' * 64}:80"]) == 1
    assert "engine.vllm.address: no server at http://aaa" in capsys.readouterr().out
    for wrong in ("gpu2:8000", "http://gpu2:99999", "http://gpu2:0", "http://gpü2:8000", "http://gpu2:8000/v1"):
        assert main([*words, f"engine.vllm.address={wrong}"]) != 0
        assert f"not of the form http://HOST:PORT: {wrong}" in "".join(capsys.readouterr())
    assert main([*words, "engine.vllm.address=http://me:sesame@gpu2:8000"]) != 0
    said = "".join(capsys.readouterr())
    assert "not of the form http://HOST:PORT" in said and "sesame" not in said
