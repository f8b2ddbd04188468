"""From conversations to packed rows with the mask of transformers' own chat template code."""

import json
import random
import shutil
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support import last_values_win
from template_conversations import conversation
from transformers import AutoTokenizer
from transformers.utils import chat_template_utils

from nemotron_data.chat.template import find_template
from nemotron_data.decontaminate import Decontamination
from nemotron_data.formats.packed import labels_of, read_packed
from nemotron_data.prep.pipeline import Inputs
from nemotron_data.prep.plan import make_shards
from nemotron_data.prep.shards import Setting
from nemotron_data.sources.datasets import input_files
from nemotron_data.synthetic import chats
from nemotron_data.tokenizers.folder import TokenizerFolder, provide_tokenizer
from nemotron_engines.modeling import generation
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import resolve
from nemotron_shared.engine.spec import Outcome
from stages.sft import data_prep
from stages.sft.data_prep import ROWS, open_splits, sources, write_split
from stages.sft.encode import ChatWork, Rendering
from stages.sft.ends import end_answers, end_of_answers
from stages.sft.schema import SFTConfig, SFTData

main = last_values_win(data_prep.main)

CONFIG = Path(__file__).parent.parent / "config"
ALL_IN_TRAIN = "data_prep.split={train: 1, valid: 0, test: 0}"
REJECT = "data_prep.on_bad_row=reject"
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": "ü"}'}}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object"}}}]


def config(*overrides: str) -> SFTConfig:
    values = resolve(compose(CONFIG, "tiny", overrides).tree, lambda role, field: None)
    return SFTConfig.model_validate(values)


def settings(*overrides: str) -> SFTData:
    return config(*overrides).data_prep


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def prepare(home: Path, source: Path, *overrides: str) -> Artifact:
    few = ["data_prep.workers=1", "data_prep.max_lost=1"]  # among few rows, each is a large share
    assert main(["-c", "tiny", f"data_prep.source={source}", *few, *overrides]) == 0
    return Store(home).resolve("super3-sft-data:latest")


def stats(artifact: Artifact) -> dict:
    return json.loads((artifact.path / "stats.json").read_text())


def reasons(artifact: Artifact) -> dict[int, str]:
    lines = (artifact.path / "rejected.jsonl").read_text().splitlines()
    return {entry["line"]: entry["reason"] for entry in map(json.loads, lines)}


def write_lines(path: Path, values: list) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def chat(question: str = "2+2?", answer: str = "4", **more: object) -> dict:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}], **more}


def varied_chats(count: int, seed: int = 0) -> list[dict]:
    """Several turns, tools with their answers, reasoning, and characters of two to four bytes."""
    choose = random.Random(seed)
    rows = []
    for number in range(count):
        messages: list[dict] = [{"role": "system", "content": "Kurz, bitte."}] if choose.random() < 0.3 else []
        for _ in range(choose.randrange(1, 4)):
            text = "".join(choose.choice(["a", "é ", "日本", "😀", "\n", "  ", "<b>", "12"]) for _ in range(9))
            messages.append({"role": "user", "content": f"{number} {text}"})
            if choose.random() < 0.3:
                messages.append({"role": "assistant", "content": "", "tool_calls": [CALL]})
                messages.append({"role": "tool", "content": text, "tool_call_id": "c1"})
            thought = {"reasoning_content": text * 2} if choose.random() < 0.4 else {}
            messages.append({"role": "assistant", "content": text[::-1] + "!", **thought})
        rows.append({"messages": messages, **({"tools": TOOLS} if choose.random() < 0.5 else {})})
    return rows


BLOCKS = """
{%- for message in messages -%}
  {%- if message.role == 'assistant' -%}
    {{- '<a>' }}{% generation %}{{ message.content + '</a>' }}{% endgeneration -%}
  {%- else -%}
    {{- '<' + message.role + '>' + (message.content or '') -}}
  {%- endif -%}
{%- endfor -%}
{{- '<a>' if add_generation_prompt else '' -}}
"""


