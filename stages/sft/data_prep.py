"""Chats to packed rows: JSONL or Parquet conversations in, packed Parquet with loss masks out.

    python stages/sft/data_prep.py -c tiny
    python stages/sft/data_prep.py -c local data_prep.source=chats.jsonl data_prep.tokenizer.model=/models/nemotron

A row is a conversation, {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", ...}]}.
The chat template turns it into text; only what the assistant wrote counts in the loss; several
conversations share one packed row and never see each other. The way of a conversation:

    read -> split -> encode    by workers, a shard of the input each; see conversations.py
         -> pack -> write      each split into rows of data_prep.pack_size tokens; see packs.py
"""

import sys
from collections.abc import Callable
from pathlib import Path

from nemotron_data import decontaminate
from nemotron_data.chat.formats import format_sources
from nemotron_data.chat.template import template_file
from nemotron_data.decontaminate import Decontamination
from nemotron_data.prep.pipeline import open_inputs
from nemotron_data.prep.sampling import look_ahead
from nemotron_data.sources.datasets import Part, RowKind
from nemotron_data.sources.reading import Row
from nemotron_data.synthetic import chats
from nemotron_data.tokenizers.folder import provide_tokenizer
from nemotron_shared.artifacts import Source
from nemotron_shared.atomic import write_json
from nemotron_shared.runtime.look import Looked
from nemotron_shared.runtime.step import Outcome, Step, Task
from stages.sft.accounts import about_rows, format_found, formats_found, mends
from stages.sft.encode import WITH_THOUGHT, WITHOUT_THOUGHT, ChatWork, Conversations, Rendering
from stages.sft.ends import TURN_END
from stages.sft.packs import open_splits, shares, write_split
from stages.sft.schema import SFTConfig, SFTData
from stages.sft.thoughts import template_as_learnt

DIRECTORY = Path(__file__).resolve().parent
ROWS = RowKind("conversations", DIRECTORY / "config", chats, "chats")


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
    end = rendering.learnt_end(tokenizer)
    if end is None:
        task.run.say(f"{rendering.label} closes no answer with a token that is learnt: answers end at their longest")
    if settings.chat_template is not None:
        tokenizer.give_template(rendering.template)  # whoever asks the model has to ask it so
    encoder = inputs.choose_encoder(tokenizer, rendering.sample, settings.tokenizer.backend, with_bytes=True)
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
    packed = f"{train['packed_rows']:,} packed rows of {train['tokens']:,} tokens ({train['fill']:.1%} full)"
    prepared.say_splits(conversations)
    prepared.announce(f"{sum(conversations.values()):,} conversations, {packed}")
    decontamination.say(prepared)
    return Outcome(output, {**metadata, "encoder": encoder.as_metadata()})


def look(config: SFTConfig) -> Looked:
    """What the first rows tell, as far as no tokenizer is needed."""

    def reader_of(part: Part[SFTData]) -> Callable[[Row], None]:
        conversations = Conversations(part.settings)
        return lambda row: conversations.require_usable(row, part.only)

    return look_ahead(ROWS.parts(config.data_prep), reader_of, format_found)


def sources(config: SFTConfig) -> list[Source]:
    """Every file that is read, those of the blend and the template included; and the code of an added chat format."""
    settings = config.data_prep
    if settings.chat_template is not None:
        template = template_file(settings.chat_template)  # None for Jinja text, which is in the config itself
        settings = settings.model_copy(update={"chat_template": None if template is None else str(template)})
    rows = ROWS.sources(settings, settings.synthetic_chats)
    return [*rows, *format_sources(settings.format), *decontaminate.sources(config)]


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
    look=look,
    work=prepare,
)

if __name__ == "__main__":
    sys.exit(STEP.main())
