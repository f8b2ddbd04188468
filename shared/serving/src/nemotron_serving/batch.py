"""Continuous batching: one thread owns the model, and new requests join at the next token.

    with Batch(model, eos={11}, size=16) as batch:
        answer = batch.generate([1, 5, 9], Sampling(max_tokens=24))
        for token in answer:                       # Token(id=..., logprob=None, top=())
            ...
        answer.reason                              # "stop" or "length"

Waiting prompts of one length are prefilled together, equal ones once, and their memory is then added to the batch. A
row's result does not depend on the other rows, except for rounding of sums in another order, so neither does an answer.
How a token is computed is in `nemotron_engines.decoding`, how it is chosen in `nemotron_serving.sampling`.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor

from nemotron_engines.decoding.direct import sequences_of
from nemotron_engines.decoding.general import joins, prefill
from nemotron_engines.modeling.sizes import NOT_THE_FILE, first_line
from nemotron_serving.grammar import Constraint
from nemotron_serving.sampling import Chooser, Sampling, Token, choose, require_finite
from nemotron_shared.system.errors import UserError

TOGETHER = 2048
"""Tokens of prompts that are prefilled in one pass."""

Reason = Literal["stop", "length", "cancelled"]


class Full(Exception):
    """The queue is full."""


class CannotAnswer(UserError):
    """The model fails on this request; others may still work."""


class TokenScore(NamedTuple):
    """Log-probability (nats) of a token given its predecessors, and of the likeliest token at its position."""

    logprob: float
    best_id: int
    best_logprob: float


class End(NamedTuple):
    """Final event of a request; `error` if it failed."""

    reason: Reason
    error: Exception | None = None


class Answer:
    """An answer in progress: iterate over its tokens, or pass `hear` to `generate` for a callback with each."""

    def __init__(
        self, ids: list[int], sampling: Sampling, hear: Callable[[Token | End], None] | None,
        constraint: Constraint | None = None,
    ) -> None:  # fmt: skip
        self.ids, self.chooser = ids, Chooser(sampling, ids, constraint)
        self.cancelled = False
        self.made = 0
        self.reason: Reason = "cancelled"
        self._heard: queue.SimpleQueue[Token | End] = queue.SimpleQueue()
        self.hear = hear or self._heard.put

    def cancel(self) -> None:
        """End at the next token."""
        self.cancelled = True

    def __iter__(self) -> Iterator[Token]:
        while isinstance(heard := self._heard.get(), Token):
            yield heard
        if heard.error:
            raise heard.error
        self.reason = heard.reason


class Batch:
    """The model's thread. Answers `size` requests at once; others wait."""

    def __init__(
        self, model: Any, eos: set[int], size: int, most_waiting: int | None = None, name: str = "the model"
    ) -> None:
        self._name = name
        self._model, self._eos, self._size, self._most_waiting = model, eos, size, most_waiting
        self._waiting: deque[Answer] = deque()
        self._scores: deque[tuple[list[int], Future[list[TokenScore]]]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._sequences = sequences_of(model)
        self._most = size if joins(model) else 1
        self._clear()
        self.tokens_made = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End after the current token; pending requests are cancelled."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    @property
    def load(self) -> tuple[int, int]:
        """Number of requests in progress, and number of waiting ones."""
        return len(self._running), len(self._waiting) + len(self._scores)

    @property
    def ends(self) -> set[int]:
        """Ids that end an answer."""
        return self._eos

    def generate(
        self, ids: list[int], sampling: Sampling, hear: Callable[[Token | End], None] | None = None,
        constraint: Constraint | None = None,
    ) -> Answer:  # fmt: skip
        """Continue `ids`.

        Args:
            hear: called in the model's thread with each token and with the end.
            constraint: what the answer must be; of this answer alone.

        Raises:
            Full: the queue is full.
        """
        answer = Answer(ids, sampling, hear, constraint)
        self._add(self._waiting, answer)
        return answer

    def score(self, ids: list[int]) -> "Future[list[TokenScore]]":
        """Scores of ids[1:], followed by the likeliest token after all of them: as many as there are ids.

        Raises:
            Full: the queue is full.
        """
        future: Future[list[TokenScore]] = Future()
        self._add(self._scores, (ids, future))
        return future

    def _add(self, line: deque[Any], what: Any) -> None:
        with self._changed:
            if self._closed:
                raise RuntimeError("the model was unloaded")
            if self._most_waiting is not None and self.load[1] >= self._most_waiting:
                raise Full(f"{self._most_waiting} requests are already waiting")
            line.append(what)
            self._changed.notify()

    def _clear(self) -> None:
        self._running: list[Answer] = []
        self._next: list[int] = []
        self._sequences.clear()

    @torch.inference_mode()
    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._scores or self._running or self._closed)
                if self._closed:
                    break
            try:
                self._score_some()
                self._admit()
                if self._running:
                    self._step()
            except Exception as error:  # any error is passed to these requests; the next ones may succeed
                for answer in self._running:
                    answer.hear(End("cancelled", self._told_of(error)))
                self._clear()
        for answer in (*self._running, *self._waiting):
            answer.hear(End("cancelled"))
        for _, future in self._scores:
            future.cancel()

    def _admit(self) -> None:
        """Prefill waiting requests while there is room, and add them to the batch."""
        while self._waiting and len(self._running) < self._most:
            group = self._group()
            try:
                found = [(group, *prefill(self._model, [answer.ids for answer in group]))] if group else []
            except Exception as error:
                if len(group) == 1:
                    group[0].hear(End("cancelled", self._told_of(error)))
                    continue
                # of one of them: the others may succeed
                found = [one for answer in group for one in self._prefilled_alone(answer)]
            for number, (answers, logits, memory) in enumerate(found, 1):
                try:
                    self._begin(answers, logits, memory)
                except Exception as error:  # all that run are told; so are those that would have begun now
                    for answer in (one for group, *_ in found[number:] for one in group):
                        answer.hear(End("cancelled", self._told_of(error)))
                    raise

    def _group(self) -> list[Answer]:
        """The next waiting requests with prompts of one length, while there is room."""
        group: list[Answer] = []
        while self._waiting and len(self._running) + len(group) < self._most:
            length = len(self._waiting[0].ids)
            if group and (length != len(group[0].ids) or length * (len(group) + 1) > TOGETHER):
                break
            answer = self._waiting.popleft()
            if answer.cancelled:
                answer.hear(End("cancelled"))
            else:
                group.append(answer)
        return group

    def _prefilled_alone(self, answer: Answer) -> Iterator[tuple[list[Answer], Tensor, Any]]:
        try:
            yield [answer], *prefill(self._model, [answer.ids])
        except Exception as error:  # fail only this request
            answer.hear(End("cancelled", self._told_of(error)))

    def _begin(self, answers: list[Answer], logits: Tensor, memory: Any) -> None:
        """Add prefilled requests to the batch, and tell their first tokens."""
        before = len(self._running)
        self._running += answers  # first, so that they are told if there is no memory for them
        self._sequences.add((memory, len(answers[0].ids)))
        tokens = self._tell(answers, logits)
        self._next += [token or 0 for token in tokens]
        self._leave_out([row for row, token in enumerate(tokens, before) if token is None])

    def _step(self) -> None:
        """Generate one token for every request in the batch."""
        tokens = self._tell(self._running, self._sequences.step(torch.tensor(self._next)))
        self._next = [token or 0 for token in tokens]
        self._leave_out([row for row, token in enumerate(tokens) if token is None])

    def _leave_out(self, ended: list[int]) -> None:
        """Remove these rows from the batch."""
        if not ended:
            return
        rows = [row for row in range(len(self._running)) if row not in ended]
        if not rows:
            self._clear()
            return
        self._running = [self._running[row] for row in rows]
        self._next = [self._next[row] for row in rows]
        self._sequences.keep(rows)

    def _told_of(self, error: Exception) -> Exception:
        """Readable error: a config may ask for anything, and most problems only appear in the computation."""
        if isinstance(error, NOT_THE_FILE):
            return error
        remedy = "download or make the model again, or give another one"
        made = CannotAnswer(f"{self._name}: cannot answer: {type(error).__name__}: {first_line(error)}", remedy)
        made.__cause__ = error
        return made

    def _tell(self, answers: Sequence[Answer], logits: Tensor) -> list[int | None]:
        """Choose the next token of each answer and emit it; None for the answers that have ended."""
        chosen = choose([answer.chooser for answer in answers], logits)
        following: list[int | None] = []
        for answer, token in zip(answers, chosen, strict=True):
            try:
                following.append(self._told(answer, token))
            except Exception as error:  # of this request alone
                answer.hear(End("cancelled", self._told_of(error)))
                following.append(None)
        return following

    def _told(self, answer: Answer, token: Token | Exception) -> int | None:
        if answer.cancelled:
            answer.hear(End("cancelled"))
            return None
        if isinstance(token, Exception):
            raise token
        if token.id in self._eos and not answer.chooser.sampling.ignore_eos:
            answer.hear(End("stop"))
            return None
        answer.made += 1
        self.tokens_made += 1
        answer.hear(token)
        if answer.made >= answer.chooser.sampling.max_tokens:
            answer.hear(End("length"))
            return None
        return token.id

    def _score_some(self) -> None:
        """Score waiting texts together, padded on the right, where a causal model does not see the padding."""
        with self._changed:
            taken = [self._scores.popleft() for _ in range(min(len(self._scores), self._size))]
        if not taken:
            return
        try:
            width = max(len(ids) for ids, _ in taken)
            filled = [ids + [0] * (width - len(ids)) for ids, _ in taken]
            logits = self._model(input_ids=torch.tensor(filled, device=self._model.device), use_cache=False).logits
            for row, (ids, future) in enumerate(taken):
                require_finite(logits[row, : len(ids)])
                future.set_result(_token_scores(logits[row, : len(ids)], ids))
        except Exception as error:
            for _, future in taken:
                if not future.done():
                    future.set_exception(self._told_of(error))


def _token_scores(logits: torch.Tensor, ids: list[int]) -> list[TokenScore]:
    """`logits` has the shape (len(ids), vocabulary); the last row predicts the token after `ids`."""
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    best, best_ids = logprobs.max(dim=-1)
    following = torch.tensor([*ids[1:], int(best_ids[-1])], device=logits.device)
    own = logprobs.gather(1, following[:, None])[:, 0]
    return [TokenScore(*scores) for scores in zip(own.tolist(), best_ids.tolist(), best.tolist(), strict=True)]
