"""Continuous batching: one thread owns the model, and new requests join at the next token.

    with Batch(model, eos={11}, size=16) as batch:
        answer = batch.generate([1, 5, 9], Sampling(max_tokens=24))
        for token in answer:                       # Token(id=..., logprob=None, top=())
            ...
        answer.reason                              # "stop" or "length"

A prompt is prefilled separately and its cache then added to the batch, so an answer does not depend on other requests,
except for rounding of sums in another order. In the cache, attention keys are padded on the left, so that the newest
token of each sequence is in the last column; the mask hides the padding. Mamba states have no length, and are only
stacked.
"""

import inspect
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from transformers.cache_utils import (
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)

from nemotron_engines.modeling.sizes import NOT_THE_FILE, first_line
from nemotron_serving.grammar import Constraint
from nemotron_shared.system.errors import UserError

COLDEST = 1e-6
"""Up to this temperature the likeliest token is taken: a lower one would be 0 in single precision."""


@dataclass(frozen=True)
class Sampling:
    """Sampling settings of a request.

    Attributes:
        temperature: 0 takes the likeliest token each time.
        top_p: sample from the likeliest tokens that together have this share of the probability.
        top_k: sample from this many of the likeliest tokens; 0 for no limit.
        min_p: sample from tokens with at least this share of the likeliest one's probability.
        repetition_penalty: divides the positive logits of tokens that have occurred, and multiplies the negative ones.
        seed: the same seed samples the same answer; None uses a random one.
        logprobs: number of likeliest tokens to return with each token; None returns no log-probabilities.
        ignore_eos: go on to `max_tokens`, through tokens that end an answer.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    logprobs: int | None = None
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    ignore_eos: bool = False


class Token(NamedTuple):
    """One token of an answer; log-probabilities are the model's own, before temperature and top_p."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def require_finite(logits: torch.Tensor) -> None:
    """Refuse invalid logits; -inf excludes a token.

    Raises:
        ValueError: NaN or infinity.
    """
    if not bool(torch.isfinite(logits.amax(-1)).all()):
        raise ValueError("its logits are not finite: its weights are damaged, or too large for their type")


class Chooser:
    """Choose the tokens of one request.

    Args:
        prompt: the ids before them.
        constraint: what they must be.
    """

    def __init__(self, sampling: Sampling, prompt: Sequence[int] = (), constraint: Constraint | None = None) -> None:
        self.sampling, self._constraint = sampling, constraint
        self._there = set(prompt)
        self._generator = torch.Generator()
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(sampling.seed)

    def choose(self, logits: torch.Tensor) -> Token:
        """Choose the next token.

        Args:
            logits: of the whole vocabulary, on any device.

        Raises:
            ValueError: NaN or infinity.
        """
        logits = logits.float().cpu()
        require_finite(logits)
        sampling = self.sampling
        weighed = self._penalized(logits)
        if self._constraint is not None:
            weighed = self._constraint.allowed(weighed)
        chosen = int(weighed.argmax()) if sampling.temperature <= COLDEST else self._drawn(weighed)
        if self._constraint is not None:
            self._constraint.take(chosen)
        self._there.add(chosen)
        if sampling.logprobs is None:
            return Token(chosen)
        known = torch.log_softmax(logits, dim=-1)
        best = known.topk(min(sampling.logprobs, len(known)))
        return Token(chosen, float(known[chosen]), tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True)))

    def _penalized(self, logits: torch.Tensor) -> torch.Tensor:
        penalty = self.sampling.repetition_penalty
        if penalty == 1:
            return logits
        there = torch.tensor([token for token in self._there if token < len(logits)], dtype=torch.long)
        found, weighed = logits[there], logits.clone()
        weighed[there] = torch.where(found > 0, found / penalty, found * penalty)
        return weighed

    def _drawn(self, logits: torch.Tensor) -> int:
        # subtract the maximum first: a tiny temperature must not produce infinities
        shares = torch.softmax((logits - logits.max()) / self.sampling.temperature, dim=-1)
        sampling = self.sampling
        if sampling.top_p == 1 and not sampling.top_k and not sampling.min_p:
            return int(torch.multinomial(shares, 1, generator=self._generator))
        sorted_shares, order = shares.sort(descending=True, stable=True)
        kept = sorted_shares.clone()
        if sampling.top_k:
            kept[sampling.top_k :] = 0
            kept /= kept.sum()  # top_p refers to the remaining tokens
        if sampling.top_p < 1:
            first = kept[0].clone()
            kept = kept.where(kept.cumsum(0) - kept < sampling.top_p, 0)
            kept[0] = first  # also if top_p is 0 in single precision
        kept[sorted_shares < sampling.min_p * sorted_shares[0]] = 0
        return int(order[torch.multinomial(kept, 1, generator=self._generator)])


JOINED = (DummyLayer, DynamicLayer, LinearAttentionLayer, LinearAttentionAndFullAttentionLayer)


def can_be_joined(cache: DynamicCache) -> bool:
    """Whether every layer is of a kind that `join` supports; sliding windows, for example, are not."""
    return all(type(layer) in JOINED for layer in cache.layers)


