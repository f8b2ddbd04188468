"""The tiny tokenizer: the same bytes everywhere, no text lost, and a chat template that marks what to learn."""

import base64
import hashlib
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemotron_data.chat.template import ChatTemplate
from nemotron_data.encoders.backends import ReferenceEncoder
from nemotron_data.encoders.masks import mask_by_offsets
from nemotron_data.synthetic import eval_texts, pretrain_documents
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_data.tokenizers.tiny import (
    CHAT_TEMPLATE,
    CONTROL_TOKENS,
    MARKUP_TOKENS,
    ROLES,
    VOCAB_SIZE,
    build_tokenizer,
    save_tokenizer,
)
from nemotron_shared.system.errors import UserError

FILES = ["chat_template.jinja", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"]
QUESTION = {"role": "user", "content": "What is 20+5*4?"}
THOUGHT = {"role": "assistant", "reasoning_content": "25 30 35 40", "content": "40"}
CALL = {"type": "function", "id": "a", "function": {"name": "add", "arguments": {"numbers": [7, 5]}}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return ChatTemplate(CHAT_TEMPLATE, **ROLES)


def folder_digest(directory: Path) -> str:
    return hashlib.sha256(b"".join((directory / name).read_bytes() for name in FILES)).hexdigest()


def test_the_folder_has_the_same_bytes_in_every_process(tmp_path):
    save_tokenizer(tmp_path / "here")
    program = "import sys, pathlib; from nemotron_data.tokenizers.tiny import save_tokenizer as save"
    for hash_seed in ("1", "2"):
        there = tmp_path / hash_seed
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", f"{program}; save(pathlib.Path(sys.argv[1]))", str(there)]
        subprocess.run(command, env=environment, check=True)
        assert sorted(path.name for path in there.iterdir()) == FILES
        assert folder_digest(there) == folder_digest(tmp_path / "here")


def test_importing_it_does_not_import_transformers():
    program = "import sys, nemotron_data.tokenizers.tiny; sys.exit('transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


@given(st.text())
def test_any_text_round_trips(text):
    tokenizer = build_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_named_tokens_come_first_and_every_byte_has_one():
    vocabulary = build_tokenizer().get_vocab(with_added_tokens=True)
    assert len(vocabulary) == VOCAB_SIZE == max(vocabulary.values()) + 1
    named = [*CONTROL_TOKENS, *MARKUP_TOKENS]
    assert [vocabulary[token] for token in named] == list(range(len(named)))
    assert sum(len(token) == 1 for token in vocabulary) == 256


def test_a_file_that_is_no_tokenizer_is_one_clear_error(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json: no tokenizer"):
        assert TokenizerFolder(tmp_path).tokenizer


def test_replacements_that_multiply_a_text_are_refused_before_they_are_made(tmp_path):
    save_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    values = json.loads(file.read_text())
    for name, pattern, times, content, refused in (
        ("String", "a", 4, "a" * 2000, True), ("Regex", "x*", 9, "y", True), ("Regex", " {2,}", 3, "▁", False),
        ("String", "\n", 1, "<0x0A>", False),
    ):  # fmt: skip
        step = {"type": "Replace", "pattern": {name: pattern}, "content": content}
        file.write_text(json.dumps(values | {"normalizer": {"type": "Sequence", "normalizers": [step] * times}}))
        with pytest.raises(UserError, match="64 times as long") if refused else nullcontext():
            assert TokenizerFolder(tmp_path).tokenizer


def test_no_part_of_a_tokenizer_multiplies_a_text_or_takes_endless_steps(tmp_path):
    text, special = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "s", "type_id": 0}}
    many = {"s": {"id": "s", "ids": [1] * 99, "tokens": ["s"] * 99}}
    template = {"type": "TemplateProcessing", "pair": []}
    charsmap = base64.b64encode(b"\4\0\0\0\0\0\0\0a\0" + b"b" * 65 + b"\0").decode()
    save_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    values = json.loads(file.read_text())
    growth, steps = "can make a text more than 64 times as long", "steps, and 100 are the most"
    for part, step, said in (
        ("normalizer", {"type": "Prepend", "prepend": "a" * 10**6}, growth),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": charsmap}, growth),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "NFKD"}] * 101}, steps),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}] * 9}, growth),
        ("post_processor", template | {"single": [text] * 99, "special_tokens": {}}, growth),
        ("post_processor", template | {"single": [special], "special_tokens": many}, growth),
        ("decoder", {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 65}, growth),
        ("decoder", {"type": "Sequence", "decoders": [{"type": "BPEDecoder", "suffix": ""}] * 9}, growth),
        ("decoder", {"type": "Strip", "content": "a", "start": 0, "stop": 2}, "strips the end of each token"),
    ):  # fmt: skip
        file.write_text(json.dumps(values | {part: step}))
        with pytest.raises(UserError, match=f"tokenizer.json: {part}: .*{said}"):
            assert TokenizerFolder(tmp_path).tokenizer


def test_a_tokenizers_own_padding_and_truncation_are_taken_off(tmp_path):
    save_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    padding = {"strategy": {"Fixed": 99}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}
    truncation = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    values = json.loads(file.read_text()) | {
        "truncation": truncation,
        "padding": padding | {"pad_to_multiple_of": None},
    }
    file.write_text(json.dumps(values))
    assert TokenizerFolder(tmp_path).tokenizer.encode("1234").tokens == list("1234")


def test_a_panic_of_the_library_is_one_error(tmp_path):
    save_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    split = {"type": "Split", "pattern": {"Regex": "^(a+)+$"}, "behavior": "Isolated", "invert": False}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"pre_tokenizer": split}))
    tokenizer, text = TokenizerFolder(tmp_path).tokenizer, "a" * 40 + "!"
    for encode in (lambda: ReferenceEncoder(tokenizer).encode([text]), lambda: mask_by_offsets(tokenizer, text, [])):
        with pytest.raises(UserError, match="the tokenizer fails at a text that begins with 'aaaa"):
            encode()


