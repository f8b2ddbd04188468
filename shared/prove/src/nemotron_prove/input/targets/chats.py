"""People's own files: rows of every kind, blends of them, conversations, and the templates that show these."""

import gzip
import io
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from nemotron_data.chat.confined import open_template
from nemotron_data.chat.formats import CHAT_FORMATS, messages_of
from nemotron_data.chat.rows import tools_of, validate_messages
from nemotron_data.chat.template import ChatTemplate, find_template
from nemotron_data.prep.reader import TOLERATE
from nemotron_data.sources.datasets import Blend, load_blend
from nemotron_data.sources.detect import detect_files
from nemotron_data.sources.files import local_file
from nemotron_data.sources.reading import BadRow, Row, json_row, read_files
from nemotron_data.tokenizers.tiny import CHAT_TEMPLATE
from nemotron_prove.input.second import fault_of, json_value, lines_of, require, require_shape
from nemotron_prove.input.target import Files, Target
from nemotron_shared.errors import UserError

TOOL = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
LONG = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "1+1?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "2"},
    {"role": "assistant", "content": "2", "reasoning_content": "add"},
]
ROWS: list[dict[str, Any]] = [
    *(dict(known.example) for known in CHAT_FORMATS.values()),
    {"messages": LONG, "tools": [TOOL]},
    {"prompt": "2+2?", "response": "4", "system": "s", "history": [["1+1?", "2"]]},
    {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "2+2?"}]},
            {"role": "assistant", "content": "4"},
        ]
    },
]
ROLES = ("system", "user", "assistant", "tool")
WORDS = (*ROLES, "messages", "conversations", "from", "value", "tool_calls", "reasoning_content", "text", "question")


