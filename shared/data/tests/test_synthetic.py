"""The synthetic data: the same everywhere, right, and with nothing held out in what is trained on."""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemotron_data import synthetic
from nemotron_data.sources.datasets import input_files
from nemotron_data.synthetic import counter
from nemotron_data.synthetic.arithmetic import MAX_TOTAL, Sum, is_held_out, random_problem
from nemotron_data.synthetic.episodes import HELD_OUT
from nemotron_data.synthetic.people import NAMES, VALUES, facts, facts_by_person, people
from nemotron_data.synthetic.rows import SUM_QUESTIONS
from nemotron_shared.config.data import SourceSection
from nemotron_shared.system.errors import UserError

ROWS = {
    "pretrain_documents": 300,
    "chats": 300,
    "problems": 300,
    "eval_problems": 300,
    "eval_choices": 60,
    "eval_texts": 50,
}
EXPRESSION = re.compile(r"\d+(?:[+-]\d+)+")


def sums_in(text: str) -> list[Sum]:
    """Every sum written in `text`, however it came there."""
    return [Sum(tuple(int(term) for term in re.findall(r"[+-]?\d+", found))) for found in EXPRESSION.findall(text)]


TRAINING = ("pretrain_documents", "chats", "problems")


def rows(name: str, seed: int, count: int | None = None) -> list[dict]:
    return list(getattr(synthetic, name)(seed, ROWS[name] if count is None else count))


def digest(seed: int) -> str:
    return hashlib.sha256(json.dumps([rows(name, seed) for name in ROWS]).encode()).hexdigest()


def test_a_seed_gives_the_same_rows_in_every_process():
    program = "import test_synthetic; print(test_synthetic.digest(7))"
    found = set()
    for hash_seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        environment["PYTHONPATH"] = os.path.dirname(__file__) + os.pathsep + environment["PYTHONPATH"]  # noqa: PTH120
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.add(done.stdout.strip())
    assert found == {digest(7)}


@pytest.mark.parametrize("name", ROWS)
def test_another_seed_gives_other_rows(name):
    assert rows(name, 1) != rows(name, 2)


@pytest.mark.parametrize("name", ROWS)
def test_as_many_rows_as_asked_for_each_with_a_key(name):
    assert all(isinstance(row["key"], str) and row["key"] for row in rows(name, 3))
    assert len(rows(name, 3)) == ROWS[name]
    assert rows(name, 3, 0) == []


@pytest.mark.parametrize("name", ["problems", "eval_problems", "eval_choices"])
def test_no_question_is_asked_twice(name):
    assert len({row["key"] for row in rows(name, 4)}) == ROWS[name]


def test_no_training_row_of_any_seed_holds_a_sum_that_is_held_out():
    texts = [json.dumps(row) for seed in range(5) for name in TRAINING for row in rows(name, seed, 400)]
    trained = list(chain.from_iterable(map(sums_in, texts)))
    assert len(trained) > 5000
    assert not any(found.held_out for found in trained)
    asked = {row["key"] for seed in range(5) for row in rows("eval_problems", seed)}
    assert asked.isdisjoint(found.key for found in trained)


def test_every_sum_asked_for_in_evaluation_is_held_out():
    for row in rows("eval_problems", 5):
        (asked,) = sums_in(row["question"])
        assert (asked.held_out, asked.key) == (True, row["key"])


def test_no_training_row_of_any_seed_asks_for_a_fact_that_is_held_out():
    asked = {row["question"] for seed in range(5) for row in rows("eval_choices", seed)}
    trained = {row["messages"][0]["content"] for seed in range(5) for row in rows("chats", seed, 1000)}
    assert asked.isdisjoint(trained)


def test_no_sentence_of_held_out_prose_is_in_a_training_row_of_any_seed():
    asked = {sentence for seed in range(3) for row in rows("eval_texts", seed, 100) for sentence in sentences(row)}
    trained = {
        sentence for seed in range(3) for row in rows("pretrain_documents", seed, 6000) for sentence in sentences(row)
    }
    assert len(asked) > 200
    assert asked.isdisjoint(trained)


