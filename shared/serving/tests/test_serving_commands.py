"""`nemotron chat`, `generate` and `serve` as they are typed."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nemotron_app.main import main
from nemotron_data.chat.answers import Piece
from nemotron_serving import chat, serve
from nemotron_serving.batch import Batch
from nemotron_serving.generate import Progress, read_rows
from nemotron_serving.model import Model
from nemotron_serving.sampling import Sampling
from nemotron_shared.artifacts import Store
from nemotron_shared.system.errors import UserError

ROWS = [
    {"id": 7, "prompt": "What is 3+4?"},
    {"question": "What is 12+7-3?", "response": "an older answer"},
    {"messages": [{"role": "user", "content": "Where does Mira live?"}]},
    {"input": "Tova"},
]


@pytest.fixture
def command(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEMOTRON_HOME", str(home))
    return lambda *words: main(list(words))


def piped(monkeypatch: pytest.MonkeyPatch, text: str | bytes) -> None:
    content = text.encode() if isinstance(text, str) else text
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), errors="surrogateescape"))


def test_a_pipe_gets_the_answer_and_nothing_else(
    command: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    piped(monkeypatch, "What is 3+4?\n")
    assert command("chat", "--max-tokens", "6", "--system", "Be brief.") == 0
    said = capsys.readouterr()
    assert "[small:v1] loading" in said.err
    assert "loading" not in said.out
    assert said.out.endswith("\n")
    piped(monkeypatch, "x" * 9000)
    assert command("chat", "small") == 2
    assert "context is 4096" in capsys.readouterr().err
    piped(monkeypatch, " \n")
    assert command("chat", "small") == 2


def test_a_pipe_that_is_no_text_is_one_error(
    command: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    piped(monkeypatch, "Wie heißt sie?".encode("latin1"))
    assert command("chat", "small") == 2
    said = capsys.readouterr().err
    assert "standard input: not a text in UTF-8" in said and "iconv -f latin1 -t utf-8" in said
    piped(monkeypatch, "\ufeffMira\r\n".encode())
    assert chat.read_pipe() == "Mira\n"


def talk(model: Model, out: io.StringIO, think: str = "hide") -> chat.Talk:
    return chat.Talk(model, Sampling(8), think, out)


def test_a_conversation_and_its_commands(
    never_ends: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", type("Terminal", (io.StringIO,), {"isatty": lambda self: True})())
    out = io.StringIO()
    one = talk(never_ends, out)
    one.obey("/system Be brief.")
    assert one.ask("What is 3+4?")
    assert one.ask("And 5+6?")
    assert [turn["role"] for turn in one.conversation] == ["system", "user", "assistant", "user", "assistant"]
    one.obey(f"/save {tmp_path / 'talk.jsonl'}")
    assert json.loads((tmp_path / "talk.jsonl").read_text()) == {"messages": one.conversation}
    one.obey(f"/save {tmp_path / 'talk.jsonl'}")
    one.obey("/undo")
    assert len(one.turns) == 2
    one.obey("/rset")
    one.obey("/help")
    assert not one.ask("x" * 9000)
    assert len(one.turns) == 2
    one.obey("/reset")
    assert not one.turns
    assert one.obey("/exit")
    said = capsys.readouterr()
    for words in ("exists", "did you mean '/reset'", "/undo or /reset makes room", "cut after 8 tokens"):
        assert words in said.err
    assert "/save FILE" in said.out


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(never_ends: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    one = chat.Talk(never_ends, Sampling(4000), "show", io.StringIO())
    pressed = iter([False, False, True])
    original = chat.Shown.tell

    def tell(self: chat.Shown, piece: Piece) -> None:
        original(self, piece)
        if next(pressed, False):
            raise KeyboardInterrupt

    monkeypatch.setattr(chat.Shown, "tell", tell)
    assert not one.ask("Mira")
    assert [turn["role"] for turn in one.turns] == ["user", "assistant"]
    one.sampling = Sampling(3)
    assert one.ask("Tova")
    assert len(one.turns) == 4


def test_pasted_lines_are_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["first", "second", '"""', "a", "", "b", '"""'])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(lines))
    more = iter([[sys.stdin], []])  # there is a second line at once, and then nothing
    monkeypatch.setattr(chat.select, "select", lambda *_: (next(more), [], []))
    assert chat.read_message() == "first\nsecond"
    assert chat.read_message() == "a\n\nb"


def test_a_terminal_obeys_nothing_that_a_model_says() -> None:
    out = type("Terminal", (io.StringIO,), {"isatty": lambda self: True})()
    shown = chat.Shown(out, True)
    shown.tell(Piece("reasoning", "hm\x1b[2J"))
    shown.tell(Piece("content", "9\x1b]0;title\x07\n\tx"))
    shown.end()
    assert "\x1b[2J" not in out.getvalue() and "\x1b]0" not in out.getvalue()
    assert out.getvalue().startswith(chat.DIM) and "\n\tx" in out.getvalue()


def test_a_file_of_prompts(command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "prompts.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    asked = ("generate", "small", str(source), "--max-tokens", "5", "--temperature", "1", "--seed", "3", "--logprobs")
    assert command(*asked, "--out", "all.jsonl") == 0
    made = [json.loads(line) for line in Path("all.jsonl").read_text().splitlines()]
    assert [row.get("id") for row in made] == [7, None, None, None]
    assert all({"response", "finish_reason", "logprobs"} <= row.keys() for row in made)
    assert made[1]["response"] != "an older answer"
    assert command(*asked, "--out", "all.jsonl") == 2
    assert command(*asked, "--out", "alone.jsonl", "--batch-size", "1") == 0
    alone = [json.loads(line) for line in Path("alone.jsonl").read_text().splitlines()]
    for row, other in zip(made, alone, strict=True):  # the same words; log-probabilities up to rounding
        ours, theirs = ([entry["logprob"] for entry in one.pop("logprobs")] for one in (row, other))
        assert row == other
        assert ours == pytest.approx(theirs, abs=1e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.jsonl", "alone.jsonl", "prompts.jsonl"]


def test_a_line_with_tools_is_asked_with_them(
    never_ends: Model, command: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tools reach the template, a table's nulls do not, and what the model calls comes back as calls."""
    said = '<think></think>I look.<tool_call>{"name": "get", "parameters": {"a": 1.50}}</tool_call><tool_call>{'
    planned = never_ends.tokenizer(said, add_special_tokens=False).input_ids
    original = Batch._tell

    def tell(batch: Any, answers: Any, logits: Any) -> list[int | None]:
        logits = logits.clone()
        for row, answer in zip(logits, answers, strict=True):
            row[planned[answer.made]] = 1e4
        return original(batch, answers, logits)

    monkeypatch.setattr(Batch, "_tell", tell)
    tools = [{"name": "get", "parameters": {"properties": {"a": {"type": "number"}, "city": None}}}]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "7?", "tool_defs": tools}) + "\n")
    assert command("generate", "small", "rows.jsonl", "--out", "o.jsonl", "--max-tokens", str(len(planned))) == 0
    (made,) = map(json.loads, (tmp_path / "o.jsonl").read_text().splitlines())
    (call,) = made["tool_calls"]
    assert call == {"id": "call_1", "type": "function", "function": {"name": "get", "arguments": '{"a": 1.50}'}}
    assert (made["response"], made["finish_reason"]) == ("I look.<tool_call>{", "length")
    assert made["tool_defs"] == tools
    (row,) = read_rows(tmp_path / "rows.jsonl", False, None)
    assert row.tools == [
        {"type": "function", "function": {"name": "get", "parameters": {"properties": {"a": {"type": "number"}}}}}
    ]
    assert '"name": "get"' in never_ends.prompter.chat(row.messages or [], row.tools).text


