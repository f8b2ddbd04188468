"""`nemotron prove input`: what it calls a failure, and a small campaign over every parser."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nemotron_prove.input.campaign import Failure, made_small, run_here
from nemotron_prove.input.command import command
from nemotron_prove.input.smaller import smaller
from nemotron_prove.input.target import WORD, Files, Target, word_of, words
from nemotron_prove.input.targets import NAMES, target_named
from nemotron_prove.input.trial import FAILURES, input_of, tried
from nemotron_shared.errors import UserError

DEAR = {"config": 1, "override": 1, "diagnose": 5, "answer": 5, "packed": 15, "template": 10, "tokenizer": 15}
INPUTS = 25


def parser(use: Callable[[str], object], fault: Callable[[str], str | None] = lambda text: None) -> Target:
    """A target whose inputs are words."""
    example = words("valid")
    return Target(
        "made-up", "words", lambda: example, lambda folder, files: use(word_of(files)),
        lambda files, made: fault(word_of(files)), in_files=False, seconds=0.2,
    )  # fmt: skip


def raising(error: BaseException) -> Callable[[str], object]:
    """A parser that takes nothing."""

    def use(text: str) -> object:
        raise error

    return use


def busy(text: str) -> None:
    """A parser that never ends."""
    while time.monotonic():
        pass


@pytest.mark.parametrize(
    ("use", "kind"),
    [
        (str, "accepted"),
        (raising(UserError("no such key", "did you mean 'a'?")), "refused"),
        (raising(UserError("no such key")), "unclear"),
        (raising(UserError("\n".join(["x" * 1000] * 9), "y")), "unclear"),
        (raising(ValueError("a")), "traceback"),
        (raising(BaseException("a panic of a library")), "traceback"),
        (busy, "hang"),
    ],
)
def test_a_verdict_says_what_came_of_an_input(tmp_path: Path, use: Callable[[str], object], kind: str) -> None:
    assert tried(parser(use), {WORD: b"valid"}, tmp_path).kind == kind


def test_what_a_second_reading_refuses_must_not_be_accepted(tmp_path: Path) -> None:
    lax = parser(str, lambda text: "not the one word" if text != "valid" else None)
    tally = run_here(lax, 1, range(50), tmp_path)
    assert tally.kinds["accepted"] >= 1
    assert tally.kinds["silent"] == tally.failed > 10
    assert list(tally.failures) == ["silent: not the one word"]


def test_inputs_are_the_same_for_the_same_seed() -> None:
    target = target_named("manifest")
    examples = list(target.examples())
    once, again, other = ([input_of(target, examples, seed, number) for number in range(30)] for seed in (1, 1, 2))
    assert once == again != other


def test_a_failing_input_is_made_small(tmp_path: Path) -> None:
    fails = parser(lambda text: 1 / 0 if "x" in text else None)
    files = {WORD: b"a long word with an x in it"}
    found = made_small(fails, Failure(3, tried(fails, files, tmp_path), files), tmp_path)
    assert found.files == {WORD: b"x"}
    assert smaller({"a": b"1", "b": b"2"}, lambda made: "b" in made) == {"b": b""}


@pytest.mark.parametrize("name", NAMES)
def test_no_parser_fails_on_damaged_input(tmp_path: Path, name: str) -> None:
    target = target_named(name)
    examples = len(target.examples())
    tally = run_here(target, 5, range(examples), tmp_path)
    assert tally.kinds == {"accepted": examples}
    tally = run_here(target, 5, range(examples, examples + DEAR.get(name, INPUTS)), tmp_path)
    assert tally.inputs and not tally.failures


FOUND: list[tuple[str, Files]] = [
    ("reference", {WORD: b"../x"}),
    ("address", {WORD: b"hf://org/.."}),
    ("gpus", {WORD: b"00"}),
    ("gpus", {WORD: b"A100-" + b"9" * 400 + b"GB"}),
    ("gpus", {WORD: b"8 RTX 4090"}),
    ("machine", {"machine.yaml": b"processes: true\n"}),
    ("machine", {"machine.toml": b"processes=4\nmemory_gb=2\r[gpus]\nname='A'\ncount=4"}),
    ("machine", {"machine.yaml": b"processes: 4\ngpus: {name: H100, count: 4294967296}\n"}),
    ("env_toml", {"env.toml": b"[mine]\nexecutor = [[]]\n"}),
    ("env_toml", {"env.toml": b"[mine]\nnodes = \xff\n"}),
    ("env_toml", {"env.toml": b"[mine]\nnproc_per_node = true\n"}),
    ("env_toml", {"env.toml": b"[mine]\nhome = 'a'\rnodes = 2\n"}),
    ("yaml", {"mine.yaml": b"a: \xff\n"}),
    ("yaml", {"mine.yaml": b"a: &a [*a]\n"}),
    ("config", {"mine.yaml": b"8"}),
    ("config", {"mine.yaml": b"defaults:\n- _: _self_\n"}),
    ("override", {WORD: b"run.seed=true"}),
    ("override", {WORD: b"~engine="}),
    ("override", {WORD: b"engine.name=[[1]]"}),
    ("notes", {"artifacts/super3-sft-model/aliases.json": b'{"v1": 5}'}),
    ("address", {WORD: "hf://\u96ea/n".encode()}),
    ("override", {WORD: b"a." * 300 + b"b=1"}),
    ("segments", {"segments.json": b'[{"began": 1}]'}),
    ("metrics", {"metrics.jsonl": b'{"step": 1, "loss": "a"}\n'}),
    ("metrics", {"metrics.jsonl": b"\xff\n"}),
    ("packed", {"train.parquet": b"PAR1PAR1"}),
    ("rl_rows", {"train.jsonl": b'{"responses_create_params": {"input": ""}, "agent_ref": {}}\n'}),
    ("eval_tasks", {"tasks.json": b'[{"name": "a", "kind": [], "rows": 1}]'}),
    ("eval_tasks", {"tasks.json": b'[{"name": "../a", "kind": "text", "rows": 1}]'}),
    ("rows", {"in.tsv": b'"a\nb'}),
    ("template", {"chat.jinja": b"{% for a in " + b"[" * 200}),
    ("template", {"chat.jinja": b"\xff"}),
    ("model_config", {"config.json": b"[]"}),
    ("chat_request", {"body.json": b'{"messages": [{"role": ["user"], "content": "a"}]}'}),
    ("chat_request", {"body.json": b'{"messages": [{"role": "assistant", "tool_calls": 1}]}'}),
]
"""What campaigns have found: tracebacks, refusals without a remedy, and what was taken."""


@pytest.mark.parametrize(("name", "files"), FOUND)
def test_what_was_found_is_refused(tmp_path: Path, name: str, files: Files) -> None:
    assert tried(target_named(name), files, tmp_path / "in").kind == "refused"


CHANGED: list[tuple[str, str, bytes, bytes]] = [
    ("manifest", "manifest.json", b'"name": "super3-sft-model"', b'"name": "../x"'),
    ("manifest", "manifest.json", b'"bytes": 7', b'"bytes": -7'),
    ("manifest", "manifest.json", b'"digest": "', b'"digest": "z'),
    ("blend", "in/blend.json", b'"1.0", "a"', b'"1.0", "../d"'),
    ("blend", "in/blend.json", b'"1.0", "a"', b'"1.0", "/"'),
    ("blend_file", "blend.json", b'"name": "web"', b'"name": "' + b"a" * 300 + b'"'),
    ("rl_rows", "train.jsonl", b'"expected_answer": "12"', b'"expected_answer": " "'),
    ("expectations", "mine.yaml", b"metric: loss", b"metric: " + b"9" * 400),
    ("results", "results.json", b'"task": "sums"', b'"task": "other"'),
    ("weights", "model.safetensors", b'"shape": [2, 3]', b'"shape": [2, 9]'),
    ("tokenizer", "tokenizer.json", b'"unk_token": "<unk>"', b'"unk_token": "<none>"'),
    ("tokenizer", "tokenizer_config.json", b'"eos_token": "<|im_end|>"', b'"eos_token": {"a": 1}'),
    ("bin_idx", "a.bin", b"\x0b\x00\x00\x00", b"\x0b\x00\x00\xff"),
]
"""Of a valid example: file, what stands there, and what it becomes."""


@pytest.mark.parametrize(("name", "file", "before", "after"), CHANGED)
def test_one_wrong_value_is_refused(tmp_path: Path, name: str, file: str, before: bytes, after: bytes) -> None:
    target = target_named(name)
    example = next(one for one in target.examples() if before in one.get(file, b""))
    assert tried(target, {**example, file: example[file].replace(before, after)}, tmp_path / "in").kind == "refused"


@pytest.mark.parametrize(
    ("said", "gold"),
    [(b"ari" + b"e999999" * 200, b"Paris"), (b"1.5e3", b"150" + b"or" * 200), (b"7" + b" " * 2000, b"8")],
)
def test_answers_that_took_hours_are_judged(tmp_path: Path, said: bytes, gold: bytes) -> None:
    assert tried(target_named("answer"), {"said.word": said, "gold.word": gold}, tmp_path).kind == "accepted"


def test_the_command_counts_and_shows_one_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--target", "slice", "--count", "30", "--json"], standalone_mode=False) == 0
    (found,) = json.loads(capsys.readouterr().out)["targets"]
    assert found["damaged"] == 30 < found["inputs"] == found["accepted"] + found["refused"]
    assert command.main(["--target", "slice", "--see", "0"], standalone_mode=False) == 0
    assert "train[1024:]" in capsys.readouterr().out
    assert command.main(["--target", "slice", "--see", "0", "--json"], standalone_mode=False) == 0
    seen = json.loads(capsys.readouterr().out)
    assert (seen["target"], seen["kind"], "train[1024:]" in seen["files"][0]["begins"]) == ("slice", "accepted", True)
    twice = ["--target", "slice", "--target", "slice", "--count", "30", "--json"]
    assert command.main(twice, standalone_mode=False) == 0
    assert [one["damaged"] for one in json.loads(capsys.readouterr().out)["targets"]] == [30]
    assert command.main(["--target", "slice", "--target", "gpus", "--count", "8"], standalone_mode=False) == 0
    assert "2 of 2 parsers met fewer than 20 damaged inputs" in capsys.readouterr().out
    with pytest.raises(UserError, match="one parser"):
        command.main(["--see", "0"], standalone_mode=False)


def test_an_unknown_target_is_told() -> None:
    with pytest.raises(UserError, match="did you mean 'manifest'"):
        target_named("manifests")
    assert set(FAILURES) == {"unclear", "traceback", "hang", "silent", "died"}
