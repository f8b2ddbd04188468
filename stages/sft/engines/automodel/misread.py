"""Rows that Automodel's own reader would take for something else than they say."""

from pathlib import Path

from nemotron_data.chat.guards import holds_control
from nemotron_data.chat.rows import SYSTEM_FIELDS, counts
from nemotron_data.encoders.masks import ControlTokens
from nemotron_data.sources.files import local_file
from nemotron_data.sources.reading import Row, read_files
from nemotron_shared.errors import UserError


def refuse_misread(file: str, control: ControlTokens | None) -> None:
    """Stop at a row of which Automodel's own reader would make something else than it says.

    Args:
        control: tokens whose names in somebody's words are text; None where they are asked for.

    Raises:
        UserError: with its place.
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
            what = "an answer that does not count in the loss, which Automodel learns like the others"
            remedy = "prepare the chats, which leaves it out of the loss"
        elif beside := [name for name in row.value if name.lower() in SYSTEM_FIELDS and row.value[name]]:
            what = f"a system prompt beside the messages, in '{beside[0]}', which Automodel does not read"
            remedy = "prepare the chats, which puts it before the others"
        else:
            continue
        raise UserError(f"{row.file}:{row.line}: {what}", f"take the row out; or {remedy}: engine.data=packed")
