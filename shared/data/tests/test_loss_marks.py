"""Fields of other trainers that say what is learnt are read as they say, or refused."""

import json
from decimal import Decimal
from typing import Any

import pytest
from chat_support import bot, user

from nemotron_data.chat.loss_marks import (
    MARKS,
    counts,
    hidden_by,
    is_mark,
    marked,
    marks_of_row,
    media_of,
)
from nemotron_data.chat.rows import plain_message, remedy_of, validate_messages
from nemotron_data.rejects import Refused
from nemotron_data.sources.datasets import read_question
from nemotron_data.sources.detect import marks_in, turn_keys, unread_in
from nemotron_data.sources.reading import Row
from nemotron_shared.system.errors import UserError

OF_TURNS = {name: mark for name, mark in MARKS.items() if mark.in_turns}
HIDING = {"masked"}
SPOKEN_EVERYWHERE = {"loss_mask", "step_loss_mask", "loss_scale", "loss_weight"}
CONFLICT = "a turn that both counts in the loss and does not: "


def test_the_table_names_where_each_mark_is_from() -> None:
    assert len(MARKS) >= 15
    assert all(mark.source for mark in MARKS.values())
    assert {name for name, mark in MARKS.items() if mark.hides} == HIDING
    assert {name for name, mark in MARKS.items() if mark.of_answers} == SPOKEN_EVERYWHERE


@pytest.mark.parametrize("name", [*OF_TURNS, "lossMask", "Loss_Mask", "trainOnTurn"])
def test_a_mark_of_a_turn_is_read_as_it_says(name: str) -> None:
    learnt, unlearnt = ((0, False, 0.0, "0", "0.0", "false"), (1, True, 1.0, "1", "1.0", "True"))[
        :: -1 if name not in HIDING else 1
    ]
    for value in (*learnt, Decimal(int(name not in HIDING))):
        assert counts(bot(**{name: value}))
        assert validate_messages([user(), bot(**{name: value})]) is None
    for value in unlearnt:
        assert not counts(bot(**{name: value}))
        assert validate_messages([user(), bot(**{name: value}), user(), bot()]) is None
        assert validate_messages([user(), bot(**{name: value})]) == "no assistant turn that counts in the loss"
    for value in (0.5, "yes", 2, -1, [1], {"a": 1}, float("nan")):
        reason = str(validate_messages([user(), bot(**{name: value})]))
        assert reason == f"a weight that is neither 0 nor 1: '{name}' is {value!r}"
        assert "rename the field to loss_mask" in str(remedy_of(reason))
    for nothing in (None, "", []):
        assert counts(bot(**{name: nothing}))
        assert validate_messages([user(), bot(**{name: nothing})]) is None


@pytest.mark.parametrize("name", OF_TURNS)
def test_a_turn_of_somebody_else_is_never_learnt(name: str) -> None:
    learnt = int(name not in HIDING)
    reason = validate_messages([user(**{name: learnt}), bot()])
    assert (reason is None) == (name in SPOKEN_EVERYWHERE), "the others' trainers would learn it"
    assert validate_messages([user(**{name: 1 - learnt}), bot()]) is None


def test_marks_that_contradict_each_other_are_refused() -> None:
    turn = bot(loss_mask=1, trainable=False)
    assert validate_messages([user(), turn]) == f"{CONFLICT}'loss_mask' is 1 and 'trainable' is False"
    assert validate_messages([user(), bot(masked=True, train=0), bot(masked=0, train=1)]) is None


@pytest.mark.parametrize(
    "name",
    [
        "mask",
        "masks",
        "no_loss",
        "ignoreLoss",
        "train_detail",
        "token_weights",
        "is_learned",
        "unmasked",
        "skip",
        "requires_grad",
        "backprop",
    ],
)
@pytest.mark.parametrize("value", [True, False, 0, "user", [{"begin_offset": 0, "train": False}]])
def test_a_mark_of_no_known_meaning_is_refused_and_never_called_harmless(name: str, value: object) -> None:
    reason = str(validate_messages([user(), bot(**{name: value})]))
    assert reason == f"a mark of no known meaning: '{name}' is {value!r}"
    assert "data_prep.on_bad_row=reject" in str(remedy_of(reason))
    rows = [Row({"messages": [user(), bot(**{name: value})]}, "a.jsonl", 1)]
    assert turn_keys(rows, ["messages"]) == ()
    assert marks_in(rows, ["messages"]) == (f"{name} of a turn",)


