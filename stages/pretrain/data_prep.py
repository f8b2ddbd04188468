"""Text to token shards: JSONL, Parquet, plain text or a blend in; Megatron bin/idx and blend.json out.

    python stages/pretrain/data_prep.py -c tiny
    python stages/pretrain/data_prep.py data_prep.source=corpus.jsonl data_prep.tokenizer.model=/models/nemotron

A row is an object with a text, {"text": "Mira lives in Oster."}. It becomes one document of token ids with
the end-of-text id after it, in the split that the hash of its text decides.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nemotron_data.encoders import Reference, choose_encoder
from nemotron_data.formats.bin_idx import write_blend
from nemotron_data.formats.bin_idx_merge import merge_pairs
from nemotron_data.prep.merge import Totals, finish, place
from nemotron_data.prep.plan import Shard, make_shards
from nemotron_data.prep.progress import rejected_text
from nemotron_data.prep.receipts import Receipt, shard_folder
from nemotron_data.prep.sample import sample_rows
from nemotron_data.prep.shards import Setting, run_shards
from nemotron_data.sources import datasets as data_parts
from nemotron_data.sources.blends import realised_weights
from nemotron_data.sources.datasets import Part
from nemotron_data.sources.rows import input_files
from nemotron_data.synthetic import pretrain_documents
from nemotron_data.tokenizers.folder import provide_tokenizer
from nemotron_shared.artifacts import Source
from nemotron_shared.atomic import write_json
from nemotron_shared.config.schema import TokenizerSection
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.step import Outcome, Step, Task
from stages.pretrain.documents import DocumentWork, Vocabulary, text_of
from stages.pretrain.schema import PretrainConfig, PretrainData

DIRECTORY = Path(__file__).resolve().parent
SPLITS = ("train", "valid", "test")
ENDINGS = (".bin", ".idx")
ONE_SOURCE = "documents"
"""Name of the data set where no blend gives names."""


def prepare(task: Task[PretrainConfig]) -> Outcome:
    """Write token shards for each data set and split, with counts of what was read and what was not used."""
    settings: PretrainData = task.config.data_prep
    output = task.run.fresh_output()
    tokenizer = provide_tokenizer(settings.tokenizer.model, output / "tokenizer")
    parts = parts_of(settings)
    world = task.run.checkpoints / "world.jsonl"
    files = [input_files(part.settings, world, pretrain_documents, settings.world_documents) for part in parts]
    shards = make_shards(files, settings.shard_mb << 20, settings.sample)
    choice = choose_encoder(tokenizer, sample_texts(shards, parts), settings.tokenizer.backend)
    if line := choice.announcement():
        task.run.say(line)
    work = DocumentWork(tuple(parts), vocabulary_of(choice.reference, settings.tokenizer), choice.spec)
    work.__dict__["encoder"] = choice.encoder  # loaded for the probe already; forked workers share it
    setting = Setting.of(settings, task.run)
    receipts = run_shards(shards, work, setting)
    totals = finish(setting.directory, shards, receipts, output / "rejected.jsonl")
    made = collect_pairs(parts, shards, receipts, setting.directory)
    pairs = merge_each(made, output) if settings.merge else place_pairs(made, output)
    write_blend(output / "blend.json", weigh(parts, pairs, output))
    metadata = describe(parts, pairs, totals, choice.reference.vocab_size)
    write_json(output / "stats.json", metadata)
    said = f"{totals.counts['rows']:,} rows, {metadata['total_tokens']:,} tokens, {choice.backend} {choice.version}"
    task.run.say("; ".join(filter(None, [said, rejected_text(totals.rejected)])))
    return Outcome(output, {**metadata, "encoder": choice.as_metadata()}, digests=digests_of(pairs, output))


def parts_of(settings: PretrainData) -> list[Part[PretrainData]]:
    """The data sets to read: those of a blend file, or the one source."""
    return data_parts.parts_of(settings, DIRECTORY / "config", ONE_SOURCE)


def sample_texts(shards: Sequence[Shard], parts: Sequence[Part]) -> list[str]:
    """Some documents from all over the input, to compare tokenizer backends on."""
    found = ((text_of(row, parts[shard.part].settings), shard) for shard, row in sample_rows(shards))
    return [text for text, _ in found if isinstance(text, str)]


def vocabulary_of(reference: Reference, settings: TokenizerSection) -> Vocabulary:
    """How many ids, and which stand around a document.

    Raises:
        UserError: the config wants a token at a document's beginning or end that the tokenizer does not have.
    """
    around = {"bos_token": settings.add_bos, "eos_token": settings.add_eos}
    for role, wanted in around.items():
        if wanted and role not in reference.ids:
            raise UserError(
                f"{settings.model}: the tokenizer has no {role}", f"set data_prep.tokenizer.add_{role[:3]}=false"
            )
    before, after = (tuple(reference.ids[role] for role in [name] if around[name]) for name in around)
    return Vocabulary(reference.vocab_size, before, after)


@dataclass(frozen=True)
class Pair:
    """A .bin and its .idx: where they are, what is in them, and their digests by ending."""

    prefix: Path
    documents: int
    tokens: int
    sha256: Mapping[str, str]


Pairs = dict[str, dict[str, list[Pair]]]
"""By split, by data set."""


def collect_pairs(parts: Sequence[Part], shards: Sequence[Shard], receipts: Sequence[Receipt], made: Path) -> Pairs:
    """What the workers wrote, in the order of the input.

    Raises:
        UserError: nothing is left for training.
    """
    pairs: Pairs = {split: {} for split in SPLITS if any(split in receipt.figures for receipt in receipts)}
    for shard, receipt in zip(shards, receipts, strict=True):
        for split, figures in receipt.figures.items():
            digests = {ending: receipt.files[f"{split}{ending}"]["sha256"] for ending in ENDINGS}
            pair = Pair(shard_folder(made, receipt.shard) / split, **figures, sha256=digests)
            pairs[split].setdefault(parts[shard.part].name, []).append(pair)
    if "train" not in pairs:
        raise UserError("no document is left for training", "see the reasons in rejected.jsonl")
    return pairs


def place_pairs(pairs: Pairs, output: Path) -> Pairs:
    """Give every pair its place, `<split>/<data set>/shard_000000`."""
    return {
        split: {
            name: [_placed(pair, output / split / name / f"shard_{i:06d}") for i, pair in enumerate(found)]
            for name, found in sets.items()
        }
        for split, sets in pairs.items()
    }


def _placed(pair: Pair, prefix: Path) -> Pair:
    for ending in ENDINGS:
        place(_beside(pair.prefix, ending), _beside(prefix, ending))
    return replace(pair, prefix=prefix)


def merge_each(pairs: Pairs, output: Path) -> Pairs:
    """Write one pair for each data set and split, `<split>/<data set>`."""
    return {
        split: {name: [_merged(found, output / split / name)] for name, found in sets.items()}
        for split, sets in pairs.items()
    }


def _merged(found: Sequence[Pair], prefix: Path) -> Pair:
    merge_pairs([pair.prefix for pair in found], prefix)
    return Pair(prefix, sum(pair.documents for pair in found), sum(pair.tokens for pair in found), {})


def _beside(prefix: Path, ending: str) -> Path:
    return prefix.with_name(prefix.name + ending)


def digests_of(pairs: Pairs, output: Path) -> dict[str, str]:
    """SHA-256 by name in the output, of the files that workers wrote."""
    every = (pair for sets in pairs.values() for found in sets.values() for pair in found)
    return {
        _beside(pair.prefix, ending).relative_to(output).as_posix(): digest
        for pair in every
        for ending, digest in pair.sha256.items()
    }


def weigh(parts: Sequence[Part], pairs: Pairs, output: Path) -> dict[str, list[tuple[float, str]]]:
    """The entries of blend.json. A data set's weight is shared out over its shards by their tokens, so that together
    they get just that weight."""
    return {
        split: [
            (weight * pair.tokens / sum(other.tokens for other in sets[name]), str(pair.prefix.relative_to(output)))
            for name, weight in weights_of(parts, split).items()
            for pair in sets.get(name, ())
        ]
        for split, sets in pairs.items()
    }


def weights_of(parts: Sequence[Part], split: str) -> dict[str, float]:
    """Weight by data set, of those that may have documents in a split."""
    return {part.name: part.weight for part in parts if part.only in (None, split)}


def describe(parts: Sequence[Part], pairs: Pairs, totals: Totals, vocab_size: int) -> dict[str, Any]:
    """The contents of stats.json."""
    tokens = {
        split: {name: sum(pair.tokens for pair in found) for name, found in sets.items()}
        for split, sets in pairs.items()
    }
    documents = {split: sum(p.documents for found in sets.values() for p in found) for split, sets in pairs.items()}
    return {
        "total_tokens": sum(sum(sets.values()) for sets in tokens.values()),
        "splits": {split: {"documents": documents[split], "tokens": sum(tokens[split].values())} for split in pairs},
        "weights": {split: realised_weights(weights_of(parts, split), tokens[split]) for split in pairs},
        "counts": totals.as_metadata(),
        "vocab_size": vocab_size,
    }


def sources(config: PretrainConfig) -> list[Source]:
    """Every file that is read, the blend file included."""
    settings = config.data_prep
    return data_parts.describe_parts(
        settings, DIRECTORY / "config", "documents", settings.world_documents, parts_of(settings)
    )


STEP = Step(
    stage="pretrain",
    verb="data_prep",
    directory=DIRECTORY,
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
