"""Names of files on the command line of `nemotron finetune`, whatever signs they hold."""

from pathlib import Path

import pytest

from nemotron_app.finetune.command import _is_override


def test_a_file_whose_name_looks_like_an_override_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _is_override("train.train_iters=5") and _is_override("a=b.jsonl")
    (tmp_path / "a=b.jsonl").touch()
    assert not _is_override("a=b.jsonl")
