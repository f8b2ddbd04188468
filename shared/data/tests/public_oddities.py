"""Chat templates in public styles that do more than begin and end turns; marked by hand. With each, what it cannot take.

Written for these tests: the control flow and the marks are those of the public templates, the rest is cut short.
"""

# ruff: noqa: E501 (lines of Jinja)

SPLIT = "{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1] %}{%- endif %}"

NEMOTRON = """{%- set ns = namespace(last=-1) %}
{%- set turns = messages[1:] if messages[0]['role'] == 'system' else messages %}
{%- for m in turns %}{%- if m['role'] == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{{- '<|im_start|>system\n' + (messages[0]['content'] if messages[0]['role'] == 'system' else '') }}
{%- if tools is iterable and tools | length > 0 %}
    {{- '\n\n# Tools\n' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}
{%- endif %}
{{- '<|im_end|>\n' }}
{%- for message in turns %}
    {%- if message.role == 'assistant' %}
        {%- if message.reasoning_content is string and message.reasoning_content | trim | length > 0 %}
            {%- set content = '<think>\n' ~ message.reasoning_content ~ 'BEFORE_END' ~ (message.content or '') %}
        {%- else %}
            {%- set content = message.content or '' %}
            {%- if '<think>' not in content and '</think>' not in content %}
                {%- set content = '<think></think>' ~ content %}
            {%- endif %}
        {%- endif %}
        {%- if HISTORY and loop.index0 < ns.last %}
            {%- if '</think>' in content %}{%- set content = '<think></think>' ~ content.split('</think>')[-1] %}{%- endif %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}
        {%- generation %}
        {{- content | trim }}
        {%- if message.tool_calls %}
            {{- '\n' }}
            {%- for call in message.tool_calls %}
                {{- '<tool_call>\n<function=' ~ call.function.name ~ '>\n' -}}
                {%- for name, value in call.function.arguments | items %}
                    {{- '<parameter=' ~ name ~ '>\n' ~ (value | tojson if value is mapping else value | string) }}
                    {{- '\n</parameter>\n' -}}
                {%- endfor %}
                {{- '</function>\n</tool_call>\n' -}}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
        {%- endgeneration %}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem and loop.previtem.role != 'tool' %}{{- '<|im_start|>user\n' }}{%- endif %}
        {{- '<tool_response>\n' }}{{- message.content }}{{- '\n</tool_response>\n' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + (message.content | string) }}
        {%- if EFFORT and loop.index0 == ns.last %}{{- '\n\n{reasoning effort: low}' }}{%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n' }}{%- endif %}"""


def nemotron(before_end: str, history: str, effort: str) -> str:
    """Nano, Super and Ultra differ in the white space before </think> and in hints."""
    return NEMOTRON.replace("BEFORE_END", before_end).replace("HISTORY", history).replace("EFFORT", effort)


GPT_OSS = """{{- '<|start|>system<|message|>Reasoning: medium\n# Valid channels: analysis, commentary, final.<|end|>' }}
{%- set turns = messages[1:] if messages[0].role == 'system' else messages %}
{%- if messages[0].role == 'system' or tools %}
    {{- '<|start|>developer<|message|>' + (messages[0].content if messages[0].role == 'system' else '') }}
    {%- if tools %}{{- '\n\n# Tools\n\nnamespace functions {' }}{%- for tool in tools %}{{- '\n' + tool.function.name }}
    {%- endfor %}{{- '}' }}{%- endif %}{{- '<|end|>' }}
{%- endif %}
{%- set called = namespace(name=none) %}
{%- for message in turns -%}
    {%- if message.role == 'assistant' -%}
        {{- '<|start|>assistant' }}
        {%- generation %}
        {%- if message.tool_calls %}
            {%- set future = namespace(final=false) %}
            {%- for later in turns[loop.index:] %}
                {%- if later.role == 'assistant' and not later.tool_calls %}{%- set future.final = true %}{%- endif %}
            {%- endfor %}
            {%- set thought = message.content or message.thinking %}
            {%- if thought and not future.final %}
                {{- '<|channel|>analysis<|message|>' + thought + '<|end|><|start|>assistant' }}
            {%- endif %}
            {{- ' to=functions.' + message.tool_calls[0].function.name + '<|channel|>commentary json<|message|>' }}
            {{- message.tool_calls[0].function.arguments | tojson }}{{- '<|call|>' }}
        {%- elif loop.last and not add_generation_prompt %}
            {%- if message.thinking %}
                {{- '<|channel|>analysis<|message|>' + message.thinking + '<|end|><|start|>assistant' }}
            {%- endif %}
            {{- '<|channel|>final<|message|>' + message.content + '<|return|>' }}
        {%- else %}
            {{- '<|channel|>final<|message|>' + message.content + '<|end|>' }}
        {%- endif %}
        {%- endgeneration %}
        {%- if message.tool_calls %}{%- set called.name = message.tool_calls[0].function.name %}{%- endif %}
    {%- elif message.role == 'tool' -%}
        {{- '<|start|>functions.' + called.name + ' to=assistant<|channel|>commentary<|message|>' }}
        {{- message.content | tojson }}{{- '<|end|>' }}
    {%- else -%}
        {{- '<|start|>user<|message|>' + message.content + '<|end|>' }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}"""