@pytest.mark.parametrize("name", ["grade", "glossary", "trail", "rating", "label", "meta", "prefix", "brain"])
def test_other_fields_of_turns_are_left_to_the_template(name: str) -> None:
    assert validate_messages([user(), bot(**{name: False})]) is None
    assert not is_mark(name, in_turn=True)


@pytest.mark.parametrize(
    ("part", "ok"), [({"loss_weight": 0}, False), ({"loss_weight": 1.0}, True), ({"mask": 1}, False)]
)
def test_a_part_of_an_answer_is_learnt_with_the_whole(part: dict[str, Any], ok: bool) -> None:
    parts = [{"type": "text", "text": "a", **part}, {"type": "text", "text": "b", "cache_control": None}]
    assert plain_message(user(parts))["content"] == "a\nb", "what users say is never learnt"
    if ok:
        assert plain_message(bot(parts))["content"] == "a\nb"
        return
    with pytest.raises(UserError, match="a part of an answer with its own mark"):
        plain_message(bot(parts))


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"weight": 0, "train": False}}}


@pytest.mark.parametrize(
    ("turn", "place"),
    [
        (bot(tool_calls=[CALL]), None),  # what a tool is asked is no mark
        (bot(tool_calls=[CALL, {**CALL, "loss_mask": 0}]), "tool_calls[1].loss_mask"),
        (bot(tool_calls=[{**CALL, "function": {**CALL["function"], "weight": 0.0}}]), "tool_calls[0].function.weight"),
        (bot(tool_calls=[{**CALL, "trainable": True}]), None),
        (bot(metadata={"loss_mask": False}), "metadata.loss_mask"),
        (bot(extra={"masked": 1}), "extra.masked"),
        (bot(metadata={"loss": 1.73, "weight": 75, "train": "part 2", "masked": False}), None),
    ],
)
def test_a_mark_within_an_answer_is_not_passed_over(turn: dict[str, Any], place: str | None) -> None:
    reason = validate_messages([user(metadata={"train": False}), turn])
    assert reason == (place and f"a part of an answer with its own mark: '{place}'")
    assert place is None or "give the mark to the whole turn" in str(remedy_of(str(reason)))


@pytest.mark.parametrize(
    ("beside", "inner"),
    [
        ({"loss_mask": [0, 0, 0, 1]}, "loss_mask"), ({"trainable": False}, "trainable"), ({"Masked": True}, "Masked"),
        ({"loss_mask": [1, 1], "loss": 0.0, "label": False, "weight": 0, "train": 0, "mask": "<mask>"}, None),
    ],
)  # fmt: skip
def test_a_mark_in_an_object_of_the_row_is_not_passed_over(beside: dict[str, Any], inner: str | None) -> None:
    row = {"messages": [user(), bot()], "metadata": beside}
    if inner is None:
        assert marks_of_row(row) == {}
        return
    with pytest.raises(UserError, match=f"a mark of no known meaning: 'metadata.{inner}' of the row"):
        marks_of_row(row)


ROWS: list[tuple[dict[str, Any], str | None]] = [
    ({"label": False}, "label"),
    ({"label": True}, None),
    ({"label": 0}, None),  # a class
    ({"label": "false"}, None),
    ({"kto_tag": False}, "kto_tag"),
    ({"weight": 0}, "weight"),
    ({"weight": 1.0, "sample_weight": 0}, "sample_weight"),
    ({"Loss_Mask": 0}, "Loss_Mask"),
    ({"loss": False}, "loss"),
    ({"loss": 0.0}, None),  # a measured loss
    ({"loss": 1.73}, None),
    ({"train": False}, "train"),
    ({"train": "part 2"}, None),
    ({"training": 0}, "training"),
    ({"masked": True}, "masked"),
    ({"masked": "Where is <mask>?"}, None),
    ({"mask": "User"}, None),  # NeMo: turns of the user are not learnt
    ({"attention_mask": [1, 1]}, None),
    ({"weight": None, "mask": [], "images": []}, None),
]


