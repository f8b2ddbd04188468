"""Tasks from a model's own training data: how well it answers rows that were held out, and some that were taught.

    evaluation.held_out=true run.model=super3-sft-model:v3 run.base=super3-pretrain-model:v1

The rows come from the prepared data that the model was trained on, found through its lineage: from the test split,
else from the validation split; those that were taught, evenly from the training split. So formats, template and
tokenizer are exactly those of training.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from nemotron_data.chat.thought import whole_answer
from nemotron_data.formats.bin_idx import IndexedDataset, read_blend
from nemotron_data.formats.eval_tasks import EvalTask, Kind, write_tasks
from nemotron_data.formats.packed import read_packed, sequences_of
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_data.verifier import is_as_taught
from nemotron_data.verifier.calls import UNREADABLE, calls_of, tools_shown
from nemotron_shared.artifacts import Artifact
from nemotron_shared.artifacts.lineage import inputs
from nemotron_shared.engine.spec import Task
from nemotron_shared.system import distributed
from nemotron_shared.system.errors import UserError
from stages.eval.schema import EvalConfig
from stages.eval.tasks import AFTER_CALLS, CALLS, HELD_OUT, TAUGHT

HELD_BACK = ("test", "valid")
TRAIN = "train"


def held_out_tasks(task: Task[EvalConfig]) -> dict[str, EvalTask]:
    """Write the task of the held-out rows into the run's folder.

    Raises:
        UserError: the model was not trained here, or its data gives no questions.
    """
    model = task.input("model")
    parents = {entry.role: entry.artifact for entry in inputs(task.store, model)}
    data = parents.get("data")
    if data is None or data.manifest.type not in READERS:
        what = f"evaluation.held_out: {model.reference} has no usable training data in this store"
        raise UserError(what, "set run.model to one pretrained or fine-tuned here, or drop evaluation.held_out")
    folder = task.run.directory / HELD_OUT
    return distributed.on_rank_zero(lambda: _written(task, data, folder))


def _written(task: Task[EvalConfig], data: Artifact, folder: Path) -> dict[str, EvalTask]:
    kind, splits_of, rows_of = READERS[data.manifest.type]
    there = splits_of(data.path)
    split = next((name for name in HELD_BACK if name in there), TRAIN)
    if split == TRAIN:
        task.run.say(f"WARNING: {data.reference} has no held-out rows: {HELD_OUT} uses rows that were trained on")
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = TokenizerFolder(data.path / "tokenizer").tokenizer
    tasks: dict[str, tuple[Kind, Iterable[dict[str, Any]]]] = {HELD_OUT: (kind, rows_of(data.path, split, tokenizer))}
    asked = task.config.evaluation.taught
    if asked and kind == "answer" and split != TRAIN:
        there = data.manifest.metadata["splits"][TRAIN]["sequences"]
        rows = rows_of(data.path, TRAIN, tokenizer, every=-(-there // asked))
        tasks[TAUGHT] = (kind, rows)
    settings = task.config.evaluation
    if kind == "answer" and settings.sample_answers:
        called = call_rows(data.path, split, tokenizer, settings.sample_answers, settings.limit)
        tasks |= {f"{HELD_OUT}_{name}": ("call", rows) for name, rows in called.items() if rows}
    return write_tasks(folder, tasks)


def call_rows(
    folder: Path, split: str, tokenizer: Tokenizer, most: int, limit: int | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Turns of the conversations that call a tool, and those that answer after a result where a rule can judge them.

    Args:
        most: rows of each task.
        limit: conversations to look at.
    """
    found: dict[str, list[dict[str, Any]]] = {CALLS: [], AFTER_CALLS: []}
    sequences = (one for row in read_packed(folder / f"{split}.parquet") for one in sequences_of(row))
    for ids, learnt in islice(sequences, limit):
        if all(len(rows) >= most for rows in found.values()):
            break
        has_called = False
        for first, end in runs_of(learnt):
            prompt, answer = ids[:first].tolist(), ids[first:end].tolist()
            asked = tokenizer.decode(prompt, skip_special_tokens=False)
            text = tokenizer.decode(answer)
            said, tools = whole_answer(asked, text), tools_shown(asked)
            calls = calls_of(said, tools, bare=True)
            if UNREADABLE in calls:
                continue
            judged = bool(calls) or (has_called and is_as_taught(said, said) is True)
            has_called = has_called or bool(calls)
            name = CALLS if calls else AFTER_CALLS
            if judged and len(found[name]) < most:
                found[name].append(
                    {
                        "question": asked,
                        "expected": text,
                        "calls": [{"name": call.name, "arguments": json.loads(call.arguments)} for call in calls],
                        "tools": [{"type": "function", "function": dict(tool)} for tool in tools.values()],
                        "prompt_ids": prompt,
                        "key": asked,
                    }
                )
    return found


def runs_of(learnt: np.ndarray) -> Iterator[tuple[int, int]]:
    """Start and end of each run of learnt tokens."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], learnt.astype(np.int8), [0]])))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _packed_splits(folder: Path) -> list[str]:
    return [split for split in (*HELD_BACK, TRAIN) if (folder / f"{split}.parquet").is_file()]


def _answers(folder: Path, split: str, tokenizer: Tokenizer, every: int = 1) -> Iterator[dict[str, Any]]:
    """The last answer of each conversation, or of one in `every`, and the ids before it."""
    sequences = (one for row in read_packed(folder / f"{split}.parquet") for one in sequences_of(row))
    for ids, learnt in islice(sequences, 0, None, every):
        first = _last_answer(learnt)
        prompt, answer = ids[:first], ids[first : np.flatnonzero(learnt)[-1] + 1]
        asked = tokenizer.decode(prompt.tolist(), skip_special_tokens=False)
        yield {
            "question": asked,
            "expected": tokenizer.decode(answer.tolist()),
            "prompt_ids": prompt.tolist(),
            "answer_ids": answer.tolist(),
            "key": asked,
        }


def _last_answer(learnt: np.ndarray) -> int:
    """Start of the last run of learnt tokens."""
    gaps = np.flatnonzero(~learnt[: np.flatnonzero(learnt)[-1]])
    return int(gaps[-1]) + 1


def _indexed_splits(folder: Path) -> list[str]:
    return list(read_blend(folder / "blend.json"))


def _documents(folder: Path, split: str, tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    for _, prefix in read_blend(folder / "blend.json")[split]:
        dataset = IndexedDataset(prefix)
        for index in range(len(dataset)):
            if text := tokenizer.decode(dataset[index].tolist()).strip():
                yield {"text": text}


READERS: Mapping[str, tuple[Kind, Any, Any]] = {
    "SFTDataArtifact": ("answer", _packed_splits, _answers),
    "PretrainBlendsArtifact": ("text", _indexed_splits, _documents),
}
"""By type of data: the kind of task, its splits, and a reader of a split's rows."""
