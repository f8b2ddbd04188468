"""Answers in the forms of OpenAI's interface: whole, in chunks, with log-probabilities."""

import secrets
import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from nemotron_serving.batch import TokenScore
from nemotron_serving.choice import Choice
from nemotron_serving.sampling import Token
from nemotron_serving.text import Piece


class Wire:
    """Writes the answers of one request."""

    def __init__(self, model: str, tokenizer: Any, *, chat: bool, logprobs: bool) -> None:
        self._tokenizer, self._chat, self._logprobs = tokenizer, chat, logprobs
        self._calls: dict[int, int] = {}
        self._about = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, choices: Sequence[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
        """A response."""
        kind = "chat.completion" if self._chat else "text_completion"
        return {**self._about, "object": kind, "choices": list(choices), "usage": usage}

    def chunk(self, choices: Sequence[dict[str, Any]], usage: dict[str, int] | None = None) -> dict[str, Any]:
        """A part of a streamed response."""
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {**self._about, "object": kind, "choices": list(choices)} | ({"usage": usage} if usage else {})

    def choice(self, choice: Choice) -> dict[str, Any]:
        """A whole answer."""
        made = {"index": choice.index, "finish_reason": choice.reason, "logprobs": None}
        if not self._chat:
            found = self.completion_logprobs(choice.tokens) if self._logprobs else None
            return made | {"text": choice.said("content"), "logprobs": found}
        message: dict[str, Any] = {"role": "assistant", "content": choice.said("content")}
        if thought := choice.said("reasoning"):
            message["reasoning_content"] = thought.rstrip("\n")
        if choice.calls:
            message["tool_calls"] = [self._call(choice, piece) for piece in choice.pieces if piece.call]
            message["content"] = message["content"].strip() or None
        found = {"content": [self._entry(token) for token in choice.tokens]} if self._logprobs else None
        return made | {"message": message, "logprobs": found}

    def first(self, choice: Choice) -> dict[str, Any]:
        """What a streamed chat answer begins with."""
        return self._delta(choice, {"role": "assistant", "content": ""})

    def deltas(self, choice: Choice, pieces: Sequence[Piece], token: Token | None) -> list[dict[str, Any]]:
        """What is new; the log-probability of a token goes with the first piece, or alone."""
        if not self._chat:
            text = "".join(piece.text for piece in pieces)
            found = self.completion_logprobs([token]) if token and self._logprobs else None
            made = {"index": choice.index, "text": text, "finish_reason": None, "logprobs": found}
            return [made] if text or found else []
        made = []
        for piece in pieces:
            if piece.call:
                call = self._call(choice, piece)
                made.append({"tool_calls": [{"index": self._calls[choice.index], **call}]})
            else:
                made.append({"reasoning_content" if piece.kind == "reasoning" else "content": piece.text})
        deltas = [self._delta(choice, delta) for delta in made or ([{}] if token and self._logprobs else [])]
        if token and self._logprobs:
            deltas[0]["logprobs"] = {"content": [self._entry(token)]}
        return deltas

    def last(self, choice: Choice) -> dict[str, Any]:
        """Why a streamed answer has ended."""
        if not self._chat:
            return {"index": choice.index, "text": "", "finish_reason": choice.reason, "logprobs": None}
        return self._delta(choice, {}) | {"finish_reason": choice.reason}

    def _delta(self, choice: Choice, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": choice.index, "delta": delta, "finish_reason": None, "logprobs": None}

    def _call(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        assert piece.call is not None
        self._calls[choice.index] = self._calls.get(choice.index, -1) + 1
        function = {"name": piece.call.name, "arguments": piece.call.arguments}
        return {"id": f"call_{secrets.token_hex(8)}", "type": "function", "function": function}

    def _text(self, token: int) -> str:
        return self._tokenizer.decode([token])

    def _entry(self, token: Token) -> dict[str, Any]:
        def one(number: int, logprob: float | None) -> dict[str, Any]:
            text = self._text(number)
            return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

        return {**one(token.id, token.logprob), "top_logprobs": [one(*other) for other in token.top]}

    def completion_logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """As /v1/completions gives them."""
        texts = [self._text(token.id) for token in tokens]
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{self._text(number): logprob for number, logprob in token.top} for token in tokens],
            "text_offset": list(accumulate(map(len, texts[:-1]), initial=0)) if texts else [],
        }

    def echoed(self, ids: Sequence[int], scores: Sequence[TokenScore], choice: Choice) -> dict[str, Any]:
        """The prompt before its continuation, each token of it with its log-probability; the first has none."""
        known = [Token(number, score.logprob, ((score.best_id, score.best_logprob),))
                 for number, score in zip(ids[1:], scores, strict=False)]  # fmt: skip
        found = self.completion_logprobs([Token(ids[0]), *known, *choice.tokens]) if self._logprobs else None
        if found:
            found["top_logprobs"][0] = None
        text = self._tokenizer.decode(list(ids)) + choice.said("content")
        return {"index": choice.index, "text": text, "finish_reason": choice.reason, "logprobs": found}


def usage(prompts: Sequence[Sequence[int]], choices: Sequence[Choice]) -> dict[str, int]:
    """How many tokens there were."""
    asked, made = sum(map(len, prompts)), sum(len(choice.tokens) for choice in choices)
    return {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made}