def test_training_states_in_other_words_what_held_out_prose_says():
    trained = {sentence for row in rows("pretrain_documents", 6, 6000) for sentence in sentences(row)}
    for known in facts_by_person(6):
        for fact in known:
            assert fact.sentences[0] in trained
            assert (fact.sentences[1] in trained) != fact.rewording_held_out


def sentences(row: dict) -> list[str]:
    return [f"{sentence}." for sentence in row["text"].rstrip(".").split(". ")]


@pytest.mark.parametrize("name", ["problems", "eval_problems"])
def test_expected_answers_are_right(name):
    for row in rows(name, 8):
        (asked,) = sums_in(row["question"])
        assert row["expected_answer"] == str(eval(asked.expression))
        assert asked.expression in row["question"]


def test_demonstrations_hold_the_right_answer_at_once_or_after_the_work():
    about_sums = [row["messages"] for row in rows("chats", 9, 3000) if sums_in(row["messages"][0]["content"])]
    thinks = {wording: [] for wording in SUM_QUESTIONS}
    for question, answer in about_sums:
        (asked,) = sums_in(question["content"])
        assert answer["content"] == asked.answer
        assert answer.get("reasoning_content", asked.work) == asked.work
        (wording,) = (each for each in SUM_QUESTIONS if each.format(asked.expression) == question["content"])
        thinks[wording].append("reasoning_content" in answer)
    for wording, wanted in SUM_QUESTIONS.items():
        assert abs(sum(thinks[wording]) / len(thinks[wording]) - wanted.thinking) < 0.06
    assert 0 < len(about_sums) < 3000


def test_text_shows_the_work_of_every_sum_at_different_distances():
    text = "\n".join(row["text"] for row in rows("pretrain_documents", 9))
    found = re.findall(r"(\d(?:[+-]\d){3})([^\d]+)([\d=+-]+)", text)
    assert len(found) > 300
    assert all(sums_in(expression)[0].work == work for expression, _, work in found)
    assert len({len(between) for _, between, _ in found}) == 3


def test_choices_hold_the_true_value_once_and_are_not_given_away_by_their_place():
    truth = {fact.question: fact.value for fact in facts(10, held_out=True)}
    places = []
    for row in rows("eval_choices", 10):
        assert row["choices"][row["answer"]] == truth[row["question"]]
        assert len(set(row["choices"])) == 4
        places.append(row["answer"])
    assert set(places) == {0, 1, 2, 3}


def test_pretraining_states_every_fact_that_is_asked_for():
    text = " ".join(row["text"] for row in rows("pretrain_documents", 11, 4000))
    for row in rows("eval_choices", 11):
        assert f"{row['stem']} {row['choices'][row['answer']]}" in text


def test_more_than_there_is_is_refused():
    with pytest.raises(UserError, match="different problems"):
        rows("problems", 0, 100_000)
    with pytest.raises(UserError, match="the synthetic data has"):
        rows("eval_choices", 0, 100_000)


def test_an_evaluation_of_400_sums_is_possible():
    assert len(rows("eval_problems", 12, 400)) == 400


def test_people_have_one_value_of_every_kind_and_names_are_different():
    assert len(set(NAMES)) == len(NAMES) == len(people(13))
    assert all(person.facts[kind] in values for person in people(13) for kind, values in VALUES.items())
    assert people(13) != people(14)
    every = len(NAMES) * len(VALUES)
    assert len(facts(13, held_out=True)) + len(facts(13, held_out=False)) == every
    assert len(facts(13, held_out=True)) > every / 3


def test_a_sum_knows_its_work_answer_and_key():
    drawn = Sum((3, 5, -7, 8))
    assert (drawn.expression, drawn.work, drawn.answer) == ("3+5-7+8", "8-7+8=1+8=9", "9")
    assert drawn.key == Sum((8, 3, -7, 5)).key == "3+5+8-7"
    assert drawn.key != Sum((3, 5, 7, -8)).key


