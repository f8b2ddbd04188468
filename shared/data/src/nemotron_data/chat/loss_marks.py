"""Fields by which turns and rows say whether they are learnt, as other trainers name them; and media next to messages.

    {"role": "assistant", "content": "5", "loss_mask": 0}         read, and not learnt
    {"messages": [...], "loss_mask": [0, 0, 0, 1]}                the same, with one value for each turn
    {"prompt": "2+2?", "completion": "5", "label": false}         the row is left out
    {"role": "assistant", "content": "4", "mask": true}           a bad row: it means "learnt" to some, "not" to others
    {"messages": [{"content": "<image>", ...}], "images": [...]}  a bad row, as with an image in the content

`MARKS` is the one table. A field of a turn that is not in it, and whose name speaks of losses, masks or training, makes
a bad row, because a wrong guess would be learnt. Case, white space and underscores of names do not matter.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal

from nemotron_shared.system.errors import UserError


@dataclass(frozen=True, slots=True)
class Mark:
    """A field that says whether a turn counts in the loss, or whether all answers of a row do.

    Attributes:
        source: who writes or reads it.
        hides: 1 and true mean that it does not count.
        of_answers: its trainers look at answers only, so that a 1 at another turn asks for nothing. Trainers of the
            others learn such a turn, which we never do.
        in_rows: types of the values with which it is a mark next to the turns; with others it is somebody's note.
        in_turns: whether it is a mark in a turn.
    """

    source: str
    hides: bool = False
    of_answers: bool = False
    in_rows: tuple[type, ...] = (object,)
    in_turns: bool = True


MARKS = {
    "weight": Mark("fine-tuning at OpenAI, Mistral and Fireworks; axolotl"),
    "loss": Mark("ms-swift, XTuner; proposed for LLaMA-Factory", in_rows=(bool, list)),  # a number is a measured loss
    "loss_mask": Mark("Step-3.5-Flash-SFT, LoongForge, verl; LLaMA-Factory, as a list in the row", of_answers=True),
    "step_loss_mask": Mark("slime", of_answers=True),
    "loss_scale": Mark("ms-swift", of_answers=True),
    "loss_weight": Mark("sets for trainers with weighted losses", of_answers=True),
    "sample_weight": Mark("the same, for a row", in_turns=False),
    "train": Mark("axolotl", in_rows=(bool, int, list)),
    "training": Mark("axolotl, example of message_field_training", in_rows=(bool, int, list)),
    "train_on_turn": Mark("sets for axolotl"),
    "trainable": Mark("Tinker; proposed for verl"),
    "is_trainable": Mark("another spelling"),
    "learnable": Mark("another spelling"),
    "masked": Mark("torchtune", hides=True, in_rows=(bool, list)),
    "label": Mark("TRL and ms-swift, KTO: false is an unwanted answer", in_rows=(bool,), in_turns=False),
    "kto_tag": Mark("LLaMA-Factory, KTO", in_rows=(bool,), in_turns=False),
}
ABOUT_LOSS = re.compile("(un)?(loss|mask|weight|train|learn|supervis|gradient|grads?$|backprop|ignor|skip|exclud)")
"""A field of a turn may be a mark if a word of its name begins so."""
ABOUT_MASKS = re.compile("(un)?mask")
"""The same for a field of a row, where the other words are about many things."""
ABOUT_LOSSES = re.compile("loss|mask|trainable")
"""The same for a field of an object in a row, where most words are about the row."""
NO_MARKS = frozenset({"attention_mask"})
ROLE_NOT_LEARNT = ("user", "human", "prompter")
"""`mask` of a row in NeMo's chat files names the role whose turns are not learnt."""
MEDIA = {"image": "an image", "img": "an image", "picture": "an image", "audio": "audio", "video": "a video"}
OF_MEDIA = ("", "url", "path", "file", "bytes")
MEANINGS = {0: False, 1: True, "0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
NOTHING: tuple[object, ...] = (None, "", [], {})

NEITHER, ELSEWHERE = "a weight that is neither 0 nor 1", "a weight outside an assistant turn"
BOTH = "a turn that both counts in the loss and does not"
UNKNOWN, OF_PART, UNEVEN = (
    "a mark of no known meaning",
    "a part of an answer with its own mark",
    "marks of another number of turns",
)
NOT_LEARNT = "not to be learnt, by a mark of the row"
LEAVE_OUT = "leave such rows out: data_prep.on_bad_row=reject"
RENAME = (
    "rename the field to loss_mask, with 1 for learnt and 0 for not; or remove it, if it says something else; or"
    f" {LEAVE_OUT}"
)
BESIDE = f"write it next to the messages, or remove it, if it says something else; or {LEAVE_OUT}"
WITHOUT_MEDIA = f"remove the field, if the answers do not depend on it; or {LEAVE_OUT}"
REMEDIES = {
    UNKNOWN: RENAME,
    NEITHER: RENAME,
    OF_PART: f"give the mark to the whole turn; or {LEAVE_OUT}",
    UNEVEN: f"give one value for each turn; or {LEAVE_OUT}",
    **{f"{what} in a turn": WITHOUT_MEDIA for what in MEDIA.values()},
}
"""By the beginning of a reason."""

Kind = Mark | Literal["unknown", "media"] | None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


_KNOWN = {_plain(name): mark for name, mark in MARKS.items()}
_MEDIA = {
    f"{kind}{plural}{more}{plural_of_more}": what
    for kind, what in MEDIA.items()
    for plural in ("", "s")
    for more in OF_MEDIA
    for plural_of_more in ("", "s")
}


@lru_cache(4096)
def kind_in_turn(name: str) -> Kind:
    """What a field of a turn is; None if it is about something else."""
    if mark := _KNOWN.get(_plain(name)):
        return mark if mark.in_turns else None
    if _plain(name) in _MEDIA:
        return "media"
    return "unknown" if any(map(ABOUT_LOSS.match, _words(name))) else None


@lru_cache(4096)
def kind_in_row(name: str) -> Kind:
    """The same for a field next to the turns."""
    if mark := _KNOWN.get(_plain(name)):
        return mark
    if _plain(name) in _MEDIA:
        return "media"
    return "unknown" if any(map(ABOUT_MASKS.match, _words(name))) and name not in NO_MARKS else None


def _words(name: str) -> list[str]:
    """trainOnTurn, train_on_turn  ->  train, on, turn"""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def meaning_of(value: Any) -> bool | None:
    """0, 1, false and true, also as text, as a boolean; None for anything else."""
    if isinstance(value, str):
        return MEANINGS.get(value.strip().lower())
    return MEANINGS.get(value) if isinstance(value, int | float | Decimal) else None


USUAL = frozenset({"role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content", "from", "value"})


def counts(turn: Mapping[str, Any]) -> bool:
    """Whether a turn counts in the loss; True unless it has a field that says otherwise."""
    return wish_of(turn) is not False


def wish_of(turn: Mapping[str, Any]) -> bool | None:
    """Whether a turn's marks say that it counts in the loss; None if it has none."""
    if turn.keys() <= USUAL:
        return None
    said = [
        meaning_of(value) is (not kind.hides)
        for name, value in turn.items()
        if isinstance(kind := kind_in_turn(name), Mark) and value not in NOTHING
    ]
    return all(said) if said else None


def problem_of_marks(turn: Mapping[str, Any]) -> str | None:
    """Why the marks of a turn cannot be followed, or None."""
    if turn.keys() <= USUAL and not turn.get("tool_calls"):
        return None
    if turn.get("role") == "assistant" and (place := next(_hiding_within(turn), None)):
        return f"{OF_PART}: '{place}'"
    role, wishes = turn.get("role"), dict[str, bool]()
    for name, value in turn.items():
        kind = kind_in_turn(name)
        if kind is None or value in NOTHING:
            continue
        if kind == "media":
            return f"{_MEDIA[_plain(name)]} in a turn: in its field '{name}'"
        if not isinstance(kind, Mark):
            return f"{UNKNOWN}: '{name}' is {value!r}"
        meaning = meaning_of(value)
        if meaning is None:
            return f"{NEITHER}: '{name}' is {value!r}"
        wishes[name] = meaning is not kind.hides
        if wishes[name] and role != "assistant":
            if not kind.of_answers:
                return f"{ELSEWHERE}: '{name}' of a turn of the {role}; only answers are learnt"
            del wishes[name]
    if len(set(wishes.values())) > 1:
        return f"{BOTH}: {' and '.join(f'{name!r} is {turn[name]!r}' for name in wishes)}"
    return None


def _hiding_within(turn: Mapping[str, Any]) -> Iterator[str]:
    """Marks of calls, and of objects next to the text, that say "not learnt" of less than the answer or of it all."""
    calls = turn.get("tool_calls")
    parts = {name: value for name, value in turn.items() if isinstance(value, dict)}
    for number, call in enumerate(calls if isinstance(calls, list) else ()):
        if isinstance(call, dict):
            parts |= {f"tool_calls[{number}]": call, f"tool_calls[{number}].function": call.get("function")}
    for place, part in parts.items():
        for name, value in part.items() if isinstance(part, dict) else ():
            kind = kind_in_turn(name)
            if isinstance(kind, Mark) and meaning_of(value) is kind.hides:
                yield f"{place}.{name}"


def refuse_marks_of_part(part: Mapping[str, Any]) -> None:
    """Refuse a part of an answer that is not learnt, because an answer is learnt as a whole, or not at all."""
    for name, value in part.items():
        kind = kind_in_turn(name)
        if kind in (None, "media") or value in NOTHING:
            continue
        if not isinstance(kind, Mark) or meaning_of(value) in (None, kind.hides):
            raise UserError(f"{OF_PART}: '{name}' is {value!r}", REMEDIES[OF_PART])


def media_of(row: Mapping[str, Any], used: Collection[str] = ()) -> str | None:
    """Why a row cannot be used without its image, audio or video, or None; `used` fields hold something else."""
    for name, value in row.items():
        if kind_in_row(name) == "media" and value not in NOTHING and name not in used:
            return f"{_MEDIA[_plain(name)]} next to the text: in '{name}'"
    return None


def marks_of_row(row: Mapping[str, Any], used: Collection[str] = ()) -> dict[str, Any]:
    """The marks next to a row's turns, by field.

    Args:
        used: fields that settings name, which are not marks.

    Raises:
        UserError: a mark that has no known meaning, or a value without one; media.
    """
    found: dict[str, Any] = {}
    for name, value in row.items():
        kind = kind_in_row(name)
        if isinstance(value, dict) and name not in used and (inner := _loss_within(value)):
            raise UserError(f"{UNKNOWN}: '{name}.{inner}' of the row is {str(value[inner])[:80]!r}", BESIDE)
        if kind is None or value in NOTHING or name in used:
            continue
        if kind == "media":
            raise UserError(str(media_of({name: value})), WITHOUT_MEDIA)
        if not isinstance(kind, Mark):
            if isinstance(value, str) and value.strip().lower() in ROLE_NOT_LEARNT:
                continue
            raise UserError(f"{UNKNOWN}: '{name}' of the row is {str(value)[:80]!r}", RENAME)
        if isinstance(value, kind.in_rows):
            if any(meaning_of(one) is None for one in (value if isinstance(value, list) else [value])):
                raise UserError(f"{NEITHER}: '{name}' of the row is {str(value)[:80]}", RENAME)
            found[name] = value
    return found


def _loss_within(beside: Mapping[str, Any]) -> str | None:
    """A field of an object in the row, such as its metadata, that says of answers that they do not count."""
    return next(
        (
            name
            for name, value in beside.items()
            if ABOUT_LOSSES.search(_plain(name))
            and isinstance(kind := kind_in_row(name), Mark)
            and isinstance(value, kind.in_rows)
            and any(meaning_of(one) is kind.hides for one in (value if isinstance(value, list) else [value]))
        ),
        None,
    )


def is_mark(name: str, value: Any = None, *, in_turn: bool = False) -> bool:
    """Whether a field of a turn, or one next to the turns with this value, could change what is learnt."""
    if in_turn:
        return kind_in_turn(name) is not None
    kind = kind_in_row(name)
    return kind is not None and value not in NOTHING and (not isinstance(kind, Mark) or isinstance(value, kind.in_rows))


def hidden_by(marks: Mapping[str, Any]) -> str | None:
    """The field of a row that says that none of its answers counts."""
    return next((name for name, value in marks.items() if not isinstance(value, list) and _hides(name, value)), None)


def hides_any(marks: Mapping[str, Any]) -> bool:
    """Whether the marks of a row say of any turn that it does not count."""
    return any(
        _hides(name, one) for name, value in marks.items() for one in (value if isinstance(value, list) else [value])
    )


def _hides(name: str, value: Any) -> bool:
    kind = kind_in_row(name)
    return isinstance(kind, Mark) and meaning_of(value) is kind.hides


def marked(turns: list[dict[str, Any]], marks: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The turns, with the values that the row's lists have for its answers.

    Raises:
        UserError: a list has another length, or an answer is marked both as learnt and as not learnt.
    """
    for name, values in marks.items():
        if not isinstance(values, list):
            continue
        first = int(len(values) + 1 == len(turns) and turns[0].get("role") == "system")  # it is in another field
        if first + len(values) != len(turns):
            raise UserError(f"{UNEVEN}: '{name}' has {len(values)} values for {len(turns)} turns", REMEDIES[UNEVEN])
        wanted = [None] * first + [not _hides(name, value) for value in values]
        turns = [_with_wish(*one, name) for one in zip(turns, wanted, strict=True)]
    return turns


def _with_wish(turn: dict[str, Any], counted: bool | None, name: str) -> dict[str, Any]:
    if counted is None or turn.get("role") != "assistant":
        return turn
    if wish_of(turn) not in (None, counted):
        raise UserError(f"{BOTH}: by '{name}' of the row, and by another mark")
    return {**turn, "loss_mask": int(counted)}
