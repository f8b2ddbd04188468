import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemotron_data.held_out import Occurrence, find_overlap
from nemotron_data.split import normalise_key
from nemotron_shared.errors import UserError


def found(key: str, *texts: str) -> Occurrence | None:
    return find_overlap([key], texts).get(key)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2 + 3", 0),
        ("What is 2 + 3?", 8),
        ("(2\n+\t3)", 1),
        ("２ ＋ ３", 0),
        ("12 + 3", None),
        ("2 + 34", None),
        ("2 + 3*4", None),
        ("2 + 3=5", None),
        ("a2 + 3", None),
        ("-2 + 3", None),
        ("2 + 3b", None),
        ("2 + 3.", 0),
        ("2+3", None),
        ("12 + 3, 2 + 34, 2 + 3", 16),
        ("", None),
    ],
)
def test_a_key_must_stand_alone(text, expected):
    occurrence = found("2 + 3", text)
    assert (occurrence.position if occurrence else None) == expected


def test_the_first_place_and_the_count_are_reported():
    texts = ["nothing", "Who? who?", "WHO?"]
    assert found("who?", *texts) == Occurrence(text=1, position=0, count=3)
    assert find_overlap(["who?", "why?", "Who?"], texts) == {
        "who?": Occurrence(1, 0, 3),
        "Who?": Occurrence(1, 0, 3),
    }


def test_keys_without_ascii_letters_are_found():
    assert found("小明有几个苹果", "题目：小明有几个苹果？") == Occurrence(0, 3, 1)
    assert found("???", "a ??? b") == Occurrence(0, 2, 1)
    assert found("???", "a??? b") is None
    assert found("???", "a ???b") is None


def test_what_follows_a_long_key_counts_too():
    # compared by four words of its own, which need not be its last
    keys = ["who sells the red hat", "a coat and the red hat"]
    assert set(find_overlap(keys, ["who sells the red hats?"])) == set()
    assert set(find_overlap(keys, ["who sells the red hat?"])) == {"who sells the red hat"}


def test_an_empty_key_is_refused():
    with pytest.raises(UserError, match="empty"):
        find_overlap(["a", " \n"], ["text"])


def test_texts_may_be_a_generator():
    assert len(find_overlap((key for key in ["a b"]), (text for text in ["x", "a b"]))) == 1


WORDS = st.lists(st.sampled_from(["a", "b", "A1", "2", "+", "3*", "?", "é", "-", "(", ")", ".", "ß"]), max_size=7)
SHORT = st.tuples(WORDS, st.sampled_from([" ", "", "  "])).map(lambda pair: pair[1].join(pair[0]))


@settings(deadline=None)
@given(st.lists(SHORT.filter(str.strip), max_size=6), st.lists(SHORT, max_size=6))
def test_a_plain_regular_expression_finds_the_same(keys, texts):
    expected = {}
    for key in keys:
        alone = re.compile(rf"(?<![0-9A-Za-z+*/=-])(?={re.escape(normalise_key(key))}(?![0-9A-Za-z+*/=-]))")
        hits = [(i, hit.start()) for i, text in enumerate(texts) for hit in alone.finditer(normalise_key(text))]
        if hits:
            expected[key] = Occurrence(*hits[0], len(hits))
    assert find_overlap(keys, texts) == expected
