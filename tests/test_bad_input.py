"""Every kind of bad input is one clear error with file, place and remedy; nothing half-made is left."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from lanes import slow
from support import nemotron, script, short

GOOD_CHAT = json.dumps({"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]})


@dataclass(frozen=True)
class Case:
    """A command that must fail, what is written first, and what its error must say."""

    stage: str
    says: tuple[str, ...]
    verb: str = "data_prep"
    overrides: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)


def chats(*lines: str) -> dict[str, str]:
    return {"rows.jsonl": "\n".join(lines) + "\n"}


SOURCE = ("data_prep.source=rows.jsonl",)
CASES = {
    "malformed line": Case("sft", ("rows.jsonl:2", "reject"), overrides=SOURCE,
                           files=chats(GOOD_CHAT, '{"messages": [')),
    "empty file": Case("sft", ("rows.jsonl", "no rows"), overrides=SOURCE, files={"rows.jsonl": ""}),
    "missing file": Case("pretrain", ("corpus.jsonl",), overrides=("data_prep.source=corpus.jsonl",)),
    "empty path": Case("sft", ("data_prep.source: is empty: give a path",), overrides=("data_prep.source=",)),
    "missing field": Case("pretrain", ("rows.jsonl:1", "no field 'text'", "body"), overrides=SOURCE,
                          files={"rows.jsonl": '{"body": "x"}\n'}),
    "wrong type": Case("pretrain", ("rows.jsonl:1", "not a string", "data_prep.text_field=NAME"), overrides=SOURCE,
                       files={"rows.jsonl": '{"text": 3}\n'}),
    "no answer": Case("rl", ("rows.jsonl:1", "no field 'expected_answer'", "data_prep.answer_field=NAME"),
                      overrides=SOURCE, files={"rows.jsonl": '{"question": "2+2?"}\n'}),
    "answer pattern": Case("rl", ("rows.jsonl:1", "answer_pattern"),
                           overrides=(*SOURCE, "data_prep.answer_pattern='#### (.+)'"),
                           files={"rows.jsonl": '{"question": "2+2?", "expected_answer": "4"}\n'}),
    "no assistant": Case("sft", ("rows.jsonl:1", "assistant"), overrides=SOURCE,
                         files={"rows.jsonl": '{"messages": [{"role": "user", "content": "2+2?"}]}\n'}),
    "unknown key": Case("sft", ("command line", "did you mean 'optimizer.lr'"), "train", ("optimizer.lrr=1",)),
    "unknown added key": Case("sft", ("command line: unknown key 'train.steps'",), "train", ("+train.steps=1",)),
    "wrong value": Case("pretrain", ("command line: train.train_iters", "'many'"), "train",
                        ("train.train_iters=many",)),
    "another number": Case("sft", ("packed_sequence_size: 010 is the number 8 in YAML", "write 10 or 8"), "train",
                           ("engine=automodel", "packed_sequence.packed_sequence_size=010")),
    "unknown engine": Case("pretrain", ("engine=megatron", "did you mean 'megatron_bridge'?"), "train",
                           ("engine=megatron",)),
    "missing artifact": Case("sft", ("run.model", "make it: nemotron super3 pretrain"), "train",
                             ("run.missing_model=error",)),
    "artifact of another name": Case("rl", ("run.model: no artifact 'sftt'",), "train",
                                     ("run.model=sftt:v9",)),
    "batch": Case("pretrain", ("not a multiple",), "train", ("train.global_batch_size=10", "train.micro_batch_size=4")),
    "unknown reward": Case("rl", ("no reward named 'kindness'", "lenient"), "train",
                           ("rewards=[{name: kindness, weight: 1}]",)),
    "unknown task": Case("eval", ("no task named 'sum'", "did you mean 'sums'"), "train", ("evaluation.tasks=[sum]",)),
    "split": Case("pretrain", ("sum to 0.52",), overrides=("data_prep.split.train=0.5",)),
    "unknown architecture": Case("pretrain", ("did you mean 'nano3_tiny'",), "train",
                                 ("model.architecture=nano3_tinny",)),
    "unknown model field": Case("pretrain", ("did you mean 'hidden_size'",), "train",
                                ("+model.overrides.hidden_siz=32",)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_clear_error(run, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    for file, content in case.files.items():
        (tmp_path / file).write_text(content)
    result = run(*script(case.stage, case.verb), *short(case.stage), *case.overrides, ok=False)
    assert result.returncode == 2, result.stderr
    assert result.stderr.count("error: ") == 1
    assert "Traceback" not in result.stderr
    for words in case.says:
        assert words in result.stderr
    made = {"train": "model", "data_prep": "data"}[case.verb]
    assert not list(tmp_path.glob(f"home/artifacts/super3-{case.stage}-{made}/v*"))


@pytest.mark.parametrize("name", ["unknown config", "unknown family"])
def test_bad_words_are_one_clear_error(run, name: str) -> None:
    words = {"unknown config": ["super3", "sft", "-c", "huge"], "unknown family": ["hyper3", "sft"]}[name]
    result = run(*nemotron(*words), ok=False)
    assert result.returncode == 2
    assert "there are: default" in result.stderr or "did you mean 'super3'" in result.stderr


def damaged_shard(home: Path) -> Path:
    file = home / "artifacts" / "super3-pretrain-data" / "v1" / "train" / "documents" / "shard_000000.bin"
    file.write_bytes(file.read_bytes()[:100])
    return file


def damaged_parquet(home: Path) -> Path:
    file = home / "artifacts" / "super3-sft-data" / "v1" / "train.parquet"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return file


def damaged_rows(home: Path) -> Path:
    file = home / "artifacts" / "super3-rl-data" / "v1" / "train.jsonl"
    file.write_text(file.read_text()[:-20])
    return file


@pytest.mark.parametrize(
    ("stage", "damage"), [("rl", damaged_rows), *slow(("pretrain", damaged_shard), ("sft", damaged_parquet))]
)
def test_a_damaged_shard_is_named(run, tmp_path: Path, stage: str, damage: Callable[[Path], Path]) -> None:
    run(*script(stage, "data_prep"), *short(stage))
    file = damage(tmp_path / "home")
    result = run(*script(stage), *short(stage), ok=False)
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    assert file.stem in result.stderr
    assert "--force" in result.stderr
    assert run(*nemotron("artifacts", "verify"), ok=False).returncode == 1


def test_bad_rows_can_be_counted_instead(run, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join([GOOD_CHAT, "{broken", '{"messages": []}', GOOD_CHAT]) + "\n")
    run(*script("sft", "data_prep"), *short("sft"), *SOURCE, "data_prep.on_bad_row=reject", "data_prep.max_lost=0.5",
        "data_prep.split={train: 1, valid: 0, test: 0}")  # fmt: skip
    folder = tmp_path / "home" / "artifacts" / "super3-sft-data" / "v1"
    rejected = [json.loads(line) for line in (folder / "rejected.jsonl").read_text().splitlines()]
    assert [entry["line"] for entry in rejected] == [2, 3]
    stats = json.loads((folder / "stats.json").read_text())
    assert stats["splits"]["train"]["conversations"] == 2
    assert sum(stats["counts"]["rejected"].values()) == 2
