"""Requests in OpenAI's formats, with their types.

    ChatCompletion.model_validate({"messages": [{"role": "user", "content": "2+2?"}], "temperature": 0})

Fields that would have no effect are refused, unless they ask for nothing, as `functions: null` does: many clients send
such fields without being told to.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from nemotron_serving.grammar import ANY_OBJECT, Form

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


NOTHING: Mapping[str, tuple[Any, ...]] = {
    # OpenAI's
    "functions": ([],), "function_call": ("none", "auto"), "modalities": (["text"],), "audio": (), "prediction": (),
    "web_search_options": (), "verbosity": ("medium",), "moderation": (),
    # vLLM's
    "min_tokens": (0,), "use_beam_search": (False,), "length_penalty": (1, 1.0), "stop_token_ids": ([],),
    "bad_words": ([],), "allowed_token_ids": (), "prompt_logprobs": (), "truncate_prompt_tokens": (),
    "skip_special_tokens": (True,), "spaces_between_special_tokens": (True,), "include_stop_str_in_output": (False,),
    "return_token_ids": (False,), "return_tokens_as_token_ids": (False,), "structured_outputs": (), "documents": ([],),
    "priority": (0,), "chat_template": (), "mm_processor_kwargs": (), "logits_processors": ([],),
    "include_reasoning": (True,), "cache_salt": (),
}  # fmt: skip
"""Fields that are not implemented here, each with the values, besides null, that ask for nothing."""


def without_nothing(given: Any, fields: Mapping[str, tuple[Any, ...]]) -> Any:
    """A request without such fields.

    Args:
        fields: those that are not implemented, each with the values, besides null, that ask for nothing.

    Raises:
        ValueError: one has another value.
    """
    if not isinstance(given, dict):
        return given
    for name in given.keys() & fields:
        neutral = (None, *fields[name])
        if not any(type(given[name]) is type(value) and given[name] == value for value in neutral):
            raise ValueError(f"{name}: is not supported here: leave it out")
    return {name: value for name, value in given.items() if name not in fields}


class StreamOptions(BaseModel):
    """What a stream tells besides the answer: usage at its end, and also with each chunk."""

    model_config = ConfigDict(extra="forbid")
    include_usage: Flag | None = False
    continuous_usage_stats: Flag | None = False
    include_obfuscation: Flag | None = False


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
    # vLLM's, and other servers'
    top_k: Annotated[int, Field(strict=True, ge=-1)] | None = 0
    min_p: Annotated[float, Field(strict=True, ge=0, le=1)] | None = 0
    repetition_penalty: Annotated[float, Field(strict=True, gt=0)] | None = 1.0
    ignore_eos: Flag | None = False
    # no effect on an answer
    user: Text | None = None
    metadata: dict[str, Any] | None = None
    store: Flag | None = None
    service_tier: Text | None = None
    prompt_cache_key: Text | None = None
    prompt_cache_retention: Text | None = None
    request_id: Text | None = None
    safety_identifier: Text | None = None
    # accepted only with values that have no effect
    presence_penalty: Number | None = 0
    frequency_penalty: Number | None = 0
    logit_bias: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def without_what_asks_for_nothing(cls, given: Any) -> Any:
        """Leave out the fields of `NOTHING`, and refuse those with other values."""
        return without_nothing(given, NOTHING)

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


class NamedFunction(BaseModel):
    """The name of a tool."""

    model_config = ConfigDict(extra="forbid")
    name: Text


class NamedChoice(BaseModel):
    """The tool that must be called."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["function"]
    function: NamedFunction


class AnyText(BaseModel):
    """No form."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text"]


class AnyJson(BaseModel):
    """Any JSON object."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["json_object"]

    @property
    def schema_of_content(self) -> dict[str, Any]:
        """The schema that the answer must fit."""
        return dict(ANY_OBJECT)


