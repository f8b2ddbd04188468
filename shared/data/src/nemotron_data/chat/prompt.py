"""Convert conversations to prompt token ids, shared by chat, generate, serve, RL and evaluation.

    prompter = Prompter(tokenizer)
    prompter.chat([{"role": "user", "content": "2+2?"}], tools).ids

Fine-tuning uses the same steps (`plain_message`, `guarded`, the template, the same cuts) before it looks for the
answers. If a user writes `<|im_end|>`, it is encoded as ten ordinary characters; only the template itself ends a turn.

Requests to the Responses API become the same messages:

    {"instructions": "Be brief.", "input": [{"role": "user", "content": "Weather in Oslo?"},
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{\\"city\\": \\"Oslo\\"}"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"}], "tools": [{"type": "function", ...}]}
->  a system, a user, an assistant and a tool message, and the tool
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from nemotron_data.chat.confined import open_template
from nemotron_data.chat.guards import Rendered, guarded, holds_control, without_guard
from nemotron_data.chat.rows import (
    Message,
    ids_of_calls,
    plain_message,
    problem_of,
    problem_of_result,
    to_json,
    tools_of,
    turns_of,
)
from nemotron_data.chat.shown import Hidden
from nemotron_data.chat.template import default_template
from nemotron_data.chat.thought import CLOSE, OPEN, opens_thought, switch_of
from nemotron_data.encoders.masks import ControlTokens, in_pieces, mask_by_offsets
from nemotron_data.tokenizers.embedded import no_embedding
from nemotron_data.tokenizers.folder import TOKENS_OF_TEMPLATES
from nemotron_data.tokenizers.limits import panics_told
from nemotron_shared.system.errors import UserError

HERE = "\ufdd5"
"""Put where an answer continues, to find the place in the rendered text; a noncharacter, which no text has."""


@dataclass(frozen=True)
class Prompt:
    """Token ids, whether the template has already opened a thought that the answer continues, and the text."""

    ids: list[int]
    in_thought: bool = False
    text: str = ""


class Prompter:
    """Turns conversations and texts into ids, for one model.

    Args:
        tokenizer: as transformers loads it.
        context: maximum prompt tokens; None for no limit.
        embeddings: the model's number of embeddings; None if unknown.
    """

    def __init__(self, tokenizer: Any, context: int | None = None, embeddings: int | None = None) -> None:
        self.tokenizer = tokenizer
        self._context, self._embeddings = context, embeddings
        self._longest = max(map(len, tokenizer.get_vocab()))
        name = getattr(tokenizer, "name_or_path", "the model")
        source = default_template(getattr(tokenizer, "chat_template", None), name)
        names = {role: getattr(tokenizer, role, None) for role in TOKENS_OF_TEMPLATES}
        self._label = f"the chat template of {name}"
        self.template = open_template(source, self._label, **names) if source is not None else None
        self._hidden = None if self.template is None else Hidden(self.template)
        self._control = ControlTokens.among(tokenizer.added_tokens_decoder)

    def text(self, text: str, *, control: bool = False) -> Prompt:
        """Plain text to continue, after the token that the tokenizer puts before a text, unless it is already there.

        Args:
            control: encode control token names in it as control tokens.

        Raises:
            UserError: far too long for the model, not valid text, or the tokenizer fails on it.
        """
        self._require_room(text)
        _require_characters("the text", text)
        ids = self._encoded(text, [] if control else self._control.cuts(text, markup_too=True))
        begun = ids[: len(self._beginning)] == self._beginning
        return Prompt(ids if begun else [*self._beginning, *ids])

    @cached_property
    def _beginning(self) -> list[int]:
        """Ids that the tokenizer itself puts before every text, such as Gemma's and Llama's `<s>`; none for most."""
        alone, whole = (self.tokenizer("a", add_special_tokens=added).input_ids for added in (False, True))
        return next((whole[:place] for place in range(len(whole)) if whole[place : place + len(alone)] == alone), [])

    @cached_property
    def thinking_switch(self) -> str | None:
        """The template's option for reasoning: a level `reasoning_effort`, or on and off; None without one."""
        return None if self.template is None else switch_of(self.template)

    def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        **options: Any,
    ) -> Prompt:
        """A conversation that the assistant answers next; `options` are passed to the template by name.

        Raises:
            UserError: the model has no template, or the template refuses the conversation or renders no text.
        """
        text, _, cuts = self._rendered(messages, tools, add_generation_prompt=add_generation_prompt, **options)
        self._require_room(text)
        return Prompt(self._encoded(text, cuts), opens_thought(text), text)

    def continued(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None, **options: Any
    ) -> Prompt:
        """A conversation whose last message is the beginning of an answer, which continues where it ends.

        Raises:
            UserError: as `chat`; or the last message is not a text of the assistant, or the template does not show it.
        """
        last = messages[-1]
        if last.get("role") != "assistant" or last.get("tool_calls") or not isinstance(last.get("content"), str):
            raise UserError("the last message is not a text of the assistant to continue", "let it be answered")
        begun = [*messages[:-1], {**last, "content": last["content"] + HERE}]
        text, _, cuts = self._rendered(begun, tools, add_generation_prompt=False, **options)
        if text.count(HERE) != 1:
            raise UserError(f"{self._label} does not show the last message as it is", "let it be answered")
        text = text[: text.index(HERE)]
        self._require_room(text)
        in_thought = last["content"].rfind(OPEN) > last["content"].rfind(CLOSE)
        return Prompt(self._encoded(text, [cut for cut in cuts if cut < len(text)]), in_thought, text)

    def following(
        self,
        messages: Sequence[Message],
        more: Sequence[Message],
        tools: Sequence[dict[str, Any]] | None,
        end: str,
        most: int,
        others: Collection[str] = (),
    ) -> Prompt | Literal["cut", "tokens"]:
        """The tokens between an answer and the next one: `more`, as the template renders it after the answer's end.

        The model's tokens so far stay unchanged, and these are appended.

        Args:
            messages: the conversation, whose last message is the answer.
            more: results of tools, or the user's next turn.
            end: text of the token that ends the answer.
            most: tokens that there is room for.
            others: the model's other ends. An answer that ends with <|endoftext|>, say, where the template ends turns
                with <|im_end|>, ends the text: no turn can follow.

        Returns:
            "tokens" if there are more than `most`; "cut" if the answer has another end than the template's turns.

        Raises:
            UserError: the template changes earlier turns when others follow, so the model would be trained on
                another conversation than it had.
        """
        if sum(len(str(message.get("content"))) for message in more) > most * self._longest:
            return "tokens"
        before = self._rendered(messages, tools, add_generation_prompt=False).text
        text, _, cuts = self._rendered([*messages, *more], tools, add_generation_prompt=True)
        if end not in before and any(other in before for other in others):
            return "cut"
        kept = before.rfind(end) + len(end)
        if end not in before or text[:kept] != before[:kept]:
            at = next((n for n, pair in enumerate(zip(before[:kept], text, strict=False)) if len(set(pair)) > 1), kept)
            what = f"{self._label} changes earlier turns when others follow: {before[at : at + 40]!r}"
            change = f"becomes {text[at : at + 40]!r}" if end in before else f"has no {end} behind it"
            raise UserError(
                f"{what} {change}", "take a model whose template keeps turns as they were, thoughts included"
            )
        ids = self._encoded(text[kept:], [cut - kept for cut in cuts if cut > kept])
        return Prompt(ids, opens_thought(text), text[kept:]) if len(ids) <= most else "tokens"

    def _rendered(self, messages: Sequence[Message], tools: Any, **options: Any) -> Rendered:
        """The text of a conversation, and where names of control tokens in it are cut."""
        if self.template is None:
            raise UserError("this model has no chat template", "give it text to continue, or another model")
        messages, tools, guard = self._guarded(messages, tools)
        text = self.template.render(messages, tools, **options)
        rendered = Rendered(text, []) if guard is None else without_guard(text, [], guard)
        self._require_text(rendered.text)
        return rendered

    def _guarded(self, messages: Sequence[Message], tools: Any) -> Any:
        """The conversation with guards around control tokens' names, and what guards them; None if it holds none."""
        for number, message in enumerate(messages):
            _require_characters(f"messages[{number}]", message)
        if holds_control(self._control, messages, tools):
            return guarded(self._control, messages, tools)
        return messages, tools, None

    def answered(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None
    ) -> tuple[list[int], list[int]]:
        """Ids of a conversation with its answers, and for each 1 if fine-tuning would learn it, else 0.

        Raises:
            UserError: as `chat`; or what the assistant wrote cannot be told from the rest.
        """
        if self.template is None:
            raise UserError("this model has no chat template", "give one: chat_template.jinja in its folder")
        messages, tools, guard = self._guarded(messages, tools)
        text, spans = self.template.render_with_spans(messages, tools)
        text, spans, cuts = Rendered(text, spans) if guard is None else without_guard(text, spans, guard)
        self._require_text(text)
        ids, mask = mask_by_offsets(self.tokenizer.backend_tokenizer, text, spans, cuts)
        self._require_embedded(ids)
        return ids, mask

    def hidden(self, messages: Sequence[Message], tools: Any = None, *, prompt: bool = True) -> tuple[str, ...]:
        """Parts of the conversation that the prompt does not show, or the whole text with its answers; see `shown`."""
        return () if self._hidden is None else self._hidden.of(messages, tools, prompt=prompt)

    def _require_text(self, text: str) -> None:
        """Refuse text that the model or tokenizer would fail on, with an error that names the real cause."""
        wrong = "no text for this conversation" if not text else None
        try:
            text.encode()
        except UnicodeEncodeError as error:
            wrong = f"a lone surrogate, which is not a character, at position {error.start} of its text"
        if wrong:
            raise UserError(f"{self._label} makes {wrong}", "correct the template, or the conversation")

    def _require_room(self, text: str) -> None:
        """Refuse text that cannot fit even with the longest tokens: tokenizing megabytes takes seconds and much RAM."""
        if self._context is not None and len(text) > self._context * self._longest:
            what = f"the prompt has {len(text)} characters; the model's context is {self._context} tokens"
            raise UserError(what, "ask with less text")

    def _encoded(self, text: str, cuts: Sequence[int]) -> list[int]:
        """Ids of the pieces between the cuts."""
        ids: list[int] = []
        for piece in filter(None, in_pieces(text, cuts)):
            with panics_told(piece):
                ids += self.tokenizer(piece, add_special_tokens=False).input_ids
        self._require_embedded(ids)
        return ids

    def _require_embedded(self, ids: Sequence[int]) -> None:
        if self._embeddings is not None and ids and (most := max(ids)) >= self._embeddings:
            token = self.tokenizer.convert_ids_to_tokens(most)
            raise no_embedding("the prompt holds", token, most, self._embeddings, len(self.tokenizer))


