"""datatrove's Megatron writer over the JSONL files of a folder, one task for every two files.

python datatrove_megatron.py FOLDER TOKENIZER_FOLDER OUTPUT_FOLDER WORKERS
"""

import sys
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens.megatron_tokenizer import MegatronDocumentTokenizer


def main() -> None:
    folder, tokenizer, output, workers = sys.argv[1:]
    writer = MegatronDocumentTokenizer(
        output, tokenizer_name_or_path=str(Path(tokenizer, "tokenizer.json")), eos_token="</s>", batch_size=1000
    )
    pipeline = [JsonlReader(folder, glob_pattern="*.jsonl"), writer]
    logs = str(Path(output, "logs"))
    LocalPipelineExecutor(pipeline, tasks=int(workers), workers=int(workers), logging_dir=logs).run()


if __name__ == "__main__":
    main()