class JsonSchema(BaseModel):
    """A schema and its name, which only clients use. `strict` changes nothing: a schema is always kept to."""

    model_config = ConfigDict(extra="forbid")
    name: Text | None = None
    description: Text | None = None
    strict: Flag | None = None
    content: dict[str, Any] = Field(alias="schema")


class OfSchema(BaseModel):
    """JSON of a schema."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["json_schema"]
    json_schema: JsonSchema

    @property
    def schema_of_content(self) -> dict[str, Any]:
        """The schema that the answer must fit."""
        return self.json_schema.content


class ChatCompletion(Asked):
    """POST /v1/chat/completions."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_tokens: Length | None = None
    max_completion_tokens: Length | None = None
    logprobs: Flag | None = False
    top_logprobs: Annotated[int, Field(strict=True, ge=0, le=MOST_TOP)] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedChoice | None = None
    parallel_tool_calls: Flag | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    echo: Literal[False] | None = None
    add_generation_prompt: Flag | None = None
    continue_final_message: Flag | None = None
    response_format: AnyText | AnyJson | OfSchema | None = Field(default=None, discriminator="type")

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

    @model_validator(mode="after")
    def begins_in_one_way(self) -> "ChatCompletion":
        """Refuse an answer that both continues the last message and begins anew, and one that continues in a form."""
        for number, message in enumerate(self.messages):
            if message.get("prefix") and (number + 1 < len(self.messages) or message.get("role") != "assistant"):
                raise ValueError(
                    f"messages[{number}].prefix: only the last message, of the assistant, can be continued"
                )
        if self.goes_on and self.add_generation_prompt:
            raise ValueError(
                "an answer continues (continue_final_message, prefix) or begins (add_generation_prompt): leave out one"
            )
        if self.goes_on and self.form(in_thought=False):
            raise ValueError(
                "an answer that continues (continue_final_message, prefix) cannot be kept to a form: leave out one"
            )
        return self

    @property
    def goes_on(self) -> bool:
        """The answer continues where the last message ends, as vLLM's field or Mistral's and DeepSeek's mark says."""
        return bool(self.continue_final_message or self.messages[-1].get("prefix"))

    @model_validator(mode="after")
    def ends_where_its_form_does(self) -> "ChatCompletion":
        """Refuse `ignore_eos` for an answer whose form has an end."""
        if self.ignore_eos and self.form(in_thought=False):
            raise ValueError("ignore_eos: an answer of a given form ends where the form does: leave one of them out")
        return self

    @model_validator(mode="after")
    def chooses_among_its_tools(self) -> "ChatCompletion":
        """Refuse a choice of a tool that the request does not have."""
        names = [tool.function.name for tool in self.tools or ()]
        if self.tool_choice == "required" and not names:
            raise ValueError("tool_choice is required, and the request has no tools: add them, or leave it out")
        if isinstance(self.tool_choice, NamedChoice) and self.tool_choice.function.name not in names:
            known = f"there are: {', '.join(names)}" if names else "the request has no tools"
            raise ValueError(f"tool_choice: no tool named '{self.tool_choice.function.name[:100]}'; {known}")
        return self

    def form(self, in_thought: bool) -> Form | None:
        """What the answer must be; None if it may be anything.

        With tools that may be called, an answer of a schema may be a call instead.
        """
        tools = [tool.function.model_dump() for tool in self.tools or ()]
        schema = None if self.response_format is None else getattr(self.response_format, "schema_of_content", None)
        one = self.parallel_tool_calls is False
        if isinstance(self.tool_choice, NamedChoice):
            named = self.tool_choice.function.name
            return Form(None, [tool for tool in tools if tool["name"] == named], True, in_thought)
        if self.tool_choice == "required":
            return Form(None, tools, one, in_thought)
        if schema is None:
            return None
        return Form(schema, [] if self.tool_choice == "none" else tools, one, in_thought)

    @property
    def limit(self) -> int | None:
        """Maximum tokens; the newer field has precedence."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens
