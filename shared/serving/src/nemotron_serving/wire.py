"""Answers in OpenAI's formats: whole, in chunks, and with log-probabilities."""

import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Any

from nemotron_data.chat.answers import Piece
from nemotron_data.tokenizers.words import Places, TokenNames, by_name
from nemotron_serving.batch import TokenScore
from nemotron_serving.model import Choice
from nemotron_serving.sampling import Token


class Wire:
    """Write the answers of one request."""

    def __init__(self, model: str, tokenizer: Any, *, chat: bool, logprobs: bool) -> None:
        self._tokenizer, self._chat, self._logprobs = tokenizer, chat, logprobs
        self._names = TokenNames(tokenizer)
        self._places: dict[int, Places] = {}
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
            found = self.completion_logprobs(self._told(choice)) if self._logprobs else None
            return made | {"text": choice.said("content"), "logprobs": found}
        message: dict[str, Any] = {"role": "assistant", "content": choice.said("content")}
        if thought := choice.said("reasoning"):
            message["reasoning_content"] = thought.rstrip("\n")
        if choice.calls:
            message["tool_calls"] = [self._call(choice, piece) for piece in choice.pieces if piece.call]
            message["content"] = message["content"].strip() or None
        found = {"content": entries_of(self._names, self._told(choice))} if self._logprobs else None
        return made | {"message": message, "logprobs": found}

    def first(self, choice: Choice) -> dict[str, Any]:
        """First chunk of a streamed chat answer."""
        return self._delta(choice, {"role": "assistant", "content": ""})

    def deltas(self, choice: Choice, pieces: Sequence[Piece], token: Token | None) -> list[dict[str, Any]]:
        """Chunks for new pieces; the log-probability of a token goes with the first piece, or alone."""
        if not self._chat:
            text = "".join(piece.text for piece in pieces)
            places = self._places.setdefault(choice.index, Places(self._tokenizer))
            found = self.completion_logprobs([token], places) if token and self._logprobs else None
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
            deltas[0]["logprobs"] = {"content": entries_of(self._names, [token])}
        return deltas

    def last(self, choice: Choice) -> dict[str, Any]:
        """Last chunk of a streamed answer, with the finish reason."""
        if not self._chat:
            return {"index": choice.index, "text": "", "finish_reason": choice.reason, "logprobs": None}
        return self._delta(choice, {}) | {"finish_reason": choice.reason}

    def _delta(self, choice: Choice, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": choice.index, "delta": delta, "finish_reason": None, "logprobs": None}

    def _call(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        assert piece.call is not None
        self._calls[choice.index] = self._calls.get(choice.index, -1) + 1
        return piece.call.as_message(f"call_{secrets.token_hex(8)}")

    def _told(self, choice: Choice) -> list[Token]:
        """Tokens of an answer, without those that begin after a stop string cut it off."""
        if not choice.text.stopped:
            return choice.tokens
        places = Places(self._tokenizer)
        return [token for token in choice.tokens if places.of(token.id) < choice.text.length]

    def completion_logprobs(self, tokens: Sequence[Token], places: Places | None = None) -> dict[str, Any]:
        """Log-probabilities in the format of /v1/completions.

        Args:
            places: position after the tokens before these.
        """
        places = places or Places(self._tokenizer)
        return {
            "tokens": [self._names.of(token.id) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [by_name(self._names, token.top) for token in tokens],
            "text_offset": [places.of(token.id) for token in tokens],
        }

    def echoed(self, ids: Sequence[int], scores: Sequence[TokenScore], choice: Choice) -> dict[str, Any]:
        """The prompt followed by its continuation, with log-probabilities for all tokens but the prompt's first."""
        known = [Token(number, score.logprob, ((score.best_id, score.best_logprob),))
                 for number, score in zip(ids[1:], scores, strict=False)]  # fmt: skip
        found = None
        if self._logprobs:
            # the text has the prompt's special tokens, but not the answer's
            places = Places(self._tokenizer, prompt=ids)
            found = self.completion_logprobs([Token(ids[0]), *known, *self._told(choice)], places)
            found["top_logprobs"][0] = None
        text = self._tokenizer.decode(list(ids)) + choice.said("content")
        return {"index": choice.index, "text": text, "finish_reason": choice.reason, "logprobs": found}


def entries_of(names: TokenNames, tokens: Iterable[Token]) -> list[dict[str, Any]]:
    """Tokens with their log-probabilities, as in chats and files of answers; their concatenated bytes are the text."""

    def one(number: int, logprob: float | None) -> dict[str, Any]:
        return {"token": names.of(number), "logprob": logprob, "bytes": list(names.bytes_of(number))}

    return [{**one(token.id, token.logprob), "top_logprobs": [one(*other) for other in token.top]} for token in tokens]


def tokens_in(choices: Sequence[Choice]) -> int:
    """Number of tokens in whole answers; like OpenAI's and vLLM's, with the token that ends an answer."""
    return sum(len(choice.tokens) + choice.ended for choice in choices)


def usage(prompts: Sequence[Sequence[int]], made: int) -> dict[str, int]:
    """Token counts of a response; `made` is the number of tokens in its answers."""
    asked = sum(map(len, prompts))
    return {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made}
