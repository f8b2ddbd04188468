"""OpenAI's formats: requests with their types, and answers whole, in chunks and with log-probabilities.

Fields of requests that would have no effect are refused.
"""

import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from nemotron_data.chat.answers import Piece
from nemotron_data.tokenizers.words import Places, TokenNames, by_name
from nemotron_serving.batch import Token, TokenScore
from nemotron_serving.model import Choice

MOST_CHOICES = 16
MOST_PROMPTS = 256
MOST_STOPS = 16
MOST_TOP = 20
SET_BY_SERVER = {
    *("self", "messages", "tools", "add_generation_prompt"),
    *("bos_token", "eos_token", "pad_token", "unk_token"),
    *("raise_exception", "strftime_now", "range", "dict", "lipsum", "cycler", "joiner", "namespace"),
}
NOT_FOR_TEMPLATES = {
    *("conversation", "documents", "chat_template", "continue_final_message", "tokenize", "padding", "truncation"),
    *("max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"),
    *("load_audio_from_video", "processor_kwargs", "sanitize_control_tokens"),
}
"""Further arguments of transformers' `apply_chat_template`: not template variables, and not implemented here."""

Text = Annotated[str, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=0)]
Length = Annotated[int, Field(strict=True, ge=1)]
Number = Annotated[float, Field(strict=True)]
Share = Annotated[float, Field(strict=True, gt=0, le=1)]
Flag = Annotated[bool, Field(strict=True)]


class StreamOptions(BaseModel):
    """Options for the end of a stream."""

    model_config = ConfigDict(extra="forbid")
    include_usage: Flag = False
    include_obfuscation: Flag = False


class Asked(BaseModel):
    """Fields of both kinds of completions."""

    model_config = ConfigDict(extra="forbid")

    model: Text | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(strict=True, ge=0, le=2)] | None = 1.0
    top_p: Share | None = 1.0
    n: Annotated[int, Field(strict=True, ge=1, le=MOST_CHOICES)] | None = 1
    seed: Annotated[int, Field(strict=True, ge=-(2**63), lt=2**63)] | None = None
    stop: Text | Annotated[list[Text], Field(max_length=MOST_STOPS)] | None = None
    stream: Flag | None = False
    stream_options: StreamOptions | None = None
    # no effect on an answer
    user: Text | None = None
    metadata: dict[str, Any] | None = None
    store: Flag | None = None
    service_tier: Text | None = None
    prompt_cache_key: Text | None = None
    safety_identifier: Text | None = None
    # accepted only with values that have no effect
    presence_penalty: Number | None = 0
    frequency_penalty: Number | None = 0
    logit_bias: dict[str, Any] | None = None

    @field_validator("presence_penalty", "frequency_penalty", "logit_bias")
    @classmethod
    def asks_for_nothing(cls, value: Any) -> Any:
        """Refuse penalties and the like, which are not implemented."""
        if value:
            raise ValueError("is not supported here: leave it out")
        return value

    @field_validator("stop")
    @classmethod
    def stops_somewhere(cls, value: str | list[str] | None) -> str | list[str] | None:
        """An empty text would stop every answer before it begins, which is never intended."""
        if value == "" or (isinstance(value, list) and "" in value):
            raise ValueError("is empty: give a text, or leave it out")
        return value

    @property
    def stops(self) -> list[str]:
        """The stop strings as a list."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class Completion(Asked):
    """POST /v1/completions."""

    prompt: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=MOST_PROMPTS)]
        | Annotated[list[Count], Field(min_length=1)]
        | Annotated[list[list[Count]], Field(min_length=1, max_length=MOST_PROMPTS)]
    )
    echo: Flag | None = False
    logprobs: Annotated[int, Field(strict=True, ge=0, le=MOST_TOP)] | None = None
    best_of: Literal[1] | None = None
    suffix: None = None

    @model_validator(mode="after")
    def streams_one(self) -> "Completion":
        """Refuse combinations that cannot be streamed."""
        if self.stream and self.echo:
            raise ValueError("echo is not streamed: leave out stream or echo")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """One entry for each prompt."""
        several = isinstance(self.prompt, list) and not isinstance(self.prompt[0], int)
        prompts: Any = self.prompt if several else [self.prompt]
        return prompts


class Function(BaseModel):
    """Definition of a tool."""

    model_config = ConfigDict(extra="allow")
    name: Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    """A function that the model may call."""

    model_config = ConfigDict(extra="allow")
    type: Literal["function"]
    function: Function


class ChatCompletion(Asked):
    """POST /v1/chat/completions."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_tokens: Length | None = None
    max_completion_tokens: Length | None = None
    logprobs: Flag | None = False
    top_logprobs: Annotated[int, Field(strict=True, ge=0, le=MOST_TOP)] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    parallel_tool_calls: Literal[True] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Literal["none"] | None = None
    response_format: dict[str, Any] | None = None

    @field_validator("response_format")
    @classmethod
    def is_text(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        """Refuse JSON modes: nothing here constrains a model to a schema."""
        if value and value.get("type") != "text":
            raise ValueError("only {'type': 'text'} is supported here")
        return value

    @field_validator("chat_template_kwargs")
    @classmethod
    def only_options(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        """Allow only numbers, texts and booleans, and nothing that the server sets itself.

        As in vLLM, `tools: null` hides the request's tools from the template, for a model that knows them by heart.
        """
        for name, option in (value or {}).items():
            if name == "tools" and option is None:
                continue
            if name in SET_BY_SERVER or name in NOT_FOR_TEMPLATES or isinstance(option, dict | list):
                raise ValueError(f"{name}: not an option of a template")
        return value

    @model_validator(mode="after")
    def tells_what_it_is_asked(self) -> "ChatCompletion":
        """Refuse `top_logprobs` without `logprobs`."""
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: set it to true, or leave top_logprobs out")
        return self

    @property
    def limit(self) -> int | None:
        """Maximum tokens; the newer field has precedence."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


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


def usage(prompts: Sequence[Sequence[int]], choices: Sequence[Choice]) -> dict[str, int]:
    """Token counts."""
    asked, made = sum(map(len, prompts)), sum(len(choice.tokens) for choice in choices)
    return {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made}
