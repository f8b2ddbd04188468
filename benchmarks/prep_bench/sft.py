"""Fine-tuning data: chats to packed Parquet, us against the obvious loop and against datasets.map.

A chat of `chats-20000.jsonl`, its words cut from the corpus:

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}, ...]}
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from nemotron_data.chat.rows import plain_message
from prep_bench.contest import Contestant, Missing, Score, compete
from prep_bench.corpus import read_texts
from prep_bench.pretrain import ALLOW
from prep_bench.process_tree import CommandFailed
from prep_bench.settings import REPOSITORY, Bench, artifact
from prep_bench.table import Section
from prep_bench.vocabularies import control_names, holds

PACK_SIZE = 4096
MEDIAN_CHARACTERS, SPREAD = 600 * 3.66, 1.1  # the lengths of section "packing", in characters
MOST_CHARACTERS = 300_000
MOST_TURNS = 4
USER_SHARE = 0.25
SYSTEM_SHARE = 0.2


class Packed(NamedTuple):
    """Content of a packed file; `sequences` does not depend on how they were packed."""

    sequences: str
    """SHA-256 over the sorted digests of all sequences, ids and shifted masks."""
    count: int
    tokens: int
    trained: int
    rows: int
    each: tuple[bytes, ...] = ()
    """The digests, sorted."""


def run(bench: Bench, chats: int) -> list[Section]:
    """Both baselines are run by one program, which also provides transformers' masks."""
    source = write_chats(bench.jsonl, bench.work / f"chats-{chats}.jsonl", chats)
    tokenizer = bench.tokenizers["tok131k"]
    contestants = [_ours(bench, source, tokenizer, workers) for workers in dict.fromkeys((bench.workers, 1))]
    contestants.append(_ours(bench, source, tokenizer, bench.workers, ALLOW))
    missing: list[Missing] = []
    for name, program in (("apply_chat_template loop, first fit", "loop"), ("datasets.map, first fit", "map")):
        why = bench.lacks("transformers", "datasets", "pyarrow", "jinja2")
        if why:
            missing.append(Missing(name, why))
            continue
        arguments = [program, source, tokenizer, bench.output(name) / "train.parquet", PACK_SIZE, bench.workers]
        check = lambda contestant, usage: packed_digest(contestant.output / "train.parquet")  # noqa: E731
        contestants.append(bench.peer(name, "sft_baseline.py", arguments, check))
    scores = compete(contestants, bench.rounds, bench.slow_rounds, REPOSITORY)
    names = control_names(tokenizer)
    held = sum(any(holds(turn["content"], names) for turn in chat["messages"]) for chat in read_rows(source))
    ended = sum(any(map(_only_ends_a_thought, chat["messages"])) for chat in read_rows(source))
    return [_judged(Section(f"SFT, {chats:,} chats, packs of {PACK_SIZE}", [*scores, *missing]), held, ended)]


def _only_ends_a_thought(turn: dict[str, str]) -> bool:
    """Whether we take the beginning of an answer for reasoning, which the template does not show."""
    return turn["role"] == "assistant" and "reasoning_content" in plain_message(dict(turn))


