"""Fill in rows that only point to a question of another data set.

    {"dataset": "nano_v3_sft_profiled_dapo17k", "agent_ref": {...},
     "_hf_placeholder": {"row": 17, "question_template": {"prefix": "Solve this.\n\n", "suffix": ""}}}

Row 17 of the source set has the question in prompt[0].content and the answer in reward_model.ground_truth:

    {"dataset": "nano_v3_sft_profiled_dapo17k", "agent_ref": {...}, "question": "Solve this.\n\nWhat is 2+2?",
     "expected_answer": "4", "responses_create_params": {"input": [{"role": "user", "content": "Solve this. ..."}]}}

Later sets name the source set themselves, and have text for both sides of the question:

    {"_hf_question_placeholder": {"dataset": "BytedTsinghua-SIA/DAPO-Math-17k", "split": "train", "row": 17,
                                  "mode": "canonical", "lead": "Solve this.\n\n", "trail": ""}, "agent_ref": {...},
     "responses_create_params": {"input": [{"role": "user", "content": ""}], "temperature": 0.7}}

A DAPO source text stands between an instruction and a reminder, each set off by a blank line; the template's prefix
and suffix replace both. A Skywork template, a text or {"template": text}, has `{question}` in place of the text, and
`question` keeps the bare text.

The answer may be JSON, of which the first value counts. It is always text: `"34"`, `["34"]` and `34` all give "34".

Parquet can only be read in whole row groups, which may hold a million rows. So each source set is first read once, in
shards, and the needed columns are written to plain files, from which a row takes two reads:

    records.bin     [[{"role":"user","content":"..."}],{"ground_truth":"4"}][[{"role":...
    edges.bin       0 67 141 ...      start of each record and end of the last one, 8 bytes each
"""

import json
import os
from array import array
from bisect import bisect_right
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, Protocol

from nemotron_data.formats import fast_json
from nemotron_data.formats.rl_rows import PARAMETERS
from nemotron_data.prep.plan import make_shards
from nemotron_data.prep.reader import ShardReader
from nemotron_data.prep.receipts import shard_folder
from nemotron_data.prep.shards import Setting, run_shards
from nemotron_data.rejects import Refused
from nemotron_data.sources.files import expand
from nemotron_data.sources.input_file import InputFile, local_file
from nemotron_shared.system.errors import UserError

MARKER = "_hf_placeholder"
NAMED_MARKER = "_hf_question_placeholder"
"""The marker that names its source set; without `"mode": "canonical"` the text is in `prefix` and `suffix`."""
Template = Literal["dapo", "skywork"]


@dataclass(frozen=True, slots=True)
class SourceSet:
    """Location of a source set's rows, and the style of its question templates."""

    hub: str
    split: str
    template: Template


SOURCES = {
    "dapo": SourceSet("BytedTsinghua-SIA/DAPO-Math-17k", "train", "dapo"),
    "skywork": SourceSet("Skywork/Skywork-OR1-RL-Data", "math", "skywork"),
}
DATASETS = {
    "nano_v3_sft_profiled_dapo17k": "dapo",
    "nano_v3_sft_profiled_skywork_no_omni": "skywork",
    "super_v3_lcsft_step1000_dapo17k": "dapo",
    "super_v3_lcsft_step1000_skyworks": "skywork",
}
"""Source set by the row's `dataset`. To add a data set, add a line."""
HUBS = {one.hub: name for name, one in SOURCES.items()}
"""Source set by its name on the hub, for markers that give it."""


class Rows(Protocol):
    """The rows of a source set, such as a `SourceTable`."""

    def row(self, index: int) -> tuple[Any, Any]:
        """`prompt` and `reward_model` of a row, counted from 0; raises IndexError if it does not exist."""
        ...


def is_placeholder(row: Mapping[str, Any]) -> bool:
    """Whether a row is a placeholder. In Parquet, all rows have the marker; null means the row is not one."""
    return any(row.get(marker) is not None for marker in (MARKER, NAMED_MARKER))


def resolve(row: dict[str, Any], tables: Mapping[str, Rows]) -> dict[str, Any]:
    """Replace the marker with question and answer; all other fields are kept.

    Args:
        tables: available source sets, by their name in `SOURCES`.

    Raises:
        Refused: the data set is unknown, its source is unavailable, or has no such row, question or answer.
    """
    source, marker = source_of(row, tables), _marker(row)
    index = marker.get("row")
    if not isinstance(index, int) or isinstance(index, bool):
        raise Refused("placeholder: no row number", f"row is {index!r}")
    try:
        prompt, reward = tables[source].row(index)
    except IndexError as error:
        raise Refused("placeholder: no such row in its source set", f"{source}: {error}") from error
    first = prompt[0] if isinstance(prompt, list) and prompt else None
    question = first.get("content") if isinstance(first, dict) else None
    if not isinstance(question, str) or not question.strip():
        raise Refused("placeholder: no question in the source row", "prompt[0].content is empty or not text")
    answer = answer_text(reward.get("ground_truth") if isinstance(reward, dict) else None)
    kept = {key: value for key, value in row.items() if key not in (MARKER, NAMED_MARKER)}
    if row.get(MARKER) is None:
        full = between_texts(SOURCES[source].template, marker, question)
        asked = _asked(kept.get(PARAMETERS), full)
        return {**kept, "question": full, "expected_answer": answer, PARAMETERS: asked} | _matched(kept, answer)
    full = fill_template(SOURCES[source].template, marker.get("question_template"), question)
    return {
        **kept,
        "question": question if SOURCES[source].template == "skywork" else full,
        "expected_answer": answer,
        PARAMETERS: {"input": [{"role": "user", "content": full}]},
    }