def test_a_mistake_in_the_config_is_not_the_tokenizers(
    command: Callable[..., int], home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(Store(home).resolve("small").path, tmp_path / "model")
    (folder / "config.json").write_text('{"model_type": "gemma3", "text_config": 5}')
    (folder / "tokenizer.json").write_text("{}")
    (tmp_path / "prompts.txt").write_text("Hello\n")
    assert command("generate", str(folder), "prompts.txt", "--out", "a.jsonl") == 2
    assert "config.json: not a model's config" in capsys.readouterr().err


def test_a_line_ends_where_json_lines_end(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes('\ufeff{"prompt": "x\u2028y"}\r\n{"prompt": "z"}\n'.encode())
    assert [row.given["prompt"] for row in read_rows(tmp_path / "a.jsonl", False, None)] == ["x\u2028y", "z"]


def test_a_run_that_was_killed_goes_on(
    command: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "prompts.txt"
    source.write_text("Mira\nTova\n\nOster\n")
    asked = ("generate", "small", str(source), "--max-tokens", "4", "--out", "made.jsonl", "--batch-size", "1")
    original, kept = Progress.add, 0

    def add(self: Progress, number: int, made: dict[str, Any]) -> None:
        nonlocal kept
        original(self, number, made)
        kept += 1
        if kept == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "add", add)
    assert command(*asked) == 130
    assert not Path("made.jsonl").exists()
    with Path(".made.jsonl.part").open("a") as torn:
        torn.write('[4, {"respo')
    assert command(*asked) == 0
    assert "going on: 2 of 3" in capsys.readouterr().err
    assert kept == 3
    assert [json.loads(line)["prompt"] for line in Path("made.jsonl").read_text().splitlines()] == [
        "Mira",
        "Tova",
        "Oster",
    ]
    assert command(*asked[:-2], "--force", "--seed", "1") == 0  # other wishes: nothing of the first is taken
    assert kept == 6


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "holds no prompts"), ("{", ":1: not JSON"), ('{"text": 1}', ":1: none of"), ("[1]", ":1: none of"),
     ('{"prompt": 3}', "not a text"), ('{"messages": [{"role": "x"}]}', "known are system"),
     ('{"messages": "x"}', "messages is not a list of objects"),
     ('{"prompt": "a", "prompt": "b"}', ":1: has the key 'prompt' twice"),
     ('{"messages": [{"role": "user", "content": "a", "content": "b"}]}', ":1: has the key 'content' twice"),
     ('\n{"prompt": "\\ud800"}', "line 2: messages[0] has '\\ud800', a lone surrogate"),
     ("Stra\udcdfe", "prompts.jsonl:1: not a text in UTF-8"),
     ('{"prompt": "%s"}' % ("x" * 9000), "line 1: the prompt has")],
)  # fmt: skip
def test_a_file_that_cannot_be_asked(
    command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, reason: str
) -> None:
    (tmp_path / "prompts.jsonl").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert command("generate", "small", "prompts.jsonl", "--out", "made.jsonl") == 2
    assert reason in capsys.readouterr().err
    assert not Path("made.jsonl").exists()


