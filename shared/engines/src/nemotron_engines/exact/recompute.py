"""Sample tokens, and recompute their log-probabilities in every way that training or another batch might."""

import random
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from nemotron_engines.exact.decode import Answer, follow, sample
from nemotron_engines.exact.scoring import code, places_of_mask, places_of_starts, score

LONGEST_PROMPT, LONGEST_ANSWER, LARGEST_BATCH, PACK = 120, 80, 96, 640
Found = tuple[list[float], list[float], int]
"""Sampled and recomputed log-probabilities, and the number of tokens with different experts."""


class Sampler:
    """Batches of random prompts, continued by the model; everything depends on the seed alone."""

    def __init__(self, model: PreTrainedModel, seed: int) -> None:
        self.model = model
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._random = random.Random(seed)

    def sample(self, most: int | None = None) -> "Batch":
        """One batch of random size; for the first one, transformers' `generate` is timed as well.

        Args:
            most: token limit of the batch.
        """
        pick, words = self._random, self.model.config.vocab_size
        count = pick.randint(1, LARGEST_BATCH)
        lengths = [pick.randint(1, LONGEST_PROMPT) for _ in range(count)]
        prompts = [[pick.randrange(words) for _ in range(length)] for length in lengths]
        prompts += prompts[: pick.randint(0, count)]  # groups share a prompt
        generator = torch.Generator().manual_seed(pick.randrange(1 << 62))
        longest = pick.randint(2, LONGEST_ANSWER)
        if most is not None:  # a model that never stops fills every answer
            longest = min(longest, most)
            prompts = prompts[: most // longest]
        draws = torch.rand(len(prompts), longest, generator=generator, dtype=torch.float64)
        with self.timed("decoding"):
            answers = sample(self.model, prompts, draws, self._ends())
        if len(self.seconds) == 1:
            self._compare_time(prompts, draws.shape[1])
        return Batch(self.model, prompts, draws, self._ends(), answers, pick)

    def _compare_time(self, prompts: list[list[int]], most: int) -> None:
        """Time both on the same prompts, with no answer ending early."""
        ids = pad_sequence([torch.tensor(prompt) for prompt in prompts], batch_first=True, padding_side="left")
        mask = pad_sequence([torch.ones(len(p), dtype=torch.int64) for p in prompts], True, padding_side="left")
        options: dict[str, Any] = {"max_new_tokens": most, "min_new_tokens": most, "do_sample": True, "top_k": 0}
        draws = torch.rand(len(prompts), most, dtype=torch.float64)
        for _ in range(2):
            with self.timed("decoding, compared"):
                sample(self.model, prompts, draws, [])
            with self.timed("transformers' generate"), torch.no_grad():
                model: Any = self.model
                model.generate(ids, attention_mask=mask, pad_token_id=0, **options)

    @contextmanager
    def timed(self, what: str) -> Generator[None]:
        """Add the block's CPU seconds."""
        start = time.process_time()
        yield
        self.seconds[what] += time.process_time() - start

    def _ends(self) -> list[int]:
        found = self.model.config.eos_token_id
        return [] if found is None else [found] if isinstance(found, int) else [*found]


@dataclass
class Batch:
    """Prompts and their completions."""

    model: PreTrainedModel
    prompts: list[list[int]]
    draws: Tensor
    ends: list[int]
    answers: list[Answer]
    pick: random.Random

    def ways(self) -> Iterator[tuple[str, Found]]:
        """Each way of computing, with its result."""
        every = [*range(len(self.answers))]
        some = self.pick.sample(every, -(-len(every) // 8))
        yield "trained: the whole batch, padded on the left", self._padded(every, "left")
        yield "trained: micro batches, padded on the right", self._in_parts(every, 7, "right")
        yield "trained: each alone", self._in_parts(some, 1, "left")
        yield "trained: packed rows", self._packed(every)
        yield "decoded: after a different prefill", self._split(every)
        yield "decoded: in a different batch", self._sampled(some)
        yield "transformers: the whole batch, padded on the left", self._theirs(every)

    def _whole(self, k: int) -> list[int]:
        return [*self.prompts[k], *self.answers[k].ids]

    def _sampled_logps(self, rows: list[int]) -> list[float]:
        return [logp for k in rows for logp in self.answers[k].logps]

    def _flips(self, rows: list[int], experts: Tensor | None) -> int:
        """Number of tokens in these answers with different experts; `experts` has one code per token."""
        if experts is None:
            return 0
        sampled = torch.cat([code(torch.stack(self.answers[k].routes)) for k in rows])
        return int((sampled != experts).sum())

    def _padded(self, rows: list[int], side: str) -> Found:
        ids, mask, wanted = self._tensors(rows, side)
        with torch.no_grad():
            found = score(self.model, ids, places_of_mask(mask), wanted, 1.0)
        experts = None if found.experts is None else found.experts[wanted]
        return self._sampled_logps(rows), found.logps[wanted].tolist(), self._flips(rows, experts)

    def _in_parts(self, rows: list[int], largest: int, side: str) -> Found:
        order = self.pick.sample(rows, len(rows))
        parts = []
        while order:
            size = self.pick.randint(1, largest)
            parts.append(self._padded(order[:size], side))
            order = order[size:]
        sampled, again = ([logp for part in parts for logp in part[n]] for n in (0, 1))
        return sampled, again, sum(part[2] for part in parts)

    def _packed(self, rows: list[int]) -> Found:
        order, sampled, again, flips = self.pick.sample(rows, len(rows)), [], [], 0
        while order:
            pack = [order.pop()]
            while order and sum(len(self._whole(k)) for k in [*pack, order[-1]]) <= PACK:
                pack.append(order.pop())
            starts, ids, wanted = [], [], []
            for k in pack:
                starts.append(len(ids))
                ids += self._whole(k)
                wanted += [False] * len(self.prompts[k]) + [True] * len(self.answers[k].ids)
            chosen = torch.tensor([wanted])
            with torch.no_grad():
                found = score(self.model, torch.tensor([ids]), places_of_starts([starts], len(ids)), chosen, 1.0)
            sampled += self._sampled_logps(pack)
            again += found.logps[chosen].tolist()
            flips += self._flips(pack, None if found.experts is None else found.experts[chosen])
        return sampled, again, flips

    def _split(self, rows: list[int]) -> Found:
        """Decode the answers token by token after a prefill that ends somewhere inside them."""
        extra = [self.pick.randrange(len(self.answers[k].ids)) for k in rows]
        found = follow(
            self.model, [self._whole(k) for k in rows],
            [len(self.prompts[k]) + more for k, more in zip(rows, extra, strict=True)],
        )  # fmt: skip
        sampled = [logp for k, more in zip(rows, extra, strict=True) for logp in self.answers[k].logps[more:]]
        return sampled, [logp for logps in found for logp in logps], 0

    def _sampled(self, rows: list[int]) -> Found:
        """Sample again in a smaller batch; the same draws must give the same answers."""
        again = sample(self.model, [self.prompts[k] for k in rows], self.draws[rows], self.ends)
        same = [answer.ids == self.answers[k].ids for k, answer in zip(rows, again, strict=True)]
        kept = [k for k, is_same in zip(rows, same, strict=True) if is_same]
        logps = [logp for answer, is_same in zip(again, same, strict=True) if is_same for logp in answer.logps]
        return self._sampled_logps(kept), logps, len(rows) - len(kept)

    def _theirs(self, rows: list[int]) -> Found:
        """transformers' own pass over the same tokens."""
        ids, mask, wanted = self._tensors(rows, "left")
        model: Any = self.model
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1].float()
        logps = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
        return self._sampled_logps(rows), logps[wanted[:, 1:]].tolist(), 0

    def _tensors(self, rows: list[int], side: str) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, mask and answer positions of some rows, all (rows, length)."""
        ids = [torch.tensor(self._whole(k)) for k in rows]
        mask = [torch.ones(len(row), dtype=torch.int64) for row in ids]
        wanted = [torch.arange(len(row)) >= len(self.prompts[k]) for k, row in zip(rows, ids, strict=True)]
        return tuple(pad_sequence(part, True, padding_side=side) for part in (ids, mask, wanted))  # ty: ignore