def read_rows(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        yield from map(orjson.loads, file)


def _ours(bench: Bench, source: Path, tokenizer: Path, workers: int, name: str | None = None) -> Contestant:
    settings = {
        "data_prep.source": source, "data_prep.tokenizer.model": tokenizer, "data_prep.workers": workers,
        "data_prep.pack_size": PACK_SIZE, "data_prep.on_bad_row": "reject", "data_prep.used_in_filter": "null",
        "data_prep.chat_template": "null",
    }  # fmt: skip
    if name == ALLOW:
        settings["data_prep.control_tokens"] = "allow"
    name = name or f"ours, {workers} worker{'s' * (workers > 1)}"
    return bench.ours("sft", name, settings, lambda c, usage: packed_digest(artifact(c.output) / "train.parquet"))


def _judged(section: Section, held: int, ended: int) -> Section:
    """Compare all sequences with transformers'.

    Args:
        held: chats with the name of a control token, which may be behind the cut of a long one.
        ended: chats with an answer in which a thought only ends.

    Raises:
        CommandFailed: ours differ although control tokens are allowed, or in more chats than have such a name.
    """
    scores = [row for row in section.rows if isinstance(row, Score)]
    peers = [score for score in scores if score.peer]
    allowed = next(score for score in scores if score.name == ALLOW)
    reference = peers[0] if peers else allowed
    section.notes.append(f"'same': ids and loss mask of every sequence are those of: {reference.name}")
    if ended:
        section.notes.append(f"in {ended:,} chats a thought only ends: reasoning for ours, text for transformers")
    if not peers:
        section.notes.append("no peer ran: masks were not compared with transformers'")
    for score in scores:
        others = _others(score.found, reference.found)
        if not score.peer and others > ended + (0 if score is allowed else held):
            what = f"{score.name}: {others} chats have other ids or masks"
            raise CommandFailed(f"{what}; {held} hold a control token, in {ended} a thought only ends")
        if score is not allowed and not score.peer:
            section.notes.append(
                f"{score.name}: {others:,} chats have other ids, of {held:,} that hold the name of a control token: it "
                "is encoded as text, and by peers as the token; with data_prep.control_tokens=allow none has"
            )
    for score in scores:
        speed = score.found.tokens / score.wall_s
        section.notes.append(f"{score.name}: {speed:,.0f} tokens/s of wall time")
    section.rows = [_in_words(row, reference) if isinstance(row, Score) else row for row in section.rows]
    return section


def _in_words(score: Score, reference: Score) -> Score:
    found: Packed = score.found
    others = _others(found, reference.found)
    same = "same" if not others else f"OTHER: {others:,}" if score.peer else f"same but for {others:,} chats"
    fill = found.tokens / (found.rows * PACK_SIZE)
    return score._replace(found=f"{same}; {found.count:,} chats, {found.rows:,} packs, {fill:.2%} full")


def _others(found: Packed, reference: Packed) -> int:
    """Number of sequences of one that are not in the other, or the other way round if that is more."""
    one, other = Counter(found.each), Counter(reference.each)
    return max((one - other).total(), (other - one).total())


def packed_digest(path: Path) -> Packed:
    """Read a packed file in pieces; the order of its sequences does not matter."""
    import pyarrow.parquet as pq

    digests: list[bytes] = []
    tokens = trained = rows = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(500, columns=["input_ids", "loss_mask", "seq_start_id"]):
            rows += batch.num_rows
            for row in zip(*(batch.column(i) for i in range(3)), strict=True):
                ids, mask, starts = (np.asarray(value.values) for value in row)
                tokens, trained = tokens + len(ids), trained + int(mask.sum())
                digests += _sequence_digests(ids.astype("<i4"), mask.astype("u1"), starts)
    digests.sort()
    return Packed(hashlib.sha256(b"".join(digests)).hexdigest(), len(digests), tokens, trained, rows, tuple(digests))


def _sequence_digests(ids: np.ndarray, mask: np.ndarray, starts: np.ndarray) -> Iterator[bytes]:
    for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
        yield hashlib.blake2b(ids[start:end].tobytes() + mask[start:end].tobytes(), digest_size=16).digest()


def write_chats(corpus: Path, path: Path, count: int, seed: int = 0) -> Path:
    """Chats of lognormal length from the corpus, in order; texts are reused only after all have been used."""
    if path.is_file():
        return path
    chance, text = np.random.default_rng(seed), Corpus(corpus)
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        for _ in range(count):
            file.write(orjson.dumps({"messages": list(_chat(chance, text))}, option=orjson.OPT_APPEND_NEWLINE))
    return unfinished.rename(path)


class Corpus:
    """The corpus as one string, to take pieces from."""

    def __init__(self, corpus: Path) -> None:
        self.corpus = corpus
        self.texts = read_texts(corpus)
        self.rest = ""

    def take(self, characters: int) -> str:
        """The next characters, starting over at the end of the corpus."""
        pieces: list[str] = []
        while characters > 0:
            if not self.rest:
                self.rest = next(self.texts, "") or self._again()
            pieces.append(self.rest[:characters])
            self.rest = self.rest[characters:]
            characters -= len(pieces[-1])
        return "".join(pieces)

    def say(self, characters: int) -> str:
        """The next characters; more of them if they are only white space, because messages must not be empty."""
        said = self.take(characters)
        while not said.strip():
            said += self.take(characters)
        return said

    def _again(self) -> str:
        self.texts = read_texts(self.corpus)
        return next(self.texts)


def _chat(chance: np.random.Generator, text: Corpus) -> Iterator[dict[str, str]]:
    total = min(MEDIAN_CHARACTERS * float(np.exp(chance.normal(0, SPREAD))), MOST_CHARACTERS)
    turns = int(chance.integers(1, MOST_TURNS + 1))
    if chance.random() < SYSTEM_SHARE:
        yield {"role": "system", "content": text.say(100)}
    for share in chance.dirichlet(np.full(turns, 4.0)):
        yield {"role": "user", "content": text.say(8 + int(total * share * USER_SHARE))}
        yield {"role": "assistant", "content": text.say(16 + int(total * share * (1 - USER_SHARE)))}