def _require_characters(place: str, value: Any) -> None:
    """Refuse lone surrogates: JSON can encode them, text cannot, and the template or tokenizer would fail later."""
    try:
        to_json(value, default=str).encode()
    except UnicodeEncodeError as error:
        what = f"{place} has {error.object[error.start]!r}, a lone surrogate, which is not a character"
        raise UserError(what, "correct it: it was cut within a character, or read in a wrong encoding") from error


def asked_messages(messages: Iterable[Any]) -> list[Message]:
    """Normalize the messages of a request, or of a line in a file, for templates.

    Raises:
        ValueError: a message that no template could show.
    """
    made: list[Message] = []
    call_ids: list[Any] = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ValueError(f"messages[{number}] is not an object")
        try:
            plain = plain_message(dict(message))
        except UserError as error:
            raise ValueError(f"messages[{number}]: {error.message}") from error
        if plain.get("role") == "assistant" and plain.get("content") is None and not plain.get("tool_calls"):
            plain = {**plain, "content": ""}  # an answer with only reasoning, or nothing
        if problem := problem_of(plain) or problem_of_result(plain, call_ids):
            raise ValueError(f"messages[{number}]: {problem}")
        call_ids += ids_of_calls(plain)
        made.append(plain)
    return made


INSTEAD = "give such rows to a server of that API, or take them out"


def conversation_of(parameters: Mapping[str, Any]) -> tuple[list[Message], list[dict[str, Any]] | None]:
    """The messages, instructions first, and the tools.

    Raises:
        UserError: an item that no chat template can show, or invalid tools.
    """
    asked = parameters.get("input")
    items: Sequence[Any] = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked or []
    try:
        turns = turns_of(items)
    except UserError as error:
        raise UserError(f"the prompt holds {error.message}", INSTEAD) from error
    try:
        messages, tools = asked_messages(turns), tools_of({"tools": parameters.get("tools")})
    except ValueError as error:
        raise UserError(f"the prompt cannot be shown: {error}", INSTEAD) from error
    if instructions := parameters.get("instructions"):
        messages = _instructed(messages, str(instructions))
    return messages, tools


def _instructed(messages: list[Message], instructions: str) -> list[Message]:
    """Prepend instructions to the conversation's own system turn, if any, since most templates show only one."""
    if not messages or messages[0]["role"] != "system":
        return [{"role": "system", "content": instructions}, *messages]
    return [{**messages[0], "content": f"{instructions}\n\n{messages[0]['content']}"}, *messages[1:]]