@given(st.integers(), st.booleans())
def test_sums_are_drawn_from_the_side_asked_for(seed, held_out):
    drawn = random_problem(Random(seed), held_out)
    assert drawn.held_out == held_out
    steps = drawn.work.split("=")
    assert drawn.answer == steps[-1] == str(eval(drawn.expression))
    assert all(eval(step) == eval(drawn.expression) for step in steps)
    assert all(0 <= int(step[0]) <= MAX_TOTAL for step in steps)
    assert sums_in(f"What is {drawn.expression}? {drawn.expression}={drawn.answer}") == [drawn, drawn]


@given(st.integers())
def test_what_is_left_of_a_sum_is_never_held_out(seed):
    drawn = random_problem(Random(seed), held_out=True)
    assert not any(left.held_out for left in sums_in(drawn.work))


def test_the_share_held_out_is_as_said():
    assert abs(sum(is_held_out(str(number), 5) for number in range(5000)) / 5000 - 0.2) < 0.02


SECTION = SourceSection.model_construct(source="synthetic", seed=3)


def numbered(seed: int, count: int) -> Iterator[dict[str, Any]]:
    yield from ({"text": f"{seed} {number}"} for number in range(count))


@pytest.mark.parametrize("harmed", ["synthetic.jsonl", "synthetic.sha256"])
@pytest.mark.parametrize("harm", ["flipped", "cut", "gone"])
def test_what_is_harmed_is_made_again(tmp_path: Path, harmed: str, harm: str) -> None:
    made = tmp_path / "synthetic.jsonl"
    input_files(SECTION, made, numbered, 20)
    sound = made.read_bytes()
    file = tmp_path / harmed
    content = bytearray(file.read_bytes())
    content[7] ^= 1
    file.unlink() if harm == "gone" else file.write_bytes(content if harm == "flipped" else content[:9])
    (again,) = input_files(SECTION, made, numbered, 20)
    assert (again.path, made.read_bytes()) == (str(made), sound)


def test_what_is_sound_is_used_as_it_is(tmp_path: Path) -> None:
    made = tmp_path / "synthetic.jsonl"
    input_files(SECTION, made, numbered, 20)
    before = made.stat()
    input_files(SECTION, made, lambda seed, count: pytest.fail("the rows are there"), 20)
    assert made.stat().st_mtime_ns == before.st_mtime_ns


def test_rows_of_the_counter_hold_out_questions_and_their_demonstrations_earn_the_reward() -> None:
    def numbers(text: str) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", text)]

    trained = list(synthetic.BEGINNINGS[counter.NAME](1, 300))
    held_out = list(synthetic.BEGINNINGS[counter.NAME](1, 300, HELD_OUT))
    assert trained == list(synthetic.BEGINNINGS[counter.NAME](1, 300)), "the same seed gives the same rows"
    for row in (*trained, *held_out):
        asked = numbers(row["responses_create_params"]["input"][0]["content"])
        assert row["expected_count"] == row["initial_count"] + sum(asked)
        episode = counter.Episode(row)
        for name, arguments in counter.solution(row)[:-1]:
            getattr(episode, name)(**arguments)
        assert episode.count == row["expected_count"]
    asked_before = {row["responses_create_params"]["input"][0]["content"] for row in trained}
    calls = 0
    for chat in synthetic.DEMONSTRATIONS[counter.NAME](1, 300):
        question, *_, answer = chat["messages"]
        added = sum(numbers(question["content"]))
        asked_before.add(question["content"])
        assert chat["key"].split()[0] == str(int(answer["content"]) - added)
        calls += len(chat["messages"]) == 8
    assert 150 < calls < 250, "the others guess"
    assert not asked_before & {row["responses_create_params"]["input"][0]["content"] for row in held_out}
