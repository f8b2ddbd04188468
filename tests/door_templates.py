"""Chat templates that read a call, its arguments and its content in the ways that public ones do, for `doors`.

Each says what it is like. The frames and oddities of `public_styles` say the rest.
"""

# ruff: noqa: E501 (lines of Jinja)

from public_styles import STYLES

PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


def _chatml(call: str, answer: str = "{{ message.content or '' }}", first: str = "", system: bool = True) -> str:
    """ChatML with a way of its own to write a call; `first` stands before the turns."""
    skip = "" if system else "{% if message.role != 'system' %}"
    return (
        f"{first}{{%- for message in messages %}}{skip}{{{{- '<|im_start|>' + message.role + '\n' }}}}"
        f"{{%- if message.role == 'assistant' %}}{{%- generation %}}{answer}"
        f"{{%- for call in message.tool_calls or [] %}}{call}{{%- endfor %}}{{{{- '<|im_end|>' }}}}{{%- endgeneration %}}"
        "{%- else %}{{- message.content + '<|im_end|>' }}{%- endif %}{{- '\n' }}"
        f"{'{% endif %}' if not system else ''}{{%- endfor %}}{PROMPT}"
    )


TOOLS_FIRST = "{%- for tool in tools or [] %}{{- (tool | tojson) + '\n' }}{%- endfor %}"
OWN = {
    # DeepSeek V3 and R1: arguments are text
    "arguments joined": _chatml("{{- '<call>' + call.function.name + '\n```json\n' + call.function.arguments + '\n```' }}", first=TOOLS_FIRST),
    "arguments put together": _chatml("{{- '<call>' ~ call.function.name ~ ' ' ~ call.function.arguments }}", first=TOOLS_FIRST),
    "arguments printed": _chatml("<call>{{ call.function.name }} {{ call.function.arguments }}", first=TOOLS_FIRST),
    "arguments trimmed": _chatml("{{- '<call>' + call.function.name + (call.function.arguments | trim) }}", first=TOOLS_FIRST),
    # Qwen3, Kimi: either
    "arguments asked for": _chatml(
        "{{- '<call>' + call.function.name }}{%- if call.function.arguments is string %}{{- call.function.arguments }}"
        "{%- else %}{{- call.function.arguments | tojson }}{%- endif %}",
        first=TOOLS_FIRST,
    ),
    "arguments of a mapping": _chatml(
        "{%- if call.function.arguments is mapping %}{%- for k, v in call.function.arguments.items() %}"
        "{{- '<' + k + '>' + (v if v is string else v | tojson) }}{%- endfor %}{%- else %}{{- raise_exception('no mapping') }}{%- endif %}",
        first=TOOLS_FIRST,
    ),
    "the whole function": _chatml("{{- '<tool_call>' + (call.function | tojson(indent=2)) }}", first=TOOLS_FIRST),
    "calls without function": _chatml("{%- set call = call.function or call %}{{- call.name + (call.arguments | tojson) }}", first=TOOLS_FIRST),
    # DeepSeek V2.5: a call is told by a content that is null
    "null content": _chatml(
        "{{- '<call>' + call.function.name + (call.function.arguments | tojson) if message.content is none else '' }}",
        answer="{{- message.content if message.content is not none else '' }}", first=TOOLS_FIRST,
    ),
    "content by its key": _chatml("{{- '<call>' + call.function.name }}", answer="{{- message['content'] + '' }}", first=TOOLS_FIRST),
    "content with a default": _chatml("{{- '<call>' + call.function.name }}", answer="{{- message.content | default('(none)') }}"),
    # Llama 2, Gemma, and what people write themselves
    "no tools": _chatml("", first=""),
    "no system": _chatml("{{- '<call>' + call.function.name }}", system=False),
    "tools with the first turn": _chatml("{{- '<call>' + (call | tojson) }}", first="{{- '[TOOLS]' + (tools | tojson) if tools else '' }}"),
}  # fmt: skip
PUBLIC = [
    "chatml hermes kept", "chatml xml last", "chatml python emptied", "chatml json hidden", "llama3 json kept",
    "phi4 hermes kept", "granite hermes hidden", "olmo xml last", "cohere xml last", "seed none last", "vicuna none hidden",
    "nemotron super", "gpt-oss", "deepseek v3", "deepseek v3.1", "mistral", "gemma with tools", "glm", "counted", "calls looked up",
]  # fmt: skip
TEMPLATES = OWN | {name: STYLES[name].marked for name in PUBLIC}
