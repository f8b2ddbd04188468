"""vLLM's own HTTP server, which somebody else started, as the generator.

    VLLM_SERVER_DEV_MODE=1 vllm serve ./model --host 0.0.0.0           on other GPUs, or another machine
    Elsewhere("http://gpu2:8000", folder, settings, 1800)              what `vllm_for` makes of engine.vllm.address

Weights go through a folder that both see: vLLM 0.32.0 takes them over HTTP by `reload_weights` with a path alone. Its
transfer by NCCL needs GPUs on both sides, that by IPC unpickles what it is sent, and neither is used. Before and after
each drawing the server names the weights that it has, so one that was started again, or that another training uses, is
noticed.
"""

import http.client
import json
import os
import shutil
import socket
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from safetensors.torch import save_file
from torch import Tensor

from nemotron_shared.system.errors import UserError
from stages.rl.engines.trl.vllm_needs import VERSIONS

AT_ONCE = 64
"""Requests that are open at a time; the server batches what has come."""
LOOK_SECONDS = 0.05
AGAIN = "start it again, and run the same command again, which continues from the last checkpoint"
START = "start the server with VLLM_SERVER_DEV_MODE=1"
ANOTHER = "set engine.generation=null and engine.vllm.address=null"
KEY = "VLLM_API_KEY"
"""Variable of the key that requests carry; the same in which vLLM's server looks for the one that it wants."""
CALLS = {
    "version": "GET /version", "info": "GET /server_info?config_format=json", "which": "GET /weight_info",
    "name": "POST /update_weight_version", "call": "POST /collective_rpc", "forget": "POST /reset_prefix_cache",
    "models": "GET /v1/models", "draw": "POST /v1/completions",
}  # fmt: skip
"""All calls that are used; those of vLLM's development mode are not promised. `test_rl_with_vllm.py` meets each of them
in vLLM 0.32.0."""
MOST_SAID = 200