DEEPSEEK = """{%- set ns = namespace(is_tool=false, system='') %}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}{%- set ns.system = ns.system + message['content'] %}{%- endif %}
{%- endfor %}
{{- bos_token }}{{- ns.system }}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}{%- set ns.is_tool = false %}{{- '<｜User｜>' + message['content'] }}{%- endif %}
    {%- if message['role'] == 'assistant' and message['tool_calls'] %}
        {%- set content = message['content'] or '' %}
        {{- '<｜tool▁outputs▁end｜>' if ns.is_tool else '<｜Assistant｜>' }}{%- set ns.is_tool = false %}
        {%- generation %}{{- content + '<｜tool▁calls▁begin｜>' }}
        {%- for call in message['tool_calls'] %}
            {{- '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + call['function']['name'] + '\n```json\n' }}
            {{- call['function']['arguments'] | tojson }}{{- '\n```<｜tool▁call▁end｜>' }}
        {%- endfor %}
        {{- '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' }}{%- endgeneration %}
    {%- elif message['role'] == 'assistant' %}
        {%- set content = message['content'] %}SPLIT
        {{- '<｜tool▁outputs▁end｜>' if ns.is_tool else '<｜Assistant｜>' }}{%- set ns.is_tool = false %}
        {%- generation %}{{- THINK + content + '<｜end▁of▁sentence｜>' }}{%- endgeneration %}
    {%- endif %}
    {%- if message['role'] == 'tool' %}
        {{- '' if ns.is_tool else '<｜tool▁outputs▁begin｜>' }}{%- set ns.is_tool = true %}
        {{- '<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>' }}
    {%- endif %}
{%- endfor %}
{%- if ns.is_tool %}{{- '<｜tool▁outputs▁end｜>' }}
{%- elif add_generation_prompt %}{{- '<｜Assistant｜>PROMPT' }}{%- endif %}"""


def deepseek(split: str, think: str, prompt: str) -> str:
    """V3, R1 and V3.1 differ in what they do with thoughts."""
    return DEEPSEEK.replace("SPLIT", split).replace("THINK", think).replace("PROMPT", prompt)


MISTRAL_TOOLS = """{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' %}{{- '[SYSTEM_PROMPT]' + message.content + '[/SYSTEM_PROMPT]' }}
    {%- elif message.role == 'user' %}
        {%- if tools and loop.index0 < 2 %}{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}
        {{- '[INST]' + message.content + '[/INST]' }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS]{"content": ' + (message.content | tojson) + '}[/TOOL_RESULTS]' }}
    {%- else %}
        {%- generation %}
        {%- if message.reasoning_content and THINKS %}{{- '[THINK]' + message.reasoning_content + '[/THINK]' }}{%- endif %}
        {{- message.content or '' }}
        {%- if message.tool_calls %}
            {{- '[TOOL_CALLS] [' }}
            {%- for call in message.tool_calls %}
                {{- {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
                {{- ', ' if not loop.last else '' }}
            {%- endfor %}
            {{- ']' }}
        {%- endif %}
        {{- eos_token }}
        {%- endgeneration %}
    {%- endif %}
{%- endfor %}"""

