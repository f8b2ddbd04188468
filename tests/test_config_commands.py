"""`nemotron config`, `nemotron new` and the help of each stage: what people ask of configs."""

import json
import shlex
from functools import cache
from pathlib import Path

import pytest
import yaml
from support import STAGES, call_here

from nemotron_app import recipes
from nemotron_app.help import EXAMPLES
from nemotron_app.main import main
from nemotron_app.recipes import names, title
from stages.sft import train


def ask(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main([*words]) == code
    return capsys.readouterr().out


def test_list_names_every_config_with_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(ask(capsys, "config", "list", "--json"))
    assert set(found) == {f"{stage}/{name}" for stage in STAGES for name in names(stage)}
    assert all(found.values()), [name for name, said in found.items() if not said]


def test_show_gives_the_values_that_the_step_takes_and_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(ask(capsys, "config", "show", "sft/tiny", "optimizer.lr=1e-3", "--json"))
    assert train.main(["-c", "tiny", "optimizer.lr=1e-3", "--dry-run", "--json"]) == 0
    step = json.loads(capsys.readouterr().out)
    for section in ("train", "scheduler", "optimizer", "checkpoint"):
        assert told["config"][section] == step["config"][section]
    assert told["origins"]["optimizer.lr"] == "command line" == step["origins"]["optimizer.lr"]
    text = ask(capsys, "config", "show", "sft/tiny")
    assert "  train_iters: 280" in text and "# tiny.yaml:" in text
    assert yaml.safe_load(text)["train"]["train_iters"] == 280


def test_diff_shows_what_differs_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(capsys, "config", "diff", "sft/tiny", "sft/tiny") == "they are the same\n"
    told = json.loads(ask(capsys, "config", "diff", "sft/tiny", "sft/tiny", "train.train_iters=7", "--json"))
    assert told == {"train.train_iters": {"first": 280, "second": 7}}
    rows = ask(capsys, "config", "diff", "sft/local", "rl/local")
    assert "grpo.temperature" in rows and "(not there)" in rows


def test_explain_has_the_words_of_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    text = ask(capsys, "config", "explain", "train.train_iters")
    assert "Optimizer steps." in text and "pretrain" in text and "tiny 450" in text
    section = json.loads(ask(capsys, "config", "explain", "grpo", "--stage", "rl", "--json"))
    assert {one["key"] for one in section} >= {"grpo.temperature", "grpo.top_p"}
    assert "transformers: " in ask(capsys, "config", "explain", "engine.dtype")


def test_explain_has_no_links_of_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert "see Rewards in stages/rl/README.md" in ask(capsys, "config", "explain", "rewards")


def test_commands_alone_print_their_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(capsys, "config").startswith("Usage: nemotron config")


def test_every_setting_of_every_stage_can_be_explained(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    composed = recipes.composed
    once = cache(lambda stage, name: composed(stage, name, []))  # the same configs for each section
    monkeypatch.setattr(recipes, "composed", lambda stage, name, _: once(stage, name))
    for stage in STAGES:
        told = json.loads(ask(capsys, "config", "show", f"{stage}/tiny", "--json"))
        for section in told["config"]:
            found = json.loads(ask(capsys, "config", "explain", section, "--stage", stage, "--json"))
            assert found and all(one["meaning"].strip() for one in found)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["config", "explain", "train.micro_batch_sise"], "did you mean 'train.micro_batch_size'?"),
        (["config", "explain", "lr"], "there is: optimizer.lr"),
        (["config", "diff", "sft/tiny", "sft/tiny", "optimizer.lr=hello"], "command line: optimizer.lr: "),
        (["config", "explain", "train.lr"], "there is: optimizer.lr"),
        (["config", "explain", "max_seq_length"], "there is: train.seq_length, "),
        (["config", "show", "tiny"], "say one: pretrain/tiny, sft/tiny, rl/tiny, eval/tiny"),
        (["config", "show", "sft/tinny"], "did you mean 'tiny'?"),
        (["config", "show", "sft/tiny", "tiny"], "settings are written key=value"),
        (["config", "show", "none.yaml"], "file none.yaml not found"),
        (["new", "a/../b c", "--from", "sft/tiny"], "is not a valid config name"),
        (["new", "mine", "--from", "sft/tinny"], "did you mean 'tiny'?"),
        (["new", "mine", "--from", "sft/tiny", "optimizer.lrr=3"], "optimizer.lrr"),
        (["new", "mine", "--from", "sft/tiny", "~optimizer.lr"], "cannot be written into a config"),
        (["new", "mine"], "--from"),
        (["new", "", "--from", "sft/tiny"], "'' is not a valid config name"),
        (["new", ".", "--from", "sft/tiny"], "'.' is not a valid config name"),
        (["new", "tiny", "--from", "sft/tiny"], "would begin with itself"),
        (["new", "default", "--from", "sft/tiny"], "give another name: nemotron new my_default --from sft/tiny"),
        (["new", "mine", "--from", "sft/tiny", "optimizer.lr=abc"], "command line: optimizer.lr"),
        (["config", "show", "sft/tiny", "optimizer.lr=abc"], "command line: optimizer.lr"),
        (["config", "show", "sft/tiny", "optimizer.lr=inf"], "should be a finite number"),
        (["config", "show", "sft/tiny", "optimizer.lr=[1,"], "command line: 'optimizer.lr=[1,' cannot be read"),
        (["config", "explain", "grpo.temperature", "--stage", "sft"], "config explain grpo.temperature --stage rl"),
    ],
)
def test_what_makes_no_sense_is_refused(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("base", "words"),
    [
        ("sft/local", ["train.train_iters=50", "engine=transformers_lora", "engine.peft.dim=8"]),
        ("pretrain/super3", ["++engine.overrides.model.moe_aux_loss_coeff=1e-3"]),
        ("rl/tiny", ["grpo.num_prompts_per_step=4", "data_prep.split={train: 0.9, valid: 0.1, test: 0.0}"]),
        ("eval/tiny", []),
        ("sft/tiny", ["data_prep.source='a, b: c.jsonl'"]),
    ],
)
def test_a_new_config_is_what_was_asked_for(
    base: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    stage = base.partition("/")[0]
    text = ask(capsys, "new", "mine", "--from", base, *words)
    assert f"nemotron super3 {stage} -c mine.yaml" in text
    made = json.loads(ask(capsys, "config", "show", "mine.yaml", "--stage", stage, "--json"))
    typed = json.loads(ask(capsys, "config", "show", base, *words, "--json"))
    assert made["config"] == typed["config"]
    # every comment with a setting in it can be made one by taking the mark away
    lines = (tmp_path / "mine.yaml").read_text().splitlines()
    for number, line in enumerate(lines):
        if line.startswith("# ") and line.endswith(":") and number > 2:
            lines[number] = line.removeprefix("# ")
        elif line.startswith("  # ") and ": " in line and " " not in line.removeprefix("  # ").partition(": ")[0]:
            lines[number] = line.replace("# ", "", 1)
    (tmp_path / "all.yaml").write_text("\n".join(lines))
    assert (
        json.loads(ask(capsys, "config", "show", "all.yaml", "--stage", stage, "--json"))["config"] == typed["config"]
    )
    assert main(["new", "mine", "--from", base]) == 2
    assert "already exists" in capsys.readouterr().err
    assert main(["new", "mine", "--from", base, "--force"]) == 0


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("before", [["super3"], [], ["super3", "data", "prep"]])
def test_help_of_a_stage_has_examples_and_configs(
    stage: str, before: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = ask(capsys, *before, stage, "--help")
    assert f"nemotron super3 {'data prep ' if len(before) > 1 else ''}{stage} -c tiny" in text
    assert all(f"  {name} " in text and title(stage, name) in text for name in names(stage))
    assert "--dry-run" in text and f"nemotron config show {stage}/tiny" in text


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line, _ in lines if "PROFILE" not in line])
def test_an_example_of_the_help_is_understood(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("nemotron_app.launch.run_process", call_here)
    for name in ("texts/one.txt", "chats.jsonl", "questions.jsonl", "mine.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}\n")
    code = main(["super3", *shlex.split(line), "--dry-run"])
    said = capsys.readouterr()
    assert code in {0, 1} and "# resolved configuration" in said.out, said.err  # the models that it names are not there


def test_help_of_the_pipeline_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    text = ask(capsys, "super3", "pipeline", "--help")
    assert "nemotron super3 pipeline -c tiny sft.train.train_iters=300" in text and "--batch PROFILE" in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"_NEMOTRON_COMPLETE={shell}_complete" in ask(capsys, "completion", shell)


def test_values_are_shown_as_the_type_that_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "config",
        "show",
        "sft/tiny",
        "run.threads='2'",
        "run.force=yes",
        "data_prep.source='2'",
        "optimizer.lr='1e-3'",
    ]
    told = json.loads(ask(capsys, *words, "--json"))["config"]
    assert (told["run"]["threads"], told["run"]["force"]) == (2, True)
    assert (told["data_prep"]["source"], told["optimizer"]["lr"]) == ("2", 0.001)
    assert type(told["run"]["threads"]) is int
