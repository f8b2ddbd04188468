"""What a worker does with the rows of a shard: keep those of the test split, questions with their expected answers.

    {"question": "Ann has 3 apples ...", "answer": "3 + 4 = 7\\n#### 7"}
->  asked.jsonl: {"question": "Ann has 3 apples ...", "expected": "7", "key": "Ann has 3 apples ..."}

Whether a question was asked before, only the whole input tells: `collect` looks at what all workers wrote.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

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
    """`Work` of the engine."""

    parts: Sequence[Part[EvalData]]

    def run(self, reader: ShardReader, folder: Path) -> Mapping[str, Any]:
        """Write `asked.jsonl`; gives {"asked": its rows}."""
        part = self.parts[reader.shard.part]
        split = Split(part.settings.split.model_dump(), salt="questions")
        # synthetic questions are held out by how they are made, whatever the shares say
        only = TEST if part.settings.source == SYNTHETIC else part.only or split.only
        asked = 0
        with (folder / ASKED).open("wb", buffering=1 << 20) as file:
            for row in reader:  # read
                try:
                    made, chosen = task_row(row, part.settings, split)
                except Refused as refused:
                    reader.refuse_for(row, refused)
                    continue
                if (only or chosen) == TEST:  # split
                    if "expected" in made:
                        count_gold(reader.counts, made["expected"])
                    file.write(fast_json.dumps(made) + b"\n")  # encode
                    asked += 1
                else:
                    reader.counts["rows of other splits"] += 1
        return {"asked": asked}


def task_row(row: Row, settings: EvalData, split: Split) -> tuple[dict[str, Any], str]:
    """A row of a task, and its split; raises `Refused` for a row that cannot be one."""
    if settings.text_field is not None:
        return text_row(row, settings, split)
    made, key = question_row(row, settings)
    return made, split.of(key)


def fields_read(settings: EvalData) -> list[str | None]:
    """The fields of a row that settings name."""
    if settings.text_field is not None:
        return [settings.text_field, settings.key_field]
    template = Formatter().parse(settings.text_template or "")
    in_text = (re.split(r"[.\[]", name)[0] for _, name, _, _ in template if name is not None)
    return [settings.question_field, settings.answer_field, settings.key_field, *in_text]


def question_row(row: Row, settings: EvalData) -> tuple[dict[str, Any], str]:
    """A row of a task, with the `text` for bits per byte where one is wanted; and what decides its split.

    Raises:
        Refused: a field is missing or empty, or the answer does not match `answer_pattern`.
    """
    fields = settings.question_field, settings.answer_field
    question, expected = read_question(row.value, *fields, settings.answer_pattern, row.written)
    for field, text in zip(fields, (question, expected), strict=True):
        if not text.strip():
            raise Refused(f"field '{field}' is empty", "an evaluation needs a question and its expected answer")
    split_by = split_key(row.value, settings, question)
    # synthetic questions come with a key that is found in other wordings of the same sum, too
    searched = str(row.value["key"]) if settings.source == SYNTHETIC else question
    made = {"question": question, "expected": expected, "key": searched}
    if settings.text_template is not None:
        made["text"] = filled(settings.text_template, row.value)
    return made, split_by


def text_row(row: Row, settings: EvalData, split: Split) -> tuple[dict[str, Any], str]:
    """A text, and the split that pretraining on the same rows and shares gives it.

    Raises:
        Refused: there is no text in the field.
    """
    text = field_of(row.value, str(settings.text_field))
    if not isinstance(text, str) or not text:
        raise Refused(
            f"no text in '{settings.text_field}' (data_prep.text_field)", f"fields here: {', '.join(row.value)}"
        )
    key = split_key(row.value, settings, "")
    return {"text": text}, split.of(key) if key else split.of_document(text)


def collect(prepared: Prepared[EvalData], most: int | None) -> tuple[Rows, Rows]:
    """Questions in the order of the input, each once and `most` at most; and the texts of just these rows."""
    questions: dict[str, dict[str, Any]] = {}
    texts: Rows = []
    for shard in prepared.shards:
        for line in read_lines(shard.folder / ASKED):
            row = line.value()
            text = row.pop("text", None)
            if not row:  # a text and no question
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
