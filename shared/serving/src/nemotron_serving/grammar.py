"""Keep an answer to a JSON schema, or to calls of tools: each token must be one that can still lead there.

    grammars = Grammars(tokenizer, ends={5})
    constraint = grammars.constraint(Form(schema={"type": "object", ...}, in_thought=False))
    logits = constraint.allowed(logits)       # -inf for all others
    constraint.take(token)

The library llguidance computes what is allowed. A form is a grammar in its notation, here of an answer that may think,
and then calls one of two tools:

    start: (<think> thought)? gap call
    thought: TEXT </think>
    call: <tool_call> gap (call_0 | call_1) gap </tool_call>
    call_0: "{\\"name\\": \\"add\\", \\"arguments\\": " arguments_0 "}"
    arguments_0: %json {"type": "object", ...}

Thoughts are free. JSON is written on one line, with a blank after each comma and colon. Objects have no keys besides
those that their schema lists, unless it says that it allows others (`additionalProperties`): fewer answers than the
schema allows, as in vLLM. A schema with a keyword that llguidance 1.7 cannot enforce is refused. xgrammar 0.2.9,
another one, takes `not`, `uniqueItems` and `multipleOf` without keeping to them, and needs torch and transformers.
"""

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from nemotron_data.chat.thought import CLOSE, OPEN
from nemotron_shared.system.errors import UserError

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
ON_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
OPEN_ENDED = {"additionalProperties", "unevaluatedProperties", "patternProperties", "allOf", "$ref"}
"""Keywords next to `properties` with which an object is left as it is."""


@dataclass(frozen=True)
class Form:
    """What an answer must be: JSON of a schema, or calls of tools; one of both where both are given.

    Attributes:
        schema: JSON schema of the content; None if the answer must be a call.
        tools: definitions of the tools that may be called: {"name": ..., "parameters": schema}.
        one_call: exactly one call, else one or more.
        in_thought: the prompt has opened a thought.
    """

    schema: Mapping[str, Any] | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    one_call: bool = False
    in_thought: bool = False


class Constraint:
    """The state of one answer."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def allowed(self, logits: torch.Tensor) -> torch.Tensor:
        """The logits (vocabulary), -inf for tokens with which the answer could no longer be as wanted.

        Raises:
            ValueError: no token is possible, or the grammar takes too much work.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._require_sound()
        mask = torch.zeros(len(logits), dtype=torch.bool)
        found = torch.from_numpy(np.unpackbits(bits, bitorder="little").astype(bool))[: len(logits)]
        mask[: len(found)] = found
        return logits.masked_fill(~mask, -torch.inf)

    def take(self, token: int) -> None:
        """Continue after a token.

        Raises:
            ValueError: it was not allowed.
        """
        self._matcher.consume_token(token)
        self._require_sound()

    def copy(self) -> "Constraint":
        """The same state, for another answer."""
        return Constraint(self._matcher.deep_copy())

    def _require_sound(self) -> None:
        if self._matcher.is_error():
            raise ValueError(f"the wanted form cannot be kept to: {_said(self._matcher.get_error())}")


class Grammars:
    """Makes constraints for one tokenizer.

    Args:
        ends: ids that end an answer.
    """

    def __init__(self, tokenizer: Any, ends: Set[int]) -> None:
        self._tokenizer, self._ends = tokenizer, ends
        self._ids = {token.content: number for number, token in tokenizer.added_tokens_decoder.items()}

    def constraint(self, form: Form) -> Constraint:
        """The constraint at the beginning of an answer. Takes milliseconds for most schemas.

        Raises:
            UserError: the schema is invalid or has a keyword that cannot be enforced, or llguidance is not installed.
        """
        matcher = self._library.LLMatcher(self._known, self._lark(form), log_level=0)
        if matcher.is_error():
            what = f"an answer cannot be kept to this schema: {_said(matcher.get_error())}"
            raise UserError(what, "leave out what is not supported, or ask without the schema")
        return Constraint(matcher)

    @cached_property
    def _library(self) -> Any:
        try:
            import llguidance
        except ModuleNotFoundError as error:
            what = "an answer in a given form needs the package llguidance, which is not in this environment"
            raise UserError(what, "uv pip install 'llguidance>=1.7,<2'") from error
        return llguidance

    @cached_property
    def _known(self) -> Any:
        """The tokenizer as llguidance has it."""
        ends = sorted(self._ends) or None
        return self._library.LLTokenizer(self._tokenizer.backend_tokenizer.to_str(), eos_token=ends)

    def _mark(self, name: str) -> str:
        """A mark such as <think>: a token, where it is one, else its characters."""
        number = self._ids.get(name)
        return name if number is not None and self._known.is_special_token(number) else json.dumps(name)

    def _lark(self, form: Form) -> str:
        rules = [r"gap: /\n{0,2}/"]
        before = "thought gap" if form.in_thought else f"({self._mark(OPEN)} thought)? gap" if OPEN in self._ids else ""
        if before:
            rules.append(self._until(self._mark(CLOSE)))
        wanted = []
        if form.schema is not None:
            rules.append(f"json: {_json(form.schema)}")
            wanted.append("json")
        if form.tools:
            rules += self._calls(form.tools)
            wanted.append("call" if form.one_call else "call (gap call)*")
        return "\n".join([f"start: {before} ({' | '.join(wanted)})", *rules])

    def _until(self, close: str) -> str:
        """A thought, up to the mark that closes it."""
        if close.startswith('"'):
            return f"thought[suffix={close}]: /(?s:.*)/"
        return f"thought: TEXT {close}\nTEXT: /(?s:.*)/"

    def _calls(self, tools: Sequence[Mapping[str, Any]]) -> list[str]:
        rules, names = [], []
        for number, tool in enumerate(tools):
            begin = f'{{"name": {json.dumps(tool["name"])}, "arguments": '
            rules.append(f'call_{number}: {json.dumps(begin)} arguments_{number} "}}"')
            rules.append(f"arguments_{number}: {_json(tool.get('parameters') or {**ANY_OBJECT, 'properties': {}})}")
            names.append(f"call_{number}")
        opened, closed = self._mark(CALL_OPEN), self._mark(CALL_CLOSE)
        return [f"call: {opened} gap ({' | '.join(names)}) gap {closed}", *rules]


def _json(schema: Mapping[str, Any]) -> str:
    """Lark's notation of a schema."""
    return f"%json {json.dumps({**closed(schema), 'x-guidance': ON_ONE_LINE})}"


def closed(schema: Any) -> Any:
    """The schema, in which objects that list their keys have no others."""
    if not isinstance(schema, Mapping):
        return schema
    made = dict(schema)
    for name in ("properties", "$defs", "definitions"):
        if isinstance(made.get(name), Mapping):
            made[name] = {key: closed(value) for key, value in made[name].items()}
    for name in ("anyOf", "oneOf", "prefixItems"):
        if isinstance(made.get(name), list):
            made[name] = [closed(one) for one in made[name]]
    if "items" in made:
        made["items"] = closed(made["items"])
    if "properties" in made and not OPEN_ENDED & made.keys():
        made["additionalProperties"] = False
    return made


def _said(error: str) -> str:
    """The reason in llguidance's report, on one line: `at 5(7): failed to compile JSON schema: ...`."""
    return " ".join(error.rpartition("JSON schema: ")[2].split())[:300] or "no reason given"