GEMMA = """{{ bos_token }}
{%- set first = '' %}
{%- if messages[0]['role'] == 'system' %}{%- set first = messages[0]['content'] + '\n\n' %}{%- endif %}
{%- set turns = messages[1:] if messages[0]['role'] == 'system' else messages %}
{%- for message in turns -%}
    {%- if message['role'] == 'assistant' -%}
        {{ '<start_of_turn>model\n' }}
        {%- generation -%}{{ message['content'] | trim }}{{ '<end_of_turn>\n' }}{%- endgeneration -%}
    {%- else -%}
        {{ '<start_of_turn>user\n' + (first if loop.first else '') + message['content'] | trim + '<end_of_turn>\n' }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"""

# a model's turn goes on behind the tools' answers, which are looked up while it is put out
GEMMA_TOOLS = """{{- bos_token }}
{%- set ns = namespace(before='', open=false) %}
{%- for message in messages -%}
    {%- if message['role'] == 'assistant' -%}
        {%- if ns.before != 'assistant' -%}{{- '<|turn>model\n' -}}{%- endif -%}
        {%- generation -%}
        {%- for call in message.get('tool_calls') or [] -%}
            {{- '<|tool_call>call:' + call['function']['name'] + '{' }}
            {%- for key, value in call['function']['arguments'] | dictsort -%}{{- key + ':' + (value | tojson) }}{%- endfor -%}
            {{- '}<tool_call|>' -}}
        {%- endfor -%}
        {%- endgeneration -%}
        {%- set scan = namespace(stopped=false) -%}
        {%- for k in range(loop.index0 + 1, messages | length) -%}
            {%- if scan.stopped or messages[k]['role'] != 'tool' -%}
                {%- set scan.stopped = true -%}
            {%- else -%}
                {%- set follow = messages[k] -%}
                {{- '<|tool_response>response:' + follow.get('name') + '{' + follow['content'] + '}<tool_response|>' -}}
            {%- endif -%}
        {%- endfor -%}
        {%- set said %}{{ message['content'] | default('', true) | trim }}{% endset -%}
        {%- generation -%}
        {{- said -}}
        {%- if not message.get('tool_calls') -%}{{- '<turn|>\n' -}}{%- endif -%}
        {%- endgeneration -%}
    {%- elif message['role'] != 'tool' -%}
        {{- '<|turn>' + message['role'] + '\n' + message['content'] | trim + '<turn|>\n' -}}
    {%- endif -%}
    {%- if message['role'] != 'tool' -%}
        {%- set ns.before = message['role'] if message.get('tool_calls') or message['role'] != 'assistant' else '' -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and ns.before != 'assistant' -%}{{- '<|turn>model\n' -}}{%- endif -%}"""

