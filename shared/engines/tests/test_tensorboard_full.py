"""A disk that fills leaves one message, and no traceback of TensorBoard's writing thread."""

import errno
import threading
from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter

from nemotron_engines.transformers.callback import TensorBoardMetrics
from nemotron_shared.tracking.completions import CompletionsLog


def test_a_full_disk_is_an_error_of_the_main_thread_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda failed: said.append(str(failed.exc_value)))
    writer = SummaryWriter(str(tmp_path))
    TensorBoardMetrics(writer, 1, CompletionsLog(tmp_path / "completions.jsonl"))
    thread = next(one for one in threading.enumerate() if type(one).__module__.startswith("tensorboard."))

    def full(data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(thread._record_writer, "write", full)
    writer.add_scalar("loss", 1.0, 1)
    thread.join()
    with pytest.raises(OSError, match="No space left"):
        writer.add_scalar("loss", 1.0, 2)
    assert said == []
    other = threading.Thread(target=full, args=(b"",))
    other.start()
    other.join()
    assert said == ["[Errno 28] No space left on device"]
