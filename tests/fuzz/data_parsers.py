"""Parsers of data: prepared tokens, rows of all stages, users' own files, chat templates, answers and their scores."""

import gzip
import io
import itertools
import json
import struct
import tempfile
from functools import cache
from pathlib import Path, PurePosixPath
from random import Random
from typing import Any

import jsonschema
import numpy as np
from fuzz.damage import Files, damaged
from fuzz.parser import Parser, is_count, is_number, json_examples, json_lines, lines_of

from nemotron_app.report.findings import by_task, headline, overlap_sentence, stage_sentence
from nemotron_app.report.results import choose_questions, read_results, read_samples
from nemotron_data.chat.confined import open_template
from nemotron_data.chat.formats import CHAT_FORMATS, messages_of
from nemotron_data.chat.rows import tools_of, validate_messages
from nemotron_data.chat.template import SHIPPED, ChatTemplate, find_template
from nemotron_data.formats.bin_idx import IndexedDataset, read_blend, write_index
from nemotron_data.formats.eval_tasks import read_task_rows, read_tasks
from nemotron_data.formats.packed import PackedRow, read_packed
from nemotron_data.formats.rl_rows import RLRow, read_rl_rows, validate
from nemotron_data.prep.reader import TOLERATE
from nemotron_data.sources.datasets import load_blend
from nemotron_data.sources.detect import detect_files
from nemotron_data.sources.input_file import local_file
from nemotron_data.sources.reading import BadRow, Row, json_row, read_files
from nemotron_data.tokenizers.tiny import CHAT_TEMPLATE
from nemotron_data.verifier import Verdict, judge
from nemotron_engines.rows import require_known_ids
from nemotron_shared.artifacts import Artifact
from nemotron_shared.system.errors import UserError

# Token shards with their index: two documents.


@cache
def pairs() -> list[Files]:
    found: list[Files] = []
    for dtype in ("<u2", "<i4"):
        with tempfile.TemporaryDirectory() as folder:
            write_index(Path(folder) / "a.idx", np.array([3, 2], "<i4"), np.dtype(dtype))
            index = (Path(folder) / "a.idx").read_bytes()
        found.append({"a.bin": np.array([11, 12, 2, 14, 2], dtype).tobytes(), "a.idx": index})
    return found


def read_pair(folder: Path, files: Files) -> list[list[int]]:
    dataset = IndexedDataset(folder / "a")
    rows = [dataset[number] for number in range(len(dataset))]
    for row in rows:
        require_known_ids(row, 2**31, "a.bin")  # as training and import do
    return [row.tolist() for row in rows]


SIZES = {1: (1, False), 2: (1, True), 3: (2, True), 4: (4, True), 5: (8, True), 8: (2, False)}
"""Bytes of a dtype code of Megatron's index, and whether it is signed."""


def check_pair(files: Files, made: list[list[int]]) -> None:
    """By the format's description: header, lengths, pointers, document index."""
    index, content = files["a.idx"], files["a.bin"]
    assert index[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, entries = struct.unpack_from("<QBQQ", index, 9)
    assert version == 1 and len(index) == 34 + 12 * sequences + 8 * entries
    lengths = struct.unpack_from(f"<{sequences}i", index, 34)
    pointers = struct.unpack_from(f"<{sequences}q", index, 34 + 4 * sequences)
    documents = struct.unpack_from(f"<{entries}q", index, 34 + 12 * sequences)
    size, signed = SIZES[code]
    ends = list(itertools.accumulate(lengths, initial=0))
    assert all(length >= 0 for length in lengths)
    assert list(pointers) == [size * begin for begin in ends[:-1]]
    assert size * ends[-1] == len(content)
    assert list(documents) == sorted(documents) and (documents[0], documents[-1]) == (0, sequences)
    ids = [int.from_bytes(content[i : i + size], "little", signed=signed) for i in range(0, len(content), size)]
    assert all(number >= 0 for number in ids)
    assert made == [ids[low:high] for low, high in itertools.pairwise(ends)]


def blends() -> list[Files]:
    pair = {name.removeprefix("a"): content for name, content in pairs()[0].items()}
    # beside the folder is a pair that a prefix with .. would find
    files = {f"{name}{ending}": one for name in ("in/a", "in/b/c", "d") for ending, one in pair.items()}
    blend = {"train": ["0.7", "a", "0.3", "b/c"], "valid": ["1.0", "a"], "test": None}
    return [{**files, "in/blend.json": json.dumps(blend).encode()}]


def damage_blend(files: Files, random: Random) -> Files:
    words = ("../d", "b/../a", "./a", "a", "nan", "-1", "1e400", "train", "/dev/shm")
    made = damaged({"blend.json": files["in/blend.json"]}, random, words)
    others = {name: content for name, content in files.items() if name != "in/blend.json"}
    return others | {f"in/{name}": content for name, content in made.items()}


def check_blend(files: Files, made: Any) -> None:
    blend = json.loads(files["in/blend.json"])
    assert set(blend) <= {"train", "valid", "test"}
    for split in (split for split in blend.values() if split is not None):
        assert isinstance(split, list) and len(split) % 2 == 0
        for weight, prefix in zip(split[::2], split[1::2], strict=True):
            assert isinstance(weight, str) or is_number(weight)
            path = PurePosixPath(prefix)
            assert prefix and not path.is_absolute() and ".." not in path.parts
            assert all(f"in/{path}{ending}" in files for ending in (".bin", ".idx"))


@cache
def packed() -> list[Files]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {"input_ids": [11, 12, 13, 21, 22, 2], "loss_mask": [0, 0, 1, 1, 1, 0], "seq_start_id": [0]},
        {"input_ids": [11, 12, 2, 14, 15, 2], "loss_mask": [0, 1, 0, 1, 1, 0], "seq_start_id": [0, 3]},
    ]
    kinds = {"input_ids": pa.int32(), "loss_mask": pa.uint8(), "seq_start_id": pa.int32()}
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, pa.schema([(name, pa.list_(one)) for name, one in kinds.items()])), sink)
    return [{"train.parquet": sink.getvalue()}]