class Elsewhere:
    """vLLM in a server that this program neither starts nor ends.

    Args:
        address: `http://HOST:PORT`.
        folder: for weights; the server must see it under the same path.
        settings: as those of `vllm_program.Sampler`, and `vocabulary`, how many tokens the model has embeddings for.
        patience: seconds that it may take for an answer.

    Raises:
        UserError: it is not there, is not a vLLM that can be used, or runs otherwise than the config says.
    """

    def __init__(self, address: str, folder: Path, settings: Mapping[str, Any], patience: float) -> None:
        self._address, self._folder, self._told, self._patience = address, folder, settings, patience
        self._taken, self._number, self.version = "", 0, "of an unknown version"
        self._open = set[http.client.HTTPConnection]()
        told = self._ask("version").get("version")
        if told is not None and not VERSIONS.contains(str(told).partition("+")[0], prereleases=True):
            raise UserError(f"{address}: vLLM {told} is not {VERSIONS}", "start a newer one")
        self.version = str(told or self.version)
        with self._understood():
            self._require_as_told(self._ask("info"))
            self._ask("which")  # a version that cannot say it is refused before the first step
            self._model = self._ask("models")["data"][0]["id"]
            self._require_vocabulary(settings["vocabulary"])

    @contextmanager
    def _understood(self) -> Generator[None]:
        """An answer of another form than this program knows, in a sentence."""
        try:
            yield
        except (KeyError, IndexError, TypeError, ValueError) as error:
            what = f"vLLM {self.version} does not answer as this program knows it ({type(error).__name__})"
            raise self._other(what) from error

    def _require_as_told(self, info: Mapping[str, Any]) -> None:
        """Check how the server was started."""
        described = info.get("vllm_config")
        model = described.get("model_config") if isinstance(described, dict) else None
        if not isinstance(model, dict):
            raise self._other(f"vLLM {self.version} does not tell its settings as this program knows them")
        told, remedy = self._told, "start it by vllm serve with"
        wanted = "raw_logprobs" if told["temperature"] == 1 else "processed_logprobs"
        dtype = str(model.get("dtype")).removeprefix("torch.")
        if dtype != told["dtype"]:
            raise self._other(f"it computes in {dtype}, not in {told['dtype']}", f"{remedy} --dtype {told['dtype']}")
        if model.get("logprobs_mode") != wanted:
            what = f"it tells {model.get('logprobs_mode')}, and at this temperature {wanted} are needed"
            raise self._other(what, f"{remedy} --logprobs-mode {wanted}")
        if (room := int(model.get("max_model_len") or 0)) < told["longest"]:
            what = f"it takes {room:,} tokens, and a prompt with its completion may have {told['longest']:,}"
            raise self._other(what, f"{remedy} --max-model-len {told['longest']}, or set grpo.max_new_tokens to fewer")

    def _require_vocabulary(self, tokens: int) -> None:
        """Check that the last of so many tokens is known, and no further one: other weights would end the server."""
        for last, is_known in ((tokens - 1, True), (tokens, False)):
            asked = {"model": self._model, "prompt": [last], "max_tokens": 1}
            status, text = self._answer("draw", asked)
            if status != http.client.BAD_REQUEST:
                self._require_done("draw", status, text)
            if (status == http.client.OK) != is_known:
                why = "" if status == http.client.OK else f": {said(text)}"
                raise self._other(f"its model has another vocabulary than the {tokens:,} tokens of this one{why}")

    def _other(self, what: str, remedy: str = "") -> UserError:
        return UserError(f"{self._address}: {what}", remedy or ANOTHER)

    def _ask(self, call: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What the server answers.

        Raises:
            UserError: it is not there, says nothing, has no such call, or refuses it.
        """
        status, text = self._answer(call, body)
        self._require_done(call, status, text)
        with self._understood():
            return json.loads(text) if text.startswith("{") else {}

    def _require_done(self, call: str, status: int, text: str) -> None:
        """Check that the server did what it was asked to."""
        path = CALLS[call].split()[1].partition("?")[0]
        if status == http.client.NOT_FOUND:
            raise self._other(f"it has no {path}", f"{START}, and a vLLM {VERSIONS}")
        if status == http.client.UNAUTHORIZED:
            what = f"it wants {'another key than that of' if os.environ.get(KEY) else 'the key that is in'} {KEY}"
            raise self._other(what, f"export {KEY} with the key that the server was started with")
        if status != http.client.OK:
            raise self._other(f"{path} failed: {said(text)}", AGAIN)

    def _answer(self, call: str, body: Mapping[str, Any] | None) -> tuple[int, str]:
        """Status and text of an answer."""
        method, path = CALLS[call].split()
        place = urlsplit(self._address)
        connection = http.client.HTTPConnection(place.hostname or "", place.port or 80, timeout=self._patience)
        self._open.add(connection)
        try:
            content = None if body is None else json.dumps(body).encode()
            connection.request(method, path, content, _headers())
            answer = connection.getresponse()
            return answer.status, answer.read().decode("utf-8", "replace")
        except TimeoutError as error:
            what = f"it has not answered {path} for {self._patience:g} s (engine.vllm.patience_seconds)"
            raise self._other(what, AGAIN) from error
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            raise self._other(f"no vLLM answers: {error or type(error).__name__}", AGAIN) from error
        finally:
            self._open.discard(connection)
            connection.close()

    def _hang_up(self) -> None:
        """End the requests that are open; vLLM then computes no further for them."""
        for one in [*self._open]:
            with suppress(OSError, AttributeError):  # it ends now, or is not connected yet
                one.sock.shutdown(socket.SHUT_RDWR)

    def take(self, weights: Mapping[str, Tensor]) -> None:
        """See `Calls`; the files of the weights before are removed."""
        self._number += 1
        place = self._folder / f"weights-{self._number}"
        place.mkdir()
        plain = {name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}
        save_file(plain, place / "model.safetensors", {"format": "pt"})
        path = str(place.absolute())
        status, text = self._answer("call", {"method": "reload_weights", "kwargs": {"weights_path": path}})
        if status == http.client.INTERNAL_SERVER_ERROR:
            what = f"it took no weights from {path}: {said(text)}"
            raise self._other(what, f"it must see that folder, and have a model of the same shape; {AGAIN}")
        self._require_done("call", status, text)
        if self._ask("forget", {}).get("success") is not True:
            raise self._other("it keeps what it had cached of older weights: others ask it, too", "give it to one run")
        self._taken = uuid4().hex
        self._ask("name", {"new_version": self._taken})
        shutil.rmtree(place)

    def take_adapter(self, folder: str, number: int) -> None:
        """Adapters are merged for it."""
        raise NotImplementedError

    def _require_taken(self) -> None:
        if self._ask("which").get("weight_version") != self._taken:
            what = "it has other weights than those that it was handed: it was started again, or another run uses it"
            raise self._other(what, "give it to one run, and run the same command again")

    def draw(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], most: int
    ) -> list[tuple[list[int], list[float]]]:
        """See `Calls`."""
        self._require_taken()
        pool = ThreadPoolExecutor(AT_ONCE)
        asked = [pool.submit(self._one, most, *one) for one in zip(prompts, seeds, strict=True)]
        try:
            found = [one.result() for one in asked]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            while not all(one.done() for one in asked):  # after an error or a signal
                self._hang_up()
                time.sleep(LOOK_SECONDS)
        self._require_taken()
        return found

    def _one(self, most: int, prompt: Sequence[int], seed: int) -> tuple[list[int], list[float]]:
        told = self._told
        asked = {
            "model": self._model, "prompt": [*prompt], "max_tokens": most, "seed": seed, "logprobs": 0,
            "temperature": told["temperature"], "top_p": told["top_p"], "top_k": 0, "min_p": 0.0,
            "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
            "stop_token_ids": told["ends"], "ignore_eos": True, "return_token_ids": True,
        }  # fmt: skip
        with self._understood():
            (made,) = self._ask("draw", asked)["choices"]
            ids = [int(one) for one in made["token_ids"]]
            logps = [float(one) for one, _ in zip(made["logprobs"]["token_logprobs"], ids, strict=True)]
        if len(ids) < most and not {*ids[-1:]} & {*told["ends"]}:
            what = f"it ended a completion after {len(ids):,} of {most:,} tokens ({made.get('finish_reason')})"
            raise self._other(what, "start it without a max_new_tokens of its own, and let nobody else pause it")
        return ids, logps

    def rest(self) -> None:
        """Its memory is its own."""


def _headers() -> dict[str, str]:
    """Of a request; with the key, if there is one."""
    key = os.environ.get(KEY)
    return {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key.strip()}"} if key else {})


def said(text: str) -> str:
    """What an answer that is an error says, in one line."""
    try:
        told = json.loads(text)
        told = told.get("error", told.get("detail", told)) if isinstance(told, dict) else told
        text = str(told.get("message", told)) if isinstance(told, dict) else str(told)
    except ValueError:
        pass
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else "without a word")[:MOST_SAID]
