"""Settings of data that a training command is given mean that data, and no other."""

import json
import shlex
from pathlib import Path

import pytest
from support import nemotron, short, write_model

from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_shared.artifacts import Producer, Store

CHATS = [
    {"messages": [{"role": "user", "content": f"Say {word}."}, {"role": "assistant", "content": word}]}
    for word in ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten") * 4
]

TOOLS_OF_TEXT = json.dumps(CHATS[0] | {"tools": "[not json"}).encode()


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
    assert "is the data with" not in again, "the newest data goes without saying"
    home = tmp_path / "home"
    assert [data_of(home, version) for version in (1, 2, 3)] == [f"super3-sft-data:v{n}" for n in (1, 2, 2)]
    back = run(*nemotron("super3", "sft"), *short("sft"), "train.train_iters=3").stderr
    assert "[super3-sft-data:v1] is the data with" in back

    wrong = run(*nemotron("super3", "sft"), *own, "run.data=super3-sft-data:v1", ok=False)
    assert wrong.returncode == 2
    assert "super3-sft-data:v1 is not the data that this config describes with data_prep." in wrong.stderr
    assert "data_prep.source synthetic -> mine.jsonl" in wrong.stderr


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
    (tmp_path / "mine.jsonl").rename(tmp_path / "my own.jsonl")
    spaced = run(*dry, "data_prep.source='my own.jsonl'", "run.missing_data=error", ok=False).stdout
    (line,) = (line for line in spaced.splitlines() if "make it: " in line)
    assert shlex.split(line)[-1] == "data_prep.source='my own.jsonl'", "as a shell takes it"


def test_data_of_another_seed_is_told_by_its_seed(run, tmp_path: Path) -> None:
    write_chats(tmp_path / "mine.jsonl")
    own = ["-c", "tiny", "data_prep.source=mine.jsonl"]
    run(*nemotron("super3", "data", "prep", "sft"), *own)
    dry = [*nemotron("super3", "sft"), *own, "run.data=super3-sft-data:v1", "--dry-run"]
    run(*dry)
    said = run(*dry, "run.seed=7", ok=False).stdout
    assert "is not the data that this config describes with data_prep.source: data_prep.seed 1234 -> 7" in said


def test_a_fault_of_the_whole_config_is_told_once(run, tmp_path: Path) -> None:
    write_chats(tmp_path / "mine.jsonl")
    dry = [*nemotron("super3", "sft"), "-c", "tiny", "data_prep.source=mine.jsonl", "--dry-run"]
    said = run(*dry, "train.train_iters=many", ok=False).stdout
    assert said.count("train.train_iters: Input should be") == 1


def test_a_config_of_the_user_counts_as_given_by_hand(run, tmp_path: Path) -> None:
    write_chats(tmp_path / "mine.jsonl")
    (tmp_path / "mine.yaml").write_text("defaults: [tiny, _self_]\ndata_prep: {source: mine.jsonl}\n")
    shown = run(*nemotron("super3", "sft"), "-c", "./mine.yaml", "--dry-run").stdout
    assert "none with data_prep.source" in shown


