"""Ask one model from many threads: requests that wait together become one batch.

with ModelQueue(model, tokenizer, batch_size=16) as queue:
    queue.generate([1, 5, 9], max_tokens=24, stop=["<|im_end|>"])   # "<think>13 9</think>4"
    queue.score([1, 5, 9])                                          # [TokenScore(...), ...]
"""

import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from nemotron_data.tokenizers.words import special_ids
from nemotron_engines.modeling.generation import ends_of
from stages.eval.harness_tasks import Answer


class TokenScore(NamedTuple):
    """Log-probability (nats) of a token that follows its predecessors, and of the likeliest one there."""

    logprob: float
    best_id: int
    best_logprob: float


@dataclass(frozen=True)
class _Request:
    """What is asked; only equal `manner`s share a batch."""

    ids: list[int]
    manner: tuple[Any, ...]
    answer: "Future[Any]" = field(default_factory=Future)


class ModelQueue:
    """One thread that owns the model. Answers are greedy and do not depend on who else is asking."""

    def __init__(self, model: Any, tokenizer: Any, batch_size: int) -> None:
        self.tokenizer = tokenizer
        self._model, self._batch_size = model, batch_size
        self._ends, self._special = ends_of(model, tokenizer), special_ids(tokenizer)
        self._waiting: deque[_Request] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)

    def __enter__(self) -> "ModelQueue":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End after the token or the score at hand; requests that still wait are cancelled."""
        with self._changed:
            self._closed = True
            for request in self._waiting:
                request.answer.cancel()
            self._changed.notify()
        self._thread.join()

    def generate(self, ids: list[int], max_tokens: int, stop: list[str]) -> Answer:
        """The greedy continuation up to `max_tokens`, cut before the first stop string, without special tokens."""
        return self._ask(_Request(ids, ("generate", max_tokens, tuple(stop))))

    def score(self, ids: list[int]) -> list[TokenScore]:
        """Scores of ids[1:], and last the likeliest token after them all: as many as there are ids."""
        return self._ask(_Request(ids, ("score",)))

    def _ask(self, request: _Request) -> Any:
        with self._changed:
            if self._closed:
                raise RuntimeError("the model is no longer there")
            self._waiting.append(request)
            self._changed.notify()
        return request.answer.result()

    def _work(self) -> None:
        while batch := self._next_batch():
            try:
                kind, *options = batch[0].manner
                rows = [request.ids for request in batch]
                answers = self._generated(rows, *options) if kind == "generate" else self._scored(rows)
                for request, answer in zip(batch, answers, strict=True):
                    request.answer.set_result(answer)
            except Exception as error:  # of whatever kind: it belongs to those who asked
                for request in batch:
                    if not request.answer.done():
                        request.answer.set_exception(error)

    def _next_batch(self) -> list[_Request]:
        """Requests of one manner, first come first served; none when the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return []
            manner = self._waiting[0].manner
            batch = [request for request in self._waiting if request.manner == manner][: self._batch_size]
            taken = {id(request) for request in batch}
            self._waiting = deque(request for request in self._waiting if id(request) not in taken)
            return batch

    @torch.inference_mode()
    def _scored(self, rows: list[list[int]]) -> list[list[TokenScore]]:
        """Rows are filled up on the right, where a causal model does not see it."""
        width = max(map(len, rows))
        filled = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=self._model.device)
        logits = self._model(input_ids=filled, use_cache=False).logits
        return [_token_scores(logits[number, : len(row)], row) for number, row in enumerate(rows)]

    @torch.inference_mode()
    def _generated(self, rows: list[list[int]], max_tokens: int, stop: tuple[str, ...]) -> list[Answer]:
        """Rows are filled up on the left, behind an attention mask."""
        width = max(map(len, rows))
        pad = next((id for id in (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id) if id is not None), 0)
        ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows], device=self._model.device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=self._model.device)
        made = self._model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=sorted(self._ends) or None,
            pad_token_id=pad,
            stopping_criteria=StoppingCriteriaList([_AllStopped(self.tokenizer, stop, width), self._all_closed]),
        )
        return [self._answer(row[width:].tolist(), max_tokens, stop) for row in made]

    def _all_closed(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """A StoppingCriteria: every row is done once the queue is closed, since nobody waits for the answers."""
        return torch.full((len(input_ids),), self._closed, device=input_ids.device)

    def _answer(self, ids: list[int], most: int, stop: tuple[str, ...]) -> Answer:
        ends = self._ends | (set(self.tokenizer.convert_tokens_to_ids(list(stop))) & self._special)
        ids = ids[: next((place for place, token in enumerate(ids) if token in ends), len(ids))]
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        said = text[: min((text.find(end) for end in stop if end in text), default=len(text))]
        return Answer.of(said, cut=len(ids) == most and said == text)


class _AllStopped(StoppingCriteria):
    """A row is done when its continuation holds a stop string."""

    def __init__(self, tokenizer: Any, stop: tuple[str, ...], prompt_width: int) -> None:
        self._tokenizer, self._stop, self._start = tokenizer, stop, prompt_width

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """One truth value per row."""
        texts = self._tokenizer.batch_decode(input_ids[:, self._start :], skip_special_tokens=False)
        done = [any(end in text for end in self._stop) for text in texts]
        return torch.tensor(done, device=input_ids.device)


def _token_scores(logits: torch.Tensor, ids: list[int]) -> list[TokenScore]:
    """`logits` has the shape (len(ids), vocabulary); the last row is about the token after `ids`."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    best, best_ids = logprobs.max(dim=-1)
    following = torch.tensor([*ids[1:], int(best_ids[-1])], device=logits.device)
    own = logprobs.gather(1, following[:, None])[:, 0]
    return [TokenScore(*scores) for scores in zip(own.tolist(), best_ids.tolist(), best.tolist(), strict=True)]
