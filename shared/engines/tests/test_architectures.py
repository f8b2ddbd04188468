"""A user's own architecture file: what is wrong with it is one clear error, known before anything is built."""

import os
from pathlib import Path

import pytest

from nemotron_data.sources.datasets import own_files
from nemotron_engines.modeling.architecture import load_architecture
from nemotron_shared.system.errors import UserError


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"x: [1\ny: {{{", "not valid YAML"),
        (b"\xff\xfe\x00", "not a text in UTF-8"),
        (b"- 1", "not a mapping of NemotronHConfig fields"),
        (b"1: 2", "not a mapping of NemotronHConfig fields"),
        (b"null: 2", "not a mapping of NemotronHConfig fields"),
        (b"hidden_size: [1, 2]", r"hidden_size is '\[1, 2\]', not a size"),
        (b"hidden_size: null", "hidden_size is 'None', not a size"),
        (b"num_hidden_layers: .nan", "num_hidden_layers is 'nan', not a size"),
        (b"hybrid_override_pattern: MEXX", "is 'MEXX', not a pattern of layers"),
        (b"hybrid_override_pattern: 5", "is '5', not a pattern of layers"),
        (b"like: nano3", "'like' only works in a family's architecture"),
        (b"a: &a [1, *a]", "'&a' contains itself"),
        (b"a: &a [1, 2]\n" + b"".join(b"%c: &%c [*%c, *%c, *%c, *%c]\n" % (n + 1, n + 1, n, n, n, n)
         for n in range(97, 109)), "more than 20,000 values, with its aliases and references"),
        (b"x: " + b"[" * 200_000, "more than 50 levels"),
        (b"x: " + b"9" * 1_000_001, "larger than 1,000,000 bytes"),
        (b"x: " + b"9" * 5000, "not valid YAML"),
    ],
)  # fmt: skip
def test_what_is_no_architecture_is_one_clear_error(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(content)
    with pytest.raises(UserError, match=said):
        load_architecture(str(file), {})


def test_what_is_no_file_is_one_clear_error_too(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    for name in ("pipe.yaml", "folder.yaml", "none.yaml", f"{'x' * 300}.yaml"):
        with pytest.raises(UserError, match=r"not a regular one|not readable"):
            load_architecture(str(tmp_path / name), {})
    assert own_files(str(tmp_path / "pipe.yaml"), f"{'x' * 300}.yaml") == []


def test_sizes_that_may_be_left_out_may_be_null(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("moe_latent_size: null\nhybrid_override_pattern: ME*-\nhidden_size: 8\n")
    assert load_architecture(str(file), {"hidden_size": 16})["hidden_size"] == 16
