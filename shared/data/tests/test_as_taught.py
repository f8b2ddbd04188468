"""Whether an answer is the one of a training row."""

import pytest

from nemotron_data.verifier import is_as_taught

LONG = "It depends on the weather, on how much time there is, and on what everybody would like to do."


@pytest.mark.parametrize(
    ("said", "taught", "right"),
    [
        ("The Tormir flower is red.", "The Tormir flower is red.", True),
        ("the tormir flower is RED", "The Tormir flower is red.", True),
        ("The Mibel flower is red.", "The Tormir flower is red.", False),
        ("The Tormir flower is blue.", "The Tormir flower is red.", False),
        ("It was founded in 1235.", "It was founded in 1234.", False),
        ("The colour is red.", "red", True),
        ("<think>one way</think>7", "<think>another</think>7", True),
        ("<think>it never ends: 7", "<think>another</think>7", False),
        ("So it is 7 in all.\n#### 7", "Three and four of them are seven, and that is all of them.\n#### 7", True),
        ("Yes.", "No.", False),
        ("", "red", False),
        (LONG, LONG, None),
        ("red", LONG, None),
        ("red", "...", None),
    ],
)
def test_words_or_final_answers_decide(said: str, taught: str, right: bool | None) -> None:
    assert is_as_taught(said, taught) is right