def test_digits_stand_alone():
    tokens = build_tokenizer().encode("1234+56=1290").tokens
    assert tokens == list("1234+56=1290")


def test_synthetic_text_becomes_few_tokens():
    prose = [row["text"] for row in eval_texts(99, 100)]
    sums = [row["text"] for row in pretrain_documents(99, 200)]
    assert characters_per_token(prose) > 2.5
    assert characters_per_token(sums) > 1.2


def characters_per_token(texts: list[str]) -> float:
    return sum(map(len, texts)) / sum(len(build_tokenizer().encode(text).ids) for text in texts)


def test_markup_is_one_token_each_and_stays_when_control_tokens_are_skipped():
    tokenizer = build_tokenizer()
    encoding = tokenizer.encode("<think>25</think>40<|im_end|>")
    assert encoding.tokens == ["<think>", "2", "5", "</think>", "4", "0", "<|im_end|>"]
    assert tokenizer.decode(encoding.ids, skip_special_tokens=True) == "<think>25</think>40"


def test_a_thought_is_rendered_and_its_absence_is_an_empty_one(template):
    assert template.render([QUESTION, THOUGHT]) == (
        "<|im_start|>user\nWhat is 20+5*4?<|im_end|>\n<|im_start|>assistant\n<think>25 30 35 40</think>40<|im_end|>\n"
    )
    assert "assistant\n<think></think>40<|im_end|>" in template.render([QUESTION, {**THOUGHT, "reasoning_content": ""}])


def test_a_thought_inside_the_content_is_not_doubled(template):
    text = template.render([QUESTION, {"role": "assistant", "content": "<think>hm</think>40"}])
    assert text.count("<think>") == text.count("</think>") == 1


def test_the_prompt_leaves_thinking_to_the_model_unless_told(template):
    prompt = template.render([QUESTION], add_generation_prompt=True)
    assert prompt.endswith("<|im_start|>assistant\n")
    assert template.render([QUESTION, THOUGHT]).startswith(prompt)
    without = template.render([QUESTION], add_generation_prompt=True, enable_thinking=False)
    assert without == f"{prompt}<think></think>"


def test_the_model_learns_what_the_assistant_says_and_to_stop(template):
    text, spans = template.render_with_spans([{"role": "system", "content": "Be exact."}, QUESTION, THOUGHT])
    ids, mask = mask_by_offsets(build_tokenizer(), text, spans)
    learnt = [token for token, wanted in zip(ids, mask, strict=True) if wanted]
    assert build_tokenizer().decode(learnt, skip_special_tokens=False) == "<think>25 30 35 40</think>40<|im_end|>"


def test_tools_calls_and_responses_are_rendered(template):
    conversation = [
        {"role": "system", "content": "Be exact."},
        QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "a", "content": "12"},
        {"role": "assistant", "content": "12"},
    ]
    text = template.render(conversation, TOOLS)
    assert text.startswith('<|im_start|>system\nBe exact.\nTools:\n{"type": "function"')
    assert text.count("<|im_start|>system") == 1
    assert '<tool_call>{"name": "add", "arguments": {"numbers": [7, 5]}}</tool_call><|im_end|>' in text
    assert "<|im_start|>tool\n<tool_response>12</tool_response><|im_end|>" in text
    assert len(template.render_with_spans(conversation, TOOLS)[1]) == 2


def test_tools_without_a_system_message_make_one(template):
    text = template.render([QUESTION, THOUGHT], TOOLS)
    assert text.startswith("<|im_start|>system\nTools:\n{")
    assert QUESTION["content"] in text


def test_arguments_that_are_json_text_are_rendered_alike(template):
    as_text = {**CALL, "function": {"name": "add", "arguments": json.dumps(CALL["function"]["arguments"])}}
    turn = {"role": "assistant", "content": ""}
    rendered = [template.render([QUESTION, {**turn, "tool_calls": [call]}]) for call in (CALL, as_text)]
    assert rendered[0] == rendered[1]


def test_transformers_loads_the_folder_and_renders_the_same(tmp_path, template):
    transformers = pytest.importorskip("transformers")
    save_tokenizer(tmp_path)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.is_fast
    assert {role: getattr(loaded, role) for role in ROLES} == ROLES
    assert len(loaded) == VOCAB_SIZE
    assert loaded.encode("25 Oster") == build_tokenizer().encode("25 Oster").ids
    conversation = [QUESTION, THOUGHT]
    assert loaded.apply_chat_template(conversation, tokenize=False) == template.render(conversation)
    assert loaded.apply_chat_template(conversation, TOOLS, tokenize=False) == template.render(conversation, TOOLS)
    masked = loaded.apply_chat_template(conversation, return_assistant_tokens_mask=True, return_dict=True)
    text, spans = template.render_with_spans(conversation)
    assert (masked["input_ids"], masked["assistant_masks"]) == mask_by_offsets(build_tokenizer(), text, spans)
