"""Worker that keeps a shard's rows of the test split, as questions with their expected answers.

    {"question": "Ann has 3 apples ...", "answer": "3 + 4 = 7\\n#### 7"}
->  asked.jsonl: {"question": "Ann has 3 apples ...", "expected": "7", "key": "Ann has 3 apples ..."}

Duplicates can only be found across the whole input: `collect` goes through the output of all workers.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

from nemotron_data.chat.called import FIELDS, Decided, decided_turns, is_conversation
from nemotron_data.chat.rows import to_json
from nemotron_data.formats import fast_json
from nemotron_data.formats.json_lines import read_lines
from nemotron_data.prep.pipeline import Prepared
from nemotron_data.prep.reader import ShardReader
from nemotron_data.rejects import Refused
from nemotron_data.sources.datasets import SYNTHETIC, Part, field_of, filled, read_question, split_key
from nemotron_data.sources.reading import Row
from nemotron_data.split import Split
from nemotron_data.verifier.judgement import count_gold
from stages.eval.schema import EvalData

ASKED = "asked.jsonl"
ASKED_ALREADY = "asked already"
OTHERWISE = "asked already, with another answer"
TEST = "test"
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class QuestionWork:
    """The preparation engine's `Work` for questions."""

    parts: Sequence[Part[EvalData]]

    def run(self, reader: ShardReader, folder: Path) -> Mapping[str, Any]:
        """Write `asked.jsonl`; returns {"asked": number of rows}."""
        part = self.parts[reader.shard.part]
        split = Split(part.settings.split.model_dump(), salt="questions")
        # synthetic questions are held out by construction, not by the configured shares
        only = TEST if part.settings.source == SYNTHETIC else part.only or split.only
        asked = 0
        with (folder / ASKED).open("wb", buffering=1 << 20) as file:
            for row in reader:  # read
                try:
                    made, chosen = task_rows(row, part.settings, split)
                except Refused as refused:
                    reader.refuse_for(row, refused)
                    continue
                if (only or chosen) != TEST:  # split
                    reader.counts["rows of other splits"] += 1
                    continue
                for one in made:
                    if "expected" in one and "calls" not in one:
                        count_gold(reader.counts, one["expected"])
                    file.write(fast_json.dumps(one) + b"\n")  # encode
                    asked += 1
        return {"asked": asked}


def task_rows(row: Row, settings: EvalData, split: Split) -> tuple[Rows, str]:
    """The task rows of a row, several of a conversation with tool calls, and its split.

    Raises:
        Refused: the row cannot be used.
    """
    if settings.text_field is not None:
        made, chosen = text_row(row, settings, split)
        return [made], chosen
    if is_conversation(row.value, settings.question_field):
        turns = decided_turns(row.value)
        return list(map(call_row, turns)), split.of(split_key(row.value, settings, turns[0].question))
    made, key = question_row(row, settings)
    return [made], split.of(key)


def call_row(turn: Decided) -> dict[str, Any]:
    """The row of a turn that calls a tool, or that answers after a result."""
    calls = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in turn.calls]
    asked = {"question": turn.question, "expected": turn.expected, "key": turn.question, "calls": calls}
    return asked | json.loads(to_json({"tools": turn.tools or [], "messages": turn.before}))  # plain numbers


def fields_read(settings: EvalData) -> list[str | None]:
    """The fields that the settings name."""
    if settings.text_field is not None:
        return [settings.text_field, settings.key_field]
    template = Formatter().parse(settings.text_template or "")
    in_text = (re.split(r"[.\[]", name)[0] for _, name, _, _ in template if name is not None)
    return [settings.question_field, settings.answer_field, settings.key_field, *FIELDS, *in_text]


def question_row(row: Row, settings: EvalData) -> tuple[dict[str, Any], str]:
    """A task row, with a `text` for bits per byte if configured, and the key that decides its split.

    Raises:
        Refused: a field is missing or empty, or the answer does not match `answer_pattern`.
    """
    fields = settings.question_field, settings.answer_field
    question, expected = read_question(row.value, *fields, settings.answer_pattern, row.written)
    for field, text in zip(fields, (question, expected), strict=True):
        if not text.strip():
            raise Refused(f"field '{field}' is empty", "an evaluation needs a question and its expected answer")
    split_by = split_key(row.value, settings, question)
    # the key of a synthetic question is the same for every wording of a sum
    searched = str(row.value["key"]) if settings.source == SYNTHETIC else question
    made = {"question": question, "expected": expected, "key": searched}
    if settings.text_template is not None:
        made["text"] = filled(settings.text_template, row.value)
    return made, split_by


def text_row(row: Row, settings: EvalData, split: Split) -> tuple[dict[str, Any], str]:
    """A text, and the split that it has in pretraining with the same rows and shares.

    Raises:
        Refused: the field holds no text.
    """
    text = field_of(row.value, str(settings.text_field))
    if not isinstance(text, str) or not text:
        raise Refused(
            f"no text in '{settings.text_field}' (data_prep.text_field)", f"fields here: {', '.join(row.value)}"
        )
    key = split_key(row.value, settings, "")
    return {"text": text}, split.of(key) if key else split.of_document(text)


def collect(prepared: Prepared[EvalData], most: int | None) -> tuple[Rows, Rows]:
    """Unique questions in input order, at most `most`, and the texts of the same rows."""
    questions: dict[str, dict[str, Any]] = {}
    texts: Rows = []
    for shard in prepared.shards:
        for line in read_lines(shard.folder / ASKED):
            row = line.value()
            text = row.pop("text", None)
            if not row:  # only a text
                texts.append({"text": text})
            elif row["question"] in questions:
                prepared.totals.counts[ASKED_ALREADY] += 1
                if row["expected"] != questions[row["question"]]["expected"]:
                    prepared.totals.counts[OTHERWISE] += 1
            elif most is not None and len(questions) == most:
                prepared.totals.counts["beyond most_questions"] += 1
            else:
                questions[row["question"]] = row
                if text is not None:
                    texts.append({"text": text})
    return list(questions.values()), texts
