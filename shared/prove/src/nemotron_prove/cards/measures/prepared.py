"""Prepared data of SFT, read back."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from nemotron_data.formats.packed import PackedRow, read_packed
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_prove.cards.measured import Measured
from nemotron_prove.cards.measures.programs import TRUST, nemotron
from nemotron_shared.artifacts import Artifact, Store

FEW, MANY = 60, 20_000
"""The second makes several shards, which two workers share."""


def prepare(family: str, folder: Path, rows: int, *words: str) -> Artifact:
    """Chats in which every turn says who wrote it, prepared for SFT."""
    chats = folder / "chats.jsonl"
    chats.write_text("".join(json.dumps(chat(number)) + "\n" for number in range(rows)))
    nemotron(folder, family, "data", "prep", "sft", "-c", "tiny", f"data_prep.source={chats}", TRUST, *words)
    return Store(folder / "home").resolve("sft-data", family=family)


def chat(number: int) -> dict[str, list[dict[str, str]]]:
    """Two questions and two answers."""
    turns = [("user", f"ask {number}"), ("assistant", f"ANSWER {number}")] * 2
    return {"messages": [{"role": role, "content": text} for role, text in turns]}


def masks(family: str, folder: Path) -> Measured:
    """Tokens that count in the loss and that the assistant did not write, and answers of which nothing counts."""
    artifact = prepare(family, folder, FEW)
    tokenizer = TokenizerFolder(artifact.path / "tokenizer").tokenizer
    foreign = unread = seen = 0
    for file in sorted(artifact.path.glob("*.parquet")):
        for row in read_packed(file):
            for text, trained in sequences(row, tokenizer):
                seen += 1
                foreign += "ask" in trained
                unread += text.count("ANSWER") - trained.count("ANSWER")
    figures = {"sequences that count a question": foreign, "answers that do not count": unread}
    return Measured(figures | {"no sequence was read": float(not seen)}, 0, [f"{seen} sequences"])


def sequences(row: PackedRow, tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """Text of each sequence of a row, and of it what the loss counts."""
    bounds = [*row.seq_start_id.tolist(), len(row.input_ids)]
    found = []
    for start, end in pairwise(bounds):
        ids, counts = row.input_ids[start:end], row.loss_mask[start:end].astype(bool)
        trained = ids[1:][counts[:-1]]  # an entry of the mask is about the next token
        found.append((_text(tokenizer, ids), _text(tokenizer, trained)))
    return found


def _text(tokenizer: Tokenizer, ids: np.ndarray) -> str:
    return tokenizer.decode(ids.tolist(), skip_special_tokens=False)


def data_bytes(family: str, folder: Path) -> Measured:
    """Files of prepared data that are others with two workers."""
    tables = []
    for workers in (1, 2):
        place = folder / str(workers)
        place.mkdir()
        found = prepare(family, place, MANY, f"data_prep.workers={workers}", "data_prep.shard_mb=1")
        tables.append({name: entry.sha256 for name, entry in found.manifest.files.items()})
    names = tables[0].keys() | tables[1].keys()
    differing = [name for name in names if tables[0].get(name) != tables[1].get(name)]
    return Measured({"differing files": len(differing)}, 0, [f"{len(names)} files"])
