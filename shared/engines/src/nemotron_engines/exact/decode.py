"""Sample answers token by token, with the log-probability that training will compute for each token."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from nemotron_engines.exact.layers import TILE, Routes, attention, attention_step, mlp, moe
from nemotron_engines.exact.mamba import MambaState, mamba_prefill, mamba_step
from nemotron_engines.exact.scoring import block_of, documents, log_probabilities, whole_tiles


@dataclass
class KeyValues:
    """Keys and values of one layer: (blocks, sequences, groups, block, d)."""

    keys: Tensor
    values: Tensor

    def of(self, rows: Tensor) -> "KeyValues":
        """Keys and values of some sequences."""
        return KeyValues(self.keys[:, rows], self.values[:, rows])

    def with_room(self, blocks: int) -> "KeyValues":
        """The same, grown to this many blocks."""
        missing = (0,) * 9 + (blocks - len(self.keys),)
        return KeyValues(pad(self.keys, missing), pad(self.values, missing))


@dataclass
class Answer:
    """One sampled completion; the end token is its last, unless it was cut."""

    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    routes: list[Tensor] = field(default_factory=list)  # (layers, k) of each token: the experts before it


Memory = MambaState | KeyValues | None
"""A layer's memory of the sequences; None if it has none."""


@torch.no_grad()
def prefill(model: PreTrainedModel, prompts: Sequence[Tensor], routes: Routes) -> tuple[Tensor, list[Memory]]:
    """Hidden states after each prompt (prompts, width), and each layer's memory."""
    body: Any = model.base_model
    block = block_of(model)
    ids, lengths = documents(prompts, block)
    every, last = torch.arange(len(prompts), device=ids.device), lengths[: len(prompts)] - 1
    routes.rows = every * ids.shape[1] + last
    x = body.embeddings(ids)
    states: list[Memory] = []
    for layer in body.layers:
        normal, memory = layer.norm(x), None
        match layer.block_type:
            case "linear_attention":
                new, memory = mamba_prefill(layer.mixer, normal, lengths, block)
            case "full_attention":
                new, *cache = attention(layer.mixer, normal, block)
                memory = KeyValues(*cache)
            case "moe":
                new = moe(layer.mixer, normal.flatten(0, 1), routes).view(x.shape)
            case _:
                new = mlp(layer.mixer, normal)
        x = x + new
        states.append(memory)
    return body.norm_f(whole_tiles(x[every, last])), states


@torch.no_grad()
def step(model: PreTrainedModel, ids: Tensor, at: Tensor, states: list[Memory], routes: Routes) -> Tensor:
    """Hidden states (sequences, width) after the next tokens ids (sequences) at positions `at`."""
    body: Any = model.base_model
    block = block_of(model)
    x = body.embeddings(ids)
    for layer, memory in zip(body.layers, states, strict=True):
        normal = layer.norm(x)
        match memory:
            case MambaState():
                new = mamba_step(layer.mixer, normal, at, memory, block)
            case KeyValues(keys, values):
                new = attention_step(layer.mixer, normal, at, keys, values)
            case None if layer.block_type == "moe":
                new = moe(layer.mixer, normal, routes)
            case None:
                new = mlp(layer.mixer, normal)
        x = x + new
    return body.norm_f(x)


