"""The built-in rows, which a killed preparation leaves for the next attempt."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nemotron_data.sources.datasets import input_files
from nemotron_shared.config.data import SourceSection

SECTION = SourceSection.model_construct(source="synthetic", seed=3)


def rows(seed: int, count: int) -> Iterator[dict[str, Any]]:
    yield from ({"text": f"{seed} {number}"} for number in range(count))


@pytest.mark.parametrize("harmed", ["synthetic.jsonl", "synthetic.sha256"])
@pytest.mark.parametrize("harm", ["flipped", "cut", "gone"])
def test_what_is_harmed_is_made_again(tmp_path: Path, harmed: str, harm: str) -> None:
    made = tmp_path / "synthetic.jsonl"
    input_files(SECTION, made, rows, 20)
    sound = made.read_bytes()
    file = tmp_path / harmed
    content = bytearray(file.read_bytes())
    content[7] ^= 1
    file.unlink() if harm == "gone" else file.write_bytes(content if harm == "flipped" else content[:9])
    (again,) = input_files(SECTION, made, rows, 20)
    assert (again.path, made.read_bytes()) == (str(made), sound)


def test_what_is_sound_is_used_as_it_is(tmp_path: Path) -> None:
    made = tmp_path / "synthetic.jsonl"
    input_files(SECTION, made, rows, 20)
    before = made.stat()
    input_files(SECTION, made, lambda seed, count: pytest.fail("the rows are there"), 20)
    assert made.stat().st_mtime_ns == before.st_mtime_ns
