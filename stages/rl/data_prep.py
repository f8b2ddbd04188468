"""Questions to prompts: JSONL or Parquet rows with a checkable answer in, NeMo-Gym JSONL rows out.

    python stages/rl/data_prep.py -c tiny
    python stages/rl/data_prep.py data_prep.source=problems.jsonl

    in   {"question": "What is 3+14-5?", "expected_answer": "12"}
    out  {"responses_create_params": {"input": [{"role": "user", "content": "What is 3+14-5?"}]},
          "question": "What is 3+14-5?", "expected_answer": "12",
          "agent_ref": {"type": "responses_api_agents", "name": "math_with_judge_simple_agent"}}

A row that has `responses_create_params` already is passed on as it is.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from nemotron_shared.atomic import open_atomic, write_json
from nemotron_shared.data.rejects import Rejects
from nemotron_shared.data.rows import describe_sources, open_rows, split_key
from nemotron_shared.data.sources import Row
from nemotron_shared.data.split import Split
from nemotron_shared.data.world import problems
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.step import Outcome, Step, Task
from stages.rl.schema import RLConfig, RLData

FILES = {"train": "train.jsonl", "valid": "val.jsonl", "test": "test.jsonl"}


def prepare(task: Task) -> Outcome:
    """Convert row by row, in constant memory; count every row that did not make it."""
    settings: RLData = task.config.data_prep
    output = task.run.fresh_output()
    with Rejects(output / "rejected.jsonl") as rejects:
        rows = open_rows(settings, problems, settings.world_problems, rejects)
        written = write_splits(_prompts(rows, settings, rejects), settings, output)
    if not written["train"]:
        raise UserError("no question is left for training", "see the reasons in rejected.jsonl")
    metadata = {
        "splits": {name: {"rows": count} for name, count in written.items()},
        "files": {name: FILES[name] for name, count in written.items() if count},
        "counts": {"rows": written.total() + rejects.total, "rejected": dict(rejects.count_by_reason)},
    }
    write_json(output / "stats.json", metadata)
    task.run.say(
        f"{written['train']:,} training questions, {written['valid']:,} for validation, {rejects.total} rejected"
    )
    return Outcome(output, metadata)


def write_splits(prompts: Iterable[tuple[str, dict[str, Any]]], settings: RLData, output: Path) -> Counter[str]:
    """Write each row to the file of its split; gives the rows written."""
    split = Split(settings.split.model_dump(), salt="questions")
    written: Counter[str] = Counter()
    files: dict[str, IO[Any]] = {}
    with ExitStack() as stack:
        for key, prompt in prompts:
            name = split.of(key)
            if name not in files:
                files[name] = stack.enter_context(open_atomic(output / FILES[name], "w"))
            files[name].write(json.dumps(prompt, ensure_ascii=False) + "\n")
            written[name] += 1
    return written


def _prompts(rows: Iterable[Row], settings: RLData, rejects: Rejects) -> Iterator[tuple[str, dict[str, Any]]]:
    for row in rows:
        try:
            prompt = prompt_of(row.value, settings)
            yield split_key(row.value, settings, question_of(prompt)), prompt
        except UserError as error:
            if settings.on_bad_row == "error":
                raise UserError(f"{row.file}:{row.line}: {error.message}", error.remedy) from error
            rejects.add(row.file, row.line, error.message.split(":")[0], str(row.value), error.message)


def prompt_of(row: dict[str, Any], settings: RLData) -> dict[str, Any]:
    """The NeMo-Gym form of a row.

    Raises:
        UserError: the question or the answer is missing, or the answer does not match `answer_pattern`.
    """
    if "responses_create_params" in row:
        question_of(row)
        return row
    question = _text(row, settings.question_field)
    system = [{"role": "system", "content": settings.system_prompt}] if settings.system_prompt else []
    return {
        "responses_create_params": {"input": [*system, {"role": "user", "content": question}]},
        "question": question,
        "expected_answer": expected_answer(row, settings),
        "agent_ref": {"type": "responses_api_agents", "name": settings.agent},
    }


def expected_answer(row: dict[str, Any], settings: RLData) -> str:
    """The answer that a completion is compared with."""
    text = _text(row, settings.answer_field)
    if settings.answer_pattern is None:
        return text
    found = re.search(settings.answer_pattern, text)
    if found is None:
        raise UserError(f"no answer in the field: '{text[:80]}'", "correct data_prep.answer_pattern")
    return (found[1] if found.groups() else found[0]).strip()


def question_of(prompt: dict[str, Any]) -> str:
    """The last user turn of a prompt.

    Raises:
        UserError: there is none.
    """
    turns = prompt["responses_create_params"].get("input")
    users = [turn["content"] for turn in turns or [] if turn.get("role") == "user"]
    if not users:
        raise UserError("no user turn: responses_create_params.input needs one")
    return str(users[-1])


def _text(row: dict[str, Any], field: str) -> str:
    value = row.get(field)
    if value is None:
        raise UserError(f"no field '{field}'", f"fields here: {', '.join(row)}")
    if not isinstance(value, str | int | float):
        raise UserError(f"field '{field}' is not text")
    return str(value)


STEP = Step(
    stage="rl",
    verb="data_prep",
    directory=Path(__file__).resolve().parent,
    description=__doc__,
    schema=RLConfig,
    produces="{family}-rl-data",
    artifact_type="SplitJsonlDataArtifact",
    sections=("data_prep",),
    sources=lambda config: describe_sources(config.data_prep, "problems", config.data_prep.world_problems),
    work=prepare,
)

if __name__ == "__main__":
    sys.exit(STEP.main())
