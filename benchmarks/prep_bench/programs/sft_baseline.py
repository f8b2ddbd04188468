"""Chats to packed Parquet in the obvious way: transformers per row, then first fit over all open bins.

python sft_baseline.py loop|map CHATS.jsonl TOKENIZER_FOLDER OUTPUT.parquet PACK_SIZE WORKERS
"""

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from transformers import AutoTokenizer

SCHEMA = pa.schema([
    ("input_ids", pa.list_(pa.int32())), ("loss_mask", pa.list_(pa.uint8())), ("seq_start_id", pa.list_(pa.int32()))
])  # fmt: skip
Sequence = tuple[list[int], list[int]]


def main() -> None:
    way, chats, folder, output, pack_size, workers = sys.argv[1:]
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)

    def encode(row: dict[str, Any]) -> dict[str, list[int]]:
        encoded = tokenizer.apply_chat_template(
            row["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        limit = int(pack_size)
        return {"ids": encoded["input_ids"][:limit], "mask": encoded["assistant_masks"][:limit]}

    if way == "loop":
        with Path(chats).open(encoding="utf-8") as file:
            rows = [encode(json.loads(line)) for line in file]
    else:
        import datasets

        datasets.disable_caching()
        data = datasets.load_dataset("json", data_files=chats, split="train", cache_dir=f"{output}.cache")
        rows = data.map(encode, num_proc=int(workers), remove_columns=data.column_names)
    sequences = [(row["ids"], row["mask"]) for row in rows if any(row["mask"])]
    write(first_fit(sequences, int(pack_size)), Path(output))


def first_fit(sequences: list[Sequence], pack_size: int) -> list[list[Sequence]]:
    """Put each sequence into the first bin with room, in the order given."""
    bins: list[list[Sequence]] = []
    space: list[int] = []
    for sequence in sequences:
        length = len(sequence[0])
        for number, room in enumerate(space):
            if length <= room:
                bins[number].append(sequence)
                space[number] -= length
                break
        else:
            bins.append([sequence])
            space.append(pack_size - length)
    return bins


def write(bins: list[list[Sequence]], path: Path) -> None:
    """Masks are shifted by one inside each sequence, as Megatron-Bridge reads them."""
    rows = []
    for sequences in bins:
        starts = [0]
        for ids, _ in sequences[:-1]:
            starts.append(starts[-1] + len(ids))
        rows.append({
            "input_ids": [token for ids, _ in sequences for token in ids],
            "loss_mask": [flag for _, mask in sequences for flag in (*mask[1:], 0)],
            "seq_start_id": starts,
        })  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path, compression="zstd", row_group_size=1000)


if __name__ == "__main__":
    main()
