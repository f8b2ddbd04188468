"""Names of files on the command line of `nemotron finetune`, whatever signs they hold."""

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from nemotron_app.finetune.command import _is_override
from nemotron_app.finetune.plan import json_text


@pytest.mark.parametrize(
    "name", ["a b", "it's", "a,b", "[1]", "{x}", "a=b:c", "back\\slash", "\\'", "end\\", 'say "x"']
)
def test_a_name_comes_through_hydra_as_it_is(name: str) -> None:
    read = OverridesParser.create().parse_override(f"source=[{json_text(name)},'z']").value()
    assert [str(one) for one in read] == [name, "z"]


def test_a_file_whose_name_looks_like_an_override_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _is_override("train.train_iters=5") and _is_override("a=b.jsonl")
    (tmp_path / "a=b.jsonl").touch()
    assert not _is_override("a=b.jsonl")
