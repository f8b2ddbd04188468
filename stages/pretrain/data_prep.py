"""Text to token shards: JSONL, Parquet, plain text or a blend in; Megatron bin/idx and blend.json out.

    python stages/pretrain/data_prep.py -c tiny
    python stages/pretrain/data_prep.py data_prep.source=corpus.jsonl data_prep.tokenizer.model=/models/nemotron

A row is an object with a text, {"text": "Mira lives in Oster."}. It becomes one document of token ids with
the end-of-text id after it, in the split that the hash of its text decides.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemotron_shared.artifacts import Source
from nemotron_shared.atomic import write_json
from nemotron_shared.data.indexed_dataset import IndexedDatasetWriter, IndexedStats, write_blend
from nemotron_shared.data.rejects import Rejects
from nemotron_shared.data.rows import describe_sources, open_rows, split_key
from nemotron_shared.data.sources import BlendEntry, Row, load_blend
from nemotron_shared.data.split import Split
from nemotron_shared.data.tokenizer_folder import TokenizerFolder, provide_tokenizer
from nemotron_shared.data.world import pretrain_documents
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.step import Outcome, Step, Task
from stages.pretrain.schema import PretrainConfig, PretrainData

Document = tuple[str, str]  # what decides its split, and its text
SPLITS = ("train", "valid", "test")
SHARD = "shard_000000"
BATCH_ROWS = 1000


@dataclass(frozen=True)
class Part:
    """One data set of a blend; without a blend there is one."""

    name: str
    weight: float
    settings: PretrainData
    only: str | None = None
    """The split that all its rows belong to; None: each row by its hash."""


def prepare(task: Task) -> Outcome:
    """Write one shard per data set and split, with counts of what was read and what was not used."""
    settings: PretrainData = task.config.data_prep
    output = task.run.fresh_output()
    tokenizer = provide_tokenizer(settings.tokenizer.model, output / "tokenizer")
    counts: Counter[str] = Counter()
    blend: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
    splits: defaultdict[str, Counter[str]] = defaultdict(Counter)
    with Rejects(output / "rejected.jsonl") as rejects:
        for part in parts_of(settings):
            rows = open_rows(part.settings, pretrain_documents, settings.world_documents, rejects)
            documents = _documents(rows, part.settings, rejects, counts)
            for split, stats in write_part(part, documents, tokenizer, output, counts).items():
                blend[split].append((part.weight, f"{split}/{part.name}"))
                splits[split] += Counter(documents=stats.documents, tokens=stats.tokens)
    if "train" not in blend:
        raise UserError("no document is left for training", "see the reasons in rejected.jsonl")
    write_blend(output / "blend.json", blend)
    metadata = {
        "total_tokens": sum(split["tokens"] for split in splits.values()),
        "splits": {name: dict(split) for name, split in splits.items()},
        "counts": {**counts, "rejected": dict(rejects.count_by_reason)},
        "vocab_size": tokenizer.vocab_size,
    }
    write_json(output / "stats.json", metadata)
    task.run.say(f"{counts['rows']:,} rows, {metadata['total_tokens']:,} tokens, {rejects.total} rejected")
    return Outcome(output, metadata)


def parts_of(settings: PretrainData) -> list[Part]:
    """The data sets to read: those of a blend file, or the one source.

    Raises:
        UserError: the blend file is not of its form.
    """
    file = blend_file(settings)
    if file is None:
        return [Part(SHARD, 1.0, settings)]
    blend = load_blend(file)
    parts = [_part(entry, settings, None) for entry in blend.datasets or []]
    for split in SPLITS:
        parts += [_part(entry, settings, split) for entry in getattr(blend, split) or []]
    return parts


def _part(entry: BlendEntry, settings: PretrainData, only: str | None) -> Part:
    changed = {"source": entry.path, "text_field": entry.text_field}
    return Part(entry.name, entry.weight, settings.model_copy(update=changed), only)


def blend_file(settings: PretrainData) -> Path | None:
    """The source, where it is a blend: a JSON file whose content is one object over several lines or lists."""
    source = settings.source
    if not isinstance(source, str) or not source.endswith(".json") or not Path(source).is_file():
        return None
    try:
        content = json.loads(Path(source).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError):
        return None  # JSON lines
    return Path(source) if isinstance(content, dict) and {"datasets", *SPLITS} & set(content) else None


def write_part(
    part: Part, documents: Iterable[Document], tokenizer: TokenizerFolder, output: Path, counts: Counter[str]
) -> dict[str, IndexedStats]:
    """Tokenise and write one data set; gives the figures of each split that is not empty."""
    split = Split(part.settings.split.model_dump(), salt="questions")
    writers: dict[str, IndexedDatasetWriter] = {}
    with ExitStack() as stack:
        for key, ids in _encode(documents, part.settings, tokenizer, counts):
            name = part.only or split.of(key)
            if name not in writers:
                writer = IndexedDatasetWriter(output / name / part.name, tokenizer.vocab_size)
                writers[name] = stack.enter_context(writer)
            writers[name].add_document(ids)
    return {name: writer.stats for name, writer in writers.items()}


def sources(config: PretrainConfig) -> list[Source]:
    """Every file that is read, the blend file included."""
    settings = config.data_prep
    file = blend_file(settings)
    if file is None:
        return describe_sources(settings, "documents", settings.world_documents)
    own = settings.model_copy(update={"source": str(file)})
    parts = [describe_sources(part.settings, "documents", 0) for part in parts_of(settings)]
    return [*describe_sources(own, "blend", 0), *(source for part in parts for source in part)]


def _documents(
    rows: Iterable[Row], settings: PretrainData, rejects: Rejects, counts: Counter[str]
) -> Iterator[Document]:
    for row in rows:
        counts["rows"] += 1
        text = text_of(row, settings)
        reason = _unusable(text, settings)
        if reason is None:
            yield split_key(row.value, settings, text), text
        elif settings.on_bad_row == "reject" or reason == TOO_SHORT:
            rejects.add(row.file, row.line, reason, str(row.value))
        else:
            raise UserError(f"{row.file}:{row.line}: {reason}", f"fields here: {', '.join(row.value)}; "
                            "set data_prep.text_field, or data_prep.on_bad_row=reject")  # fmt: skip


TOO_SHORT = "shorter than data_prep.min_doc_chars"


def text_of(row: Row, settings: PretrainData) -> Any:
    """The text of a row; None where a field is missing."""
    if settings.text_template is None:
        return row.value.get(settings.text_field)
    try:
        return settings.text_template.format(**row.value)
    except KeyError:
        return None


def _unusable(text: Any, settings: PretrainData) -> str | None:
    if text is None:
        return f"no field '{settings.text_template or settings.text_field}'"
    if not isinstance(text, str):
        return "the text is not a string"
    if not text:
        return "the text is empty"
    if settings.min_doc_chars and len(text) < settings.min_doc_chars:
        return TOO_SHORT
    return None


def _encode(
    documents: Iterable[Document], settings: PretrainData, tokenizer: TokenizerFolder, counts: Counter[str]
) -> Iterator[tuple[str, np.ndarray]]:
    before = [tokenizer.special_id("bos_token")] if settings.tokenizer.add_bos else []
    after = [tokenizer.special_id("eos_token")] if settings.tokenizer.add_eos else []
    for batch in _batches(documents):
        encodings = tokenizer.tokenizer.encode_batch_fast([text for _, text in batch], add_special_tokens=False)
        for (key, _), encoding in zip(batch, encodings, strict=True):
            ids = encoding.ids
            if settings.max_doc_tokens and len(ids) > settings.max_doc_tokens:
                ids = ids[: settings.max_doc_tokens]
                counts["cut to max_doc_tokens"] += 1
            yield key, np.asarray([*before, *ids, *after])


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    for document in documents:
        batch.append(document)
        if len(batch) == BATCH_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


STEP = Step(
    stage="pretrain",
    verb="data_prep",
    directory=Path(__file__).resolve().parent,
    description=__doc__,
    schema=PretrainConfig,
    produces="{family}-pretrain-data",
    artifact_type="PretrainBlendsArtifact",
    sections=("data_prep",),
    sources=sources,
    work=prepare,
)

if __name__ == "__main__":
    sys.exit(STEP.main())
