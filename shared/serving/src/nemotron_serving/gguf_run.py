"""llama.cpp itself, started with the Python of the environment `libllama`, where nothing of ours can be imported.

    python gguf_run.py read FILE.gguf ASKED.json FOUND.npz     what it makes of prompts and texts
    python gguf_run.py quantize FROM.gguf TO.gguf Q8_0         by its own tools
    python gguf_run.py serve --model FILE.gguf ...             the server of its Python bindings

ASKED and FOUND are those of `nemotron_serving.passport.runtimes`. A file that it cannot load ends with exit code 1, and
the last line of stderr says why. It computes as exactly as it can: the cache in float32, attention in its plain form.
"""

import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as llama  # ty: ignore[import-not-found]
import numpy as np

FLOAT32 = 0
PLAIN_ATTENTION = 0
THREADS = 2
PLAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0}
"""Of a request that says nothing, as OpenAI's API and `nemotron serve` have them."""
said: list[str] = []


@llama.llama_log_callback
def _keep(level: int, text: bytes, _: Any) -> None:
    if level >= 3 and (line := text.decode(errors="replace").strip()):  # 3: a warning
        said.append(line)


def read(file: str, asked: dict[str, Any], target: str) -> None:
    """Write logits (tokens, vocabulary), greedy tokens, bits of held-out rows, and the ids of texts."""
    settings = llama.llama_model_default_params()
    settings.use_extra_bufts = False  # weights rearranged for Intel's AMX crashed with Q8_0
    model = llama.llama_model_load_from_file(file.encode(), settings)
    if not model:
        sys.exit(said[0] if said else "cannot be loaded")
    vocabulary = llama.llama_model_get_vocab(model)
    runner = _Runner(model, llama.llama_vocab_n_tokens(vocabulary), asked)
    found: dict[str, Any] = {}
    for name, ids in asked["prompts"].items():
        found[f"logits {name}"] = runner.logits(ids, every=True)
        start, answer = ids[: max(1, len(ids) // 3)], []
        for _ in range(asked["greedy"]):
            start = [int(runner.logits(start, goes_on=bool(answer)).argmax())]
            answer += start
        found[f"greedy {name}"] = np.array(answer)
    bits = np.zeros((len(asked["held"]), 2))
    for number, (ids, learnt) in enumerate(asked["held"]):
        logits = runner.logits(ids, every=True).astype(np.float64)[:-1]
        logits -= logits.max(-1, keepdims=True)
        scores = logits[np.arange(len(ids) - 1), ids[1:]] - np.log(np.exp(logits).sum(-1))
        bits[number] = -scores[np.array(learnt[1:])].sum() / np.log(2), sum(learnt[1:])
    for number, text in enumerate(asked["texts"]):
        data = text.encode()
        room = (llama.llama_token * (len(data) + 8))()
        count = llama.llama_tokenize(vocabulary, data, len(data), room, len(room), False, True)
        found[f"text {number}"] = np.array(room[:count])
    if asked["speed"]:
        first = next(iter(asked["prompts"].values()))
        start = [int(runner.logits(first).argmax())]
        begun = time.process_time()
        for _ in range(asked["speed"]):
            start = [int(runner.logits(start, goes_on=True).argmax())]
        found["speed"] = asked["speed"] / (time.process_time() - begun)
    np.savez(target, held=bits, **found)


class _Runner:
    """One sequence at a time in one context, which is long enough for all of them."""

    def __init__(self, model: Any, size: int, asked: dict[str, Any]) -> None:
        longest = max(map(len, (*asked["prompts"].values(), *(ids for ids, _ in asked["held"]))))
        settings = llama.llama_context_default_params()
        settings.n_ctx = longest + asked["greedy"] + asked["speed"]
        settings.n_batch = settings.n_ubatch = longest
        settings.n_threads = 1 if asked["speed"] else THREADS
        settings.n_threads_batch = THREADS
        settings.type_k = settings.type_v = FLOAT32
        settings.flash_attn_type = PLAIN_ATTENTION
        self.context, self.size = llama.llama_init_from_model(model, settings), size
        if not self.context:
            sys.exit(said[-1] if said else "cannot be run")
        self.batch = llama.llama_batch_init(longest, 0, 1)
        self.at = 0

    def logits(self, ids: list[int], *, every: bool = False, goes_on: bool = False) -> np.ndarray:
        """Logits (tokens, vocabulary) of each token, or of the last one.

        Args:
            goes_on: with what was given before; otherwise a new sequence begins.
        """
        if not goes_on:
            llama.llama_memory_clear(llama.llama_get_memory(self.context), True)
            self.at = 0
        batch = self.batch
        batch.n_tokens = len(ids)
        for place, token in enumerate(ids):
            batch.token[place], batch.pos[place], batch.n_seq_id[place] = token, self.at + place, 1
            batch.seq_id[place][0] = 0
            batch.logits[place] = every or place == len(ids) - 1
        self.at += len(ids)
        if code := llama.llama_decode(self.context, batch):
            sys.exit(f"llama_decode ends with {code}: {said[-1] if said else ''}")
        places = range(len(ids)) if every else [len(ids) - 1]
        found = (llama.llama_get_logits_ith(self.context, place) for place in places)
        return np.stack([np.ctypeslib.as_array(one, shape=(self.size,)) for one in found])


def quantize(source: str, target: str, kind: str) -> None:
    """Write the file again in another type, as llama-quantize does."""
    settings = llama.llama_model_quantize_default_params()
    settings.ftype = getattr(llama, f"LLAMA_FTYPE_MOSTLY_{kind}")
    settings.nthread = THREADS
    if code := llama.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(settings)):
        sys.exit(f"llama_model_quantize ends with {code}: {said[-1] if said else ''}")


def serve(words: list[str]) -> None:
    """Start the server, with the samplers that clients expect; its own defaults differ."""
    from llama_cpp.server import types  # ty: ignore[import-not-found]

    for request in (types.CreateCompletionRequest, types.CreateChatCompletionRequest):
        for name, value in PLAIN.items():
            request.model_fields[name].default = value
        request.model_rebuild(force=True)
    from llama_cpp.server import __main__ as server  # ty: ignore[import-not-found]

    sys.argv = ["llama.cpp", *words]
    server.main()


if __name__ == "__main__":
    llama.llama_log_set(_keep, None)
    llama.llama_backend_init()
    if sys.argv[1] == "serve":
        serve(sys.argv[2:])
    elif sys.argv[1] == "read":
        read(sys.argv[2], json.loads(Path(sys.argv[3]).read_text()), sys.argv[4])
    else:
        quantize(*sys.argv[2:5])
