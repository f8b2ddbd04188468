"""Hugging Face datasets: load, tokenise with map, and write the ids to a token file (no index).

python datasets_map.py CORPUS.jsonl TOKENIZER_FOLDER OUTPUT.bin WORKERS
"""

import os
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from transformers import AutoTokenizer

BATCH_ROWS = 1000


def main() -> None:
    corpus, folder, output, workers = sys.argv[1:]
    datasets.disable_caching()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)

    def encode(batch: dict[str, list[str]]) -> dict[str, Any]:
        return {"ids": [[*ids, tokenizer.eos_token_id] for ids in tokenizer(batch["text"])["input_ids"]]}

    rows = datasets.load_dataset("json", data_files=corpus, split="train", cache_dir=f"{output}.cache")
    rows = rows.map(
        encode, batched=True, batch_size=BATCH_ROWS, num_proc=int(workers), remove_columns=rows.column_names
    )
    dtype = np.uint16 if len(tokenizer) < 65_500 else np.int32
    with Path(output).open("wb") as file:
        for batch in rows.with_format("arrow").iter(BATCH_ROWS):
            for column in batch["ids"].chunks:
                file.write(column.flatten().to_numpy().astype(dtype))


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    main()