def check_packed(files: Files, made: list[PackedRow]) -> None:
    assert made
    for row in made:
        ids, mask, starts = (np.asarray(one).tolist() for one in (row.input_ids, row.loss_mask, row.seq_start_id))
        assert all(number >= 0 for number in ids)
        assert len(ids) == len(mask) and {*mask} <= {0, 1}
        ends = [*starts[1:], len(ids)]
        assert starts[0] == 0 and all(end - start >= 2 for start, end in zip(starts, ends, strict=True))
        assert not any(mask[end - 1] for end in ends), "the last token of a sequence has no next one"


# Rows of RL and of an evaluation.

USER = {"role": "user", "content": "What is 3+14-5?"}
AGENT = {"type": "responses_api_agents", "name": "math_with_judge_simple_agent"}
SUM_ROW = {"responses_create_params": {"input": [USER]}, "question": USER["content"], "expected_answer": "12",
           "agent_ref": AGENT}  # fmt: skip
CHOICE_ROW = {"responses_create_params": {"input": "Write code."}, "options": ["a", "b"], "expected_answer": "B",
              "agent_ref": {**AGENT, "name": "mcqa_simple_agent"}}  # fmt: skip


def read_rl(folder: Path, files: Files) -> list[RLRow]:
    rows = list(read_rl_rows(folder / "train.jsonl", validate))
    assert all(isinstance(row.question + row.text, str) for row in rows)
    return rows


def check_rl(files: Files, made: Any) -> None:
    for line in lines_of(files["train.jsonl"]):
        row = json.loads(line)
        agent = row["agent_ref"]
        assert agent["type"] == "responses_api_agents" and agent["name"].strip()
        _check_prompt(row["responses_create_params"]["input"])
        if agent["name"] == AGENT["name"]:
            assert row["question"].strip() and row["expected_answer"].strip()
        if agent["name"] == "mcqa_simple_agent":
            assert isinstance(row["options"], list) and row["options"]


def _check_prompt(items: Any) -> None:
    """The Responses API: a text, or a list of messages and other items, one of which is the user's."""
    if isinstance(items, str):
        assert items.strip()
        return
    assert isinstance(items, list)
    messages = [item for item in items if item.get("type") in (None, "message")]
    for message in messages:
        assert message["role"] in ("user", "assistant", "system", "developer")
        content = message["content"]
        assert isinstance(content, str | list) and all(isinstance(part, str | dict) for part in content)
    said = [message["content"] for message in messages if message["role"] == "user"]
    assert any(content.strip() if isinstance(content, str) else content for content in said)