@pytest.mark.parametrize(("beside", "hides"), ROWS)
def test_a_mark_of_a_row_is_read_as_it_says(beside: dict[str, Any], hides: str | None) -> None:
    marks = marks_of_row({"messages": [user(), bot()], **beside})
    assert hidden_by(marks) == hides
    assert marked([user(), bot()], marks) == [user(), bot()]


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ({"weight": 0.3}, "a weight that is neither 0 nor 1: 'weight' of the row is 0.3"),
        ({"loss_mask": [1, 0.5]}, "a weight that is neither 0 nor 1: 'loss_mask' of the row is"),
        ({"mask": True}, "a mark of no known meaning: 'mask' of the row is 'True'"),
        ({"mask": "Assistant"}, "a mark of no known meaning: 'mask' of the row is 'Assistant'"),
        ({"mask_ranges": [{"start": 0, "end": 3}]}, "a mark of no known meaning: 'mask_ranges'"),
        ({"images": ["a.png"]}, "an image next to the text: in 'images'"),
        ({"imageUrl": "http://x/a.png"}, "an image next to the text: in 'imageUrl'"),
        ({"audio": {"bytes": "UklG"}}, "audio next to the text: in 'audio'"),
        ({"video_paths": ["a.mp4"]}, "a video next to the text: in 'video_paths'"),
    ],
)
def test_what_cannot_be_read_beside_the_turns_is_refused(beside: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as refused:
        marks_of_row({"messages": [user(), bot()], **beside})
    assert refused.value.message.startswith(said)
    assert "data_prep.on_bad_row=reject" in str(refused.value.remedy)
    assert marks_of_row({"messages": [], **beside}, used=list(beside)) == {}, "a setting says what it is"


def test_a_list_of_marks_is_one_for_each_turn() -> None:
    turns = [user(), bot("wrong"), user(), bot("right")]
    for values in ([1, 0, 1, 1], [0, 0, 0, 1], [True, False, True, True]):
        said = marked(turns, marks_of_row({"loss_mask": values}))
        assert [counts(turn) for turn in said if turn["role"] == "assistant"] == [False, True]
        assert validate_messages(said) is None
    system = {"role": "system", "content": "Be brief."}
    assert [counts(turn) for turn in marked([system, *turns], {"loss_mask": [1, 0, 1, 1]})][2::2] == [False, True]
    assert [counts(turn) for turn in marked([system, *turns], {"loss_mask": [1, 1, 0, 1, 1]})][2::2] == [False, True]
    with pytest.raises(UserError, match="marks of another number of turns: 'loss_mask' has 2 values for 4 turns"):
        marked(turns, {"loss_mask": [0, 1]})
    for contradicting in (
        {"loss_mask": [1, 0, 1, 1], "weight": [1, 1, 1, 1]},
        {"masked": [0, 0, 0, 1], "loss": [1] * 4},
    ):
        with pytest.raises(UserError, match=CONFLICT):
            marked(turns, contradicting)
    with pytest.raises(UserError, match=CONFLICT):
        marked([user(), bot(train=True)], {"loss_mask": [0, 0]})


@pytest.mark.parametrize("name", ["images", "image", "audio", "audios", "videos", "video"])
def test_media_beside_a_question_are_refused_as_in_a_conversation(name: str) -> None:
    row = {"question": "What is this?", "answer": "a cat", name: ["x.bin"]}
    with pytest.raises(Refused, match=f"next to the text: in '{name}'"):
        read_question(row, "question", "answer")
    assert read_question({**row, name: []}, "question", "answer") == ("What is this?", "a cat")
    assert media_of(row, [name]) is None
    reason = str(validate_messages([user(**{name: ["x.bin"]}), bot()]))
    assert reason.endswith(f"in a turn: in its field '{name}'")
    assert "remove the field" in str(remedy_of(reason))


def test_fields_that_are_marks_are_not_among_the_unread() -> None:
    row = {"prompt": "q", "completion": "a", "label": False, "id": 3, "loss": 0.7, "weight": 1}
    rows = [Row(row, "a.jsonl", 1)]
    assert unread_in(rows, ["prompt", "completion"], "prompt_completion") == ("id", "loss")
    assert marks_in(rows, ["prompt", "completion"]) == ("label of a row", "weight of a row")
    turns = json.dumps([user(), bot(loss_mask=0, mood=1)])
    assert marks_in([Row({"messages": turns}, "a.csv", 2)], ["messages"]) == ("loss_mask of a turn",)
    assert turn_keys([Row({"messages": turns}, "a.csv", 2)], ["messages"]) == ("mood",)
