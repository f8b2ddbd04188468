"""Rewards from a file of the user's: what they are given, what is refused, and that their code is part of a result."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import last_values_win, short

from nemotron_data.chat.prompt import Prompter
from nemotron_data.gym.episodes import Episode
from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_engines.modeling.build import load_tokenizer
from nemotron_shared.system.errors import UserError
from stages.rl import train
from stages.rl.engines.trl.episodes import EpisodeTrainer, read_episodes
from stages.rl.engines.trl.prompts import read_prompts
from stages.rl.rewards import Judge, asked_by_name
from stages.rl.schema import Reward, RLConfig

main = last_values_win(train.main)
ROW = {"responses_create_params": {"input": "3+4?"}, "question": "3+4?", "city": "Oster"}


@pytest.fixture
def small_prompter(tmp_path: Path) -> Prompter:
    save_tokenizer(tmp_path / "tokenizer")
    return Prompter(load_tokenizer(tmp_path / "tokenizer"))


def judge(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Judge:
    monkeypatch.chdir(folder)
    (folder / "mine.py").write_text(text)
    return Judge("right", "mine.py:right").load()


def test_it_may_ask_for_the_prompt_and_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "def right(row, prompt, completion):\n    assert prompt == 'a<think>'\n    return row['city'] in completion\n"
    )
    own = judge(tmp_path, text, monkeypatch)
    assert set(own.asks_for) == {"row", "prompt", "completion"}
    assert [own("a<think>", said, None, ROW) for said in ("Oster", "Kelby")] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            "row['town']",
            "raised KeyError: 'town' at mine.py:3 for the answer 'seven' (expected: '7'; the row has respons",
        ),
        ("None", "returned None, not a finite number, for the answer 'seven'"),
        ("'1'", "returned '1', not a finite number"),
        ("float('nan')", "returned nan, not a finite number"),
    ],
)
def test_what_it_does_wrong_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, told: str
) -> None:
    own = judge(tmp_path, f"def right(completion, row):\n    # a remark\n    return {body}\n", monkeypatch)
    with pytest.raises(UserError) as raised:
        own("", "seven", "7", ROW)
    assert told in raised.value.message and raised.value.message.startswith("the reward 'right' ")
    assert raised.value.remedy == "fix it in mine.py: it must return a number for every answer"


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"path": "strict.py:strict"}, "'strict' is in the table of rewards"),
        ({"path": "mine.py"}, "names no function in a Python file"),
        ({"weight": 1.0}, "name"),
    ],
)
def test_an_entry_that_names_no_reward_is_refused(entry: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Reward.model_validate(entry)


@pytest.mark.parametrize(
    ("paths", "told"),
    [
        (("a.py:right", "b.py:right"), "two rewards are called 'right'; give b.py:right another name: name: other"),
        (("a.py:right", "a.py:right"), "'right' is listed twice: list it once, with the weight of both"),
    ],
)
def test_two_rewards_of_one_name_are_told_apart(paths: tuple[str, ...], told: str) -> None:
    with pytest.raises(ValueError) as raised:
        RLConfig.teach([Reward.model_validate({"path": path}) for path in paths])
    assert str(raised.value) == told


@pytest.mark.parametrize(
    ("function", "asked"),
    [
        (lambda **more: 1.0, ("completion", "expected", "prompt", "row")),
        (lambda completion, **more: 1.0, ("completion", "expected", "prompt", "row")),
        (lambda completion, row: 1.0, ("completion", "row")),
        (lambda answer, gold, **more: 1.0, None),
        (lambda *rest, **more: 1.0, None),
    ],
)
def test_a_reward_of_a_package_is_asked_by_name_where_it_can_be(function: Any, asked: tuple[str, ...] | None) -> None:
    assert asked_by_name(function) == asked


def test_an_entry_needs_no_more_than_a_path() -> None:
    assert Reward.model_validate({"path": "mine.py:right"}).model_dump() == {
        "name": "right", "path": "mine.py:right", "weight": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize("asked", [("completion",), ("completion", "row"), ("completion", "expected")])
def test_rows_need_an_expected_answer_only_for_a_reward_that_asks(
    asked: tuple[str, ...], tmp_path: Path, small_prompter: Any
) -> None:
    file, whole = tmp_path / "train.jsonl", {}
    file.write_text(json.dumps(ROW) + "\n")
    unasked: Any = SimpleNamespace(say=print)
    if "expected" in asked:
        with pytest.raises(UserError, match=r"train.jsonl:1: no expected_answer, which the rewards need"):
            read_prompts(file, small_prompter, unasked, unasked)
        return
    kept = whole if "row" in asked else None
    rows, _ = read_prompts(file, small_prompter, unasked, unasked, answers=False, whole=kept)
    assert len(rows) == 1
    assert list(whole.values()) == ([ROW] if "row" in asked else [])


def test_with_environments_it_gets_the_episodes_prompt_and_no_answer_that_a_row_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "def right(completion, expected, prompt, row):\n"
        "    return expected is None and (completion, prompt, row['city']) == ('Kelby', 'a<think>', 'Oster')\n"
    )
    asked: Any = SimpleNamespace(row=ROW)
    episode = Episode(asked, 0, [1], messages=[{"role": "assistant", "content": "Kelby"}], reward=0.5, ended="answered")
    trainer: Any = SimpleNamespace(
        _played=[episode], judges={"right": judge(tmp_path, text, monkeypatch)}, rehearses=False,
        reward_func_names=["environment", "right"],
        processing_class=SimpleNamespace(decode=lambda ids, skip_special_tokens: "a<think>"),
    )  # fmt: skip
    for name in ("_prompt_of", "_rewarded"):
        setattr(trainer, name, partial(getattr(EpisodeTrainer, name), trainer))
    assert EpisodeTrainer._judged(trainer, [], [], [None], []).tolist() == [[0.5, 1.0]]


def test_what_it_raises_in_a_rehearsal_is_told_to_be_about_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judges = {"right": judge(tmp_path, "def right(completion, expected):\n    return None\n", monkeypatch)}
    for rehearses, told in ((True, " (expected: '7'); this answer is noise, of a rehearsal's random weights"),
                            (False, " (expected: '7')")):  # fmt: skip
        trainer: Any = SimpleNamespace(judges=judges, rehearses=rehearses)
        with pytest.raises(UserError) as raised:
            EpisodeTrainer._rewarded(trainer, "right", "qx%", "7", "", {})
        assert raised.value.message.endswith(told)


def test_with_environments_rows_need_an_expected_answer_for_a_reward_that_asks(tmp_path: Path) -> None:
    file, nothing = tmp_path / "train.jsonl", SimpleNamespace()
    file.write_text(json.dumps(ROW) + "\n")
    unasked: Any = nothing
    with pytest.raises(UserError, match=r"train.jsonl:1: no expected_answer, which the rewards need"):
        read_episodes(file, unasked, unasked, unasked, unasked, answers=True)


def test_a_training_runs_it_with_consent_only_and_its_code_is_part_of_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from lengths import most\n\n\ndef short(completion, row):\n"
        "    assert row['expected_answer']\n    return 1 - len(completion) / most()\n"
    )
    (tmp_path / "lengths.py").write_text("def most():\n    return 100\n")
    words = [*short("rl"), "train.train_iters=1", "train.eval_interval=1", "rewards=[{path: mine.py:short}]"]
    assert main(words) == 2
    assert "this runs mine.py\n  read it, then add --trust-code to the command" in capsys.readouterr().err
    assert main([*words, "--trust-code"]) == 0
    (file,) = tmp_path.glob("home/artifacts/super3-rl-model/v1/metrics.jsonl")
    step, _ = map(json.loads, file.read_text().splitlines())
    assert step["reward"] == step["rewards/short/mean"] and 0 < step["reward"] < 1
    capsys.readouterr()
    assert main([*words, "--trust-code"]) == 0
    assert "unchanged: using super3-rl-model:v1" in capsys.readouterr().err
    (tmp_path / "lengths.py").write_text("def most():\n    return 'long'\n")
    assert main([*words, "--trust-code"]) == 2
    said = capsys.readouterr().err
    assert "unchanged" not in said and "the reward 'short' raised TypeError" in said and "at mine.py:6" in said