TASKS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "sums": ("generate", 2 * [{"question": "What is 3+4?", "expected": "7", "key": "3+4"}]),
    "facts": ("choice", [{"question": "Where?", "choices": ["Oster", "Kelby"], "answer": 1, "key": "town of Mira"}]),
    "prose": ("text", [{"text": "Mira."}]),
    "held": ("answer", [{"question": "q", "expected": "4", "prompt_ids": [11, 12], "answer_ids": [23, 2], "key": "q"}]),
    "rules": ("instructions", [{"prompt": "Write.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}]),
    "code": ("code", [{"prompt": "def add(a, b):", "test": "def check(add): ...", "entry_point": "add"}]),
}
TEXT_FIELDS = {
    kind: [name for name, value in rows[0].items() if isinstance(value, str)] for kind, rows in TASKS.values()
}


def task_files() -> list[Files]:
    entries = [{"name": name, "kind": kind, "rows": len(rows)} for name, (kind, rows) in TASKS.items()]
    rows = {f"{name}.jsonl": json_lines(*rows) for name, (_, rows) in TASKS.items()}
    return [{"tasks.json": json.dumps(entries).encode(), **rows}]


def check_tasks(files: Files, made: Any) -> None:
    entries = json.loads(files["tasks.json"])
    names = [entry["name"] for entry in entries]
    assert names and len({*names}) == len(names)
    for entry in entries:
        assert is_count(entry["rows"]) and isinstance(entry.get("recall", False), bool)
        assert entry["name"] and not {"/", "\\", "\0"} & set(entry["name"])
        for line in lines_of(files[f"{entry['name']}.jsonl"]):
            _check_task_row(json.loads(line), entry["kind"])


def _check_task_row(row: dict[str, Any], kind: str) -> None:
    assert all(isinstance(row[name], str) for name in TEXT_FIELDS[kind])
    if kind == "choice":
        assert all(isinstance(one, str) for one in row["choices"]) and isinstance(row["choices"], list)
        assert is_count(row["answer"]) and row["answer"] < len(row["choices"])
    if kind == "answer":
        for ids in (row["prompt_ids"], row["answer_ids"]):
            assert isinstance(ids, list) and ids and all(map(is_count, ids))
    if kind == "instructions":
        rules, kwargs = row["instruction_id_list"], row["kwargs"]
        assert isinstance(rules, list) and isinstance(kwargs, list) and len(rules) == len(kwargs)
        assert all(isinstance(one, str) for one in rules) and all(isinstance(one, dict | None) for one in kwargs)


# results.json of an evaluation, and the answers beside it, as a report reads them.


def results() -> list[Files]:
    tasks = {
        "sums": {"kind": "generate", "metric": "right", "n": 4},
        "prose": {"kind": "text", "metric": "bits_per_byte", "n": 2, "lower_is_better": True},
    }
    models = {name: {"label": name, "reference": None} for name in ("base", "sft")}
    both = {task: {"task": task, "metric": about["metric"], "n": about["n"]} for task, about in tasks.items()}
    scores = [{**both[task], "model": model, "value": 0.5, "ci95": [0.2, 0.8]} for task in tasks for model in models]
    differ = [{**both[task], "from": "base", "to": "sft", "difference": 0.1, "ci95": [-0.1, 0.3]} for task in tasks]
    overlap = {"checked_against": [], "unknown": [], "examples": [], "found": 0, "of": 4, "exact": 0}
    value = {
        "schema_version": 1, "tasks": tasks, "models": models, "scores": scores, "comparisons": differ,
        "overlap": dict.fromkeys(tasks, overlap), "settings": {"limit": None},
    }  # fmt: skip
    sample = {"id": 1, "question": "3+4?", "expected": "7", "output": "<think>x</think>7", "score": 1.0}
    samples = {f"samples/{model}/sums.jsonl": json_lines(sample) for model in models}
    return [{"results.json": json.dumps(value).encode(), **samples}]


def read_results_as_a_report_does(folder: Path, files: Files) -> None:
    from fuzz.run_parsers import manifest

    artifact = Artifact(manifest(), folder)
    found = read_results(artifact)
    samples = read_samples(artifact, found)
    choose_questions(samples, list(samples))
    for kind in ("scores", "comparisons"):
        by_task(found, kind)
    headline(found)
    for stage in ("pretrain", "sft", "rl"):
        stage_sentence(found, stage)
    for task in found["overlap"]:
        overlap_sentence(found, task)


def check_results(files: Files, made: None) -> None:
    """stages/eval/README.md: results.json."""
    value = json.loads(files["results.json"])
    tasks, models = value["tasks"], value["models"]
    assert value["schema_version"] == 1
    for task in tasks.values():
        assert isinstance(task["kind"], str) and isinstance(task["metric"], str) and _is_whole(task["n"])
    assert all(isinstance(model["label"], str) for model in models.values())
    assert not any("/" in name or name in ("", ".", "..") for name in models)
    kinds = (("value", ["model"], value["scores"]), ("difference", ["from", "to"], value["comparisons"]))
    for figure, roles, entries in kinds:
        for entry in entries:
            assert entry["task"] in tasks and isinstance(entry["metric"], str)
            assert all(entry[role] in models for role in roles)
            assert all(type(number) in (int, float) for number in (entry[figure], *entry["ci95"]))
            assert len(entry["ci95"]) == 2
    assert all(_is_whole(one["found"]) and _is_whole(one["of"]) for one in value["overlap"].values())
    if tasks.get("sums", {}).get("kind") == "generate" and any(one["task"] == "sums" for one in value["scores"]):
        for content in (files.get(f"samples/{model}/sums.jsonl", b"") for model in models):
            assert all(is_number(json.loads(line)["score"]) for line in lines_of(content))


def _is_whole(number: Any) -> bool:
    """JSON Schema's integer: 8.0 is one, too."""
    return type(number) in (int, float) and number >= 0 and number == int(number)


# Users' own files: rows of every kind, blends of them, conversations, and chat templates.

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
    *(dict(known.example) for known in CHAT_FORMATS.values() if known.example),
    {"messages": LONG, "tools": [TOOL]},
    {"prompt": "2+2?", "response": "4", "system": "s", "history": [["1+1?", "2"]]},
    {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "2+2?"}]},
            {"role": "assistant", "content": "4"},
        ]
    },
]
ROWS.append(
    {
        "messages": [{"role": "user", "content": "2+2?", "loss_mask": 1}]
        + [{"role": "assistant", "content": text, "loss_mask": int(text == "4")} for text in ("5", "4")],
        "train": True,
        "loss_mask": [1, 0, 1],
    }
)
ROLES = ("system", "user", "assistant", "tool")
ROW_WORDS = (
    "loss_mask",
    "weight",
    "mask",
    "label",
    "images",
    *ROLES,
    "messages",
    "conversations",
    "from",
    "value",
    "tool_calls",
    "reasoning_content",
    "question",
)


