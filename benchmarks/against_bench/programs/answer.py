"""Answer prompts of random tokens, as a line of standard input asks, and print the ids and the CPU seconds.

python answer.py ours|transformers
{"model": "FOLDER", "rows": 8, "prompt": 64, "new": 256, "sampled": false, "cache": "static", "seed": 1}
"""

import json
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

MOST_ROWS = 32


def work(program: str) -> int:
    """Answer the lines of standard input."""
    import torch
    from transformers.utils import logging

    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model_of = cache(ours if program == "ours" else theirs)
    for line in sys.stdin:
        asked = json.loads(line)
        answer = model_of(asked["model"])
        random = torch.Generator().manual_seed(asked["seed"])
        prompts = torch.randint(3, 64, (asked["rows"], asked["prompt"]), generator=random)
        torch.manual_seed(asked["seed"])
        began = time.process_time()
        ids = answer(prompts, asked)
        print(json.dumps({"ids": ids, "seconds": time.process_time() - began}), flush=True)
    return 0


Answer = Callable[[Any, dict[str, Any]], list[list[int]]]


def ours(folder: str) -> Answer:
    """Requests to the batch that `chat`, `generate` and `serve` ask."""
    from nemotron_engines.modeling.build import ONLY_MADE, load_model
    from nemotron_serving.batch import Batch
    from nemotron_serving.sampling import Sampling

    batch = Batch(load_model(Path(folder), ONLY_MADE).eval(), set(), MOST_ROWS).__enter__()

    def answer(prompts: Any, asked: dict[str, Any]) -> list[list[int]]:
        sampling = [Sampling(asked["new"], float(asked["sampled"]), seed=row) for row in range(asked["rows"])]
        begun = [batch.generate(*both) for both in zip(prompts.tolist(), sampling, strict=True)]
        return [[token.id for token in one] for one in begun]

    return answer


def theirs(folder: str) -> Answer:
    """transformers alone."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
    model.generation_config.eos_token_id = None  # every answer has the same length
    plain = model.forward

    def answer(prompts: Any, asked: dict[str, Any]) -> list[list[int]]:
        drawn = {"do_sample": True, "top_k": 0} if asked["sampled"] else {"do_sample": False}
        cache = {} if asked["cache"] == "dynamic" else {"cache_implementation": "static"}
        if asked["cache"] == "compiled":
            torch.compiler.reset()
            model.forward = torch.compile(plain, dynamic=False)
        with torch.inference_mode():
            made = model.generate(
                prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=asked["new"], pad_token_id=0,
                **drawn, **cache,
            )  # fmt: skip
        model.forward = plain
        return made[:, asked["prompt"] :].tolist()

    return answer


if __name__ == "__main__":
    sys.exit(work(*sys.argv[1:]))
