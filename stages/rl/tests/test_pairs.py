"""Pairs of answers: every spelling becomes the same row, and a bad row is named by file and line."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from support import short

from nemotron_data.rejects import Refused
from stages.rl import data_prep
from stages.rl.pairs import pair_of, read_pairs

ASKED, RIGHT, WRONG = (
    {"role": role, "content": said} for role, said in (("user", "2+2?"), ("assistant", "4"), ("assistant", "5"))
)
HUMAN, GOOD, BAD = ({"from": who, "value": said} for who, said in (("human", "2+2?"), ("gpt", "4"), ("gpt", "5")))
SYSTEM = {"role": "system", "content": "Be brief."}
CALL = {
    "role": "assistant", "content": None,
    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}}],
}  # fmt: skip
REPLY = {"role": "tool", "tool_call_id": "a", "content": "4"}
SPELLINGS = {
    "texts": {"prompt": "2+2?", "chosen": "4", "rejected": "5"},
    "messages": {"prompt": [ASKED], "chosen": [RIGHT], "rejected": [WRONG]},
    "whole conversations": {"chosen": [ASKED, RIGHT], "rejected": [ASKED, WRONG]},
    "a text and whole conversations": {"prompt": "2+2?", "chosen": [ASKED, RIGHT], "rejected": [ASKED, WRONG]},
    "a question": {"question": "2+2?", "chosen": "4", "rejected": "5"},
    "alpaca": {"instruction": "2+2?", "input": "", "chosen": "4", "rejected": "5"},
    "sharegpt": {"conversations": [HUMAN], "chosen": GOOD, "rejected": BAD},
    "nemo-rl": {
        "context": [ASKED],
        "completions": [{"rank": 1, "completion": [WRONG]}, {"rank": 0, "completion": [RIGHT]}],
    },
    "table cells": {"prompt": json.dumps([ASKED]), "chosen": json.dumps([RIGHT]), "rejected": json.dumps([WRONG])},
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_is_the_same_pair(spelling: str) -> None:
    expected = {"prompt": [ASKED], "chosen": [RIGHT], "rejected": [WRONG]}
    assert pair_of(SPELLINGS[spelling]).row == expected
    assert pair_of(expected).row == expected


def test_turns_tools_and_system_prompts_are_kept() -> None:
    row = {"prompt": [ASKED, RIGHT, ASKED], "chosen": [CALL, REPLY, RIGHT], "rejected": "5", "tools": [{"name": "add"}]}
    pair = pair_of(row, system_prompt="Be brief.")
    assert pair.prompt == [SYSTEM, ASKED, RIGHT, ASKED]
    assert [one["role"] for one in pair.chosen] == ["assistant", "tool", "assistant"]
    assert pair.row["tools"][0]["function"]["name"] == "add"
    more = pair_of({"instruction": "Add.", "input": "2+2", "system": "Be brief.", "chosen": "4", "rejected": "5"})
    assert more.prompt == [SYSTEM, {"role": "user", "content": "Add.\n\n2+2"}]


def test_numbers_are_texts_with_the_digits_of_the_file() -> None:
    row = {"prompt": 7, "chosen": 1.5, "rejected": 12345678901234567890123}
    pair = pair_of(row, written=b'{"prompt": 7, "chosen": 1.50, "rejected": 12345678901234567890123}')
    said = [turn["content"] for turns in pair[:3] for turn in turns]
    assert said == ["7", "1.50", "12345678901234567890123"]
    assert pair_of({"prompt": "2+2?", "chosen": 4, "rejected": Decimal("5.0")}).rejected[0]["content"] == "5.0"


BAD_ROWS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "2+2?", "chosen": "4"}, "no field 'rejected'"),
    ({"chosen": "4", "rejected": "5"}, "no prompt"),
    ({"prompt": "2+2?", "chosen": "4", "rejected": "4"}, "both answers are alike"),
    ({"prompt": "2+2?", "chosen": " ", "rejected": "4"}, "chosen: empty assistant turn"),
    ({"prompt": "2+2?", "chosen": "4", "rejected": None}, "no answer: 'rejected' is null"),
    ({"prompt": "2+2?", "chosen": float("nan"), "rejected": "5"}, "no answer: 'chosen' is nan"),
    ({"prompt": "2+2?", "chosen": True, "rejected": "5"}, "neither a text nor messages"),
    ({"prompt": [ASKED, RIGHT], "chosen": "4", "rejected": "5"}, "does not end with a turn of the user"),
    ({"prompt": "2+2?", "chosen": [{"role": "user", "content": "3"}], "rejected": "5"}, "chosen: no assistant turn"),
    ({"prompt": "2+2?", "chosen": [{"role": "robot", "content": "3"}], "rejected": "5"}, "chosen: unknown role"),
    ({"prompt": "2+2?", "completions": [{"rank": 0, "completion": "4"}]}, "not two answers with a rank"),
    ({"prompt": "2+2?", "completions": [{"rank": 0, "completion": "4"}] * 2}, "the same rank"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "message"), BAD_ROWS)
def test_a_bad_row_says_what_is_wrong(row: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        pair_of(row)


def test_data_preparation_names_file_and_line_and_takes_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))
    file = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"{n}+2?", "chosen": str(n + 2), "rejected": "0", "source": "me"} for n in range(1, 30)]
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"prompt": "2+2?", "chosen": "4"}]))
    words = ("-c", "dpo_tiny", f"data_prep.source={file}", "data_prep.workers=1")
    assert data_prep.main(words) == 2
    error = capsys.readouterr().err
    assert f"{file}:30: no field 'rejected'" in error and "a worse one in 'rejected'" in error
    assert data_prep.main((*words, "data_prep.on_bad_row=reject")) == 0
    assert "fields that are not read: source" in capsys.readouterr().err
    (made,) = (tmp_path / "home" / "artifacts" / "super3-rl-pairs").glob("v1")
    pairs = [pair for name in ("train", "val") for _, pair in read_pairs(made / f"{name}.jsonl")]
    assert sorted(pair.question for pair in pairs) == sorted(str(row["prompt"]) for row in rows)


def test_each_method_wants_its_own_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from stages.rl.train import main

    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path))
    for words in (short("rl"), ("-c", "dpo_tiny", "data_prep.synthetic_problems=20")):
        assert data_prep.main(words) == 0
    assert main(("-c", "dpo_tiny", "run.data=super3-rl-data:v1")) == 2
    assert "super3-rl-data:v1 holds questions, and DPO learns from pairs of answers" in capsys.readouterr().err
    assert main(("-c", "tiny", "run.data=super3-rl-pairs:v1")) == 2
    assert "super3-rl-pairs:v1 holds pairs of answers, and GRPO asks questions" in capsys.readouterr().err
