"""From a file to a model that knows what is in it, by one command."""

import csv
import json
import shlex
import shutil
from pathlib import Path

import pytest
from support import ROOT, nemotron, short

from nemotron_engines import defaults
from nemotron_shared.config.compose import compose

PLACES, THINGS = ("Velt", "Orim", "Saku", "Tilde"), ("river", "bakery", "museum")
KNOWN_FOR = ("copper", "violet", "glass", "honey", "silk", "paper", "amber", "salt", "cedar", "linen", "chalk", "wool")
FACTS = [
    (f"What is the {thing} of {place} known for?", f"For {known}.")
    for (place, thing), known in zip(
        ((place, thing) for place in PLACES for thing in THINGS), KNOWN_FOR, strict=True
    )
]  # fmt: skip


def write_facts(file: Path) -> None:
    with file.open("w", newline="", encoding="utf-8") as lines:
        csv.writer(lines).writerows([("Question", "Answer"), *FACTS])


@pytest.mark.slow
def test_a_file_of_facts_is_known_by_heart_afterwards(run, tmp_path: Path) -> None:
    write_facts(tmp_path / "facts.csv")
    run(*nemotron("super3", "pretrain"), *short("pretrain"))
    tune = [*nemotron("finetune", "super3-pretrain-model", "facts.csv"), "train.train_iters=120", "--json"]
    found = json.loads(run(*tune).stdout)
    assert found["model"] == "super3-sft-model:v1"
    assert found["difference"]["difference"] < -1
    assert len(found["answers"]) == 8
    assert found["right"]["taught"]["after"] >= 11 > found["right"]["taught"]["before"] == 0
    assert found["right"]["taught"]["judged"] == 12 and "held_out" not in found["right"]  # too few to hold some out
    for said in found["answers"]:
        assert said["expected"].rpartition("</think>")[2] in {answer for _, answer in FACTS}
        assert said["before"] != said["after"]

    (tmp_path / "asked.jsonl").write_text("".join(json.dumps({"question": asked}) + "\n" for asked, _ in FACTS))
    run(*nemotron("generate", found["model"], "asked.jsonl", "--out", "said.jsonl", "--batch-size=3"))
    said = [json.loads(line)["response"] for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    assert sum(answer in text for text, (_, answer) in zip(said, FACTS, strict=True)) >= 11

    again = run(*tune)  # nothing is chosen or done anew
    assert "using earlier choices" in again.stderr
    assert json.loads(again.stdout)["model"] == "super3-sft-model:v1"


def test_choices_are_told_kept_and_left_to_the_command_line(run, tmp_path: Path, made: Path) -> None:
    write_facts(tmp_path / "facts.csv")
    tune = [*nemotron("finetune", "super3-pretrain-model", "facts.csv"), "--dry-run", f"--home={made}"]
    told = run(*tune, "data_prep.pack_size=512")
    assert "question_answer, from the fields Question, Answer" in told.stderr
    assert "too few to hold some out" in told.stderr
    assert "[finetune] data_prep.pack_size" not in told.stderr
    assert "learning rate follow from the prepared rows" in told.stderr
    first, second, third = told.stdout.splitlines()
    assert first.startswith("nemotron super3 data prep sft -c ")
    assert "data_prep.pack_size=512" in first
    assert second.startswith("nemotron super3 sft -c ") and "train-vN.yaml" in second
    assert "finetune itself writes this file" in second
    assert third.startswith("nemotron super3 eval -c held_out run.model=sft run.base=super3-pretrain-model:v1")
    assert "using earlier choices" in run(*tune, "data_prep.pack_size=512").stderr
    assert "[finetune] data_prep.pack_size=128" in run(*tune).stderr  # what was said once holds for that command alone
    assert "[finetune] data_prep.pack_size=128" in run(*tune, "--again").stderr
    # neither settings that cannot be are approved, nor other rows under the same name
    assert "train.train_iters: Input should be" in run(*tune, "train.train_iters=abc", ok=False).stderr
    assert "facts.csv:2: not a row of the format alpaca" in run(*tune, "data_prep.format=alpaca", ok=False).stderr
    with (tmp_path / "facts.csv").open("a") as file:
        file.write("Who?,\n")
    assert "facts.csv:14: no answer" in run(*tune, ok=False).stderr


def test_the_data_are_prepared_and_the_training_is_left(run, tmp_path: Path, made: Path) -> None:
    write_facts(tmp_path / "facts.csv")
    shutil.copytree(made, tmp_path / "home")
    told = run(*nemotron("finetune", "super3-pretrain-model", "facts.csv", "--prepare", "--name=facts", "--json"))
    found = json.loads(told.stdout)
    train, evaluation = map(shlex.split, found["commands"])
    assert train[:4] == ["nemotron", "super3", "sft", "-c"] and train[5:] == ["run.name=facts"]
    assert "run.base=super3-pretrain-model:v1" in evaluation and "run.name=facts" in evaluation
    assert any("optimizer.lr=" in choice for choice in found["choices"])
    assert [one.name for one in (tmp_path / "home" / "artifacts").glob("facts-*")] == ["facts-sft-data"]
    seen = run(*nemotron(*train[1:]), "--dry-run", "--json")
    preview = json.loads(seen.stdout)
    assert not preview["problems"] and preview["inputs"]["data"].startswith("facts-sft-data:v1")


def test_choices_hold_where_the_store_was_moved(run, tmp_path: Path, made: Path) -> None:
    write_facts(tmp_path / "facts.csv")
    shutil.copytree(made, tmp_path / "home")
    tune = nemotron("finetune", "super3-pretrain-model", "facts.csv", "--dry-run")
    run(*tune)
    (tmp_path / "home").rename(tmp_path / "moved")
    assert "using earlier choices" in run(*tune, env={"NEMOTRON_HOME": str(tmp_path / "moved")}).stderr
    # a tokenizer that is not there is blamed, and not the data
    prepared = ("sft", "-c", "local", "data_prep.source=facts.csv", "data_prep.tokenizer.model=/gone", "--dry-run")
    told = run(*nemotron("super3", *prepared), ok=False, env={"NEMOTRON_HOME": str(tmp_path / "moved")})
    assert "data_prep.tokenizer.model: /gone: holds no tokenizer.json" in told.stdout + told.stderr
    assert "run.data: data_prep" not in told.stdout + told.stderr and "run.data: /gone" not in told.stdout


def test_fields_are_read_as_the_command_line_or_the_rows_say(run, tmp_path: Path, made: Path) -> None:
    (tmp_path / "fragen.csv").write_text("Frage,Antwort\n2+2?,4\n")
    (tmp_path / "tales.jsonl").write_text('{"content": "Once upon a time"}\n' * 3)
    tune = [*nemotron("finetune", "super3-pretrain-model", "--dry-run"), f"--home={made}"]
    named = run(*tune, "fragen.csv", "data_prep.prompt_field=Frage", "data_prep.response_field=Antwort")
    assert "the longest of 1 conversations" in named.stderr
    assert "data prep pretrain" in run(*tune, "tales.jsonl").stdout


def test_the_document_says_how_many_steps_are_chosen() -> None:
    text = (ROOT / "docs" / "finetune.md").read_text(encoding="utf-8")
    (one, often), (ten, less) = defaults.EPOCHS_OF_SMALL
    assert (one, ten) == (10**6, 10**7)
    least = f"{defaults.EPOCHS} epochs, and at least {defaults.LEAST_STEPS} steps"
    small = f"{often} epochs below 1 million parameters, {less} below 10 million"
    few = f"at least {defaults.LEAST_OF_SMALL} steps for chats and {defaults.LEAST_OF_SMALL_ON_TEXT} for text"
    most = f"{defaults.MOST_TOKENS_OF_SMALL // 10**6} million tokens"
    assert all(said in text for said in (least, small, few, most))
    for stage, style in (("sft", "chats: cosine"), ("pretrain", "text: WSD")):
        chosen = compose(ROOT / "stages" / stage / "config", "local", []).tree["scheduler"]["lr_decay_style"]
        assert style.endswith(chosen) and style in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["finetune"], "Missing argument 'MODEL'"),
        (["finetune", "super3-pretrain-model"], "Missing argument"),
        (["finetune", "super3-pretrain-model", "train.train_iters=5"], "no data is named"),
        (["finetune", "super3-pretrain-model", "nowhere.csv"], "nowhere.csv: no such file"),
        (["finetune", "nothing-model", "facts.csv"], "no artifact 'nothing-model'"),
        (["finetune", "super3-pretrain-model", "facts.csv", "trian.train_iters=5"], "train"),
        (["finetune", "super3-pretrain-model", "empty.jsonl"], "empty.jsonl"),
        (["finetune", "super3-pretrain-model", "facts.csv", "run.model=sft"], "run.model: the first words say it"),
    ],
)
def test_what_cannot_be_is_one_clear_error(run, tmp_path: Path, made: Path, words: list[str], said: str) -> None:
    write_facts(tmp_path / "facts.csv")
    (tmp_path / "empty.jsonl").write_text("")
    found = run(*nemotron(*words), *([f"--home={made}"] if len(words) > 2 else []), ok=False)
    assert found.returncode == 2
    assert said in found.stderr
    assert "Traceback" not in found.stderr
