"""Sections about data: where rows come from, how they are shared out, and how they are prepared."""

import codecs
from typing import Literal

from pydantic import Field, field_validator, model_validator

from nemotron_shared.config.schema import MOST_WORKERS, How, Section


class TokenizerSection(Section):
    """Which tokenizer turns text into ids."""

    model: str | None
    """`tiny`, which is made on the spot, `hf://org/name[@revision]`, a model of the store as `art://NAME:vN`, or the
    path of a Hugging Face tokenizer folder. Required: `null` is an error."""
    add_bos: bool | None
    """Begin each document with the beginning-of-text id. `null`: with what the tokenizer's own post-processor puts
    there, as Megatron-LM's tool does; mostly nothing. Not used in sft, where the chat template writes all special
    tokens."""
    add_eos: bool
    """End each document with the end-of-text id. Not used in sft."""
    backend: How[Literal["auto", "gigatoken", "fastokens", "tokenizers"]]
    """What encodes: `gigatoken`, `fastokens` or `tokenizers`. `auto`: the fastest of them that gives the right ids on a
    sample of the data."""


class SplitSection(Section):
    """Shares of the rows, by hash of each row's key; the same row always falls on the same side."""

    train: float = Field(ge=0, le=1)
    """Share of the rows to train on, 0 to 1, which no evaluation asks. The three shares sum to 1."""
    valid: float = Field(ge=0, le=1)
    """Share for validation during training, which no evaluation asks either."""
    test: float = Field(ge=0, le=1)
    """Share that no training reads, and that eval makes tasks of. Use the same shares in all stages where the rows are
    the same."""

    @model_validator(mode="after")
    def whole(self) -> "SplitSection":
        """Check that the shares sum to one."""
        total = self.train + self.valid + self.test
        if abs(total - 1) > 1e-6:
            raise ValueError(f"split shares sum to {total:g}, not 1")
        return self


class SourceSection(Section):
    """Rows to read: the synthetic data, or the user's own files."""

    source: str | list[str] | None
    """`synthetic`, or paths: a file, a folder, a glob, a list of them, or (pretrain, sft) a blend. Required: `null` is
    an error."""
    subset: str | None
    """Configuration of a hub data set, for a source `hf://org/name`."""
    hub_split: str | None
    """Split of a hub data set to read, such as `train`, or a part of its rows: `train[1024:]`, `train[:10%]`."""
    encoding: str | None
    """What text, CSV and JSON files are encoded in, such as `latin1`. `null`: UTF-8, or UTF-16 where a file begins with
    its mark; anything else is an error."""
    sample: int | None = Field(ge=1)
    """Read at most this many rows (of the synthetic ones: make this many). `--sample N` sets it."""
    on_bad_row: Literal["error", "reject"]
    """A row that cannot be used: `error` stops at it, `reject` counts it and writes it to `rejected.jsonl`."""
    seed: int = Field(ge=0)
    """Seed of the synthetic rows and, in sft, of packing."""
    max_lost: How[float] = Field(ge=0, le=1)
    """Stop if more than this share of the rows is lost: left out, cut within the trained part, or with an expected
    answer that no verifier can decide. Rows that you filter out do not count. `1` allows everything."""
    split: SplitSection
    key_field: str | None
    """Field whose hash decides a row's split. `null`: the row's own text or question."""

    @field_validator("source")
    @classmethod
    def is_named(cls, source: str | list[str] | None) -> str | list[str] | None:
        """Refuse an empty path: it would mean the working folder."""
        if source in ("", []) or (isinstance(source, list) and not all(source)):
            raise ValueError("is empty: give a path; './' means the working folder")
        return source

    @field_validator("encoding")
    @classmethod
    def is_an_encoding(cls, name: str | None) -> str | None:
        """Normalise to Python's name for the encoding."""
        try:
            return None if name is None else codecs.lookup(name).name
        except LookupError as error:
            raise ValueError(f"no encoding is called '{name}'; there are utf-8, utf-16, latin1, cp1252, ...") from error


class PreparedSection(SourceSection):
    """Rows that are prepared in shards, by several workers."""

    workers: How[int | None] = Field(ge=1, le=MOST_WORKERS)
    """Processes that share the work; the result does not depend on it. `null`: one for each CPU. `--workers N` sets
    it."""
    executor: How[Literal["local", "ray"]]
    """`local`: processes of this machine. `ray`: tasks on a Ray cluster, joined or started here. `--executor` sets
    it."""
    shard_mb: int = Field(ge=1)
    """Megabytes of input, at most about, that one worker takes at a time."""


class DecontaminateSection(Section):
    """What of an evaluation is kept out of training data."""

    against: str | list[str] | None
    """Rows of an evaluation that training rows are compared with: a data artifact such as `eval-data`, a file or a
    folder, or a list of them. `null`: none."""
    ways: list[Literal["exact", "run", "near"]] = Field(min_length=1)
    """What counts as an overlap: `exact`, the row word for word; `run`, 13 of its words in a row; `near`, most of its
    words, reworded."""
    action: Literal["drop", "stop", "report"]
    """A training row that overlaps: `drop` leaves it out and counts it, `stop` ends there, `report` only counts it."""


class TrainingDataSection(PreparedSection):
    """Rows to train on."""

    decontaminate: DecontaminateSection
