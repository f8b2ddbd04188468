"""A key or an option that is given twice, with two values, of which one would be lost."""

from pathlib import Path

import pytest

from nemotron_app.main import main
from nemotron_app.pipeline import for_stage
from nemotron_app.request import Request
from nemotron_shared.config.overrides import Said, require_once, require_unsplit
from nemotron_shared.system.errors import UserError
from stages.sft import train

TWICE = [
    (["train.train_iters=1", "train.train_iters=2"], "train.train_iters is given twice, as 1 and 2"),
    (["train.train_iters=1", "+train.train_iters=2"], "train.train_iters is given twice, as 1 and 2"),
    (["--sample", "5", "--sample", "6"], "--sample is given twice, as 5 and 6"),
    (["sample=5", "--sample=6"], "data_prep.sample is given twice, as 5 and 6"),
    (["run.force=false", "--force"], "run.force is given twice, as false and true"),
    (["-c", "tiny", "--config", "qa"], "--config is given twice, as tiny and qa"),
]


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path))


@pytest.mark.parametrize(("words", "said"), TWICE)
def test_a_step_refuses_it_however_it_is_started(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = [] if "-c" in words else ["-c", "tiny"]
    for start in (lambda: main(["super3", "sft", *config, *words]), lambda: train.main([*config, *words])):
        assert start() == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["plan", "sft/tiny"], ["config", "show", "sft/tiny"], ["config", "diff", "sft/tiny", "sft/tiny"],
        ["new", "mine", "--from", "sft/tiny"], ["doctor", "--for", "super3", "sft"], ["finetune", "sft", "rows.jsonl"],
        ["super3", "pipeline", "-c", "tiny"], ["super3", "data", "prep", "sft", "-c", "tiny"],
    ],
)  # fmt: skip
def test_other_commands_refuse_it_too(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "optimizer.lr=1e-3", "optimizer.lr=2e-3"]) == 2
    assert "command line: optimizer.lr is given twice, as 1e-3 and 2e-3" in capsys.readouterr().err


def test_an_option_of_another_command_counts_once_as_well(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["artifacts", "--home", str(tmp_path), "--home", "/elsewhere"]) == 2
    assert f"--home is given twice, as {tmp_path} and /elsewhere" in capsys.readouterr().err
    assert main(["artifacts", "--home", str(tmp_path), "--home", str(tmp_path)]) == 0


def test_the_same_value_a_profiles_setting_and_a_key_that_is_replaced_are_fine() -> None:
    require_once(["a.b=1", "a.b=1", Said("a.c=1", "env.toml:3"), "a.c=2", "~a.d", "+a.d={x:1}"])
    with pytest.raises(UserError, match=r"a\.b is given twice"):
        require_once(["a.b=1", "a.b="])


def test_a_pipelines_key_with_its_stage_wins_over_one_without_wherever_it_stands() -> None:
    for words in (
        ("train.train_iters=2", "sft.train.train_iters=1"), ("sft.train.train_iters=1", "train.train_iters=2"),
    ):  # fmt: skip
        request = Request("super3", ("pipeline",), "tiny", words, dry_run=True, json=False)
        assert for_stage(request, "sft").overrides == ("train.train_iters=2", "train.train_iters=1")
        assert for_stage(request, "rl").overrides == ("train.train_iters=2",)


def test_an_override_that_the_shell_took_apart_is_shown_in_quotes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["super3", "rl", "-c", "tiny", "rewards=[{path:", "mine.py:right}]", "train.train_iters=1"]) == 2
    told = "command line: 'rewards=[{path:' and 'mine.py:right}]' are two words to the shell"
    assert capsys.readouterr().err == f"error: {told}\n  put it in quotes: 'rewards=[{{path: mine.py:right}}]'\n"


@pytest.mark.parametrize(
    "command",
    [
        ["plan", "rl/tiny"], ["config", "show", "rl/tiny"], ["new", "mine", "--from", "rl/tiny"],
        ["doctor", "--for", "super3", "rl"], ["finetune", "sft", "rows.jsonl"],
    ],
)  # fmt: skip
def test_other_commands_show_it_in_quotes_too(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command, "+rewards=[{path:", "mine.py:right,", "'text:'}]"]) == 2
    assert "'+rewards=[{path:' and 'mine.py:right,' are two words to the shell" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["rewards=[{path: mine.py:right}]", "b]"],  # whole
        ["a=[", "b"],  # never ends
        ["a=[INST", "b=c]"], ["a=[b", "~c.d=1", "e]"],  # the next word begins an override
        ["a=b[c", "d]"], ["a='[b'", "c]"], ["a=['[b']", "c]"], ['a=["\\"[b"]', "c]"], ["[a=b", "c]"],  # text
    ],
)  # fmt: skip
def test_whole_overrides_and_brackets_that_are_text_are_not_taken_for_parts(words: list[str]) -> None:
    require_unsplit(words)