@dataclass
class Batch:
    """Sequences being continued, in whole tiles of rows; some rows only pad the last tile."""

    sequence: Tensor  # (rows): which of the prompts it continues
    live: Tensor  # (rows) bool
    at: Tensor  # (rows): position of the next token
    hidden: Tensor  # (rows, width)
    experts: Tensor | None  # (rows, layers, k)
    states: list[Memory]

    @classmethod
    def begun(cls, model: PreTrainedModel, prompts: Sequence[Sequence[int]], most: int) -> "Batch":
        """Prefill, reading duplicate prompts only once."""
        distinct, device, routes = list(dict.fromkeys(map(tuple, prompts))), model.device, Routes()
        hidden, states = prefill(model, [torch.tensor(prompt, device=device) for prompt in distinct], routes)
        sequence = _filled(torch.arange(len(prompts), device=device))
        number = {prompt: k for k, prompt in enumerate(distinct)}
        first = torch.tensor([number[tuple(prompt)] for prompt in prompts], device=device)[sequence]
        at = torch.tensor([len(prompt) for prompt in prompts], device=device)[sequence]
        live = torch.arange(len(sequence), device=device) < len(prompts)
        blocks = -(-(int(at.max()) + most) // block_of(model))
        states = [s.with_room(blocks) if isinstance(s, KeyValues) else s for s in picked(states, first)]
        experts = routes.take()
        return cls(sequence, live, at, hidden[first], None if experts is None else experts[first], states)

    def go_on(self, model: PreTrainedModel, tokens: Tensor) -> None:
        """Feed the rows' next tokens; drops ended sequences if that saves a tile."""
        kept = _filled(self.live.nonzero().flatten())
        if len(kept) < len(self.live):
            count = int(self.live.sum())
            self.sequence, self.at, tokens = self.sequence[kept], self.at[kept], tokens[kept]
            self.states = picked(self.states, kept)
            self.live = torch.arange(len(kept), device=kept.device) < count
        routes = Routes()
        self.hidden = step(model, tokens, self.at, self.states, routes)
        self.experts = routes.take()
        self.at = self.at + 1


def picked(states: list[Memory], rows: Tensor) -> list[Memory]:
    """The memory of some sequences."""
    return [None if state is None else state.of(rows) for state in states]


@torch.no_grad()
def sample(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], draws: Tensor, ends: Sequence[int],
    temperature: float = 1.0, top_p: float = 1.0,
) -> list[Answer]:  # fmt: skip
    """One completion for each prompt, of at most as many tokens as there are draws.

    Args:
        draws: (prompts, most tokens) float64 in [0, 1): random numbers for sampling. A completion depends only on its
            own draws and prompt.
        ends: tokens that end a completion.
        temperature: 0 takes the most likely token; its log-probabilities are those of temperature 1.
    """
    most, stops = draws.shape[1], torch.tensor([*ends], device=model.device)
    answers, batch = [Answer() for _ in prompts], Batch.begun(model, prompts, most)
    for n in range(most):
        logps = log_probabilities(model, batch.hidden, temperature or 1.0)
        tokens = logps.argmax(-1) if temperature == 0 else drawn(logps, draws[batch.sequence, n], top_p)
        chosen = logps.gather(1, tokens[:, None])[:, 0].tolist()
        ids, owners = tokens.tolist(), batch.sequence.tolist()
        routes = None if batch.experts is None else batch.experts.unbind()
        for row in batch.live.nonzero().flatten().tolist():
            answer = answers[owners[row]]
            answer.ids.append(ids[row])
            answer.logps.append(chosen[row])
            if routes is not None:
                answer.routes.append(routes[row])
        batch.live &= ~torch.isin(tokens, stops)
        if n + 1 == most or not batch.live.any():
            break
        batch.go_on(model, tokens)
    return answers


@torch.no_grad()
def follow(model: PreTrainedModel, sequences: Sequence[Sequence[int]], splits: Sequence[int]) -> list[list[float]]:
    """Log-probabilities of given tokens, decoded one by one after the first `split` of each sequence."""
    most = max(len(ids) - split for ids, split in zip(sequences, splits, strict=True))
    batch = Batch.begun(model, [ids[:split] for ids, split in zip(sequences, splits, strict=True)], most)
    found: list[list[float]] = [[] for _ in sequences]
    for n in range(most):
        logps = log_probabilities(model, batch.hidden, 1.0)
        owners = batch.sequence.tolist()
        given = torch.tensor([sequences[k][min(splits[k] + n, len(sequences[k]) - 1)] for k in owners])
        chosen = logps.gather(1, given.to(logps.device)[:, None])[:, 0].tolist()
        for row in batch.live.nonzero().flatten().tolist():
            found[owners[row]].append(chosen[row])
        batch.live &= torch.tensor([splits[k] + n + 1 < len(sequences[k]) for k in owners], device=batch.live.device)
        if not batch.live.any():
            break
        batch.go_on(model, given.to(logps.device))
    return found


def _filled(rows: Tensor) -> Tensor:
    """Row numbers, padded to whole tiles by repeating the first."""
    return torch.cat([rows, rows[:1].expand(-len(rows) % TILE)]) if len(rows) else rows


def drawn(logps: Tensor, draws: Tensor, top_p: float) -> Tensor:
    """The token of each row (rows, vocabulary) at which the sum of probabilities passes its draw."""
    probabilities = logps.double().exp()
    if top_p < 1:
        falling, order = probabilities.sort(dim=-1, descending=True, stable=True)
        beyond = falling.cumsum(-1) - falling >= top_p  # the token that reaches top_p is kept
        probabilities = probabilities.scatter(-1, order, falling.masked_fill(beyond, 0))
    total = probabilities.cumsum(-1)
    found = torch.searchsorted(total, (draws * total[:, -1])[:, None], right=True)[:, 0]
    return found.clamp_max(logps.shape[1] - 1)