@pytest.mark.parametrize("template", [None, "nano3", BLOCKS], ids=["tiny", "nano3", "another's"])
def test_libraries_get_transformers_masks_from_confined_templates(
    tmp_path: Path, template: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Automodel asks for them; `weight` and the like are for our own masks."""
    from nemotron_data.tokenizers.tiny import save_tokenizer

    save_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    options = {"chat_template": find_template(template)} if template else {}
    asked = [row["messages"] for row in chats(seed=5, count=40)]
    asked += [[{"role": "user", "content": "2+2?"}], [*asked[0][:-1], asked[0][-1] | {"weight": 0}]]

    def answers() -> list[tuple[list[int], list[int]]]:
        given = [
            tokenizer.apply_chat_template(one, return_dict=True, return_assistant_tokens_mask=True, **options)
            for one in asked
        ]
        return [(one["input_ids"], one["assistant_masks"]) for one in given]

    monkeypatch.setattr(chat_template_utils, generation.COMPILE, generation.STOCK)
    expected = answers()
    generation.confine_templates()
    assert answers() == expected
    assert sum(map(sum, (mask for _, mask in expected))) > 100


def sequences_in(artifact: Artifact) -> list[tuple[bytes, bytes]]:
    """Ids and shifted mask of every sequence, sorted."""
    found = []
    for path in sorted(artifact.path.glob("*.parquet")):
        for row in read_packed(path):
            ends = [*row.seq_start_id[1:].tolist(), len(row.input_ids)]
            for start, end in zip(row.seq_start_id.tolist(), ends, strict=True):
                found.append((row.input_ids[start:end].tobytes(), row.loss_mask[start:end].tobytes()))
    return sorted(found)


@pytest.mark.parametrize("template", [None, "nano3"])
@pytest.mark.parametrize("backend", ["auto", "tokenizers"])
def test_ids_and_masks_are_those_of_transformers(
    tmp_path: Path, home: Path, template: str | None, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        chat_template_utils, generation.COMPILE, generation.STOCK
    )  # which finds the answers in the text
    rows = varied_chats(120) + list(chats(seed=5, count=80))
    chosen = [f"data_prep.chat_template={template or 'null'}", f"data_prep.tokenizer.backend={backend}"]
    size = ["data_prep.pack_size=4096", "data_prep.split_turns=never"]
    made = prepare(home, write_lines(tmp_path / "a.jsonl", rows), *chosen, *size)
    reference = AutoTokenizer.from_pretrained(made.path / "tokenizer")
    options = {"chat_template": find_template(template)} if template else {}
    expected = []
    for row in rows:
        messages = json.loads(
            json.dumps(row["messages"]).replace('"{\\"a\\": 1, \\"b\\": \\"\\u00fc\\"}"', '{"a": 1, "b": "ü"}')
        )
        given = reference.apply_chat_template(
            messages, tools=row.get("tools"), return_dict=True, return_assistant_tokens_mask=True, **options
        )
        mask = np.array([*given["assistant_masks"][1:], 0], np.uint8)
        expected.append((np.array(given["input_ids"], np.int32).tobytes(), mask.tobytes()))
    assert sequences_in(made) == sorted(expected)
    assert stats(made)["counts"]["rows"] == 200


@pytest.mark.skipif(find_spec("trl") is None, reason="needs the templates that trl carries")
@pytest.mark.parametrize(
    "model", ["super", *(pytest.param(name, marks=pytest.mark.slow) for name in ("nano", "ultra"))]
)
def test_the_published_templates_prepare_every_conversation(tmp_path: Path, home: Path, model: str) -> None:
    spec = find_spec("trl")
    assert spec is not None
    (folder,) = spec.submodule_search_locations or ()
    published = Path(folder) / "chat_templates" / f"nemotron_3_{model}.jinja"
    tokenizer = provide_tokenizer("tiny", tmp_path / "tokenizer").path
    shutil.copyfile(published, tokenizer / "chat_template.jinja")
    rows = []
    for seed in range(240):
        messages, tools = conversation(seed)
        rows.append({"messages": messages, **({"tools": tools} if tools else {})})
    source = write_lines(tmp_path / "a.jsonl", rows)
    more = [f"data_prep.tokenizer.model={tokenizer}", "data_prep.pack_size=32768", ALL_IN_TRAIN]
    made = prepare(home, source, "data_prep.chat_template=null", *more)
    figures = stats(made)
    assert (figures["counts"]["rows"], figures["splits"]["train"]["conversations"]) == (240, 240)
    assert figures["counts"]["rejected"] == {}
    # the same template with marks, which TRL put there by hand
    marked = prepare(
        home, source, f"data_prep.chat_template={published.with_stem(published.stem + '_training')}", *more
    )
    assert sequences_in(made) == sequences_in(marked)


@pytest.mark.slow
def test_neither_shards_nor_workers_show_in_the_result(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", varied_chats(150))
    chosen = settings(f"data_prep.source={source}", "data_prep.pack_size=512", "data_prep.parquet_row_group_size=7")
    tokenizer = provide_tokenizer("tiny", tmp_path / "tokenizer")
    results = []
    for shard_bytes, workers in [(1 << 30, 1), (9000, 1), (9000, 2), (2000, 3)]:
        parts = ROWS.parts(chosen)
        shards = make_shards([input_files(chosen, tmp_path / "none", chats, 0)], shard_bytes)
        setting = Setting(tmp_path / f"{shard_bytes}-{workers}", "test", "error", workers, "local", lambda line: None)
        inputs = Inputs(parts, shards, setting)
        rendering = Rendering.of(tokenizer, None)
        choice = inputs.choose_encoder(tokenizer, rendering.sampler(), "auto", with_bytes=True)
        nothing = Decontamination(chosen.decontaminate, [])
        work = ChatWork(parts, rendering, tokenizer.path, choice.for_workers(), choice.reference.token_bytes, nothing)
        output = tmp_path / f"out-{shard_bytes}-{workers}"
        output.mkdir()
        prepared = inputs.process(work, output)
        assert len(prepared.shards) == len(shards) > (shard_bytes < 1 << 20)
        found, conversations = open_splits(prepared)
        figures = [write_split(output, split, found, chosen) for split in conversations]
        results.append((figures, [path.read_bytes() for path in sorted(output.glob("*.parquet"))]))
    assert all(result == results[0] for result in results)


def test_packed_labels_are_the_assistants_tokens_and_their_end(tmp_path: Path, home: Path) -> None:
    made = prepare(home, write_lines(tmp_path / "a.jsonl", [chat("2+2?", "4"), chat("3+3?", "6")]), ALL_IN_TRAIN)
    (row,) = read_packed(made.path / "train.parquet")
    tokenizer = TokenizerFolder(made.path / "tokenizer").tokenizer
    labels = [token for token in labels_of(row).tolist() if token != -100]
    learnt = sorted(tokenizer.decode(labels, skip_special_tokens=False).split("<|im_end|>"))
    assert learnt == ["", "<think></think>4", "<think></think>6"]
    figures = stats(made)["splits"]["train"]
    assert (figures["conversations"], figures["sequences"], figures["packed_rows"]) == (2, 2, 1)
    assert figures["trained_tokens"] == len(labels)


def test_every_row_that_is_not_used_has_its_reason(tmp_path: Path, home: Path) -> None:
    long = "word " * 300
    rows = [
        chat(used_in=["nano_v3"]),
        chat(used_in="other"),
        {"messages": [{"role": "robot", "content": "x"}], "used_in": "nano_v3"},
        chat(long, "never reached", used_in="a,nano_v3"),
        chat("short", long, used_in="nano_v3"),
        {"used_in": "nano_v3"},
    ]
    source = write_lines(tmp_path / "a.jsonl", rows)
    made = prepare(home, source, REJECT, ALL_IN_TRAIN, "data_prep.used_in_filter=nano_v3")
    assert reasons(made) == {
        2: "filtered by used_in",
        3: "unknown role",
        4: "no answer within data_prep.pack_size",
        6: "no known chat format",
    }
    counts = stats(made)["counts"]
    assert (counts["rows"], counts["truncated"], sum(counts["rejected"].values())) == (6, 1, 4)
    assert stats(made)["splits"]["train"]["conversations"] == 2
    again = prepare(home, source, REJECT, ALL_IN_TRAIN, "data_prep.too_long=reject")
    assert reasons(again) == {
        3: "unknown role",
        4: "longer than data_prep.pack_size",
        5: "longer than data_prep.pack_size",
        6: "no known chat format",
    }


def test_a_limit_of_tokens_comes_before_pack_size(tmp_path: Path, home: Path) -> None:
    rows = [chat("q", "word " * 200), chat()]
    made = prepare(home, write_lines(tmp_path / "a.jsonl", rows), ALL_IN_TRAIN, "data_prep.max_doc_tokens=40",
                   "data_prep.too_long=reject")  # fmt: skip
    assert max(len(ids) // 4 for ids, _ in sequences_in(made)) == 40
    assert stats(made)["counts"]["truncated"] == 1
    assert reasons(made) == {}


def test_rows_whose_reasoning_no_template_shows_are_counted(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    thinks = {"role": "assistant", "content": "4", "reasoning_content": "because"}
    rows = [{"messages": [{"role": "user", "content": f"{i}?"}, thinks]} for i in range(3)] + [chat()]
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\\n{{ m.content }}<|im_end|>{% endfor %}"
    (tmp_path / "plain.jinja").write_text(template)
    source = write_lines(tmp_path / "a.jsonl", rows)
    made = prepare(home, source, ALL_IN_TRAIN, f"data_prep.chat_template={tmp_path / 'plain.jinja'}")
    assert stats(made)["counts"]["reasoning that the chat template does not show"] == 3
    assert "the chat template shows no reasoning: 3 rows lose theirs" in "".join(capsys.readouterr())


@pytest.mark.parametrize("place", ["open_inputs", "formats_found"])
@pytest.mark.parametrize("change", ["more rows", "half a row"])
def test_a_source_that_changes_meanwhile_is_one_sentence(
    tmp_path: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    place: str,
    change: str,
) -> None:
    source = write_lines(tmp_path / "a.jsonl", [chat() for _ in range(20)])
    usual = getattr(data_prep, place)

    def meanwhile(*given: Any) -> Any:
        found = list(usual(*given)) if place == "formats_found" else None
        content = source.read_bytes()
        source.write_bytes(content + content if change == "more rows" else content[:-10])
        return usual(*given) if found is None else found

    monkeypatch.setattr(data_prep, place, meanwhile)
    assert main(["-c", "tiny", f"data_prep.source={source}", "data_prep.workers=1", ALL_IN_TRAIN]) == 2
    said = capsys.readouterr().err.partition("error: ")[2]
    when = "since this run began" if place == "open_inputs" else "while it was being read"
    assert said == f"{source}: changed {when}\n  run again when nothing writes to it\n"
    assert not (home / "artifacts" / "super3-sft-data").exists()


def test_a_thought_that_nobody_learns_is_not_lost(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question, plain = {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}
    thinks = plain | {"reasoning_content": "because"}
    unlearnt = [question, thinks | {"weight": 0}, question, plain]
    dropped = [question, thinks | {"content": "word " * 300}]
    rows = [{"messages": turns} for turns in (unlearnt, dropped, [question, thinks])]
    source = write_lines(tmp_path / "a.jsonl", rows)
    nano = ["data_prep.chat_template=nano3", "data_prep.too_long=reject", "data_prep.max_lost=1"]
    made = prepare(home, source, ALL_IN_TRAIN, *nano)
    assert reasons(made) == {2: "longer than data_prep.pack_size"}
    said = "".join(capsys.readouterr())
    assert "lose theirs" not in said
    assert "1 of 2 answers are learnt without a thought" in said, "the dropped answer is not among them"


def test_a_mark_of_a_pair_is_read_as_it_is_where_numbers_keep_their_spelling(tmp_path: Path, home: Path) -> None:
    pairs = [
        ("1?", 1.5, {"train": 1}),
        ("2?", 2.5, {"train": 0}),
        ("3?", "3", {"weight": 1.0}),
        ("4?", 4, {"weight": 0.0}),
    ]
    rows = [{"prompt": prompt, "response": response, **mark} for prompt, response, mark in pairs]
    made = prepare(home, write_lines(tmp_path / "a.jsonl", rows), ALL_IN_TRAIN, "data_prep.max_lost=1")
    assert reasons(made) == dict.fromkeys((2, 4), "not to be learnt, by a mark of the row")


GETTING = {"id": "c1", "type": "function", "function": {"name": "get", "arguments": '{"a": 1.50}'}}
CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "?"},
    {"role": "assistant", "content": None, "tool_calls": [GETTING]},
    {"role": "tool", "tool_call_id": "c1", "content": "7"},
    {"role": "assistant", "content": "So."},
]
LONG = "data_prep.pack_size=1024"
TOOL = {"name": "get", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}}


def test_what_no_template_shows_is_a_loss(tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    system = {"messages": [{"role": "system", "content": "Be brief."}, *chat()["messages"]]}
    source = write_lines(tmp_path / "a.jsonl", [{"messages": CALLED, "tools": [TOOL]}, system, chat()])
    words = "{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') + '<|im_end|>\\n' }}"
    (tmp_path / "plain.jinja").write_text(
        "{% for m in messages if m.role != 'system' %}" + words + "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    template = f"data_prep.chat_template={tmp_path / 'plain.jinja'}"
    few = ["data_prep.workers=1", "data_prep.max_lost=0.1", template, LONG, ALL_IN_TRAIN]
    assert main(["-c", "tiny", f"data_prep.source={source}", *few]) == 1
    said = capsys.readouterr().err
    assert "2 of 3 rows" in said and "would be cut" in said and "data_prep.chat_template=nano3" in said
    made = prepare(home, source, ALL_IN_TRAIN, template, LONG)
    assert stats(made)["counts"]["cut"] == {
        "system prompts that the chat template does not show": 1,
        "tools, tool calls with their arguments that the chat template does not show": 1,
    }
    said = "".join(capsys.readouterr())
    assert "the chat template shows no tools, no tool calls with their arguments: 1 rows lose theirs" in said
    assert "the chat template shows no system prompts: 1 rows lose theirs" in said
    shown = prepare(home, source, ALL_IN_TRAIN, LONG, "data_prep.max_lost=0.1")
    assert stats(shown)["counts"]["cut"] == {}


def test_what_people_should_know_of_rows_that_are_learnt_as_they_are(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hermes = [
        {"from": "human", "value": "?"},
        {"from": "gpt", "value": '<tool_call>\n{"name": "get", "arguments": {}}\n</tool_call>'},
        {"from": "tool", "value": "<tool_response>\n7\n</tool_response>"},
        {"from": "gpt", "value": "So."},
    ]
    rows = [{"messages": CALLED}, {"conversations": hermes}, chat("q", "it is\n</think>\n4")]
    made = prepare(home, write_lines(tmp_path / "a.jsonl", rows), ALL_IN_TRAIN, LONG)
    counts = stats(made)["counts"]
    for count in ("rows that call tools and describe none", "rows that call tools in their text"):
        assert counts[count] == 1
    said = "".join(capsys.readouterr())
    assert "1 rows that call tools and describe none: no prompt describes these tools" in said
    ids = [np.frombuffer(raw, np.int32).tolist() for raw, _ in sequences_in(made)]
    tokenizer = TokenizerFolder(made.path / "tokenizer").tokenizer
    text = "".join(tokenizer.decode(one, skip_special_tokens=False) for one in ids)
    assert "<think>it is</think>4<|im_end|>" in text
    assert text.count("<tool_response>7</tool_response>") == 2  # of the call in a field, and of the one in the text


def test_nothing_is_advised_on_demonstrations_that_are_made_here(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-c", "drawers", "data_prep.synthetic_chats=50"]) == 0
    assert stats(Store(home).resolve("super3-sft-data:latest"))["counts"]["rows that call tools and describe none"]
    assert "describe none" not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("field", "overrides", "unread"),
    [("tool_defs", (), "id"), ("mine", (), "mine, id"), ("mine", ("data_prep.tools_field=mine",), "id")],
)
def test_the_line_on_fields_is_true_of_those_that_settings_name(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str], field: str, overrides: tuple[str, ...], unread: str
) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{field: [TOOL], "messages": CALLED, "id": 7}])
    made = prepare(home, source, ALL_IN_TRAIN, LONG, "data_prep.format=auto", *overrides)
    assert f"; not read: {unread} (another" in "".join(capsys.readouterr())
    untold = "rows that call tools and describe none"
    assert stats(made)["counts"].get(untold, 0) == (unread == "mine, id")


@pytest.mark.parametrize(
    ("row", "overrides", "message"),
    [
        ({"text": "x"}, (), "a.jsonl:2: a document, not a chat"),
        ({"text": "x"}, ("data_prep.format=messages",), "a.jsonl:2: no field 'messages'"),
        (chat("q", " "), (), "a.jsonl:2: empty assistant turn"),
        (chat(), ("data_prep.key_field=id",), "a.jsonl:1: no field 'id'"),
        (
            {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [
                {"id": "c", "function": {"name": "f", "arguments": '{"a": "\\ud800"}'}}]}]},
            (),
            "a.jsonl:2: a lone surrogate",
        ),
    ],
)  # fmt: skip
def test_a_bad_row_stops_with_its_place(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture, row: dict, overrides: tuple, message: str
) -> None:
    source = write_lines(tmp_path / "a.jsonl", [chat(), row])
    assert main(["-c", "tiny", f"data_prep.source={source}", "data_prep.workers=1", *overrides]) == 2
    assert message in capsys.readouterr().err


def test_a_mask_of_ones_only_is_never_written(tmp_path: Path, home: Path) -> None:
    template = tmp_path / "all.jinja"
    template.write_text("{{ ' ' }}{% generation %}{{ messages[1].content }}{% endgeneration %}")
    source = write_lines(tmp_path / "a.jsonl", [chat("q", "is in"), chat("q", "!")])
    made = prepare(home, source, REJECT, ALL_IN_TRAIN, f"data_prep.chat_template={template}")
    tokenizer = TokenizerFolder(made.path / "tokenizer").tokenizer
    assert [len(tokenizer.encode(text).tokens[0]) > 1 for text in (" is in", " !")] == [True, False]
    assert reasons(made) == {1: "the loss mask counts every token, the prompt included"}


STRANGE = [
    None,
    True,
    0,
    -1.5,
    1e300,
    "",
    "x",
    "\0",
    "<|im_end|>",
    "{",
    "[]",
    "👩‍👩‍👧",
    [],
    {},
    [[]],
    [None],
    {"": None},
    {"role": 1},
]
HALF_A_CHARACTER = '{"a": "\\ud800"}'


def broken(value: object, choose: random.Random, depth: int = 0) -> object:
    """The same with one random place of it replaced, removed or wrapped."""
    if isinstance(value, dict | list) and value and choose.random() < 0.9 - 0.1 * depth:
        copy = dict(value) if isinstance(value, dict) else list(value)
        place = choose.choice(list(copy)) if isinstance(copy, dict) else choose.randrange(len(copy))
        if choose.random() < 0.1:
            del copy[place]
        else:
            copy[place] = broken(copy[place], choose, depth + 1)
        return copy
    return choose.choice([*STRANGE, HALF_A_CHARACTER, [value], {"content": value}])


@pytest.mark.parametrize("template", ["nano3", "null"])
def test_no_row_is_lost_however_broken(tmp_path: Path, home: Path, template: str) -> None:
    choose = random.Random(11)
    rows = [broken(row, choose) for row in varied_chats(1200, seed=4)]
    lines = [json.dumps(row).encode() for row in rows]
    cut = [line[: choose.randrange(len(line))] + b"\xff" * choose.randrange(2) for line in lines[:100]]
    source = tmp_path / "a.jsonl"
    source.write_bytes(b"\n".join([*lines, *cut, b"   ", b""]))
    made = prepare(home, source, REJECT, f"data_prep.chat_template={template}", "data_prep.pack_size=1024",
                   "data_prep.too_long=reject")  # fmt: skip
    counts, splits = stats(made)["counts"], stats(made)["splits"]
    kept = sum(figures["conversations"] for figures in splits.values())
    assert counts["rows"] == kept + sum(counts["rejected"].values())
    assert counts["rows"] + counts["blank lines"] == len(lines) + len(cut) + 1
    assert kept > 150
    assert len(counts["rejected"]) > 10
    entries = (made.path / "rejected.jsonl").read_text().splitlines()
    assert len({json.loads(entry)["line"] for entry in entries}) == len(entries) == sum(counts["rejected"].values())


def test_a_blend_of_chats_reports_its_shares(tmp_path: Path, home: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [chat(f"q{n}") for n in range(30)])
    write_lines(tmp_path / "b.jsonl", [chat(f"p{n}") for n in range(10)])
    entries = [{"name": "a", "path": "a.jsonl", "weight": 1}, {"name": "b", "path": "b.jsonl", "weight": 3}]
    blend = tmp_path / "blend.json"
    blend.write_text(json.dumps({"_comment": "two", "datasets": entries}))
    made = prepare(home, blend, ALL_IN_TRAIN)
    first, second = stats(made)["data_sets"]
    assert (first["name"], first["asked_share"], second["asked_share"]) == ("a", 0.25, 0.75)
    assert first["available_share"] == pytest.approx(0.75, abs=0.02)
    assert stats(made)["splits"]["train"]["conversations"] == 40
    named = {Path(source.uri).name for source in sources(config(f"data_prep.source={blend}"))}
    assert {"blend.json", "a.jsonl", "b.jsonl"} <= named


def test_compression_and_row_groups_are_as_asked(tmp_path: Path, home: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [chat(f"q{n}") for n in range(40)])
    made = prepare(home, source, ALL_IN_TRAIN, "data_prep.parquet_compression=snappy",
                   "data_prep.parquet_row_group_size=3")  # fmt: skip
    written = pq.ParquetFile(made.path / "train.parquet").metadata
    assert written.row_group(0).column(0).compression == "SNAPPY"
    assert written.row_group(0).num_rows == 3
    assert written.num_rows == stats(made)["splits"]["train"]["packed_rows"]


def test_a_named_template_is_part_of_the_identity(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [chat()])
    given = [config(f"data_prep.source={source}", f"data_prep.chat_template={name}") for name in ("nano3", "null")]
    digests = [{Path(entry.uri).name: entry.digest for entry in sources(one)} for one in given]
    assert "nano3.jinja" in digests[0]
    assert "nano3.jinja" not in digests[1]


def test_a_format_of_another_package_is_found_by_its_name(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"turns": ["2+2?", "4"]}, {"turns": ["2+3?"]}])
    asked = ["-c", "tiny", f"data_prep.source={source}", "data_prep.workers=1", "data_prep.format=pairs_of_text"]
    assert main(asked) == 2
    assert "no chat format named 'pairs_of_text'; there are: auto, messages, sharegpt" in capsys.readouterr().err
    package = tmp_path / "packages"
    (package / "pairs-1.dist-info").mkdir(parents=True)
    (package / "pairs-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: pairs\nVersion: 1\n")
    entry = "[nemotron.chat_formats]\npairs_of_text = pairs_of_text:messages\n"
    (package / "pairs-1.dist-info" / "entry_points.txt").write_text(entry)
    (package / "pairs_of_text.py").write_text(
        "def messages(row):\n"
        "    asked, answer = row['turns']\n"
        "    return [{'role': 'user', 'content': asked}, {'role': 'assistant', 'content': answer}]\n"
    )
    monkeypatch.syspath_prepend(package)
    made = prepare(home, source, REJECT, ALL_IN_TRAIN, "data_prep.format=pairs_of_text")
    assert stats(made)["splits"]["train"]["conversations"] == 1
    assert reasons(made) == {2: "the chat format 'pairs_of_text' fails"}
    assert "package:pairs" in {source.uri for source in made.manifest.sources}


def test_what_the_rows_were_rendered_with_travels_with_them(home: Path, tmp_path: Path) -> None:
    row = chat()
    row["messages"][1]["reasoning_content"] = "because"
    source = write_lines(tmp_path / "chats.jsonl", [row])
    made = prepare(home, source, ALL_IN_TRAIN, "data_prep.chat_template=nano3")
    assert TokenizerFolder(made.path / "tokenizer").chat_template() == find_template("nano3")
    assert made.manifest.metadata["turn_end"] == {"id": 5, "token": "<|im_end|>"}


def test_the_published_model_ends_answers_where_the_data_do(tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.mkdir()
    (output / "config.json").write_text('{"eos_token_id": 2}')
    run = SimpleNamespace(directory=tmp_path)

    def trained(data: object, model: object = None) -> object:
        task: Any = SimpleNamespace(inputs={"data": data, "model": model}, run=run)
        end_answers(task, Outcome(output), end_of_answers(task))
        file = output / "generation_config.json"
        return json.loads(file.read_text())["eos_token_id"] if file.exists() else None

    def data(**metadata: object) -> object:
        return SimpleNamespace(path=tmp_path, manifest=SimpleNamespace(metadata=metadata))

    assert trained(data(turn_end=None)) is None
    assert trained(data(turn_end={"id": 9, "token": "<|end|>"})) == [2, 9]
    folder = provide_tokenizer("tiny", tmp_path / "model").path  # chats that an engine reads itself
    assert trained(None, SimpleNamespace(path=folder)) == [2, 9, 5]
