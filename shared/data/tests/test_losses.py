"""What people are told where a preparation loses all of its rows: a remedy that leaves some."""

from collections import Counter
from pathlib import Path

import pytest

from nemotron_data.prep.losses import Totals
from nemotron_data.prep.pipeline import Prepared
from nemotron_data.sources.files import expand
from nemotron_data.sources.reading import read_files
from nemotron_shared.errors import UserError


def test_the_loss_of_all_rows_cannot_be_allowed() -> None:
    totals = Totals(Counter(rows=10), Counter({"no assistant turn": 8, "asked for": 2}), asked={"asked for"})
    with pytest.raises(UserError) as caught:
        totals.require_few_lost(0.05, {}, "home/rejected.jsonl")
    assert caught.value.remedy == "look at them in home/rejected.jsonl and correct them"
    totals.require_few_lost(1.0, {})


def test_nothing_left_says_why(tmp_path: Path) -> None:
    def prepared(refused: int) -> Prepared:
        totals = Totals(Counter(rows=10), Counter({"no assistant turn": refused}))
        return Prepared([], totals, tmp_path / "rejected.jsonl", print)

    error = prepared(10).nothing_left("conversation")
    assert error.message == "no conversation is left for training\n  mostly: no assistant turn, 10 rows"
    assert str(error.remedy).endswith(f"listed with its reason in {tmp_path / 'rejected.jsonl'}")
    error = prepared(4).nothing_left("conversation")
    assert "6 rows can be used, and none is in the split 'train'" in error.message
    assert str(error.remedy).endswith("data_prep.split='{train: 1, valid: 0, test: 0}'")
    error = prepared(4).nothing_left("held-out question", "test")
    assert error.message.startswith("no held-out question is left: 6 rows")
    assert str(error.remedy).endswith("data_prep.split='{train: 0, valid: 0, test: 1}'")


def test_a_list_that_stands_twice_is_left_to_its_writer(tmp_path: Path) -> None:
    """jq keeps the last of them, and says nothing of the first."""
    file = tmp_path / "a.json"
    file.write_text('{"data": [{"a": 1}],\n "data": [{"a": 2}]}')
    with pytest.raises(UserError, match="'data' and 'data', two lists of objects") as caught:
        list(read_files(expand([file])))
    assert "give one of them another name" in str(caught.value.remedy) and "jq -c" not in str(caught.value.remedy)