def test_the_latest_data_is_told_where_the_config_means_other_data(run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("Mira lives in Oster. " * 200)
    prepare, dry = nemotron("super3", "data", "prep", "pretrain"), [*nemotron("super3", "pretrain"), "--dry-run"]
    run(*prepare, "-c", "tiny", "data_prep.source=notes.txt")
    made = "super3-pretrain-data:v1 was made from notes.txt, not from "
    told = run(*dry, "-c", "tiny")
    own = "prepare it: nemotron super3 data prep pretrain -c tiny; if you mean this one: run.data="
    line = f"WARNING: data: {made}synthetic as this config says; for this config's own, {own}super3-pretrain-data:v1"
    assert line in told.stdout.splitlines() and told.stderr == "" and told.stdout.count("WARNING") == 1
    assert "data: super3-pretrain-data:v1 (was made from notes.txt, not from synthetic" in told.stdout
    assert f"{made}blend:super3_phase1" in run(*dry, ok=False).stdout  # the recipe of 120B parameters
    (tmp_path / "more.yaml").write_text("defaults: [tiny, _self_]\ntrain: {train_iters: 9}\n")
    assert made in run(*dry, "-c", "more.yaml").stdout
    assert "WARNING" not in run(*dry, "-c", "tiny", "run.data=pretrain-data").stdout
    says_nothing_of_data = run(*dry, "-c", "local", "model.architecture=super3_tiny", "train.seq_length=64", ok=False)
    assert "data: super3-pretrain-data:v1\n" in says_nothing_of_data.stdout

    run(*prepare, "-c", "tiny")
    assert "WARNING" not in run(*dry, "-c", "tiny", "run.seed=7", "--force").stdout
    run(*prepare, "-c", "tiny", "--sample=300")
    asked = run(*dry, "-c", "tiny").stdout
    assert (
        "v3 was made with data_prep.sample=300, not null" in asked
        and "name it: run.data=super3-pretrain-data:v2" in asked
    )


@pytest.mark.slow
def test_a_pipeline_which_prepares_its_own_data_warns_of_no_other(run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("Mira lives in Oster. " * 200)
    run(*nemotron("super3", "data", "prep", "pretrain"), "-c", "tiny", "data_prep.source=notes.txt")
    assert "WARNING: data" not in run(*nemotron("super3", "pipeline"), "-c", "tiny", "--dry-run").stdout


def test_a_fine_tuned_model_that_is_the_latest_is_told(run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("Mira lives in Oster. " * 200)
    run(*nemotron("super3", "data", "prep", "pretrain"), "-c", "tiny", "data_prep.source=notes.txt")
    store = Store.open(str(tmp_path / "home"))
    data = store.resolve("super3-pretrain-data").as_parent("data")
    for version, config in enumerate(("tiny", "/a folder/finetune/notes-12345678/train-v1.yaml"), start=1):
        (tmp_path / "work").mkdir()
        write_model(tmp_path / "work")
        save_tokenizer(tmp_path / "work")
        command = f"python -m stages.pretrain.train -c {shlex.quote(config)} run.family=super3"
        producer = Producer("pretrain", "train", "0", "0", "", "", None, command, {})
        name, key = "super3-pretrain-model", f"{version}"
        store.publish(
            tmp_path / "work", name=name, type="ModelArtifact", fingerprint=key, producer=producer, parents=[data]
        )
        told = run(*nemotron("super3", "sft"), "-c", "tiny", "--dry-run")
        known = "super3-pretrain-model:v2 (fine-tuned on notes.txt)"
        assert (
            (known in told.stdout)
            == ("super3-pretrain-model:v2 is the latest, fine-tuned on" in told.stdout)
            == (version == 2)
        )


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
        ("pretrain", "a.jsonl", b'{"text": "a"}\n{"text": 5}\n', "a.jsonl:2: the text is not a string"),
        ("sft", "a.jsonl", b'{"text": "a"}\n', "documents, not chats"),
        ("sft", "a.jsonl", b'{"messages": [{"role": "user", "content": "?"}]}\n', "a.jsonl:1: no assistant turn"),
        ("sft", "a.jsonl", TOOLS_OF_TEXT, "a.jsonl:1: tools is not a list of objects"),
        ("rl", "a.jsonl", b'{"question": "2+2?"}\n', "a.jsonl:1: no field 'expected_answer'"),
        ("rl", "a.jsonl", b'{"dataset": "mine", "_hf_placeholder": {"row": 1}}\n', "placeholder: unknown data set"),
        ("eval", "a.csv", b"question,answer\n2+2?,4\n", "a.csv:2: no field 'expected_answer'"),
    ],
)
def test_a_dry_run_of_a_preparation_says_of_the_first_rows_what_the_preparation_says(
    run, tmp_path: Path, stage: str, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    words = nemotron("super3", "data", "prep", stage, "-c", "tiny", f"data_prep.source={name}")
    dry = run(*words, "--dry-run", ok=False)
    assert dry.returncode == 1 and said in dry.stdout
    error = run(*words, ok=False).stderr.partition("error: ")[2]
    assert error and error.strip() in dry.stdout
