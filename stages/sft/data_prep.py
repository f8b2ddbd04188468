"""Chats to packed rows: JSONL or Parquet conversations in, packed Parquet with loss masks out.

    python stages/sft/data_prep.py -c tiny
    python stages/sft/data_prep.py -c local data_prep.source=chats.jsonl data_prep.tokenizer.model=/models/nemotron

A row is a conversation, {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", ...}]}.
The chat template turns it into text; only what the assistant wrote counts in the loss; several
conversations share one packed row and never see each other. The way of a conversation:

    read -> split -> encode    by workers, a shard of the input each; see encode.py
         -> pack -> write      each split into rows of data_prep.pack_size tokens
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if not find_spec("nemotron_shared"):
    print(f"error: this Python has none of the project's packages; say: uv run python {sys.argv[0]}", file=sys.stderr)
    sys.exit(2)

import numpy as np

from nemotron_data import decontaminate
from nemotron_data.chat.formats import format_sources
from nemotron_data.chat.template import template_file
from nemotron_data.decontaminate import Decontamination
from nemotron_data.formats.sequences import Sequences
from nemotron_data.packing import pack
from nemotron_data.prep.pipeline import Prepared, ShardResult, open_inputs
from nemotron_data.prep.sampling import look_ahead
from nemotron_data.sources.datasets import Part, RowKind, realised_weights
from nemotron_data.sources.published import availability
from nemotron_data.sources.reading import Row
from nemotron_data.split import SPLITS
from nemotron_data.synthetic import DEMONSTRATIONS, chats
from nemotron_data.tokenizers.folder import TokenizerFolder, provide_tokenizer
from nemotron_shared.artifacts import Source
from nemotron_shared.engine.spec import Outcome, Step, Task
from nemotron_shared.step.step import run_program
from nemotron_shared.system.atomic import write_json
from nemotron_shared.system.errors import Finding, UserError
from stages.sft.accounts import about_rows, format_found, formats_found, mends, template_as_learnt
from stages.sft.encode import WITH_THOUGHT, WITHOUT_THOUGHT, ChatWork, Conversations, Rendering
from stages.sft.ends import TURN_END
from stages.sft.schema import SFTConfig, SFTData

DIRECTORY = Path(__file__).resolve().parent
ROWS = RowKind("conversations", DIRECTORY / "config", chats, "chats", more=DEMONSTRATIONS)


def prepare(task: Task[SFTConfig]) -> Outcome:
    """Encode the shards, pack each split and write it; count every row that did not make it."""
    settings: SFTData = task.config.data_prep
    output = task.run.fresh_output()

    # read: the files of each data set, cut into shards
    inputs = open_inputs(ROWS, settings, settings.synthetic_chats, task.run)
    for line in formats_found(inputs):
        task.run.say(line)

    # split, encode: every worker renders, tokenises and masks the conversations of a shard
    tokenizer = provide_tokenizer(settings.tokenizer.model, output / "tokenizer")
    rendering = Rendering.of(tokenizer, settings.chat_template)
    if settings.chat_template is None and (told := tokenizer.templates_left_out()):
        task.run.say(f"{settings.tokenizer.model}: {told}")
    rendering.require_embedded(tokenizer, Path(str(settings.tokenizer.model)))
    end = rendering.learnt_end(tokenizer)
    if end is None:
        task.run.say(f"{rendering.label} closes no answer with a token that is learnt: answers end at their longest")
    if settings.chat_template is not None:
        tokenizer.give_template(rendering.template, alone=True)  # prompts have to be rendered with it
    encoder = inputs.choose_encoder(tokenizer, rendering.sampler(), settings.tokenizer.backend, with_bytes=True)
    decontamination = Decontamination.of(task.config, task.store)
    token_bytes = encoder.reference.token_bytes
    work = ChatWork(inputs.parts, rendering, tokenizer.path, encoder.for_workers(), token_bytes, decontamination)
    prepared = inputs.process(work, output)
    for line in about_rows(prepared, settings):
        task.run.say(line)
    prepared.require_few_lost(settings.max_lost, mends(prepared, settings))
    counts = prepared.totals.counts
    template, line = template_as_learnt(rendering, counts[WITH_THOUGHT], counts[WITHOUT_THOUGHT])
    if template is not None:
        tokenizer.give_template(template)
    if line is not None:
        task.run.say(line)

    # pack, write: sequences of all shards, a split at a time
    sequences, conversations = open_splits(prepared)
    splits = {
        split: {"conversations": count, **write_split(output, split, sequences, settings)}
        for split, count in conversations.items()
    }
    metadata = {
        "pack_size": settings.pack_size,
        "algorithm": settings.algorithm,
        "data_format": "packed_sft_parquet",
        TURN_END: None if end is None else end._asdict(),
        "splits": splits,
        "counts": prepared.totals.as_metadata(),
        "data_sets": shares(inputs.parts, prepared.shards, sequences),
    }
    write_json(output / "stats.json", metadata)
    train = splits["train"]
    tokens, rows = (sum(split[key] for split in splits.values()) for key in ("tokens", "packed_rows"))
    packed = f"{rows:,} packed rows, {train['packed_rows']:,} of them to train on ({train['fill']:.1%} full)"
    prepared.say_splits(conversations)
    prepared.announce(f"{sum(conversations.values()):,} conversations, {tokens:,} tokens in {packed}")
    decontamination.say(prepared)
    return Outcome(output, {**metadata, "encoder": encoder.as_metadata()})


def open_splits(prepared: Prepared[SFTData]) -> tuple[Sequences, dict[str, int]]:
    """The workers' sequences, and the number of conversations of each split that has some, training first.

    Raises:
        UserError: nothing is left for training.
    """
    counts = sum((Counter(shard.figures["conversations"]) for shard in prepared.shards), Counter[str]())
    if not counts["train"]:
        raise prepared.nothing_left("conversation")
    sequences = Sequences.open([shard.folder for shard in prepared.shards])
    return sequences, {split: counts[split] for split in SPLITS if counts[split]}


def write_split(output: Path, split: str, sequences: Sequences, settings: SFTData) -> dict[str, Any]:
    """Pack one split and write `<split>.parquet`; returns its figures."""
    from nemotron_data.formats.packed import write_packed  # pyarrow takes a moment, and workers do without

    chosen = sequences.of_split(split)
    bins = pack(chosen.lengths, settings.pack_size, settings.algorithm, settings.seed)
    groups, compression = settings.parquet_row_group_size, settings.parquet_compression
    trained = write_packed(output / f"{split}.parquet", chosen, bins, groups, compression)
    tokens = int(chosen.lengths.sum())
    return {
        "sequences": len(chosen),
        "packed_rows": len(bins),
        "sequences_per_row": round(len(chosen) / len(bins), 3),
        "tokens": tokens,
        "trained_tokens": trained,
        "fill": tokens / (len(bins) * settings.pack_size),
    }


def shares(
    parts: Sequence[Part[SFTData]], shards: Sequence[ShardResult[SFTData]], sequences: Sequences
) -> list[dict[str, Any]]:
    """Each data set's share of the tokens, and the share that its weight asks for; each row is used once."""
    by_folder = np.bincount(sequences.folder, weights=sequences.lengths, minlength=len(shards))
    tokens: Counter[str] = Counter()
    for shard, count in zip(shards, by_folder.tolist(), strict=True):
        if shard.part.only in (None, "train"):
            tokens[shard.part.name] += int(count)
    asked = {part.name: part.weight for part in parts if part.only in (None, "train")}
    shown = ("name", "weight", "asked_share", "tokens", "available_share")
    return [{key: row[key] for key in shown} for row in realised_weights(asked, tokens)]