LLAMA2 = """{%- if messages[0]['role'] == 'system' %}
    {%- set turns, system = messages[1:], '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' %}
{%- else %}{%- set turns, system = messages, '' %}{%- endif %}
{%- for message in turns %}
    {%- set content = system + message['content'] if loop.index0 == 0 else message['content'] %}
    {%- if message['role'] == 'user' %}{{- bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
    {%- else %}{%- generation %}{{- ' ' + content.strip() + ' ' + eos_token }}{%- endgeneration %}{%- endif %}
{%- endfor %}"""

ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'assistant' %}{{ '<|assistant|>\n' }}{% generation %}{{ message['content'] + eos_token }}
{% endgeneration %}{% else %}{{ '<|' + message['role'] + '|>\n' + message['content'] + eos_token }}
{% endif %}{% if loop.last and add_generation_prompt %}{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

GLM = """[gMASK]<sop>
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {{- '<|assistant|>' }}
        {%- generation %}
        {{- '\n<think>' + (m.reasoning_content or '').strip() + '</think>' }}
        {%- if (m.content or '').strip() %}{{- '\n' + m.content.strip() }}{%- endif %}
        {%- for call in m.tool_calls or [] %}{{- '\n<tool_call>' + call.function.name + '\n' }}
            {%- for k, v in call.function.arguments.items() %}
                {{- '<arg_key>' + k + '</arg_key><arg_value>' }}{{- v if v is string else v | tojson }}{{- '</arg_value>' }}
            {%- endfor %}{{- '</tool_call>' }}
        {%- endfor %}
        {%- endgeneration %}
    {%- elif m.role == 'tool' %}{{- '<|observation|>\n<tool_response>\n' + m.content + '\n</tool_response>' }}
    {%- else %}{{- '<|' + m.role + '|>\n' + m.content }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{%- endif %}"""

# the next question closes an answer
LATE = """{{- bos_token }}{%- set ns = namespace(open=false) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- generation %}{{- '<|assistant_end|>' if ns.open else '' }}{%- endgeneration %}{%- set ns.open = false %}
        {{- '<|user_start|>' + message.content + '<|user_end|>' }}
    {%- elif message.role == 'assistant' %}
        {{- '' if ns.open else '<|assistant_start|>' }}{%- set ns.open = true %}
        {%- generation %}{{- message.content }}{%- endgeneration %}
    {%- else %}{{- '<|system_start|>' + message.content + '<|system_end|>' }}{%- endif %}
{%- endfor %}
{%- if ns.open and not add_generation_prompt %}{%- generation %}{{- '<|assistant_end|>' }}{%- endgeneration %}{%- endif %}
{%- if add_generation_prompt %}{{- '<|assistant_start|>' }}{%- endif %}"""

COUNTED = """{%- for i in range(messages | length) %}
    {%- set msg = messages[i] %}
    {%- if msg.role == 'assistant' %}
        {{- '[|assistant|]' }}
        {%- generation %}
        {%- if i > messages | length - 2 %}{{- '<think>\n' ~ (msg.reasoning_content or '') ~ '\n</think>\n\n' }}{%- endif %}
        {{- (msg.content or '').strip() }}
        {%- for call in msg.tool_calls or [] %}{{- '<tool_call>' ~ (call.function | tojson) ~ '</tool_call>' }}{%- endfor %}
        {{- '[|endofturn|]\n' }}
        {%- endgeneration %}
    {%- else %}
        {{- '[|' ~ msg.role ~ '|]\n' ~ msg.content ~ '[|endofturn|]\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '[|assistant|]\n' }}{%- endif %}"""

# earlier turns and the last ones in two loops, all text from macros, as Kimi and MiniMax do
MACROS = """{%- macro show(message) -%}{{- message.content or '' }}{%- endmacro %}
{%- macro calls(message) -%}
    {%- for call in message.tool_calls or [] %}{{- '<|tool_call_begin|>' + (call.function.arguments | tojson) }}{%- endfor %}
{%- endmacro %}
{%- set ns = namespace(last=0) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for message in messages[:ns.last] %}
    {{- '<|im_' + message.role + '|>' }}
    {%- if message.role == 'assistant' %}
        {{- '<|im_middle|>' }}
        {%- generation %}{{- '<think></think>' }}{{- show(message) }}{{- calls(message) }}{{- '<|im_end|>' }}{%- endgeneration %}
    {%- else %}{{- '<|im_middle|>' }}{{- show(message) }}{{- '<|im_end|>' }}{%- endif %}
{%- endfor %}
{%- for message in messages[ns.last:] %}
    {{- '<|im_' + message.role + '|>' }}
    {%- if message.role == 'assistant' %}
        {{- '<|im_middle|>' }}
        {%- generation %}{{- '<think>' + (message.reasoning_content or '') + '</think>' }}{{- show(message) }}
        {{- calls(message) }}{{- '<|im_end|>' }}{%- endgeneration %}
    {%- else %}{{- '<|im_middle|>' }}{{- show(message) }}{{- '<|im_end|>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_assistant|><|im_middle|>' }}{%- endif %}"""

ALL_IN_A_MACRO = """{%- macro conversation() -%}
    {%- for message in messages %}
        {{- '<|' + message.role + '|>' }}
        {%- if message.role == 'assistant' %}
            {%- generation %}{{- message.content + '<|end|>' }}{%- endgeneration %}
        {%- else %}{{- message.content + '<|end|>' }}{%- endif %}
    {%- endfor %}
{%- endmacro %}
{{- bos_token + conversation() }}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"""

# no prompt at all: the header is what stands before a plain answer
NO_PROMPT = """{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}{% if message['role'] == 'assistant' %}
{% generation %}{{ message['content'] + '<|im_end|>\n' }}{% endgeneration %}{% else %}{{ message['content'] + '<|im_end|>\n' }}
{% endif %}{% endfor %}"""

# the call that a tool answers is looked up in a loop within the tool's turn, as Command R7B does
LOOKED_UP = """{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|CHATBOT|>' }}
        {%- generation %}
        {%- for call in message.tool_calls or [] %}{{- '<|ACTION|>' + call.function.name }}{%- endfor %}
        {{- (message.content or '') + '<|END|>' }}
        {%- endgeneration %}
    {%- elif message.role == 'tool' %}
        {{- '<|RESULT|>' }}
        {%- for earlier in messages %}
            {%- for call in earlier.tool_calls or [] if call.id == message.tool_call_id %}
                {{- call.function.name + ': ' }}
            {%- endfor %}
        {%- endfor %}
        {{- message.content + '<|END|>' }}
    {%- else %}{{- '<|' + message.role + '|>' + message.content + '<|END|>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|CHATBOT|>' }}{%- endif %}"""

# as Nemotron Nano 2 does; prompts open a thought, and so does the last answer
LAST_APART = """{{- '<SPECIAL_10>System\n' + (messages[0]['content'] if messages[0]['role'] == 'system' else '') + '\n\n' }}
{%- set turns = messages[1:] if messages[0]['role'] == 'system' else messages -%}
{%- set ns = namespace(last=none) %}
{%- if turns[-1]['role'] == 'assistant' %}{%- set ns.last = turns[-1] %}{%- set turns = turns[:-1] %}{%- endif %}
{%- for message in turns %}
    {%- if message['role'] == 'assistant' %}
        {{- '<SPECIAL_11>Assistant\n' }}
        {%- generation %}{{- message['content'].split('</think>')[-1].strip() + '\n<SPECIAL_12>\n' }}{%- endgeneration %}
    {%- else %}{{- '<SPECIAL_11>User\n' + message['content'].strip() + '\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<SPECIAL_11>Assistant\n<think>\n' }}
{%- elif ns.last is not none %}
    {{- '<SPECIAL_11>Assistant\n' }}
    {%- generation %}{{- '<think>\n' + ns.last['content'].strip() + '\n<SPECIAL_12>\n' }}{%- endgeneration %}
{%- endif %}"""

# the prompt goes on with words of its own, and its white space differs from the answers'
WORDY_PROMPT = """{% for message in messages %}
{% if message.role == 'assistant' %}

### Response:
{% generation %}{{ message.content | trim }}
{% endgeneration %}{% else %}

### {{ message.role | capitalize }}:
{{ message.content | trim }}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}
### Response:
Here are my reasoning steps:
{% endif %}"""

ODDITIES: dict[str, tuple[str, ...]] = {
    "nemotron nano": (nemotron("\n</think>\n", "true", "false"),),
    "nemotron super": (nemotron("\n</think>\n", "true", "low_effort is defined"),),
    "nemotron ultra": (nemotron("</think>", "true", "true"),),
    "nemotron keeping all": (nemotron("</think>", "false", "false"),),
    "gpt-oss": (GPT_OSS, "parallel"),
    "deepseek v3": (deepseek("", "''", ""),),
    "deepseek r1": (deepseek(SPLIT, "''", "<think>\n"),),
    "deepseek v3.1": (deepseek(SPLIT, "'</think>'", "<think>"),),
    "mistral": (MISTRAL_TOOLS.replace("THINKS", "false"),),
    "magistral": (MISTRAL_TOOLS.replace("THINKS", "true"),),
    "llama 2": (LLAMA2, "tools"),
    "gemma": (GEMMA, "tools"),
    "gemma with tools": (GEMMA_TOOLS,),
    "zephyr": (ZEPHYR, "tools"),
    "glm": (GLM,),
    "closed by the next question": (LATE, "tools"),
    "counted": (COUNTED,),
    "two loops and macros": (MACROS,),
    "all in a macro": (ALL_IN_A_MACRO, "tools"),
    "without a prompt": (NO_PROMPT, "tools"),
    "calls looked up": (LOOKED_UP,),
    "last answer apart": (LAST_APART, "tools"),
    "wordy prompt": (WORDY_PROMPT, "tools"),
}
