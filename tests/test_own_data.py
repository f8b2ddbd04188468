"""Settings of data that a training command is given mean that data, and no other."""

import json
from pathlib import Path

import pytest
from support import nemotron, short

CHATS = [
    {"messages": [{"role": "user", "content": f"Say {word}."}, {"role": "assistant", "content": word}]}
    for word in ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten") * 4
]


def write_chats(path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in CHATS))


def data_of(home: Path, version: int) -> str:
    manifest = json.loads((home / "artifacts" / "super3-sft-model" / f"v{version}" / "manifest.json").read_text())
    return next(parent["reference"] for parent in manifest["parents"] if parent["role"] == "data")


@pytest.mark.slow
def test_a_source_given_to_training_is_what_is_trained_on(run, tmp_path: Path) -> None:
    write_chats(tmp_path / "mine.jsonl")
    tiny = [*short("sft"), "train.train_iters=1"]
    own = [*tiny, "data_prep.source=mine.jsonl"]
    run(*nemotron("super3", "sft"), *tiny)
    said = run(*nemotron("super3", "sft"), *own).stderr
    assert "none with data_prep.source" in said
    again = run(*nemotron("super3", "sft"), *own, "train.train_iters=2").stderr
    assert "[super3-sft-data:v2] is the data with data_prep.source" in again
    home = tmp_path / "home"
    assert [data_of(home, version) for version in (1, 2, 3)] == [f"super3-sft-data:v{n}" for n in (1, 2, 2)]
    back = run(*nemotron("super3", "sft"), *short("sft"), "train.train_iters=3").stderr
    assert "[super3-sft-data:v1] is the data with" in back

    wrong = run(*nemotron("super3", "sft"), *own, "run.data=super3-sft-data:v1", ok=False)
    assert wrong.returncode == 2
    assert "run.data: super3-sft-data:v1 was not prepared with data_prep.source" in wrong.stderr


def test_a_dry_run_tells_what_the_data_settings_mean(run, tmp_path: Path) -> None:
    write_chats(tmp_path / "mine.jsonl")
    dry = [*nemotron("super3", "sft"), "-c", "tiny", "--dry-run"]
    assert "would be prepared first" in run(*dry, "data_prep.source=mine.jsonl").stdout
    missing = run(*dry, "data_prep.source=other.jsonl", ok=False)
    assert missing.returncode == 1
    assert "other.jsonl: no such file" in missing.stdout
    refused = run(*dry, "data_prep.source=mine.jsonl", "run.missing_data=error", ok=False)
    assert refused.returncode == 1
    assert "make it: nemotron super3 data prep sft -c tiny data_prep.source=mine.jsonl" in refused.stdout


def test_a_config_of_the_user_counts_as_given_by_hand(run, tmp_path: Path) -> None:
    write_chats(tmp_path / "mine.jsonl")
    (tmp_path / "mine.yaml").write_text("defaults: [tiny, _self_]\ndata_prep: {source: mine.jsonl}\n")
    shown = run(*nemotron("super3", "sft"), "-c", "./mine.yaml", "--dry-run").stdout
    assert "none with data_prep.source" in shown


def test_a_dry_run_of_a_preparation_says_what_it_reads(run, tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text("Once upon a time. " * 10)
    words = nemotron("super3", "data", "prep", "pretrain", "-c", "tiny", "data_prep.source=[0.txt,1.txt,2.txt,3.txt]")
    assert "sources: 4 (720 bytes): 0.txt, 1.txt, 2.txt and 1 more" in run(*words, "--dry-run").stdout
    told = json.loads(run(*words, "--dry-run", "--json").stdout)["sources"]
    assert told == {"count": 4, "bytes": 720, "first": ["0.txt", "1.txt", "2.txt"]}


@pytest.mark.parametrize(
    ("stage", "name", "content", "said"),
    [
        ("sft", "a.jsonl", b"", "holds no rows"),
        ("pretrain", "a.csv", b"text\n", "holds no rows"),
        ("rl", "a.json", b"[]", "holds no rows"),
        ("sft", "a.parquet", b"PAR1", "not a readable Parquet file"),
        ("pretrain", "a.jsonl", '{"text": "a"}'.encode("utf-32"), "perhaps UTF-32"),
        ("rl", "a.jsonl", b'{"a"\n', "a.jsonl:1: malformed JSON"),
    ],
)
def test_a_dry_run_of_a_preparation_looks_at_the_first_row(
    run, tmp_path: Path, stage: str, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    words = nemotron("super3", "data", "prep", stage, "-c", "tiny", f"data_prep.source={name}")
    dry = run(*words, "--dry-run", ok=False)
    assert dry.returncode == 1 and said in dry.stdout
