"""Run one of Megatron-LM's tools, also on Python 3.11.

    python megatron_tool.py MEGATRON/tools/preprocess_data_fast.py --input corpus.jsonl ...

Megatron-LM requires Python 3.12, but its tools only need `typing.override` from it.
"""

import runpy
import sys
import typing
from pathlib import Path

import typing_extensions


def main() -> None:
    if not hasattr(typing, "override"):
        setattr(typing, "override", typing_extensions.override)  # noqa: B010  (its type has no such name)
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parents[1]))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":  # its workers may import this file again
    main()
