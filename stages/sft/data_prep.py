"""Chats to packed rows: JSONL or Parquet conversations in, packed Parquet with loss masks out.

    python stages/sft/data_prep.py -c tiny
    python stages/sft/data_prep.py data_prep.source=chats.jsonl data_prep.tokenizer.model=/models/nemotron

A row is a conversation, {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", ...}]}.
The chat template turns it into text; only what the assistant wrote counts in the loss; several
conversations share one packed row and never see each other.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemotron_shared.atomic import write_json
from nemotron_shared.data.chat import ChatFields, ChatTemplate, to_messages, tokenize_with_mask, validate_messages
from nemotron_shared.data.packed import write_packed
from nemotron_shared.data.packing import pack
from nemotron_shared.data.rejects import Rejects
from nemotron_shared.data.rows import describe_sources, open_rows, split_key
from nemotron_shared.data.sources import Row
from nemotron_shared.data.split import Split
from nemotron_shared.data.tokenizer_folder import TokenizerFolder, provide_tokenizer
from nemotron_shared.data.world import chats
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.step import Outcome, Step, Task
from stages.sft.schema import SFTConfig, SFTData

Sequence = tuple[list[int], list[int]]  # token ids, and for each a 1 where the assistant wrote it


@dataclass
class Encoder:
    """Turns one row into token ids and a mask."""

    settings: SFTData
    tokenizer: TokenizerFolder
    template: ChatTemplate

    @property
    def fields(self) -> ChatFields:
        """Where rows keep their conversation."""
        names = ("format", "messages_field", "prompt_field", "response_field", "conversations_field")
        return ChatFields(**{name: getattr(self.settings, name) for name in names})

    def messages_of(self, row: Row) -> list[dict[str, Any]]:
        """The conversation of a row.

        Raises:
            UserError: a field is missing, or the conversation makes no sense.
        """
        messages = to_messages(row.value, self.fields)
        if reason := validate_messages(messages):
            raise UserError(reason)
        return messages

    def encode(self, row: Row, messages: list[dict[str, Any]]) -> Sequence:
        """Token ids and loss mask of a conversation."""
        text, spans = self.template.render_with_spans(messages, row.value.get(self.settings.tools_field))
        return tokenize_with_mask(self.tokenizer.tokenizer, text, spans)


def prepare(task: Task) -> Outcome:
    """Encode, split, pack and write; count every row that did not make it."""
    settings: SFTData = task.config.data_prep
    output = task.run.fresh_output()
    tokenizer = provide_tokenizer(settings.tokenizer.model, output / "tokenizer")
    encoder = Encoder(settings, tokenizer, chat_template(settings, tokenizer))
    counts: Counter[str] = Counter()
    with Rejects(output / "rejected.jsonl") as rejects:
        rows = open_rows(settings, chats, settings.world_chats, rejects)
        splits = split_sequences(_sequences(rows, encoder, rejects, counts), settings)
    if not splits["train"]:
        raise UserError("no conversation is left for training", "see the reasons in rejected.jsonl")
    stats = {name: write_split(output / f"{name}.parquet", found, settings) for name, found in splits.items() if found}
    metadata = {
        "pack_size": settings.pack_size,
        "data_format": "packed_sft_parquet",
        "splits": stats,
        "counts": {**counts, "rejected": dict(rejects.count_by_reason)},
    }
    write_json(output / "stats.json", metadata)
    task.run.say(
        f"{counts['rows']:,} conversations, {stats['train']['packed_rows']:,} packed rows "
        f"({stats['train']['fill']:.1%} full), {rejects.total} rejected"
    )
    return Outcome(output, metadata)


def chat_template(settings: SFTData, tokenizer: TokenizerFolder) -> ChatTemplate:
    """The configured template, or the tokenizer's own."""
    source = tokenizer.chat_template()
    if settings.chat_template is not None:
        file = Path(settings.chat_template)
        if not file.is_file():
            raise UserError(f"data_prep.chat_template: {file}: no such file", "give a Jinja file, or null")
        source = file.read_text(encoding="utf-8")
    names = ("bos_token", "eos_token", "pad_token")
    return ChatTemplate(source, **{name: tokenizer.special_text(name) for name in names})


def _sequences(
    rows: Iterable[Row], encoder: Encoder, rejects: Rejects, counts: Counter[str]
) -> Iterator[tuple[str, Sequence]]:
    """(split key, sequence) of every usable row."""
    settings = encoder.settings
    for row in rows:
        counts["rows"] += 1
        try:
            messages = encoder.messages_of(row)
            ids, mask = encoder.encode(row, messages)
        except UserError as error:
            _refuse(row, error, settings, rejects)
            continue
        if len(ids) > settings.pack_size:
            if settings.too_long == "reject":
                rejects.add(row.file, row.line, "longer than pack_size", str(row.value))
                continue
            counts["truncated"] += 1
            ids, mask = ids[: settings.pack_size], mask[: settings.pack_size]
        if not any(mask):
            rejects.add(row.file, row.line, "nothing of the assistant is left to learn", str(row.value))
            continue
        yield split_key(row.value, settings, first_question(messages)), (ids, mask)


def _refuse(row: Row, error: UserError, settings: SFTData, rejects: Rejects) -> None:
    if settings.on_bad_row == "error":
        raise UserError(f"{row.file}:{row.line}: {error.message}", error.remedy) from error
    rejects.add(row.file, row.line, error.message.split(":")[0], str(row.value), error.message)


def first_question(messages: list[dict[str, Any]]) -> str:
    """What decides a conversation's split: its first user turn, so that equal questions stay together."""
    asked = (str(message["content"]) for message in messages if message["role"] == "user")
    return next(asked, str(messages[0]["content"]))


def split_sequences(sequences: Iterable[tuple[str, Sequence]], settings: SFTData) -> dict[str, list[Sequence]]:
    """Sequences of each split, in the order of reading."""
    split = Split(settings.split.model_dump(), salt="questions")
    found: defaultdict[str, list[Sequence]] = defaultdict(list)
    for key, sequence in sequences:
        found[split.of(key)].append(sequence)
    return {name: found[name] for name in ("train", "valid", "test")}


def write_split(path: Path, sequences: list[Sequence], settings: SFTData) -> dict[str, Any]:
    """Pack one split and write it; gives its figures."""
    lengths = np.array([len(ids) for ids, _ in sequences])
    bins = pack(lengths, settings.pack_size, settings.algorithm, settings.seed)
    write_packed(path, sequences, bins)
    return {
        "conversations": len(sequences),
        "packed_rows": len(bins),
        "tokens": int(lengths.sum()),
        "trained_tokens": int(sum(sum(mask) for _, mask in sequences)),
        "fill": float(lengths.sum() / (len(bins) * settings.pack_size)),
    }


STEP = Step(
    stage="sft",
    verb="data_prep",
    directory=Path(__file__).resolve().parent,
    description=__doc__,
    schema=SFTConfig,
    produces="{family}-sft-data",
    artifact_type="SFTDataArtifact",
    sections=("data_prep",),
    sources=lambda config: describe_sources(config.data_prep, "chats", config.data_prep.world_chats),
    work=prepare,
)

if __name__ == "__main__":
    sys.exit(STEP.main())
