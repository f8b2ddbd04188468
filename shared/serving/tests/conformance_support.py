"""What the tests of runtimes share: what a passport says of one, and whether its server answers as the model does."""

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

import torch

from nemotron_engines.modeling.build import ONLY_MADE, load_model, load_tokenizer


def through(told: dict[str, Any], runtime: str) -> tuple[float, int]:
    """KL and equal greedy tokens of a runtime on the random prompt, from a passport."""
    said = dict(told["parts"][2]["facts"])[f"{runtime}, random tokens"]
    found = re.fullmatch(r"KL (\S+) \(.*\), likeliest token the same in .*, (\d+) of 16 greedy tokens", said)
    assert found, said
    return float(found[1]), int(found[2])


FORM = {
    "type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"], "additionalProperties": False,
}  # fmt: skip
"""A schema with one answer, which a model with random weights says only if it must."""


def answers_as_the_model_does(model: Path, options: list[str], says: str = "", *, fills_forms: bool = False) -> None:
    """Serve a folder, and compare the likeliest tokens of a text and of a chat with the model's own.

    Args:
        says: what the server must write.
        fills_forms: whether it keeps to a schema, too.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "nemotron_app.main", "serve", f"./{model.name}", "--home", "home"]
    command += ["--port", str(port), "--api-key-env", "KEY", "--name", "mine", *options]
    key, log = "a-key-that-is-long-enough", model.parent / "server.log"
    with log.open("wb") as written:
        process = subprocess.Popen(
            command, env=os.environ | {"KEY": key}, cwd=model.parent, stdout=written, stderr=written,
            start_new_session=True,
        )  # fmt: skip
    try:
        loaded: Any = load_model(model, ONLY_MADE)
        tokenizer = load_tokenizer(model)
        asked = {"model": "mine", "max_tokens": 8, "temperature": 0}
        messages = [{"role": "user", "content": "What is 3+5?"}]
        templated = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        for place, body, text in (
            ("completions", {"prompt": "What is 3+5?"}, "What is 3+5?"),
            ("chat/completions", {"messages": messages}, templated),
        ):
            answer = _ask(f"http://127.0.0.1:{port}/v1/{place}", asked | body, key, process)
            given = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
            start = given.shape[1]
            with torch.no_grad():
                for _ in range(8):
                    given = torch.cat([given, loaded(given, use_cache=False).logits[:, -1:].argmax(-1)], 1)
            assert answer["usage"]["prompt_tokens"] == start
            made = answer["choices"][0]
            # what has no end of a thought is one to vLLM
            said = made["text"] if "text" in made else made["message"].get("reasoning") or made["message"]["content"]
            wanted = tokenizer.decode(given[0, start:], skip_special_tokens=True)
            # llama.cpp's server leaves out what is no whole character
            assert said.replace("\ufffd", "") == wanted.replace("\ufffd", "")
        if fills_forms:  # after the thought, which is ended by the prompt here
            form = {"type": "json_schema", "json_schema": {"name": "home", "schema": FORM}}
            body = {"messages": messages, "chat_template_kwargs": {"enable_thinking": False}, "response_format": form}
            answer = _ask(
                f"http://127.0.0.1:{port}/v1/chat/completions", asked | body | {"max_tokens": 64}, key, process
            )
            assert json.loads(answer["choices"][0]["message"]["content"]) == {"city": "Oslo"}
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        assert says in log.read_text(errors="replace")
    finally:
        print(log.read_text(errors="replace"))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def _ask(url: str, body: dict[str, Any], key: str, process: "subprocess.Popen[bytes]") -> dict[str, Any]:
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
