import doctest
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemotron_data import split as module
from nemotron_data.prep.sampling import split_choice
from nemotron_data.split import Split, bucket, normalise_key
from nemotron_shared.system.errors import UserError


def test_docstring_examples_hold():
    result = doctest.testmod(module)
    assert (result.failed, result.attempted) == (0, 2)


@settings(deadline=None)
@given(st.text())
def test_normalising_twice_changes_nothing(text):
    once = normalise_key(text)
    assert normalise_key(once) == once
    assert normalise_key(f"\n {text}\t") == once


@settings(deadline=None)
@given(st.text(), st.text(max_size=5))
def test_a_bucket_is_a_fraction_and_ignores_case_and_space(key, salt):
    assert 0 <= bucket(key, salt) < 1
    assert bucket(key, salt) == bucket(f"  {key}\n", salt)


def test_buckets_never_change():
    keys = ("x", "y", "What is 2+3?", "what  is 2+3?", "\ud800")
    assert [round(bucket(key, "a"), 6) for key in keys] == [0.021317, 0.412399, 0.46935, 0.46935, 0.148265]


def test_fractions_are_met_and_independent_of_their_order():
    split = Split({"train": 0.8, "valid": 0.15, "test": 0.05}, salt="s")
    other = Split({"test": 0.05, "train": 0.8, "valid": 0.15}, salt="s")
    names = [split.of(f"question {i}") for i in range(20_000)]
    assert names == [other.of(f"question {i}") for i in range(20_000)]
    for name, fraction in split.fractions.items():
        assert names.count(name) / len(names) == pytest.approx(fraction, abs=0.01)


def test_salts_are_independent():
    a, b = (Split({"train": 0.5, "test": 0.5}, salt) for salt in ("a", "b"))
    same = sum(a.of(f"{i}") == b.of(f"{i}") for i in range(10_000))
    assert same / 10_000 == pytest.approx(0.5, abs=0.02)


def test_a_part_of_nothing_gets_nothing_and_a_part_of_all_gets_all():
    split = Split({"train": 1.0, "valid": 0.0, "a": 0.0}, salt="s")
    assert {split.of(f"{i}") for i in range(1000)} == {"train"}


def test_tenths_that_do_not_sum_exactly_are_fine():
    assert Split({f"{i}": 0.1 for i in range(10)}, salt="s").of("x") in set("0123456789")


@pytest.mark.parametrize(
    "fractions", [{}, {"train": 0.9}, {"train": 0.9, "test": 0.2}, {"a": 1.5, "b": -0.5}, {"a": float("nan")}]
)
def test_fractions_that_do_not_sum_to_one_are_refused(fractions):
    with pytest.raises(UserError):
        Split(fractions, salt="s")


@pytest.mark.parametrize(("count", "held_out"), [(99, 0), (100, 20), (150, 20), (300, 30), (1234, 123)])
def test_the_larger_of_twenty_and_a_tenth_is_held_out(count: int, held_out: int) -> None:
    keys = [f"question {number}?" for number in range(count)]
    choice = split_choice([bucket(key, "questions") for key in keys], "rows")
    parts = Counter(map(Split(choice.value, salt="questions").of, keys))
    assert (parts["valid"], parts["train"]) == (held_out, count - held_out)
    assert len(str(choice.value["valid"])) < 10


def test_equal_questions_go_together_and_at_most_half_is_held_out() -> None:
    few = [f"question {number % 3}?" for number in range(300)]  # each of them is a third
    choice = split_choice([bucket(key, "questions") for key in few], "rows")
    assert Counter(map(Split(choice.value, salt="questions").of, few))["valid"] == 100
    same = split_choice([bucket("one question?", "questions")] * 300, "rows")
    assert same.value == {"train": 1.0, "valid": 0.0, "test": 0.0} and "with one question" in same.why
