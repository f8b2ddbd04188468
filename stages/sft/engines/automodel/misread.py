"""Rows that Automodel's own reader would take for something else than they say."""

from pathlib import Path
from typing import Any

from nemotron_data.chat.guards import holds_control
from nemotron_data.chat.loss_marks import counts, hides_any, marks_of_row, problem_of_marks
from nemotron_data.chat.rows import SYSTEM_FIELDS
from nemotron_data.encoders.masks import ControlTokens
from nemotron_data.sources.input_file import local_file
from nemotron_data.sources.reading import Row, read_files
from nemotron_shared.system.errors import UserError


def refuse_misread(file: str, control: ControlTokens | None) -> None:
    """Refuse rows that Automodel's own reader would misread.

    Args:
        control: control tokens whose names in messages are text; None if they should be tokens.

    Raises:
        UserError: a bad row; the message gives file and line.
    """
    for row in read_files([local_file(Path(file).expanduser())]):
        messages = row.value.get("messages") if isinstance(row, Row) else None
        turns = [one for one in messages if isinstance(one, dict)] if isinstance(messages, list) else []
        if not isinstance(row, Row):
            continue
        if control is not None and holds_control(control, turns, row.value.get("tools")):
            what = "control tokens in the text, of which Automodel makes the tokens"
            remedy = "prepare the chats, which encodes them as text"
        elif _excludes(row, turns):
            what = "an answer that is excluded from the loss, which Automodel would learn anyway"
            remedy = "prepare the chats, which excludes it from the loss"
        elif beside := [name for name in row.value if name.lower() in SYSTEM_FIELDS and row.value[name]]:
            what = f"a system prompt outside the messages, in '{beside[0]}', which Automodel does not read"
            remedy = "prepare the chats, which puts it before the others"
        else:
            continue
        raise UserError(f"{row.file}:{row.line}: {what}", f"remove the row; or {remedy}: engine.data=packed")


def _excludes(row: Row, turns: list[dict[str, Any]]) -> bool:
    """Whether an answer is not to be learnt; raises `UserError` for marks and media that cannot be followed."""
    try:
        marks = marks_of_row(row.value)
    except UserError as error:
        raise UserError(f"{row.file}:{row.line}: {error.message}", error.remedy) from error
    if problem := next(filter(None, map(problem_of_marks, turns)), None):
        raise UserError(f"{row.file}:{row.line}: {problem}", "correct or remove the row")
    answers = [turn for turn in turns if turn.get("role") == "assistant"]
    return not all(map(counts, answers)) or (bool(marks) and hides_any(marks))
