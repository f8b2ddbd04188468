"""Held-out rows in training text: word for word, in a run of words, reworded; and nothing where there is nothing."""

import re
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemotron_data.held_out import RUN, Occurrence, Search, find_overlap, item_of, words_of
from nemotron_data.split import normalise_key
from nemotron_shared.system.errors import UserError

LONG = (
    "A baker sells forty loaves of rye bread every morning and half as many in the afternoon, "
    "except on Sundays, when the shop stays closed. How many loaves does she sell in a week?"
)
SHORT = "How many legs do three spiders and two ants have?"


def ways(row: dict, *texts: str) -> set[str]:
    search = Search([item_of("task", 0, row)])
    return {hit.how for text in texts for hit in search.find(text).hits.values()}


def question(text: str) -> dict:
    return {"question": text, "expected": "1", "key": text}


def test_a_copy_is_found_in_any_case_and_spacing() -> None:
    assert ways(question(SHORT), f"Quiz!  {SHORT.upper()}\n Forty.") == {"exact"}
    assert ways(question("2+2?"), "What is 2+2? 4") == {"exact"}
    assert ways({"question": "Compute 8+7.", "key": "7+8"}, "7+8 is 15") == {"exact"}


def test_thirteen_words_in_a_row_are_a_run_and_twelve_are_none() -> None:
    words = LONG.split()
    assert ways(question(LONG), "He wrote: " + " ".join(words[5 : 5 + RUN]) + " and left.") == {"run"}
    assert ways(question(LONG), "He wrote: " + " ".join(words[5 : 4 + RUN]) + " and left.") == set()


def test_of_a_short_row_every_word_has_to_follow() -> None:
    assert ways(question(SHORT), "They ask how many legs do three spiders and two ants have, as if we knew") == {"run"}
    assert ways(question(SHORT), "How many legs do three spiders have") == set()


def test_a_reworded_row_is_near_and_the_same_words_all_over_a_long_text_are_not() -> None:
    reworded = LONG.replace("forty", "sixty").replace("closed", "shut").replace("afternoon", "evening")
    assert ways(question(LONG), f"Filler before it. {reworded} Filler after it.") == {"near"}
    words = LONG.split()
    filler = " ".join(f"w{n}" for n in range(60))
    scattered = filler.join(" ".join(words[n : n + 6]) for n in range(0, len(words), 6))
    assert ways(question(LONG), scattered) == set()


def test_few_words_in_common_are_no_overlap() -> None:
    assert ways(question("Where does Mira live?"), "Where does Tova live?", "Mira lives in Oster.") == set()
    assert ways(question(LONG), "A baker sells bread. How many loaves does she sell in a day?") == set()


def test_the_wording_of_a_task_counts_for_nothing() -> None:
    frame = "Read the passage below with care and then answer the question that follows it in one word: item {}"
    items = [item_of("task", number, question(frame.format(number))) for number in range(20)]
    assert not Search(items).find(frame.format(99)).hits
    assert Search(items[:3]).find(frame.format(99)).hits


def test_a_choice_is_asked_or_stated() -> None:
    row = {"question": "Where does Mira live?", "stem": "Mira lives in", "choices": ["Oster", "Kelby"], "answer": 0}
    stated = "Long ago, Mira lives in Oster."
    assert ways(row, stated) == {"exact"}
    found = Search([item_of("facts", 0, row, recall=True)]).find(stated)
    assert (found.hits, found.stated) == ({}, {0})


def test_sentences_of_a_text_are_told_one_by_one() -> None:
    item = item_of("prose", 0, {"text": "Mira lives in Oster. The pet of Tova is a goat. Yes."})
    assert item.sentences == ("Mira lives in Oster.", "The pet of Tova is a goat.")
    found = Search([item]).find("Ubo is old. The pet of Tova is a goat.")
    assert (found.hits, found.sentences) == ({}, {(0, 1)})


def test_scripts_without_blanks_have_words_too() -> None:
    asked = "小明有三个苹果，小红给了他五个苹果，请问他现在一共有几个苹果？"
    assert len(words_of(normalise_key(asked))) > 20
    assert ways(question(asked), "题目：" + asked.replace("三", "四")) == {"run"}


@pytest.mark.parametrize("seed", range(20))
def test_a_plain_search_finds_the_same_runs(seed: int) -> None:
    rng = Random(seed)
    words = [f"w{number}" for number in range(4)]
    asked = [rng.choice(words) for _ in range(rng.randint(8, 20))]
    text = [rng.choice(words) for _ in range(300)]
    start = rng.randrange(200)
    if seed % 2:
        text[start : start + 9] = asked[:9]
    size = min(RUN, len(asked))
    runs = {tuple(asked[n : n + size]) for n in range(len(asked) - size + 1)}
    there = any(tuple(text[n : n + size]) in runs for n in range(len(text)))
    assert ("run" in ways(question(" ".join(asked) + "?"), " ".join(text))) == there


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
DRAWN = st.tuples(WORDS, st.sampled_from([" ", "", "  "])).map(lambda pair: pair[1].join(pair[0]))


@settings(deadline=None)
@given(st.lists(DRAWN.filter(str.strip), max_size=6), st.lists(DRAWN, max_size=6))
def test_a_plain_regular_expression_finds_the_same(keys, texts):
    expected = {}
    for key in keys:
        alone = re.compile(rf"(?<![0-9A-Za-z+*/=-])(?={re.escape(normalise_key(key))}(?![0-9A-Za-z+*/=-]))")
        hits = [(i, hit.start()) for i, text in enumerate(texts) for hit in alone.finditer(normalise_key(text))]
        if hits:
            expected[key] = Occurrence(*hits[0], len(hits))
    assert find_overlap(keys, texts) == expected
