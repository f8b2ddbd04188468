"""A token that ends answers is noted beside those that do, in the file that every program reads."""

import json
from pathlib import Path

import pytest

from nemotron_shared.models.folder import FILE, end_answers_at


@pytest.mark.parametrize(
    ("config", "generation", "written"),
    [
        ({}, {"eos_token_id": 2, "top_k": 5}, {"eos_token_id": [2, 7], "top_k": 5}),
        ({"eos_token_id": 1}, {"eos_token_id": [2, 3]}, {"eos_token_id": [2, 3, 7]}),
        ({"eos_token_id": 2}, {"do_sample": True}, {"do_sample": True, "eos_token_id": [2, 7]}),
        ({"eos_token_id": 2, "pad_token_id": 0}, None, {"eos_token_id": [2, 7], "pad_token_id": 0}),
        ({}, None, {"eos_token_id": [7]}),
        ({"eos_token_id": 7}, None, None),
        ({}, {"eos_token_id": [2, 7]}, {"eos_token_id": [2, 7]}),
    ],
)
def test_it_joins_those_that_are_there(tmp_path: Path, config: dict, generation: dict | None, written: dict) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (tmp_path / FILE).write_text(json.dumps(generation))
    end_answers_at(tmp_path, 7)
    assert (json.loads((tmp_path / FILE).read_text()) if (tmp_path / FILE).exists() else None) == written