def test_a_text_to_continue_has_characters_only(
    command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a\\ud800"}')
    assert command("generate", "small", "prompts.jsonl", "--out", "made.jsonl", "--raw") == 2
    assert "line 1: the text has '\\ud800', a lone surrogate" in capsys.readouterr().err


@pytest.mark.parametrize(("file", "said"), [("none.jsonl", "none.jsonl: no such file"), (".", ".: is a folder")])
def test_a_file_that_is_none(
    command: Callable[..., int], capsys: pytest.CaptureFixture[str], file: str, said: str
) -> None:
    assert command("generate", "small", file, "--out", "made.jsonl") == 2
    assert f"error: {said}\n  give the path of a text file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--host", "0.0.0.0"], "a key is needed"),
        (["--host", "example.org"], "a key is needed"),
        (["--host", "0.0.0.0", "--api-key-env", "NO_KEY"], "holds no key"),
        (["--host", "0.0.0.0", "--api-key-env", "SHORT"], "holds no key"),
        (["--engine", "vllm"], "--engine vllm: program "),
        (["--engine", "vllm", "--device", "cpu"], "needs a GPU"),
        (["--engine", "llama.cpp"], "which GGUF file?"),
        (["--engine", "llama.cpp", "--gguf", "absent.gguf"], "absent.gguf: no such file"),
        (["--engine", "llama.cpp", "--gguf", "small.gguf"], "nemotron engine install libllama"),
        (["--gguf", "small.gguf"], "add --engine llama.cpp"),
        (["--port", "70000"], "70000"),
        (["--host", "192.0.2.1", "--api-key-env", "KEY"], "cannot listen"),
    ],
)
def test_what_is_not_served(
    command: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    words: list[str], reason: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("SHORT", "abc")
    monkeypatch.setenv("KEY", "a-key-that-is-long-enough")
    monkeypatch.setenv("NEMOTRON_ENGINES", "no-engines")
    Path("small.gguf").touch()
    assert command("serve", "small", *words) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert "a-key-that-is-long-enough" not in said


def test_llama_cpp_is_given_the_file_and_few_variables(
    command: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "small-BF16.gguf"
    file.touch()
    site = tmp_path / "engines" / "libllama" / "lib" / "python3.11" / "site-packages"
    for name in ("llama_cpp_python-0.3.36", "fastapi-0.165.0"):
        (site / f"{name}.dist-info").mkdir(parents=True)
        (site / f"{name}.dist-info" / "METADATA").write_text(f"Name: {name.partition('-')[0]}\nVersion: 1\n")
    monkeypatch.setenv("NEMOTRON_ENGINES", str(tmp_path / "engines"))
    monkeypatch.setenv("KEY", "a-key-that-is-long-enough")
    monkeypatch.setenv("SEED", "5")
    started: list[Any] = []
    monkeypatch.setattr("os.execve", lambda *given: started.append(given) or exec_ends())

    def exec_ends() -> None:
        raise KeyboardInterrupt

    words = ("serve", "small", "--engine", "llama.cpp", "--gguf", str(file), "--api-key-env", "KEY")
    command(*words)
    (program, line, variables) = started[0]
    assert Path(program) == tmp_path / "engines" / "libllama" / "bin" / "python"
    assert Path(line[2]).name == "gguf_run.py" and line[3:6] == ["serve", "--model", str(file)]
    assert variables["API_KEY"] == "a-key-that-is-long-enough" and "SEED" not in variables
    assert "it does not say which model" in "".join(capsys.readouterr())
    (tmp_path / "passport.json").write_text('{"source": {"reference": "other:v1", "digest": "0"}}')
    assert command(*words) == 2
    assert "was made from other:v1" in capsys.readouterr().err


def test_vllm_is_told_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chat_template.jinja").write_text("<think> <tool_call> <function=f>")
    words = serve.vllm_words(Path("/x/vllm"), tmp_path, "sft", "127.0.0.1", 8000, 16, False)
    assert words[:3] == ["/x/vllm", "serve", str(tmp_path)]
    assert words[words.index("--generation-config") + 1] == "vllm"
    assert words[-5:] == ["--enable-auto-tool-choice", "--tool-call-parser", "qwen3_coder", "--reasoning-parser",
                          "nemotron_v3"]  # fmt: skip
    (tmp_path / "chat_template.jinja").write_text("<think> <tool_call>")
    by_json = serve.vllm_words(Path("/x/vllm"), tmp_path, "sft", "127.0.0.1", 8000, 16, False)
    assert by_json[-4:] == ["--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"]
    for dtype, last in (("float32", ["--dtype", "float32"]), ("bfloat16", ["nemotron_v3", "--enforce-eager"])):
        (tmp_path / "config.json").write_text(json.dumps({"dtype": dtype}))
        own = serve.vllm_cpu_words(words, tmp_path)
        assert own[3:6] == ["serve", "--model", str(tmp_path)] and own[-2:] == last
    with pytest.raises(UserError):
        serve._key("::", None)
    assert serve._key("::1", None) is None


@pytest.mark.slow
def test_a_server_ends_cleanly_when_it_is_told_to(home: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "nemotron_app.main", "serve", "small", "--port", "0", "--threads", "1"]
    environment = os.environ | {"NEMOTRON_HOME": str(home)}
    process = subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    try:
        line = next(line for line in process.stderr if "serving as" in line)
        url = line.split(" at ")[1].split()[0]
        assert urllib.request.urlopen(f"{url}/health", timeout=300).status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
        assert "stopped serving" in process.stderr.read()
    finally:
        process.kill()