def _marker(row: Mapping[str, Any]) -> dict[str, Any]:
    marker = row.get(MARKER) if row.get(MARKER) is not None else row.get(NAMED_MARKER)
    if not isinstance(marker, dict):
        raise Refused("placeholder: not an object", type(marker).__name__)
    return marker


def _asked(given: Any, question: str) -> dict[str, Any]:
    """The row's own parameters with the question as its first turn."""
    turns = given.get("input") if isinstance(given, dict) else None
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], dict):
        return {"input": [{"role": "user", "content": question}]}
    return {**given, "input": [{**turns[0], "content": question}, *turns[1:]]}


def _matched(row: Mapping[str, Any], answer: str) -> dict[str, Any]:
    """The row's list of where else its question was found, with the answer that the marker hides there too."""
    found = row.get("matched_sources")
    if not isinstance(found, list):
        return {}
    return {
        "matched_sources": [
            {**one, "expected_answer": answer} if isinstance(one, dict) and "expected_answer" in one else one
            for one in found
        ]
    }


def source_of(row: Mapping[str, Any], given: Container[str]) -> str:
    """Name in `SOURCES` of the set that a placeholder points into.

    Raises:
        Refused: an unknown data set or split, or a source set that is not configured.
    """
    name, known = (row.get("dataset"), DATASETS) if row.get(MARKER) is not None else (_marker(row).get("dataset"), HUBS)
    source = known.get(name) if isinstance(name, str) else None
    if source is None:
        raise Refused("placeholder: unknown data set", f"dataset is {name!r}; known: {', '.join(known)}")
    if known is HUBS and (split := _marker(row).get("split")) != SOURCES[source].split:
        raise Refused("placeholder: unknown split", f"split is {split!r}; of '{name}', {SOURCES[source].split} is read")
    if source not in given:
        remedy = f"set data_prep.placeholder_sources.{source}=FOLDER, or use hf://{SOURCES[source].hub}"
        raise Refused(
            "placeholder: its source set is not configured", f"'{name}' points into {SOURCES[source].hub}", remedy
        )
    return source


def fill_template(kind: Template, template: Any, question: str) -> str:
    """The whole prompt of a question.

    >>> fill_template("dapo", {"prefix": "Q: ", "suffix": ""}, "Be careful.\\n\\n2+2?\\n\\nThink.")
    'Q: 2+2?'
    >>> fill_template("skywork", "{question} Answer:", "2+2?")
    '2+2? Answer:'
    """
    if kind == "dapo":
        return f"{_between(template, 'prefix')}{bare_question(question)}{_between(template, 'suffix')}".rstrip("\n")
    text = template.get("template") if isinstance(template, dict) else template
    if not isinstance(text, str) or "{question}" not in text:
        raise _unusable("text with {question} in it")
    return text.replace("{question}", question)


def between_texts(kind: Template, marker: Mapping[str, Any], question: str) -> str:
    """The whole prompt of a question whose marker has the text before and after it.

    >>> between_texts("skywork", {"mode": "canonical", "lead": "Q: ", "trail": " Box it."}, " 2+2? ")
    'Q: 2+2? Box it.'
    """
    names = ("lead", "trail") if marker.get("mode") == "canonical" else ("prefix", "suffix")
    before, after = ("" if marker.get(name) is None else marker[name] for name in names)
    if not isinstance(before, str) or not isinstance(after, str):
        raise Refused("placeholder: unusable question_template", f"expected text in {' and '.join(names)}")
    return f"{before}{(bare_question(question) if kind == 'dapo' else question).strip()}{after}"


def bare_question(text: str) -> str:
    """A text without its first and last paragraph, if it has three or more."""
    parts = text.split("\n\n")
    return "\n\n".join(parts[1:-1]) if len(parts) >= 3 else text


def _between(template: Any, key: str) -> str:
    known = {name: template.get(name) for name in ("prefix", "suffix")} if isinstance(template, dict) else {}
    if not any(isinstance(value, str) for value in known.values()):
        raise _unusable("an object with prefix and suffix")
    value = "" if known[key] is None else known[key]
    if not isinstance(value, str):
        raise _unusable(f"text in its {key}")
    return value


def _unusable(wanted: str) -> Refused:
    return Refused("placeholder: unusable question_template", f"expected {wanted}")


