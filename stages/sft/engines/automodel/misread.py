"""Rows that Automodel's own reader would take for something else than they say."""

from pathlib import Path

from nemotron_data.chat.guards import holds_control
from nemotron_data.chat.rows import SYSTEM_FIELDS, counts
from nemotron_data.encoders.masks import ControlTokens
from nemotron_data.sources.files import local_file
from nemotron_data.sources.reading import Row, read_files
from nemotron_shared.errors import UserError


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
        elif not all(counts(turn) for turn in turns if turn.get("role") == "assistant"):
            what = "an answer that is excluded from the loss, which Automodel would learn anyway"
            remedy = "prepare the chats, which excludes it from the loss"
        elif beside := [name for name in row.value if name.lower() in SYSTEM_FIELDS and row.value[name]]:
            what = f"a system prompt outside the messages, in '{beside[0]}', which Automodel does not read"
            remedy = "prepare the chats, which puts it before the others"
        else:
            continue
        raise UserError(f"{row.file}:{row.line}: {what}", f"remove the row; or {remedy}: engine.data=packed")
