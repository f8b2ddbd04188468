"""A tokenizer's folder with a link that leads out of it is refused: its target would be copied beside the data."""

import os
from pathlib import Path

import pytest

from nemotron_data.chat.template import template_text
from nemotron_data.tokenizers.folder import provide_tokenizer
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.models.folder import require_own_files


@pytest.mark.parametrize("target", ["/etc/hostname", "../private.json", "inner/../../private.json"])
def test_a_link_out_of_the_folder_is_refused(tmp_path: Path, target: str) -> None:
    folder = tmp_path / "model"
    (folder / "inner").mkdir(parents=True)
    (tmp_path / "private.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").symlink_to(target)
    with pytest.raises(UserError, match=r"tokenizer_config\.json: a link out of the folder, to /"):
        provide_tokenizer(str(folder), tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_link_below_the_top_is_refused_and_the_search_ends(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "model"
    inner, hidden = folder / "additional_chat_templates", folder / ".cache"
    for made in (inner, hidden):
        made.mkdir(parents=True)
    (hidden / "python").symlink_to("/usr/bin/python3")
    (folder / "again").symlink_to(".")
    require_own_files(folder)
    (inner / "default.jinja").symlink_to("/etc/hostname")
    with pytest.raises(UserError, match=r"default\.jinja: a link out of the folder, to /etc/hostname"):
        require_own_files(folder)
    monkeypatch.setattr("nemotron_shared.runtime.models.folder.MOST_FILES", 2)
    with pytest.raises(UserError, match="holds more than 2 files and folders"):
        require_own_files(folder)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("tokenizer_config.json", 12 * 2**30),
        ("tokenizer.json", 12 * 2**30),
        ("chat_template.jinja", 3 * 2**30),
        ("additional_chat_templates/tool_use.jinja", 3 * 2**30),
    ],
)
def test_a_small_file_that_is_not_small_is_refused(tmp_path: Path, name: str, size: int) -> None:
    folder = tmp_path / "model"
    (folder / name).parent.mkdir(parents=True)
    (folder / "tokenizer.json").write_text("{}")
    (folder / name).touch()
    os.truncate(folder / name, size)
    with pytest.raises(UserError, match=rf"{name}: {size:,} bytes, and [\d,]+ are the most"):
        provide_tokenizer(str(folder), tmp_path / "copy")
    if name.endswith(".jinja"):
        with pytest.raises(UserError, match="are the most"):
            template_text(folder / name)


def test_links_within_the_folder_and_a_hubs_cache_are_followed(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "c0ffee", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "abc").write_text("{}")
    (snapshot / "tokenizer.json").symlink_to("../../blobs/abc")
    (snapshot / "same.json").symlink_to("tokenizer.json")
    require_own_files(snapshot)
