"""Damaged input for every parser: a valid input is read rightly, any other is refused with a clear error.

    uv run pytest -n0 -m slow tests/fuzz                                          # 100 damaged inputs for each parser
    uv run pytest -m slow tests/fuzz --fuzz=100000 -k 'manifest or gpus'           # a campaign, with other inputs

A failure shows the smallest input that Hypothesis finds. Add it to FOUND or CHANGED when it is mended.
"""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzz import command_parsers, data_parsers, run_parsers
from fuzz.damage import WORD, Files
from fuzz.parser import Parser, inputs, verdict, word_examples, word_of
from hypothesis import HealthCheck, Phase, event, given, settings

from nemotron_shared.system.errors import UserError

PARSERS = command_parsers.PARSERS | data_parsers.PARSERS | run_parsers.PARSERS
REFUSE_NOTHING = {"answer", "diagnose", "slurm"}
"""Whatever a model or another program prints is read as far as it can be."""


@pytest.mark.parametrize("name", PARSERS)
def test_every_example_is_accepted(tmp_path: Path, name: str) -> None:
    parser = PARSERS[name]
    assert {verdict(parser, files, tmp_path / "in") for files in parser.examples()} == {"accepted"}


@pytest.mark.slow
@pytest.mark.parametrize("name", PARSERS)
def test_damaged_input_is_read_rightly_or_refused(tmp_path: Path, name: str, request: pytest.FixtureRequest) -> None:
    parser, counts, asked = PARSERS[name], Counter[str](), request.config.getoption("--fuzz")
    count = round((asked or 100) * parser.share)

    @settings(
        max_examples=max(count, 2), deadline=None, database=None, derandomize=asked is None,
        phases=(Phase.generate, Phase.shrink), suppress_health_check=[*HealthCheck],
    )  # fmt: skip
    @given(inputs(parser))
    def check(files: Files) -> None:
        found = verdict(parser, files, tmp_path / "in")
        event(found)
        counts[found] += 1

    check()
    assert counts.total() >= count
    assert bool(counts["refused"]) == (name not in REFUSE_NOTHING), "the damage reaches what the parser checks"


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
"""What campaigns have found: tracebacks, refusals without a remedy, and what was accepted."""


@pytest.mark.parametrize(("name", "files"), FOUND)
def test_what_was_found_is_refused(tmp_path: Path, name: str, files: Files) -> None:
    assert verdict(PARSERS[name], files, tmp_path / "in") == "refused"


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
"""Parser, file of one of its examples, what is there, and what it becomes."""


@pytest.mark.parametrize(("name", "file", "before", "after"), CHANGED)
def test_one_wrong_value_is_refused(tmp_path: Path, name: str, file: str, before: bytes, after: bytes) -> None:
    example = next(one for one in PARSERS[name].examples() if before in one.get(file, b""))
    changed = {**example, file: example[file].replace(before, after)}
    assert verdict(PARSERS[name], changed, tmp_path / "in") == "refused"


@pytest.mark.parametrize(
    ("said", "gold"),
    [(b"ari" + b"e999999" * 200, b"Paris"), (b"1.5e3", b"150" + b"or" * 200), (b"7" + b" " * 2000, b"8")],
)
def test_answers_that_took_hours_are_judged(tmp_path: Path, said: bytes, gold: bytes) -> None:
    assert verdict(PARSERS["answer"], {"said.word": said, "gold.word": gold}, tmp_path) == "accepted"


def _raise(error: BaseException) -> Callable[[Path, Files], Any]:
    def read(folder: Path, files: Files) -> None:
        raise error

    return read


def _hang(folder: Path, files: Files) -> None:
    while time.monotonic():
        pass


def _lax(files: Files, made: Any) -> None:
    assert word_of(files) == "valid"


@pytest.mark.parametrize(
    ("read", "word", "found"),
    [
        (lambda folder, files: None, b"valid", "accepted"),
        (lambda folder, files: None, b"other", "accepted, but the second reading says"),
        (_raise(UserError("no such key", "did you mean 'a'?")), b"valid", "refused"),
        (_raise(UserError("no such key")), b"valid", "an error without a remedy"),
        (_raise(UserError("\n".join(["x" * 1000] * 9), "y")), b"valid", "an error of 9,0"),
        (_raise(ValueError("a")), b"valid", "traceback: ValueError: a"),
        (_raise(BaseException("a panic of a library")), b"valid", "traceback: BaseException"),
        (_hang, b"valid", "hang: more than 0.2 s"),
    ],
)
def test_the_verdict_on_an_input(tmp_path: Path, read: Callable[[Path, Files], Any], word: bytes, found: str) -> None:
    parser = Parser(word_examples("valid"), read, _lax, on_disk=False, seconds=0.2)
    try:
        assert verdict(parser, {WORD: word}, tmp_path) == found
    except AssertionError as error:
        assert str(error).startswith(found)
