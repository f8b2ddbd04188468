"""Whether a held-out question stands anywhere in what the models were trained on.

The training data is found through the models' lineage, so it is the data that really was used.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from nemotron_data.formats.bin_idx import IndexedDataset, read_blend
from nemotron_data.formats.eval_tasks import EvalTask, read_task_rows
from nemotron_data.formats.packed import read_packed
from nemotron_data.formats.rl_rows import read_rl_rows
from nemotron_data.overlap import find_overlap
from nemotron_shared.artifacts import Artifact
from nemotron_shared.artifacts.lineage import ancestors
from nemotron_shared.runtime.task import Task
from stages.eval.schema import EvalConfig


def check_overlap(
    task: Task[EvalConfig], tasks: Mapping[str, EvalTask], models: Mapping[str, Artifact | None]
) -> dict[str, Any]:
    """For each task of questions: the training data looked through, and how many questions it holds."""
    # data artifacts among the ancestors of the models, by reference
    data: dict[str, Artifact] = {}
    for model in filter(None, models.values()):
        for ancestor in ancestors(task.store, model):
            if ancestor.manifest.type in READERS:
                data[ancestor.reference] = ancestor
    found = {}
    for name, about in tasks.items():
        if about.kind != "generate":
            continue
        keys = [row["key"] for row in islice(read_task_rows(about.file, about.kind), task.config.evaluation.limit)]
        hits = set()
        for artifact in data.values():
            hits |= set(find_overlap(keys, READERS[artifact.manifest.type](artifact.path)))
        found[name] = {"checked_against": sorted(data), "found": len(hits), "of": len(keys), "keys": sorted(hits)[:20]}
        if hits:
            task.run.say(f"WARNING: {len(hits)} of {len(keys)} questions of '{name}' occur in training data")
    return found


def _pretrain_texts(folder: Path) -> Iterator[str]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    for _, prefix in read_blend(folder / "blend.json")["train"]:
        dataset = IndexedDataset(prefix)
        for index in range(len(dataset)):
            yield tokenizer.decode(dataset[index].tolist(), skip_special_tokens=False)


def _sft_texts(folder: Path) -> Iterator[str]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    for row in read_packed(folder / "train.parquet"):
        ends = [*row.seq_start_id[1:], len(row.input_ids)]
        for start, end in zip(row.seq_start_id, ends, strict=True):
            yield tokenizer.decode(list(row.input_ids[start:end]), skip_special_tokens=False)


def _rl_texts(folder: Path) -> Iterator[str]:
    for row in read_rl_rows(folder / "train.jsonl"):  # unchecked: whatever a row says was seen in training
        yield from (turn.text for turn in row.prompt)


READERS = {
    "PretrainBlendsArtifact": _pretrain_texts,
    "SFTDataArtifact": _sft_texts,
    "SplitJsonlDataArtifact": _rl_texts,
}
