"""The questions, and the answers to them as files of the stage hold them."""

import json
from pathlib import Path
from typing import NamedTuple

from nemotron_shared.artifacts import Source
from nemotron_shared.system.digest import file_digest
from nemotron_shared.system.errors import UserError
from nemotron_toy.harvest.schema import HarvestConfig, HarvestSection

ANSWERS = "answers.jsonl"
"""Every answer that was given, kept or not: {"question": ..., "expected": ..., "answers": [...]}."""


class Prompt(NamedTuple):
    """A row of the file."""

    question: str
    expected: str


def prompts_file(settings: HarvestSection) -> Path:
    """The file of questions.

    Raises:
        UserError: none is named, or it is not there.
    """
    if settings.prompts is None:
        raise UserError("harvest.prompts is null", "name a file: harvest.prompts=questions.jsonl", "harvest.prompts")
    if not (file := Path(settings.prompts).expanduser()).is_file():
        raise UserError(f"{file}: no such file", "correct harvest.prompts", "harvest.prompts")
    return file


def read_prompts(settings: HarvestSection) -> list[Prompt]:
    """All rows.

    Raises:
        UserError: a row without the two texts, or no row.
    """
    file = prompts_file(settings)
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            found.append(Prompt(str(row[settings.question_field]), str(row[settings.answer_field])))
        except (ValueError, LookupError, TypeError) as error:
            fields = f"'{settings.question_field}' and '{settings.answer_field}'"
            remedy = "correct the line, or set harvest.question_field and harvest.answer_field"
            raise UserError(f"{file}:{number}: no JSON object with {fields}", remedy) from error
    if not found:
        raise UserError(f"{file}: no questions", "give a file with a row for each of them")
    return found


def sources(config: HarvestConfig) -> list[Source]:
    """The file, as part of what the result depends on."""
    file = prompts_file(config.harvest)
    return [Source(str(file), file_digest(file))]