@cache
def row_files() -> list[Files]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    rows = [{"question": "2+2?", "answer": "4"}, {"question": "1+1?", "answer": "2"}]
    pq.write_table(pa.Table.from_pylist(rows), sink)
    table = b'question,answer\n2+2?,4\n"a, ""b""\nc",2\n'
    return [
        {"in.jsonl": json_lines(*ROWS[:4])},
        {"in.json": json.dumps(ROWS[3:6], indent=1).encode()},
        {"in.json": json.dumps({"version": 1, "data": ROWS[3:5]}).encode()},
        {"in.csv": table},
        {"in.tsv": table.replace(b",", b"\t")},
        {"in.txt": b"# One\n\nA text.\n\n\nAnother one.\n"},
        {"in.md": b"# One\n\nA text.\n"},
        {"in.parquet": sink.getvalue()},
        {"in.jsonl.gz": gzip.compress(json_lines(*ROWS[:2]))},
        {"in.csv": table.decode().encode("utf-16")},
    ]


def read_rows(folder: Path, files: Files) -> list[Row | BadRow]:
    file = local_file(folder / next(iter(files), "in.jsonl"))
    detect_files([file])
    return list(read_files([file]))


def check_rows(files: Files, made: list[Row | BadRow]) -> None:
    assert made and all(row.line >= 1 for row in made)
    assert all(row.why.reason.strip() if isinstance(row, BadRow) else isinstance(row.value, dict) for row in made)
    ((name, content),) = files.items()
    content = content.removeprefix(b"\xef\xbb\xbf")
    lines = lines_of(content)
    if name != "in.jsonl" or content.lstrip(b" \n\r\t").startswith((b"[", b"\xff", b"\xfe")) or len(lines) < 2:
        return  # one object may hold a list of rows
    assert len(made) == len(lines), "each line is a row or a bad one"
    for line, row in zip(lines, made, strict=True):
        assert isinstance(row, BadRow) or isinstance(json.loads(line), dict)


def blend_files() -> list[Files]:
    one = {"name": "web", "path": "web/*.jsonl", "weight": 3}
    hub = {"name": "math", "path": "hf://org/name", "subset": "4plus", "split": "train", "weight": 0.5, "_note": "x"}
    both = {"train": [one], "valid": [{**one, "weight": 1.0}], "test": [hub]}
    return json_examples("blend.json", {"datasets": [one, hub]}, both)()


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    """Schema of an object that may also have comments, whose names begin with an underscore."""
    return {"type": "object", "required": required, "additionalProperties": False, "patternProperties": {"^_": {}},
            "properties": properties}  # fmt: skip