def look(config: SFTConfig) -> Iterator[Finding]:
    """Find errors in the first rows, and tokens of the template that the tokenizer's model has no embeddings for."""

    def reader_of(part: Part[SFTData]) -> Callable[[Row], None]:
        conversations = Conversations(part.settings)
        return lambda row: conversations.require_usable(row, part.only)

    settings = config.data_prep
    yield from look_ahead(ROWS.parts(settings), reader_of, format_found)
    folder = Path(str(settings.tokenizer.model))
    if (folder / "config.json").is_file():
        try:
            tokenizer = TokenizerFolder(folder)
            Rendering.of(tokenizer, settings.chat_template).require_embedded(tokenizer, folder)
        except UserError as error:
            yield error.finding


def sources(config: SFTConfig) -> list[Source]:
    """Every file that is read, those of the blend and the template included; and the code of an added chat format."""
    settings = config.data_prep
    if settings.chat_template is not None:
        template = template_file(settings.chat_template)  # None for Jinja text, which is in the config itself
        settings = settings.model_copy(update={"chat_template": None if template is None else str(template)})
    rows = ROWS.sources(settings, settings.synthetic_chats)
    return [*rows, *format_sources(settings.format), *decontaminate.sources(config)]


STEP = Step(
    __file__,
    __doc__,
    SFTConfig,
    prepare,
    sources=sources,
    look=look,
    remarks=lambda values: availability(values, ROWS.config),
)
main = partial(run_program, STEP)

if __name__ == "__main__":
    sys.exit(main())
