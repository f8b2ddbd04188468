"""megatron-core's tokenizer and writer of token files, with workers that tokenize one document per call.

python megatron_core.py CORPUS.jsonl TOKENIZER_FOLDER OUTPUT_PREFIX WORKERS

The wheel of megatron-core has no data preparation program; this does the same as Megatron-LM's, with its parts.
"""

import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import torch
from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
from megatron.core.tokenizers import MegatronTokenizer

CHUNK = 32
_tokenizer: Any = None


def start(folder: str) -> None:
    global _tokenizer
    _tokenizer = MegatronTokenizer.from_pretrained(folder, {"library": "huggingface", "model_type": "gpt"})


def encode(line: str) -> list[int]:
    return [*_tokenizer.tokenize(json.loads(line)["text"]), _tokenizer.eod]


def main() -> None:
    corpus, folder, output, workers = sys.argv[1:]
    start(folder)
    began = time.perf_counter()
    builder = IndexedDatasetBuilder(f"{output}.bin", dtype=DType.optimal_dtype(_tokenizer.vocab_size))
    fork = multiprocessing.get_context("fork")
    with Path(corpus).open(encoding="utf-8") as lines, fork.Pool(int(workers), start, (folder,)) as pool:
        for ids in pool.imap(encode, lines, CHUNK):
            builder.add_document(torch.IntTensor(ids), [len(ids)])
    builder.finalize(f"{output}.idx")
    print(f"own timer {time.perf_counter() - began:.3f} seconds")


if __name__ == "__main__":
    main()
