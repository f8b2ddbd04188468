"""What a model answers and scores, in a batch and alone."""

from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_engines.modeling.build import load_tokenizer
from nemotron_prove.cards.measured import Measured
from nemotron_prove.cards.measures.tiny import logits_of, tiny_model, tokens

LENGTHS = (12, 5, 1)
MADE = 12


@torch.no_grad()
def generation(family: str, folder: Path) -> Measured:
    """Tokens of greedy answers that are others in a batch with padding on the left, or without a cache."""
    model: Any = tiny_model(family, folder)
    options = {"max_new_tokens": MADE, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    prompts = [tokens(1, length, seed=length) for length in LENGTHS]
    padded = torch.cat([torch.nn.functional.pad(one, (max(LENGTHS) - one.shape[1], 0)) for one in prompts])
    mask = (padded != 0).long()
    together = model.generate(padded, attention_mask=mask, **options)[:, max(LENGTHS) :]
    batch = cache = 0
    for row, prompt in enumerate(prompts):
        alone = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)[0, prompt.shape[1] :]
        ids = prompt
        for _ in range(MADE):
            ids = torch.cat([ids, logits_of(model, ids)[:, -1:].argmax(-1)], 1)
        batch += int((together[row] != alone).sum())
        cache += int((ids[0, prompt.shape[1] :] != alone).sum())
    return Measured({"other tokens in a batch": batch, "other tokens without a cache": cache}, 0)


def evaluation(family: str, folder: Path) -> Measured:
    """Log-probabilities of rows that are scored in a batch, against those computed from each row's logits."""
    model = tiny_model(family, folder)
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir()
    save_tokenizer(tokenizer)
    rows = [tokens(1, length, seed=length)[0].tolist() for length in (20, 9, 3)]
    queue = import_module("stages.eval.batching").ModelQueue(model, load_tokenizer(tokenizer), batch_size=len(rows))
    worst = 0.0
    for row, scores in zip(rows, queue._scored(rows), strict=True):
        wanted = logits_of(model, torch.tensor([row]))[0].double().log_softmax(-1)
        for place, token in enumerate(row[1:]):
            worst = max(worst, abs(scores[place].logprob - float(wanted[place, token])))
    return Measured({"largest difference of a log-probability": worst}, 1e-4)