def join(first: DynamicCache, second: DynamicCache) -> DynamicCache:
    """Append the rows of `second` to `first`."""
    pairs: list[tuple[Any, Any]] = list(zip(first.layers, second.layers, strict=True))
    for one, other in pairs:
        for states in ("conv_states", "recurrent_states"):
            here, there = getattr(one, states, {}), getattr(other, states, {})
            for index in here:
                if here[index] is not None:
                    here[index] = torch.cat([here[index], there[index]])
        if getattr(one, "keys", None) is not None:
            one.keys = torch.cat(_as_wide(one.keys, other.keys))
            one.values = torch.cat(_as_wide(one.values, other.values))
    return first


def _as_wide(one: torch.Tensor, other: torch.Tensor) -> list[torch.Tensor]:
    """Pad both (rows, heads, width, channels) on the left to the same width."""
    width = max(one.shape[-2], other.shape[-2])
    return [F.pad(each, (0, 0, width - each.shape[-2], 0)) for each in (one, other)]


def keep(cache: DynamicCache, rows: list[int], width: int) -> None:
    """Keep only these rows, and the last `width` columns of the keys."""
    layers: list[Any] = cache.layers
    for layer in layers:
        for states in ("conv_states", "recurrent_states"):
            found: dict[int, Any] = getattr(layer, states, {})
            for index, state in found.items():
                if state is not None:
                    found[index] = state[rows]
        if getattr(layer, "keys", None) is not None:
            layer.keys = layer.keys[rows, :, layer.keys.shape[-2] - width :]
            layer.values = layer.values[rows, :, layer.values.shape[-2] - width :]


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
        self._cache: DynamicCache | None = None
        self._mask = torch.zeros(0, 0, dtype=torch.long)
        self._joins = True

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
        while self._waiting and len(self._running) < (self._size if self._joins else 1):
            answer = self._waiting.popleft()
            if answer.cancelled:
                answer.hear(End("cancelled"))
                continue
            try:
                ids = torch.tensor([answer.ids], device=self._model.device)
                cache = DynamicCache(config=self._model.config)
                out = self._model(input_ids=ids, **self._taken(cache), use_cache=True, logits_to_keep=1)
                token = self._told(answer, out.logits[0, -1])
            except Exception as error:  # fail only this request
                answer.hear(End("cancelled", self._told_of(error)))
                continue
            if token is not None:
                self._put_beside(answer, token, cache)

    def _taken(self, cache: Any) -> dict[str, Any]:
        """The cache by the name under which the model's class takes it: by another one it would be passed over."""
        return {"cache_params" if self._only_states else "past_key_values": cache}

    @property
    def _only_states(self) -> bool:
        """A model without attention, such as Mamba2, whose states need neither mask nor positions."""
        return "cache_params" in inspect.signature(type(self._model).forward).parameters

    def _put_beside(self, answer: Answer, token: int, cache: DynamicCache) -> None:
        if self._cache is None:
            self._joins = can_be_joined(cache)
            self._cache, self._mask = cache, torch.ones(1, len(answer.ids), dtype=torch.long)
        else:
            self._cache = join(self._cache, cache)
            width = max(self._mask.shape[1], len(answer.ids))
            mask = torch.zeros(len(self._mask) + 1, width, dtype=torch.long)
            mask[:-1, width - self._mask.shape[1] :] = self._mask
            mask[-1, width - len(answer.ids) :] = 1
            self._mask = mask
        self._running.append(answer)
        self._next.append(token)

    def _step(self) -> None:
        """Generate one token for every request in the batch."""
        self._mask = torch.cat([self._mask, torch.ones(len(self._mask), 1, dtype=torch.long)], 1)
        device, places = self._model.device, {}
        if not self._only_states:
            places["attention_mask"] = self._mask.to(device)
            places["position_ids"] = (self._mask.sum(1, keepdim=True) - 1).to(device)
        ids = torch.tensor(self._next, device=device)[:, None]
        out = self._model(input_ids=ids, **places, **self._taken(self._cache), use_cache=True)
        logits = out.logits[:, -1].float().cpu()
        going_on: list[tuple[int, int]] = []
        for row, answer in enumerate(self._running):
            try:
                token = self._told(answer, logits[row])
            except Exception as error:
                answer.hear(End("cancelled", self._told_of(error)))
                continue
            if token is not None:
                going_on.append((row, token))
        self._next = [token for _, token in going_on]
        if len(going_on) < len(self._running):
            self._leave_out([row for row, _ in going_on])

    def _leave_out(self, rows: list[int]) -> None:
        """Remove these rows from the batch."""
        if not rows:
            self._clear()
            return
        assert self._cache is not None
        self._running = [self._running[row] for row in rows]
        mask = self._mask[rows]
        width = int(mask.sum(1).max())
        self._mask = mask[:, mask.shape[1] - width :]
        keep(self._cache, rows, width)

    def _told_of(self, error: Exception) -> Exception:
        """Readable error: a config may ask for anything, and most problems only appear in the computation."""
        if isinstance(error, NOT_THE_FILE):
            return error
        remedy = "download or make the model again, or give another one"
        made = CannotAnswer(f"{self._name}: cannot answer: {type(error).__name__}: {first_line(error)}", remedy)
        made.__cause__ = error
        return made

    def _told(self, answer: Answer, logits: torch.Tensor) -> int | None:
        """Choose a token and emit it; returns None if the answer has ended."""
        if answer.cancelled:
            answer.hear(End("cancelled"))
            return None
        token = answer.chooser.choose(logits)
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
