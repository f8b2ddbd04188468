r"""Tiny tokenizer, built on the spot: byte-level BPE with single digits, and a chat template.

    <|im_start|>user
    What is 3+5-7+8?<|im_end|>
    <|im_start|>assistant
    <think>8-7+8=1+8=9</think>9<|im_end|>

512 tokens: 12 named ones, the 256 bytes (so that any text round-trips) and merges learnt from synthetic text with a
fixed seed (so that the folder has the same bytes on every machine).

`<|im_end|>` ends both chat turns and documents: generation, TRL and lm-eval all stop correctly with this one id, and
pretraining already teaches what an end is.
"""

import json
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from nemotron_data.synthetic import chats, pretrain_documents
from nemotron_shared.system.atomic import write_json, write_text

VOCAB_SIZE = 512
TRAINING_SEED = 0
TRAINING_ROWS = 2000
MODEL_MAX_LENGTH = 4096

CONTROL_TOKENS = ["<pad>", "<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
# Never split, but decoded as plain text, because code that parses answers looks for them.
MARKUP_TOKENS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
ROLES = {"bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "<pad>", "unk_token": "<unk>"}

# An assistant turn always opens with a thought, which may be empty, so that the model decides whether to think.
# enable_thinking=false decides it for the model.
CHAT_TEMPLATE = """\
{%- set turns = messages %}
{%- if tools %}
{%- set system = messages[0].content + '\\n' if messages[0].role == 'system' else '' %}
{%- set turns = messages[1:] if system else messages %}
{{- '<|im_start|>system\\n' + system + 'Tools:' }}
{%- for tool in tools %}{{ '\\n' + tool | tojson }}{% endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in turns %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}
{%- generation %}
{%- set content = message.content or '' %}
{%- if message.reasoning_content or '</think>' not in content %}
{{- '<think>' + (message.reasoning_content or '') + '</think>' }}
{%- endif %}
{{- content }}
{%- for call in message.tool_calls or [] %}
{%- set call = call.function or call %}
{%- set arguments = call.arguments if call.arguments is string else call.arguments | tojson %}
{{- '<tool_call>{"name": ' + call.name | tojson + ', "arguments": ' + arguments + '}</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>' }}
{%- endgeneration %}
{{- '\\n' }}
{%- elif message.role == 'tool' %}
{{- '<tool_response>' + message.content + '</tool_response><|im_end|>\\n' }}
{%- else %}
{{- message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think></think>' }}{% endif %}
{%- endif %}
"""


@cache
def build_tokenizer() -> Tokenizer:
    """Train the tokenizer; deterministic across calls and processes."""
    tokenizer = Tokenizer(BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[*CONTROL_TOKENS, *MARKUP_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # synthetic text as the model will see it, including role names
    texts = [row["text"] for row in pretrain_documents(TRAINING_SEED, TRAINING_ROWS)]
    for row in chats(TRAINING_SEED, TRAINING_ROWS):
        texts += ["system", "tool", *(f"{message['role']}\n{message['content']}" for message in row["messages"])]
    tokenizer.train_from_iterator(texts, trainer)
    # the trainer marks all tokens passed to it as special; only the control tokens are
    content = json.loads(tokenizer.to_str())
    for token in content["added_tokens"]:
        token["special"] = token["content"] in CONTROL_TOKENS
    return Tokenizer.from_str(json.dumps(content))


def save_tokenizer(directory: Path) -> None:
    """Write the folder that `AutoTokenizer.from_pretrained(directory)` reads; always the same bytes."""
    write_text(directory / "tokenizer.json", build_tokenizer().to_str(pretty=True) + "\n")
    settings = {
        **ROLES,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "extra_special_tokens": [token for token in CONTROL_TOKENS if token not in ROLES.values()],
        "model_max_length": MODEL_MAX_LENGTH,
        "clean_up_tokenization_spaces": False,
        "padding_side": "left",
    }
    write_json(directory / "tokenizer_config.json", settings)
    write_json(directory / "special_tokens_map.json", ROLES)
    write_text(directory / "chat_template.jinja", CHAT_TEMPLATE)
