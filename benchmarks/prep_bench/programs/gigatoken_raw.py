"""Upper limit: one call of the tokenizer library on the whole file, in memory, without writing anything.

python gigatoken_raw.py CORPUS.jsonl TOKENIZER_FOLDER
"""

import sys
import time
from pathlib import Path

import awkward
import gigatoken


def main() -> None:
    corpus, folder = sys.argv[1:]
    tokenizer = gigatoken.Tokenizer(str(Path(folder, "tokenizer.json")))
    start = time.perf_counter()
    documents = tokenizer.encode_files(gigatoken.JsonlFileSource([corpus], field="text"))
    print(f"own timer {time.perf_counter() - start:.3f} seconds")
    print(f"{len(documents) + awkward.count(documents)} tokens with one end of document each")


if __name__ == "__main__":
    main()
