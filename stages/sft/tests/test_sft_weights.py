"""Turns that say that they do not count in the loss, from the file to the packed rows."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from nemotron_data.chat.loss_marks import MARKS
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_shared.artifacts import Store
from nemotron_shared.system.errors import UserError
from stages.sft.data_prep import main
from stages.sft.engines.automodel.misread import refuse_misread


def trained_tokens(folder: Path, row: dict[str, Any], *overrides: str) -> int:
    file = folder / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    words = [f"data_prep.source={file}", "data_prep.workers=1", "data_prep.split={train: 1, valid: 0, test: 0}"]
    assert main(["-c", "tiny", *words, *overrides]) == 0
    made = Store(folder / "home").resolve("super3-sft-data:latest").path
    return json.loads((made / "stats.json").read_text())["splits"]["train"]["trained_tokens"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMOTRON_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("split_turns", ["never", "auto"])
def test_the_trained_tokens_are_those_of_the_other_turns(tmp_path: Path, split_turns: str) -> None:
    thought = {"reasoning_content": "2+2"} if split_turns == "auto" else {}

    def chat(*weights: int) -> dict[str, Any]:
        first = {"role": "assistant", "content": "4", **thought, "weight": weights[0]}
        last = {"role": "assistant", "content": "6 is the answer", **thought, "weight": weights[1]}
        asked = [{"role": "user", "content": text} for text in ("2+2?", "3+3?")]
        return {"messages": [asked[0], first, asked[1], last]}

    how = f"data_prep.split_turns={split_turns}"
    counts = {weights: trained_tokens(tmp_path, chat(*weights), how) for weights in ((1, 1), (1, 0), (0, 1))}
    assert 0 < counts[1, 0] < counts[0, 1] < counts[1, 1] == counts[1, 0] + counts[0, 1]


def test_a_chat_in_which_nothing_counts_is_a_bad_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.jsonl"
    turns = [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4", "weight": 0}]
    file.write_text(json.dumps({"conversations": turns}) + "\n")
    assert main(["-c", "tiny", f"data_prep.source={file}", "data_prep.workers=1"]) == 2
    assert "rows.jsonl:1: no assistant turn that counts in the loss" in capsys.readouterr().err


def learnt_in(folder: Path) -> str:
    """The text whose tokens are learnt, of all training rows."""
    made = Store(folder / "home").resolve("super3-sft-data:latest").path
    tokenizer = TokenizerFolder(made / "tokenizer").tokenizer
    rows = pq.read_table(made / "train.parquet").to_pylist()
    # the mask is that of the labels, which are one token ahead
    kept = ((row["input_ids"], [0, *row["loss_mask"][:-1]]) for row in rows)
    return tokenizer.decode([i for ids, mask in kept for i, learnt in zip(ids, mask, strict=True) if learnt])


def test_answers_are_left_out_by_the_marks_of_every_trainer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked, rows = {"role": "user", "content": "2+2?", "loss_mask": 1, "name": "", "meta": {}}, []
    for name, mark in MARKS.items():
        unlearnt, learnt = int(mark.hides), int(not mark.hides)
        if mark.in_turns:
            said = [{"role": "assistant", "content": text} for text in (f"bad {name}.", f"good {name}.")]
            rows.append({"messages": [asked, said[0] | {name: unlearnt}, asked, said[1] | {name: learnt}]})
        value = bool(unlearnt) if bool in mark.in_rows else unlearnt
        rows.append({"prompt": "2+3?", "response": f"bad row {name}.", name: value})
    rows.append(
        {"messages": [{"role": r, "content": f"bad list {i}."} for i, r in enumerate(("user", "assistant") * 2)]}
    )
    rows[-1] |= {"loss_mask": [1, 0, 1, 1]}
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    shares = "data_prep.split={train: 1, valid: 0, test: 0}"
    assert main(["-c", "tiny", f"data_prep.source={file}", "data_prep.workers=1", shares]) == 0
    learnt = learnt_in(tmp_path)
    wanted = [f"good {name}." for name, mark in MARKS.items() if mark.in_turns] + ["bad list 3."]
    assert sorted(one.split(".")[0] + "." for one in learnt.replace("<think></think>", "\n").split("\n") if one) == (
        sorted(wanted)
    )
    told = capsys.readouterr().err
    assert "left to the chat template, in turns: name, meta" not in told
    assert "what is learnt is read from: loss_mask of a turn, weight of a turn" in told
    assert f"{len(MARKS)} not to be learnt, by a mark of the row)" in told


def test_what_else_turns_say_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turns = [{"role": "user", "content": "2+2?", "mood": None}, {"role": "assistant", "content": "4", "grade": 5}]
    for how in ([], ["data_prep.format=auto", "data_prep.messages_field=chat"]):
        trained_tokens(tmp_path, {"chat" if how else "messages": turns, "history": [["a", "b"]]}, *how)
        told = "; not read: history; left to the chat template, in turns: grade (another"
        assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"messages": [{"role": "assistant", "content": "4", "weight": 0}]}, "is excluded from the loss"),
        ({"messages": [{"role": "assistant", "content": "4", "trainable": False}]}, "is excluded from the loss"),
        ({"messages": [{"role": "assistant", "content": "4"}], "loss_mask": [0]}, "is excluded from the loss"),
        ({"messages": [{"role": "assistant", "content": "4", "mask": 1}]}, "a mark of no known meaning: 'mask' is 1"),
        ({"messages": [{"role": "assistant", "content": "4"}], "images": ["a.png"]}, "an image next to the text"),
        ({"messages": [{"role": "assistant", "content": "4"}], "System": "Be brief."}, "in 'System', which Automodel"),
    ],
)
def test_what_another_library_does_not_read_is_refused_with_its_place(
    tmp_path: Path, row: dict[str, Any], said: str
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"messages": []}\n' + json.dumps(row) + "\n")
    with pytest.raises(UserError, match=rf"a\.jsonl:2: .*{said}"):
        refuse_misread(str(file), None)