def answer_text(raw: Any) -> str:
    """The first value of an answer, as text. The answer may be a list, an object or JSON of one.

    A number keeps its digits: "1.10" stays "1.10".

    >>> [answer_text(raw) for raw in ("34", '["34"]', "[1.10, 2]", '{"value": 5}', 34, "x^2")]
    ['34', '34', '1.10', '5', '34', 'x^2']
    """
    value = raw
    if isinstance(raw, str):
        value = raw.strip()
        try:  # numbers as written; text that is not JSON, or is empty JSON, stays as it is
            decoded = json.loads(value, parse_int=str, parse_float=str, parse_constant=str)
        except (json.JSONDecodeError, RecursionError):
            decoded = None
        if isinstance(decoded, str) or (isinstance(decoded, list | dict) and decoded):
            value = decoded
    if isinstance(value, list | dict) and value:
        value = next(iter(value.values() if isinstance(value, dict) else value))
    if value is None or value == "":
        raise Refused("placeholder: no answer in the source row", "reward_model.ground_truth is empty")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


COLUMNS = ("prompt", "reward_model")
RECORDS, EDGES = "records.bin", "edges.bin"
EDGE_BYTES = 8


def source_files(place: str, split: str) -> list[InputFile]:
    """The Parquet files of a source set: from the hub, from a local folder, or a single file.

    Raises:
        UserError: no Parquet file found.
    """
    if "://" in place:
        patterns = ["*.parquet"]
        files = expand([place], split=split if place.startswith("hf://") else None)
        files = [file for file in files if file.path.endswith(".parquet")]
    else:
        folder = Path(place).expanduser()
        if folder.is_file():
            return [local_file(folder)]
        # published data sets keep a split in one of a few places; the first one with a file counts
        names = (f"data/{split}-*", "data/*", f"{split}/*", f"default/{split}/*", "*")
        patterns = [f"{name}.parquet" for name in names]
        found = next(filter(None, (sorted(folder.glob(pattern)) for pattern in patterns)), [])
        files = [local_file(file) for file in found]
    if not files:
        raise UserError(f"{place}: no Parquet file found", f"looked for {', '.join(patterns)}")
    return files


@dataclass(frozen=True)
class LaidOut:
    """A shard of a source set: its folder and number of rows."""

    folder: Path
    rows: int


class LayOut:
    """`Work` that writes the columns that placeholders need as records with random access."""

    def run(self, reader: ShardReader, folder: Path) -> Mapping[str, Any]:
        """Write `records.bin` and `edges.bin`; returns {"rows"}.

        Raises:
            UserError: a column is missing.
        """
        edges = array("Q", [0])
        with (folder / RECORDS).open("wb", buffering=1 << 20) as records:
            for row in reader:
                if missing := [column for column in COLUMNS if column not in row.value]:
                    raise UserError(
                        f"{row.file}: no column '{missing[0]}'",
                        f"set data_prep.placeholder_sources to files with the columns {' and '.join(COLUMNS)}",
                    )
                records.write(fast_json.dumps([row.value[column] for column in COLUMNS], default=str))
                edges.append(records.tell())
        (folder / EDGES).write_bytes(edges.tobytes())
        return {"rows": len(edges) - 1}


def lay_out(
    sets: Mapping[str, Sequence[InputFile]], setting: Setting, shard_bytes: int
) -> dict[str, tuple[LaidOut, ...]]:
    """Lay out every source set in the run folder, reusing the output of an earlier attempt."""
    tables = {}
    for name, files in sets.items():
        own = replace(setting, directory=setting.directory.parent / "placeholders" / name, on_bad_row="error")
        receipts = run_shards(make_shards([files], shard_bytes), LayOut(), own)
        tables[name] = tuple(LaidOut(shard_folder(own.directory, one.shard), one.figures["rows"]) for one in receipts)
    return tables


class SourceTable:
    """The rows of a source set, numbered from 0 in the order of its files. Files are opened on demand."""

    def __init__(self, shards: Sequence[LaidOut]) -> None:
        self._shards = [shard for shard in shards if shard.rows]
        self._upto = list(accumulate(shard.rows for shard in self._shards))

    def row(self, index: int) -> tuple[Any, Any]:
        """`prompt` and `reward_model` of a row; raises IndexError if it does not exist."""
        count = self._upto[-1] if self._upto else 0
        if not 0 <= index < count:
            raise IndexError(f"row {index} of {count:,} rows, counted from 0")
        number = bisect_right(self._upto, index)
        place = index - (self._upto[number] - self._shards[number].rows)
        records, edges = self._files[number]
        start, end = array("Q", os.pread(edges, 2 * EDGE_BYTES, place * EDGE_BYTES))
        prompt, reward = fast_json.loads(os.pread(records, end - start, start))
        return prompt, reward

    @cached_property
    def _files(self) -> list[tuple[int, int]]:
        """File descriptors of each shard's two files, kept open for the life of the process."""
        names = [(shard.folder / RECORDS, shard.folder / EDGES) for shard in self._shards]
        return [(os.open(records, os.O_RDONLY), os.open(edges, os.O_RDONLY)) for records, edges in names]