def _lines(rows: Sequence[object]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@cache
def _files() -> list[Files]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(
        pa.Table.from_pylist([{"question": "2+2?", "answer": "4"}, {"question": "1+1?", "answer": "2"}]), sink
    )
    table = b'question,answer\n2+2?,4\n"a, ""b""\nc",2\n'
    return [
        {"in.jsonl": _lines(ROWS[:4])},
        {"in.json": json.dumps(ROWS[3:6], indent=1).encode()},
        {"in.json": json.dumps({"version": 1, "data": ROWS[3:5]}).encode()},
        {"in.csv": table},
        {"in.tsv": table.replace(b",", b"\t")},
        {"in.txt": b"# One\n\nA text.\n\n\nAnother one.\n"},
        {"in.md": b"# One\n\nA text.\n"},
        {"in.parquet": sink.getvalue()},
        {"in.jsonl.gz": gzip.compress(_lines(ROWS[:2]))},
        {"in.csv": table.decode().encode("utf-16")},
    ]


def _read(folder: Path, files: Files) -> list[Row | BadRow]:
    file = local_file(folder / next(iter(files), "in.jsonl"))
    detect_files([file])
    return list(read_files([file]))


def _rows_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        assert isinstance(made, list)
        require(made, "nothing was read, and nothing said")
        for row in made:
            require(row.line >= 1, "a row without a place")
            if isinstance(row, BadRow):
                require(row.reason.strip(), "a bad row without a reason")
            else:
                require(isinstance(row.value, dict), "a row that is no object")
        ((name, content),) = files.items()
        if name == "in.jsonl" and not content.lstrip(b"\xef\xbb\xbf \n\r\t").startswith((b"[", b"\xff", b"\xfe")):
            _require_all(content.removeprefix(b"\xef\xbb\xbf"), made)

    return fault_of(read)


def _require_all(content: bytes, made: list[Row | BadRow]) -> None:
    """Each line is a row, or a bad one: as many as a JSON reader of its own finds."""
    lines = list(lines_of(content))
    if len(lines) < 2:
        return  # one object may hold a list of rows
    require(len(made) == len(lines), "lines that are neither rows nor bad ones")
    for (_, line), row in zip(lines, made, strict=True):
        if isinstance(row, Row):
            require(isinstance(json_value(line, strict=False), dict), "a row out of a line that is no object")


def _source() -> list[Files]:
    one = {"name": "web", "path": "web/*.jsonl", "weight": 3}
    hub = {"name": "math", "path": "hf://org/name", "subset": "4plus", "split": "train", "weight": 0.5, "_note": "x"}
    both = {"train": [one], "valid": [{**one, "weight": 1.0}], "test": [hub]}
    return [{"blend.json": json.dumps(value).encode()} for value in ({"datasets": [one, hub]}, both)]


ENTRY = {
    "type": "object",
    "required": ["name", "path"],
    "additionalProperties": False,
    "patternProperties": {"^_": {}},
    "properties": {
        "name": {"type": "string", "minLength": 1, "pattern": "^[^./\\\\\\u0000 ][^/\\\\\\u0000]*$", "maxLength": 255},
        "path": {"type": "string", "minLength": 1},
        "weight": {"type": "number", "exclusiveMinimum": 0},
        "split": {"type": ["string", "null"], "minLength": 1},
        "subset": {"type": ["string", "null"], "minLength": 1},
        "text_field": {"type": ["string", "null"], "minLength": 1},
    },
}
BLEND = {
    "type": "object",
    "additionalProperties": False,
    "patternProperties": {"^_": {}},
    "properties": {name: {"type": "array", "items": ENTRY} for name in ("datasets", "train", "valid", "test")},
}
"""docs/data.md, Blends."""


def _source_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        assert isinstance(made, Blend)
        value = json_value(files["blend.json"], strict=False)
        require_shape(value, BLEND, "blend")
        require(bool(value.get("datasets")) != bool(value.get("train")), "both forms, or neither")
        for entries in (one for name, one in value.items() if not name.startswith("_")):
            names = [entry["name"] for entry in entries]
            require(len({*names}) == len(names), "a data set that stands twice")
            for entry in entries:
                require("\0" not in entry["path"], "a path with a zero byte")
                on_hub = entry["path"].startswith("hf://")
                require(on_hub or not (entry.get("split") or entry.get("subset")), "a split of what is not on the hub")

    return fault_of(read)


@cache
def _template(source: str = CHAT_TEMPLATE) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<s>", eos_token="<|im_end|>")


def _conversation(folder: Path, files: Files) -> tuple[list[dict[str, Any]], str, list[tuple[int, int]]]:
    row = json_value_of(files)
    try:
        messages = messages_of(row)
        if reason := validate_messages(messages):
            raise UserError(reason)
        text, spans = _template().render_with_spans(messages, tools_of(row, "tools"))
    except UserError as error:  # as data preparation says it of a row
        raise UserError(error.message, error.remedy or TOLERATE) from error
    return messages, text, spans


def json_value_of(files: Files) -> dict[str, Any]:
    """The row, as data preparation reads it."""
    row = json_row("row.json", 1, files["row.json"])
    if isinstance(row, BadRow):
        raise UserError(f"{row.reason}: {row.detail}", "correct the row")
    return row.value


def _conversation_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        messages, text, spans = made  # ty: ignore[not-iterable]
        require(all(message["role"] in ROLES for message in messages), "an unknown role")
        answers = [message for message in messages if message["role"] == "assistant"]
        require(answers, "no answer to train on")
        for message in messages:
            content = message.get("content")
            require(
                isinstance(content, str) or (content is None and message.get("tool_calls")), "a content that is no text"
            )
            require(
                "tool_calls" not in message or message["role"] == "assistant" or not message["tool_calls"],
                "a stray call",
            )
        ends = [0, *(end for span in spans for end in span), len(text)]
        require(ends == sorted(ends), "spans that are not in order")
        said = "".join(text[low:high] for low, high in spans)
        for message in answers:
            require((message.get("content") or "").strip() in said, "an answer that is not in what is trained on")

    return fault_of(read)


def _templates() -> list[Files]:
    shipped = [CHAT_TEMPLATE, find_template("chatml")] if _has("chatml") else [CHAT_TEMPLATE]
    plain = "{% for message in messages %}<u>{{ message.role }}\n{{ message.content }}</u>\n{% endfor %}"
    return [{"chat.jinja": source.encode()} for source in (*shipped, plain)]


def _has(name: str) -> bool:
    from nemotron_data.chat.template import SHIPPED

    return (SHIPPED / f"{name}.jinja").is_file()


def _render(folder: Path, files: Files) -> tuple[str, list[tuple[int, int]]]:
    source = find_template(str(folder / "chat.jinja"))
    template = open_template(source, "chat.jinja", bos_token="<s>", eos_token="<|im_end|>")
    return template.render_with_spans([{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "qzx"}])


def _render_fault(files: Files, made: object) -> str | None:
    def read() -> None:
        text, spans = made  # ty: ignore[not-iterable]
        require(len(text) < 10_000_000, "a text that no model reads")
        require(spans and all(0 <= low < high <= len(text) for low, high in spans), "spans that are none")
        require(sum(high - low for low, high in spans) < len(text), "all of the text counts")

    return fault_of(read)


JINJA = (
    "{{ x }}",
    "{% for i in range(10**9) %}{% endfor %}",
    "{{ 'a' * 10**9 }}",
    "{{ messages.__class__ }}",
    "{% macro a() %}",
    "{{ lipsum(n=10**6) }}",
    "{% set x = x ~ x %}",
    "{% include 'x' %}",
    "{% generation %}",
    "{% endgeneration %}",
    "{%",
    "}}",
    "{{ ''.join(['a'] * 10**9) }}",
    "{{ 9**9**9 }}",
    "{{ a(a(a())) }}",
    "{% if",
    "{{ messages | map(attribute='x') | list }}",
    "{{ '%99999999999d' % 1 }}",
    "{{ [1,2,3] | batch(10**8) | list }}",
    "{{ raise_exception('x') }}",
    "{{ messages[9] }}",
    "{{ namespace(a=1) }}",
    "{{ cycler('a') }}",
    "{{ ''|center(10**9) }}",
    "{{ 'a'|indent(10**9) }}",
    "{{ range(10**9)|list }}",
)
TARGETS = (
    Target("rows", "people's files of rows", _files, _read, _rows_fault, WORDS, share=0.5),
    Target(
        "blend_file",
        "blends of data sets",
        _source,
        lambda folder, files: load_blend(folder / "blend.json"),
        _source_fault,
        ("name", "path", "../x", "hf://a/b", "_x", "datasets", "train"),
        share=2,
    ),
    Target(
        "chat",
        "conversations",
        lambda: [{"row.json": json.dumps(row).encode()} for row in ROWS],
        _conversation,
        _conversation_fault,
        WORDS,
        share=20,
        in_files=False,
    ),
    Target("template", "chat templates", _templates, _render, _render_fault, JINJA, seconds=20, share=0.15),
)
