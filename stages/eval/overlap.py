"""Find held-out rows in the models' training data.

The training data is found through the models' lineage, so it is the data that was really used. See
`nemotron_data.held_out` for how rows are matched.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from nemotron_data.formats.bin_idx import IndexedDataset, read_blend
from nemotron_data.formats.eval_tasks import EvalTask
from nemotron_data.formats.packed import read_packed
from nemotron_data.formats.rl_rows import read_rl_rows
from nemotron_data.held_out import Hit, Item, Search, items_of
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_shared.artifacts import Artifact
from nemotron_shared.artifacts.lineage import Input, ancestors, inputs
from nemotron_shared.engine.spec import Task
from stages.eval.schema import EvalConfig

EXAMPLES = 3
HOW = ("exact", "run", "near")


def check_overlap(
    task: Task[EvalConfig], tasks: Mapping[str, EvalTask], models: Mapping[str, Artifact | None]
) -> dict[str, Any]:
    """For each task: the training data searched, and how many of the task's rows it contains, by kind of match."""
    data: dict[str, Artifact] = {}
    unknown: set[str] = set()
    for model in filter(None, models.values()):
        family = [*ancestors(task.store, model), model]
        data |= {ancestor.reference: ancestor for ancestor in family if ancestor.manifest.type in READERS}
        for one in (one for one in family if one.manifest.type == MODEL):
            unknown |= unknown_origin(inputs(task.store, one), one)
    items = [item for about in tasks.values() for item in items_of(about, task.config.evaluation.limit)]
    search, seen = Search(items), Seen()
    for reference, artifact in data.items():
        for text in READERS[artifact.manifest.type](artifact.path):
            task.run.stop_if_requested()
            seen.look(search, text, reference)
    origin = {"checked_against": sorted(data), "unknown": sorted(unknown)}
    return {name: origin | summary_of(about, search, seen) for name, about in tasks.items()}


def unknown_origin(made_from: Sequence[Input], model: Artifact) -> set[str]:
    """Models in a model's lineage with unrecorded training data: the model itself, or an imported one below it."""
    if not any(found.artifact and found.artifact.manifest.type in READERS for found in made_from):
        return {model.reference}
    # a model's raw sources are another model's folder and an architecture file
    return {found.label for found in made_from if found.is_source and not found.label.endswith((".yaml", ".yml"))}


@dataclass
class Seen:
    """Matches found so far: the strongest kind, the data and the surrounding words, by item number."""

    hits: dict[int, tuple[Hit, str]] = field(default_factory=dict)
    stated: set[int] = field(default_factory=set)
    sentences: defaultdict[int, set[int]] = field(default_factory=lambda: defaultdict(set))

    def look(self, search: Search, text: str, reference: str) -> None:
        """Search one text for the items."""
        found = search.find(text)
        self.stated |= found.stated
        for number, place in found.sentences:
            self.sentences[number].add(place)
            if len(self.sentences[number]) == len(search.items[number].sentences):
                self._keep(number, Hit("exact", "each of its sentences, but not in one place"), reference)
        for number, hit in found.hits.items():
            self._keep(number, hit, reference)

    def _keep(self, number: int, hit: Hit, reference: str) -> None:
        if number not in self.hits or HOW.index(hit.how) < HOW.index(self.hits[number][0].how):
            self.hits[number] = (hit, reference)


def summary_of(about: EvalTask, search: Search, seen: Seen) -> dict[str, Any]:
    """The entry of results.json for one task."""
    own = [number for number, item in enumerate(search.items) if item.task == about.name]
    hits = {number: seen.hits[number] for number in own if number in seen.hits}
    ways = Counter(hit.how for hit, _ in hits.values())
    found: dict[str, Any] = {
        "of": len(own),
        "found": len(hits),
        **{how: ways[how] for how in HOW},
        "comparable": sum(map(search.comparable, own)),
        "examples": [_example(search.items, number, *hits[number]) for number in list(hits)[:EXAMPLES]],
    }
    if about.kind == "text":
        sentences = {number: len(search.items[number].sentences) for number in own}
        there = sum(len(seen.sentences[number]) for number in own if number in seen.sentences)
        found["sentences"] = {"of": sum(sentences.values()), "found": there}
    if any(search.items[number].is_world for number in own):
        found["asked"] = len(seen.stated.intersection(own))
    elif about.recall:
        found["stated"] = len(seen.stated.intersection(own))
    return found


def _example(items: Sequence[Item], number: int, hit: Hit, reference: str) -> dict[str, Any]:
    item = items[number]
    return {"id": item.row, "how": hit.how, "text": item.text[:300], "in": reference, "excerpt": hit.excerpt}


def as_lines(overlap: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Lines to print, like `sums: 0 of 400 exact, 0 near`, with examples if there are any."""
    for name, found in overlap.items():
        data, unknown = found["checked_against"], ", ".join(found["unknown"])
        if unknown and not data:
            yield f"{name}: not checked: the training data of {unknown} is unknown"
            continue
        parts = [f"{found['exact']} of {found['of']} exact, {found['found'] - found['exact']} near"]
        if about := found.get("sentences"):
            parts.append(f"{about['found']} of {about['of']} sentences")
        if "asked" in found:
            parts.append(f"the questions of {found['asked']} occur there, perhaps asked in another world")
        if "stated" in found:
            parts.append(f"{found['stated']} answers are stated there, as this task intends")
        if unknown:
            parts.append(f"checked against {', '.join(data)} only: the other training data of {unknown} is unknown")
        yield f"{name}: {'; '.join(parts)}"
        for example in found["examples"]:
            yield f"  {example['how']}, row {example['id']}, in {example['in']}: {example['excerpt']}"


def _pretrain_texts(folder: Path) -> Iterator[str]:
    tokenizer = TokenizerFolder(folder / "tokenizer").tokenizer
    for _, prefix in read_blend(folder / "blend.json")["train"]:
        dataset = IndexedDataset(prefix)
        documents = (dataset[index].tolist() for index in range(len(dataset)))
        yield from _decoded(tokenizer, documents)


def _sft_texts(folder: Path) -> Iterator[str]:
    tokenizer = TokenizerFolder(folder / "tokenizer").tokenizer

    def sequences() -> Iterator[list[int]]:
        for row in read_packed(folder / "train.parquet"):
            ends = [*row.seq_start_id[1:], len(row.input_ids)]
            for start, end in zip(row.seq_start_id, ends, strict=True):
                yield list(row.input_ids[start:end])

    yield from _decoded(tokenizer, sequences())


def _decoded(tokenizer: Tokenizer, sequences: Iterator[list[int]]) -> Iterator[str]:
    while batch := list(islice(sequences, 256)):
        yield from tokenizer.decode_batch(batch, skip_special_tokens=False)


def _rl_texts(folder: Path) -> Iterator[str]:
    for row in read_rl_rows(folder / "train.jsonl"):  # not validated: everything in a row was seen in training
        yield from row.searched()
        answers = (turn for name in ("chosen", "rejected") for turn in row.value.get(name) or ())  # of pairs
        yield from (str(turn.get("content") or "") for turn in answers if isinstance(turn, dict))


MODEL = "ModelArtifact"
READERS = {
    "PretrainBlendsArtifact": _pretrain_texts,
    "SFTDataArtifact": _sft_texts,
    "SplitJsonlDataArtifact": _rl_texts,
}
