"""Files that a person names: replaced whole, through links, and never where a rename would destroy something else."""

import os
import stat
from pathlib import Path

import pytest

from nemotron_shared.system.atomic import LARGEST_JSON, copy_content, open_atomic, output_file, read_json, write_text
from nemotron_shared.system.errors import UserError


def test_a_link_leads_to_the_file_that_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "kept.html", tmp_path / "link.html"
    target.write_text("before")
    link.symlink_to(target)
    write_text(output_file(link), "after")
    assert (target.read_text(), link.is_symlink()) == ("after", True)


def test_a_new_file_in_a_new_folder_with_the_longest_name(tmp_path: Path) -> None:
    place = tmp_path / "new" / ("x" * 255)
    write_text(output_file(place), "text")
    assert place.read_text() == "text"
    assert output_file("~/page.html") == Path("~/page.html").expanduser().resolve()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pipe", "a device or a pipe"),
        ("link-to-pipe", "a device or a pipe"),
        (".", "that is a folder"),
        ("new/", "the name of a folder"),
        ("file/page.html", "Not a directory"),
        ("x" * 300, "File name too long"),
        ("loop", "symbolic links"),
        ("-", "no file to standard output"),
        ("/dev/null", "a device or a pipe"),
        ("/proc/page.html", "takes no files"),
    ],
)
def test_what_is_no_file_is_refused_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("file").write_text("x")
    Path("link-to-pipe").symlink_to("pipe")
    Path("loop").symlink_to("loop")
    before = sorted(Path().iterdir())
    with pytest.raises(UserError, match="cannot be written") as error:
        output_file(name)
    assert said in error.value.message and name in error.value.message
    assert sorted(Path().iterdir()) == before
    assert stat.S_ISFIFO(Path("pipe").stat().st_mode)


def test_the_file_of_standard_output_is_not_replaced(tmp_path: Path) -> None:
    place = tmp_path / "out.txt"
    saved = os.dup(1)
    with place.open("w") as file:
        os.dup2(file.fileno(), 1)
        try:
            with pytest.raises(UserError, match="what this command prints goes there"):
                output_file("/dev/stdout")
        finally:
            os.dup2(saved, 1)
            os.close(saved)


def test_no_write_replaces_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="a device or a pipe"), open_atomic(tmp_path / "pipe"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_copy_is_whole_where_the_system_call_is_not_there_or_ends_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").write_bytes(b"x" * 100_000)
    for call in (os.copy_file_range, lambda source, target, count: 0):
        monkeypatch.setattr(os, "copy_file_range", call)
        copy_content(tmp_path / "own", tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == b"x" * 100_000
        (tmp_path / "copy").unlink()
    monkeypatch.delattr(os, "copy_file_range")
    copy_content(tmp_path / "own", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"x" * 100_000


def test_a_sparse_file_of_any_size_is_not_read(tmp_path: Path) -> None:
    place = tmp_path / "config.json"
    place.write_text("{}")
    os.truncate(place, LARGEST_JSON + 1)
    with pytest.raises(UserError, match=r"config\.json: 67,108,865 bytes, and 67,108,864 are the most"):
        read_json(place)
    with pytest.raises(UserError, match="not valid JSON"):
        read_json(place, most=None)
