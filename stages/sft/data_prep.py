"""Chats to packed rows: JSONL or Parquet conversations in, packed Parquet with loss masks out.

    python stages/sft/data_prep.py -c tiny
    python stages/sft/data_prep.py data_prep.source=chats.jsonl data_prep.tokenizer.model=/models/nemotron

A row is a conversation, {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", ...}]}.
The chat template turns it into text; only what the assistant wrote counts in the loss; several
conversations share one packed row and never see each other.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nemotron_data.chat import find_template, template_file
from nemotron_data.encoders import EncoderChoice, choose_encoder
from nemotron_data.packing import pack
from nemotron_data.prep.merge import Totals, finish
from nemotron_data.prep.plan import Shard, make_shards
from nemotron_data.prep.progress import rejected_text
from nemotron_data.prep.receipts import Receipt, shard_folder
from nemotron_data.prep.sample import sample_rows
from nemotron_data.prep.shards import Setting, run_shards
from nemotron_data.sequences import SPLITS, Sequences
from nemotron_data.sources import datasets as data_parts
from nemotron_data.sources.blends import realised_weights
from nemotron_data.sources.datasets import Part
from nemotron_data.sources.rows import input_files
from nemotron_data.synthetic import chats
from nemotron_data.tokenizers.folder import TokenizerFolder, provide_tokenizer
from nemotron_shared.artifacts import Source
from nemotron_shared.atomic import write_json
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.step import Outcome, Step, Task
from stages.sft.conversations import ChatWork
from stages.sft.schema import SFTConfig, SFTData

DIRECTORY = Path(__file__).resolve().parent
ONE_SOURCE = "conversations"
"""Name of the data set where no blend gives names."""
SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token")


def prepare(task: Task[SFTConfig]) -> Outcome:
    """Encode the shards, pack each split and write it; count every row that did not make it."""
    settings: SFTData = task.config.data_prep
    output = task.run.fresh_output()
    tokenizer = provide_tokenizer(settings.tokenizer.model, output / "tokenizer")
    parts = parts_of(settings)
    world = task.run.checkpoints / "world.jsonl"
    files = [input_files(part.settings, world, chats, settings.world_chats) for part in parts]
    shards = make_shards(files, settings.shard_mb << 20, settings.sample)
    work, choice = work_of(parts, shards, tokenizer, settings)
    if line := choice.announcement():
        task.run.say(line)
    setting = Setting.of(settings, task.run)
    receipts = run_shards(shards, work, setting)
    totals = finish(setting.directory, shards, receipts, output / "rejected.jsonl")
    sequences = Sequences.open([shard_folder(setting.directory, receipt.shard) for receipt in receipts])
    conversations = sum((Counter(receipt.figures["conversations"]) for receipt in receipts), Counter[str]())
    if not conversations["train"]:
        raise UserError("no conversation is left for training", f"see the reasons in {output / 'rejected.jsonl'}")
    splits = {
        split: {"conversations": conversations[split], **write_split(output, split, sequences, settings)}
        for split in SPLITS
        if conversations[split]
    }
    metadata = describe(settings, splits, totals) | {"data_sets": shares(parts, shards, receipts, sequences)}
    write_json(output / "stats.json", metadata)
    task.run.say("; ".join(filter(None, [summary(metadata, totals), rejected_text(totals.rejected)])))
    return Outcome(output, {**metadata, "encoder": choice.as_metadata()})


def parts_of(settings: SFTData) -> list[Part[SFTData]]:
    """The data sets to read: those of a blend file, or the one source."""
    return data_parts.parts_of(settings, DIRECTORY / "config", ONE_SOURCE)


def chat_template(settings: SFTData, tokenizer: TokenizerFolder) -> str:
    """Jinja source of the configured template, or of the tokenizer's own.

    Raises:
        UserError: there is none.
    """
    return tokenizer.chat_template() if settings.chat_template is None else find_template(settings.chat_template)


def work_of(
    parts: Sequence[Part], shards: Sequence[Shard], tokenizer: TokenizerFolder, settings: SFTData
) -> tuple[ChatWork, EncoderChoice]:
    """What the workers do, and the choice of tokenizer backend that it rests on."""
    special = {name: tokenizer.special_text(name) for name in SPECIAL_TOKENS}
    template = chat_template(settings, tokenizer)
    work = ChatWork(tuple(parts), template, special, tokenizer.path)
    choice = choose_encoder(tokenizer, sample_texts(work, shards), settings.tokenizer.backend, with_bytes=True)
    work.encoder_spec, work.token_bytes = choice.spec, choice.reference.token_bytes
    work.__dict__["encoder"] = choice.encoder  # loaded for the probe already; forked workers share it
    return work, choice


def sample_texts(work: ChatWork, shards: Sequence[Shard]) -> list[str]:
    """Some rendered conversations from all over the input, to compare tokenizer backends on."""
    renderers = [work.renderer(part) for part in work.parts]
    texts = []
    for shard, row in sample_rows(shards):
        renderer = renderers[shard.part]
        try:
            texts += [text for text, _ in renderer.texts_of(row, renderer.messages_of(row))]
        except UserError:
            continue  # the worker that meets this row says what is wrong with it
    return texts


def write_split(output: Path, split: str, sequences: Sequences, settings: SFTData) -> dict[str, Any]:
    """Pack one split and write `<split>.parquet`; gives its figures."""
    from nemotron_data.formats.packed import PackedWriter  # pyarrow takes a moment, and workers do without

    chosen = sequences.of_split(split)
    bins = pack(chosen.lengths, settings.pack_size, settings.algorithm, settings.seed)
    path = output / f"{split}.parquet"
    with PackedWriter(path, settings.parquet_row_group_size, settings.parquet_compression) as writer:
        trained = writer.add_bins(chosen, bins)
    tokens = int(chosen.lengths.sum())
    return {
        "sequences": len(chosen),
        "packed_rows": len(bins),
        "sequences_per_row": round(len(chosen) / len(bins), 3),
        "tokens": tokens,
        "trained_tokens": trained,
        "fill": tokens / (len(bins) * settings.pack_size),
    }


def describe(settings: SFTData, splits: dict[str, dict[str, Any]], totals: Totals) -> dict[str, Any]:
    """The contents of stats.json, but for the data sets of a blend."""
    return {
        "pack_size": settings.pack_size,
        "algorithm": settings.algorithm,
        "data_format": "packed_sft_parquet",
        "splits": splits,
        "counts": totals.as_metadata(),
    }


def shares(
    parts: Sequence[Part], shards: Sequence[Shard], receipts: Sequence[Receipt], sequences: Sequences
) -> list[dict[str, Any]]:
    """Each data set's share of the tokens, beside the one that its weight asks for; each row is used once."""
    by_folder = np.bincount(sequences.folder, weights=sequences.lengths, minlength=len(receipts))
    tokens: Counter[str] = Counter()
    for shard, count in zip(shards, by_folder.tolist(), strict=True):
        if parts[shard.part].only in (None, "train"):
            tokens[parts[shard.part].name] += int(count)
    asked = {part.name: part.weight for part in parts if part.only in (None, "train")}
    shown = ("name", "weight", "asked_share", "tokens", "available_share")
    return [{key: row[key] for key in shown} for row in realised_weights(asked, tokens)]


def summary(metadata: dict[str, Any], totals: Totals) -> str:
    """One line for people."""
    train = metadata["splits"]["train"]
    rows = f"{totals.counts['rows']:,} conversations"
    return f"{rows}, {train['packed_rows']:,} packed rows of {train['tokens']:,} tokens ({train['fill']:.1%} full)"


def sources(config: SFTConfig) -> list[Source]:
    """Every file that is read, the blend file included."""
    settings = config.data_prep
    if settings.chat_template is not None:
        template = template_file(settings.chat_template)  # None for Jinja text, which is in the config itself
        settings = settings.model_copy(update={"chat_template": None if template is None else str(template)})
    return data_parts.describe_parts(settings, DIRECTORY / "config", "chats", settings.world_chats, parts_of(settings))


STEP = Step(
    stage="sft",
    verb="data_prep",
    directory=DIRECTORY,
    description=__doc__,
    schema=SFTConfig,
    produces="{family}-sft-data",
    artifact_type="SFTDataArtifact",
    sections=("data_prep",),
    sources=sources,
    work=prepare,
)

if __name__ == "__main__":
    sys.exit(STEP.main())
