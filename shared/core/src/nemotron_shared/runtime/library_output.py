"""Send what a library prints and logs to a file: stdout is for results, and stderr for what concerns the user.

with library_output(run.directory / "megatron.log"):
    pretrain(container, forward_step)
"""

import logging
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

FORMAT = "%(asctime)s %(name)s %(levelname)s %(message)s"


@contextmanager
def library_output(path: Path) -> Generator[None]:
    """Append to `path` inside the block, whatever handlers the library adds; afterwards logging is as it was."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    with path.open("a", encoding="utf-8") as file, redirect_stdout(file):
        handler = logging.StreamHandler(file)
        handler.setFormatter(logging.Formatter(FORMAT))
        root.handlers = [handler]
        try:
            yield
        finally:
            root.handlers = before
            root.setLevel(level)
