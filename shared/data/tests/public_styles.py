"""Chat templates in the styles that public models use, each with its answers marked by hand; `unmarked` is what is shipped.

Most are a frame (how turns begin and end), a way to write tools, and a way with reasoning. What the loops of public
templates do besides that is in `public_oddities`.
"""

# ruff: noqa: E501 (lines of Jinja)

import re
from dataclasses import dataclass, field
from itertools import product

from public_oddities import ODDITIES

TOOL_STYLES = {
    "none": ("", "", "{{- message.content }}"),
    # Qwen, Hermes: JSON in tags
    "hermes": (
        "{%- for tool in tools or [] %}{{- '\n' + (tool | tojson) }}{%- endfor %}",
        "{%- for call in message.tool_calls or [] %}{{- '\n<tool_call>\n' + ({'name': call.function.name, 'arguments': "
        "call.function.arguments} | tojson) + '\n</tool_call>' }}{%- endfor %}",
        "{{- '<tool_response>\n' + message.content + '\n</tool_response>' }}",
    ),
    # Qwen Coder, Nemotron 3: a tag for each argument
    "xml": (
        "{%- for tool in tools or [] %}{{- '\n<function>' + tool.function.name + '</function>' }}{%- endfor %}",
        "{%- for call in message.tool_calls or [] %}{{- '<tool_call>\n<function=' + call.function.name + '>\n' }}"
        "{%- for name, value in call.function.arguments | items %}{{- '<parameter=' + name + '>\n' }}"
        "{{- value if value is string else value | tojson }}{{- '\n</parameter>\n' }}{%- endfor %}"
        "{{- '</function>\n</tool_call>\n' }}{%- endfor %}",
        "{{- '<tool_response>\n' ~ message.content ~ '\n</tool_response>\n' }}",
    ),
    # Llama 3.1: one bare object
    "json": (
        "{%- if tools %}{{- tools | tojson(indent=4) }}{%- endif %}",
        "{%- for call in message.tool_calls or [] %}{{- '{\"name\": \"' + call.function.name + '\", ' }}"
        "{{- '\"parameters\": ' }}{{- call.function.arguments | tojson }}{{- '}' }}{%- endfor %}",
        "{{- message.content | tojson }}",
    ),
    # Llama 4, LFM2: Python calls
    "python": (
        "{{- '[' }}{%- for tool in tools or [] %}{{- tool | tojson }}{{- ', ' if not loop.last }}{%- endfor %}{{- ']' }}",
        "{%- if message.tool_calls %}{{- '[' }}{%- for call in message.tool_calls %}{{- call.function.name + '(' }}"
        "{%- for name, value in call.function.arguments.items() %}{{- name + '=' }}{{- value | tojson }}"
        "{{- ', ' if not loop.last }}{%- endfor %}{{- ')' }}{{- ', ' if not loop.last }}{%- endfor %}{{- ']' }}{%- endif %}",
        "{{- '<|tool_response_start|>' + message.content + '<|tool_response_end|>' }}",
    ),
}
WAYS_WITH_REASONING = {
    "hidden": "{{- content }}",
    "kept": "{%- if reasoning %}{{- '<think>\n' + reasoning + '\n</think>\n\n' }}{%- endif %}{{- content }}",
    # Qwen3: the last answers think, if only emptily; earlier ones forget
    "last": "{%- if loop.index0 > ns.last %}{{- '<think>\n' + reasoning.strip('\n') + '\n</think>\n\n' + "
    "content.lstrip('\n') }}{%- else %}{{- content }}{%- endif %}",
    # Nemotron 3: an empty thought where there is none
    "emptied": "{%- if reasoning and loop.index0 > ns.last %}{{- '<think>\n' + reasoning + '\n</think>\n' }}"
    "{%- elif '<think>' not in content %}{{- '<think></think>' }}{%- endif %}{{- content | trim }}",
}
PROMPTS = {"hidden": "", "kept": "", "last": "", "emptied": "<think>\\n"}


@dataclass(frozen=True)
class Frame:
    """`open` and `close` get the role as %s."""

    open: str
    close: str
    answer: str
    end: str
    start: str = ""
    tail: str = ""