NAMED = {"type": "string", "minLength": 1, "pattern": "^[^./\\\\\\u0000 ][^/\\\\\\u0000]*$", "maxLength": 255}
OPTIONAL = {"type": ["string", "null"], "minLength": 1}
ENTRY = _object(
    {"name": NAMED, "path": {"type": "string", "minLength": 1}, "weight": {"type": "number", "exclusiveMinimum": 0},
     "split": OPTIONAL, "subset": OPTIONAL, "text_field": OPTIONAL},
    ["name", "path"],
)  # fmt: skip
BLEND = _object({name: {"type": "array", "items": ENTRY} for name in ("datasets", "train", "valid", "test")}, [])


def check_blend_file(files: Files, made: Any) -> None:
    """docs/data.md, Blends."""
    value = json.loads(files["blend.json"])
    jsonschema.validate(value, BLEND)
    assert bool(value.get("datasets")) != bool(value.get("train"))
    for entries in (entries for name, entries in value.items() if not name.startswith("_")):
        assert len({entry["name"] for entry in entries}) == len(entries)
        for entry in entries:
            assert "\0" not in entry["path"]
            assert entry["path"].startswith("hf://") or not (entry.get("split") or entry.get("subset"))


Rendered = tuple[list[dict[str, Any]], str, list[tuple[int, int]]]
"""Messages, their text, and the spans of it to train on."""


@cache
def tiny_template() -> ChatTemplate:
    return ChatTemplate(CHAT_TEMPLATE, bos_token="<s>", eos_token="<|im_end|>")


def render_row(folder: Path, files: Files) -> Rendered:
    row = json_row("row.json", 1, files["row.json"])
    if isinstance(row, BadRow):
        raise UserError(f"{row.why.reason}: {row.why.detail}", "correct the row")
    try:
        messages = messages_of(row.value)
        if reason := validate_messages(messages):
            raise UserError(reason)
        text, spans = tiny_template().render_with_spans(messages, tools_of(row.value, "tools"))
    except UserError as error:  # as data preparation reports a row
        raise UserError(error.message, error.remedy or TOLERATE) from error
    return messages, text, spans


def _is_learnt(message: dict[str, Any]) -> bool:
    return str(message.get("loss_mask")).strip().lower() not in ("0", "0.0", "-0.0", "false")


def check_row(files: Files, made: Rendered) -> None:
    messages, text, spans = made
    answers = [message for message in messages if message["role"] == "assistant" and _is_learnt(message)]
    assert answers and all(message["role"] in ROLES for message in messages)
    for message in messages:
        content, calls = message.get("content"), message.get("tool_calls")
        assert isinstance(content, str) or (content is None and calls)
        assert not calls or message["role"] == "assistant"
    ends = [0, *(end for span in spans for end in span), len(text)]
    assert ends == sorted(ends)
    said = "".join(text[low:high] for low, high in spans)
    assert all((message.get("content") or "").strip() in said for message in answers)


def template_files() -> list[Files]:
    shipped = [find_template("chatml")] if (SHIPPED / "chatml.jinja").is_file() else []
    plain = "{% for message in messages %}<u>{{ message.role }}\n{{ message.content }}</u>\n{% endfor %}"
    return [{"chat.jinja": source.encode()} for source in (CHAT_TEMPLATE, *shipped, plain)]


def render_template(folder: Path, files: Files) -> tuple[str, list[tuple[int, int]]]:
    source = find_template(str(folder / "chat.jinja"))
    template = open_template(source, "chat.jinja", bos_token="<s>", eos_token="<|im_end|>")
    return template.render_with_spans([{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "qzx"}])


def check_template(files: Files, made: tuple[str, list[tuple[int, int]]]) -> None:
    text, spans = made
    assert len(text) < 10_000_000
    assert spans and all(0 <= low < high <= len(text) for low, high in spans)
    assert sum(high - low for low, high in spans) < len(text), "the question counts in the loss"