FRAMES = {
    "chatml": Frame("<|im_start|>%s\\n", "<|im_end|>\\n", "<|im_start|>assistant\\n", "<|im_end|>\\n"),
    "llama3": Frame(
        "<|start_header_id|>%s<|end_header_id|>\\n\\n", "<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\\n\\n", "<|eot_id|>", "<|begin_of_text|>",
    ),
    "phi3": Frame("<|%s|>\\n", "<|end|>\\n", "<|assistant|>\\n", "<|end|>\\n", tail="</s>"),
    "phi4": Frame("<|im_start|>%s<|im_sep|>", "<|im_end|>", "<|im_start|>assistant<|im_sep|>", "<|im_end|>"),
    "granite": Frame(
        "<|start_of_role|>%s<|end_of_role|>", "<|end_of_text|>\\n",
        "<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>\\n",
    ),
    "olmo": Frame("<|%s|>\\n", "\\n", "<|assistant|>\\n", "</s>\\n", "</s>"),
    "cohere": Frame(
        "<|START_OF_TURN_TOKEN|><|%s_TOKEN|>", "<|END_OF_TURN_TOKEN|>",
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", "<|END_RESPONSE|><|END_OF_TURN_TOKEN|>", "<BOS_TOKEN>",
    ),
    "seed": Frame("<seed:bos>%s\\n", "<seed:eos>", "<seed:bos>assistant\\n", "<seed:eos>"),
    "vicuna": Frame("%s: ", "\\n", "ASSISTANT:", "</s>\\n"),
    "alpaca": Frame("### %s:\\n", "\\n\\n", "### Response:\\n", "</s>\\n\\n", "<s>"),
}  # fmt: skip


def build(frame: Frame, tools: str, reasoning: str) -> str:
    """A template, marked."""
    listed, calls, answered = TOOL_STYLES[tools]
    opened = frame.open.split("%s")
    begin = f"{{{{- '{opened[0]}' ~ role ~ '{opened[1]}' }}}}"
    close = f"{{{{- '{frame.close}' }}}}"
    tail = f"{{%- generation %}}{{{{- '{frame.tail}' }}}}{{%- endgeneration %}}" if frame.tail else ""
    return f"""{{{{- '{frame.start}' }}}}
{{%- set ns = namespace(last=-1) %}}
{{%- for message in messages %}}{{%- if message.role == 'user' %}}{{%- set ns.last = loop.index0 %}}{{%- endif %}}{{%- endfor %}}
{{%- if tools %}}{{%- set role = 'system' %}}{begin}{listed}{close}{{%- endif %}}
{{%- for message in messages %}}
    {{%- set role = message.role %}}
    {{%- if role == 'assistant' %}}
        {{%- set content = message.content or '' %}}
        {{%- set reasoning = message.reasoning_content or '' %}}
        {{{{- '{frame.answer}' }}}}
        {{%- generation %}}
            {WAYS_WITH_REASONING[reasoning]}
            {calls}
            {{{{- '{frame.end}' }}}}
        {{%- endgeneration %}}
    {{%- elif role == 'tool' %}}
        {begin}{answered}{close}
    {{%- else %}}
        {begin}{{{{- message.content }}}}{close}
    {{%- endif %}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}
    {{{{- '{frame.answer}{PROMPTS[reasoning]}' }}}}
{{%- elif messages[-1].role == 'assistant' %}}{tail}
{{%- endif %}}"""


@dataclass(frozen=True)
class Style:
    """A marked template, and what its conversations may hold."""

    marked: str
    fits: dict[str, bool] = field(default_factory=dict)

    @property
    def unmarked(self) -> str:
        """With comments in the marks' places, which treat white space alike."""
        return re.sub(r"\{%(-?) *(?:end)?generation *(-?)%\}", r"{#\1 \2#}", self.marked)


CHOSEN = [
    *product(["chatml"], TOOL_STYLES, WAYS_WITH_REASONING),
    *product(["llama3"], ["none", "json", "python"], ["hidden", "kept"]),
    *product(["phi3", "phi4", "granite"], ["none", "hermes"], ["hidden", "kept"]),
    *product(["olmo", "cohere", "seed"], ["none", "xml"], ["last"]),
    *product(["vicuna", "alpaca"], ["none"], ["hidden"]),
]
STYLES = {
    f"{frame} {tools} {reasoning}": Style(build(FRAMES[frame], tools, reasoning), {"tools": tools != "none"})
    for frame, tools, reasoning in CHOSEN
} | {name: Style(source, dict.fromkeys(lacks, False)) for name, (source, *lacks) in ODDITIES.items()}