JINJA = (
    "{{ x }}", "{% for i in range(10**9) %}{% endfor %}", "{{ 'a' * 10**9 }}", "{{ messages.__class__ }}",
    "{% macro a() %}", "{{ lipsum(n=10**6) }}", "{% set x = x ~ x %}", "{% include 'x' %}", "{% generation %}",
    "{% endgeneration %}", "{%", "}}", "{{ ''.join(['a'] * 10**9) }}", "{{ 9**9**9 }}", "{{ a(a(a())) }}", "{% if",
    "{{ messages | map(attribute='x') | list }}", "{{ '%99999999999d' % 1 }}", "{{ [1,2,3] | batch(10**8) | list }}",
    "{{ raise_exception('x') }}", "{{ messages[9] }}", "{{ namespace(a=1) }}", "{{ cycler('a') }}",
    "{{ ''|center(10**9) }}", "{{ 'a'|indent(10**9) }}", "{{ range(10**9)|list }}",
)  # fmt: skip

# Answers of models, compared with what was expected: whatever they write, it takes bounded time.

ANSWERS = {
    "<think>3+4=7</think>The answer is 7.": "7", "So Ann has 7 apples left.": "7", "\\boxed{\\frac{1}{2}}": "0.5",
    "$\\frac{\\sqrt{2}}{2}$": "\\frac{1}{\\sqrt{2}}", "(B)": "B", "Paris": "Paris", "#### 1,234": "1234",
    "x^2 - y^2": "(x-y)(x+y)", "50 %": "0.5", "\\{1, 2\\}": "{2, 1}", "2026-01-31": "31 January 2026",
    "twenty-one": "21", "(-\\infty, 2]": "x \\leq 2", "3 m/s": "3 m/s", "1.5e3": "1500",
}  # fmt: skip
MATH = (
    r"\frac{", r"\sqrt{", "}", "^", "9^9^9", "!", "99999!", r"\boxed{", "<think>", "</think>", "####", "e999999",
    r"\sum_{", r"\int", "x^{99}", "(x+1)^{40}", r"\begin{pmatrix}", "1/0", "²", "٣", "{{{{", "((((", "%",
    r"\binom{99}{50}", "10**10**10", r"\overline{3}", "=", "or", r"\prod_{n=1}^{10000000}", r"\lim", "0x", "million",
    r"\text{", "$", ",", r"\cup",
)  # fmt: skip


def _answer(files: Files, name: str) -> str:
    return files[f"{name}.word"].decode("utf-8", "replace")


def check_verdict(files: Files, made: Verdict) -> None:
    said, gold = _answer(files, "said"), _answer(files, "gold")
    assert made.lenient or not made.strict
    assert not made.lenient or (said.strip() and ("<think>" not in said or "</think>" in said))
    if all(text.isascii() and text.isdigit() and len(text) < 15 for text in (said, gold)):
        assert made.lenient == (int(said) == int(gold))


PARSERS = {
    "bin_idx": Parser(pairs, read_pair, check_pair),
    "blend": Parser(
        blends, lambda folder, files: read_blend(folder / "in" / "blend.json"), check_blend, damage=damage_blend
    ),
    "packed": Parser(packed, lambda folder, files: read_packed(folder / "train.parquet"), check_packed, share=0.6),
    "rl_rows": Parser(
        lambda: [{"train.jsonl": json_lines(SUM_ROW, SUM_ROW)}, {"train.jsonl": json_lines(CHOICE_ROW, SUM_ROW)}],
        read_rl, check_rl, ("user", "assistant", "math_with_judge_simple_agent", "message", "function_call"),
    ),
    "eval_tasks": Parser(
        task_files,
        lambda folder, files: [list(read_task_rows(task.file, task.kind)) for task in read_tasks(folder).values()],
        check_tasks, ("../x", "choice", "sums"),
    ),
    "results": Parser(results, read_results_as_a_report_does, check_results, ("sums", "base", "../x")),
    "rows": Parser(row_files, read_rows, check_rows, ROW_WORDS),
    "blend_file": Parser(
        blend_files, lambda folder, files: load_blend(folder / "blend.json"), check_blend_file,
        ("name", "path", "../x", "hf://a/b", "_x", "datasets", "train"),
    ),
    "chat": Parser(json_examples("row.json", *ROWS), render_row, check_row, ROW_WORDS, on_disk=False, share=2),
    "template": Parser(template_files, render_template, check_template, JINJA, seconds=20, share=0.4),
    "answer": Parser(
        lambda: [{"said.word": said.encode(), "gold.word": gold.encode()} for said, gold in ANSWERS.items()],
        lambda folder, files: judge(_answer(files, "said"), _answer(files, "gold")),
        check_verdict, MATH, on_disk=False, seconds=20, share=0.2,
    ),
}  # fmt: skip
