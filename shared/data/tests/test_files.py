"""Planning over many files asks the disk a fixed number of times for each of them."""

import gzip
import hashlib
import io
import json
import os
import struct
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from nemotron_data.chat.template import template_text
from nemotron_data.sources import datasets, input_file, listing, opening
from nemotron_data.sources.datasets import RowKind
from nemotron_data.sources.files import expand
from nemotron_data.sources.input_file import InputFile, check_unchanged, format_of, identity, local_file
from nemotron_data.sources.opening import open_input
from nemotron_data.sources.reading import Range, read_range
from nemotron_data.tokenizers.folder import provide_tokenizer
from nemotron_shared.config.data import SourceSection
from nemotron_shared.models.folder import require_own_files
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.redaction import redact

LINES = b'{"text": "one"}\n{"text": "two"}\n'


def write(path: Path, content: str | bytes = LINES) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.fixture
def memory():
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def paths(*asked: object) -> list[str]:
    return [file.path for file in expand([str(path) for path in asked])]


@pytest.mark.parametrize(
    ("name", "content", "compression"),
    [
        ("a.jsonl", "rows", ""),
        ("a.JSON", "rows", ""),
        ("a.ndjson.zst", "rows", "zst"),
        ("s3://b/a.jsonl.gz", "rows", "gz"),
        ("a.parquet", "parquet", ""),
        ("a.txt", "text", ""),
        ("a.md.gz", "text", "gz"),
    ],
)
def test_the_name_tells_the_format(name, content, compression):
    form = format_of(name)
    assert (form.content, form.compression) == (content, compression)
    assert name.lower().endswith(form.ending)


@pytest.mark.parametrize("name", ["a.xml", "a.gz", "a.parquet.gz", "jsonl", "a.jsonl.bz2"])
def test_an_unknown_extension_is_refused_with_what_is_readable(name):
    with pytest.raises(UserError, match="unknown extension") as caught:
        format_of(name)
    assert ".parquet" in str(caught.value.remedy)


def test_folders_are_sorted_and_hidden_files_left_out(tmp_path):
    for name in ("b/2.jsonl", "a/1.jsonl", "c.jsonl.zst", ".cache/x.jsonl", "a/.tmp-c.jsonl"):
        write(tmp_path / name)
    found = expand([tmp_path])
    assert [file.path for file in found] == [str(tmp_path / name) for name in ("a/1.jsonl", "b/2.jsonl", "c.jsonl.zst")]
    assert [file.size for file in found] == [len(LINES)] * 3
    assert paths(tmp_path / "**" / "*.jsonl") == [str(tmp_path / "a/1.jsonl"), str(tmp_path / "b/2.jsonl")]
    assert paths(tmp_path / "b", tmp_path / "a") == [str(tmp_path / "b/2.jsonl"), str(tmp_path / "a/1.jsonl")]


def test_a_name_with_glob_characters_is_first_of_all_a_name(tmp_path):
    assert paths(write(tmp_path / "a[1].jsonl")) == [str(tmp_path / "a[1].jsonl")]


def test_linked_folders_are_followed_and_what_leads_nowhere_is_an_error(tmp_path):
    write(tmp_path / "far" / "1.jsonl")
    (tmp_path / "near").mkdir()
    (tmp_path / "near" / "link").symlink_to(tmp_path / "far")
    assert paths(tmp_path / "near") == [str(tmp_path / "near" / "link" / "1.jsonl")]
    (tmp_path / "near" / "dead.jsonl").symlink_to(tmp_path / "gone.jsonl")
    with pytest.raises(UserError, match="leads nowhere"):
        expand([tmp_path / "near"])
    (tmp_path / "near" / "dead.jsonl").unlink()
    (tmp_path / "far" / "back").symlink_to(tmp_path / "near")
    with pytest.raises(UserError, match="link to a folder that contains it"):
        expand([tmp_path / "near"])


@pytest.mark.parametrize(
    ("names", "asked", "message"),
    [
        (["train.jsonl"], "trian.jsonl", "did you mean 'train.jsonl'"),
        (["data/train.jsonl"], "date/train.jsonl", "did you mean 'data'"),
        (["train.jsonl"], "nothing/*.jsonl", "holds no 'nothing'"),
        (["train.jsonl"], "qqq.csv", "qqq.csv: no such file\n  check the path"),
        (["train.xml"], "train.xml", "unknown extension"),
        (["folder/.hidden.jsonl"], "folder", "an empty folder"),
        (["folder/README.md", "folder/a.jsonl.gz"], "folder", "both rows and text documents"),
        ([], "http://example.test/a.jsonl", "download it first"),
        ([], "ftp://example.test/a.jsonl", "'ftp://' paths are not supported"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_a_remedy(tmp_path, monkeypatch, names, asked, message):
    monkeypatch.chdir(tmp_path)
    for name in names:
        write(Path(name))
    with pytest.raises(UserError) as caught:
        expand([asked])
    assert message in str(caught.value)
    assert caught.value.remedy


def test_a_file_named_twice_is_refused(tmp_path, memory):
    path = write(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").symlink_to(path)
    for twice in ([path, tmp_path / "*.jsonl"], [path, tmp_path / "b.jsonl"]):
        with pytest.raises(UserError, match="named twice"):
            expand(twice)
    memory.pipe("/d/a.jsonl", LINES)
    with pytest.raises(UserError, match="named twice"):
        expand(["memory://d/a.jsonl", "memory://d"])


@pytest.mark.parametrize("key", ["subset", "split"])
def test_subset_and_split_only_belong_to_the_hub(tmp_path, key):
    with pytest.raises(UserError, match=f"'{key}' only belongs to an hf:// path"):
        expand([write(tmp_path / "a.jsonl")], **{key: "train"})


def compressed(kind: str, content: bytes) -> bytes:
    return gzip.compress(content, mtime=0) if kind == "gz" else zstandard.ZstdCompressor().compress(content)


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_every_member_of_a_compressed_file_is_read(tmp_path, kind):
    content = os.urandom(200_000) + LINES * 20_000
    streams = [compressed(kind, content[:70_001]), compressed(kind, b""), compressed(kind, content[70_001:])]
    path = write(tmp_path / f"a.jsonl.{kind}", b"".join(streams))
    with open_input(path) as file:
        assert file.read() == content
    with open_input(path) as file:
        assert b"".join(file) == content
    with open_input(write(tmp_path / f"empty.jsonl.{kind}", b"")) as file:
        assert file.read() == b""


def test_padding_between_members_is_passed_over(tmp_path):
    skippable = struct.pack("<II", 0x184D2A50, 3) + b"abc"
    padded = {"gz": gzip.compress(LINES) + b"\0" * 100_000, "zst": skippable + compressed("zst", LINES) + skippable}
    for kind, content in padded.items():
        with open_input(write(tmp_path / f"a.jsonl.{kind}", content)) as file:
            assert file.read() == LINES


@pytest.mark.parametrize("kind", ["gz", "zst"])
@pytest.mark.parametrize("missing", [1, 4, 20, 5_000])
def test_a_stream_that_is_cut_short_is_an_error(tmp_path, kind, missing):
    whole = compressed(kind, LINES) + compressed(kind, os.urandom(9_000))
    path = write(tmp_path / f"a.jsonl.{kind}", whole[:-missing])
    with open_input(path) as file, pytest.raises(UserError, match=rf"a\.jsonl\.{kind}: cut short"):
        file.read()


@pytest.mark.parametrize("kind", ["gz", "zst"])
@pytest.mark.parametrize("spoil", [lambda whole: b"not compressed" + whole, lambda whole: whole + b"rubbish"])
def test_a_damaged_stream_is_an_error(tmp_path, kind, spoil):
    path = write(tmp_path / f"a.jsonl.{kind}", spoil(compressed(kind, LINES)))
    with open_input(path) as file, pytest.raises(UserError, match="cannot be decompressed"):
        file.read()


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_bomb_is_decompressed_piece_by_piece(tmp_path, kind):
    path = write(tmp_path / f"a.jsonl.{kind}", compressed(kind, b"\n" * (256 << 20)))
    with open_input(path) as file:
        assert file.read(10) == b"\n" * 10
        assert len(file.raw._ready) <= 128 << 20


def test_plain_files_and_parquet_can_be_sought_in(tmp_path, memory):
    table = pa.table({"text": [f"row {i}" for i in range(1000)]})
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=100)
    memory.pipe({"/d/t.parquet": sink.getvalue(), "/d/a.jsonl": LINES})
    write(tmp_path / "t.parquet", sink.getvalue())
    for place in ("memory://d/t.parquet", str(tmp_path / "t.parquet")):
        with open_input(place) as file, pq.ParquetFile(file) as opened:
            assert opened.read_row_group(7).to_pylist()[0] == {"text": "row 700"}
    for place in ("memory://d/a.jsonl", str(write(tmp_path / "a.jsonl"))):
        with open_input(expand([place])[0]) as file:
            assert file.seek(16) == 16
            assert file.readline() == b'{"text": "two"}\n'
            assert file.read(5) == b""


def test_remote_files_folders_and_globs(memory):
    for name in ("b/2.jsonl", "a/1.jsonl", "c.jsonl.zst", ".cache/x.jsonl", "a/.part.jsonl"):
        memory.pipe(f"/data/{name}", compressed("zst", LINES) if name.endswith("zst") else LINES)
    expected = ["memory://data/a/1.jsonl", "memory://data/b/2.jsonl", "memory://data/c.jsonl.zst"]
    assert paths("memory://data") == paths("memory://data/") == expected
    assert paths("memory://data/**/*.jsonl.zst", "memory://data/a/*") == [expected[2], expected[0]]
    files = expand(["memory://data"])
    assert [file.size for file in files[:2]] == [len(LINES)] * 2
    assert all(file.version for file in files)
    with open_input(files[2]) as file:
        assert file.read() == LINES


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("memory://data/trian.jsonl", "did you mean 'train.jsonl'"),
        ("memory://nowhere/train.jsonl", "no such file"),
        ("memory://data/*.csv", "no such file"),
        ("memory://mixed", "both rows and text documents"),
        ("memory://key:word@data/a.jsonl", "credentials in a path"),
    ],
)
def test_a_remote_path_that_cannot_be_read_is_an_error_with_a_remedy(memory, asked, message):
    memory.pipe({"/data/train.jsonl": LINES, "/mixed/a.jsonl": LINES, "/mixed/b.md": LINES})
    with pytest.raises(UserError) as caught:
        expand([asked])
    assert message in str(caught.value)
    assert caught.value.remedy
    assert "word" not in str(caught.value)


@pytest.mark.parametrize(("scheme", "package"), [("s3", "s3fs"), ("gs", "gcsfs")])
def test_a_missing_package_is_named(monkeypatch, scheme, package):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, scheme, raising=False)
    with pytest.raises(UserError, match=package) as caught:
        expand([f"{scheme}://bucket/a.jsonl"])
    assert f"uv pip install --python {sys.executable} {package}" in str(caught.value)


class Refusing:
    """A store that has one file and fails in the way that a test asks for."""

    def __init__(self, error: Exception, *, on_open: bool = False) -> None:
        self.error, self.on_open = error, on_open

    def isfile(self, path: str) -> bool:
        if not self.on_open:
            raise self.error
        return True

    def info(self, path: str) -> dict:
        return {"name": path, "size": 3, "type": "file", "ETag": '"abc"'}

    def open(self, path: str, mode: str) -> io.BytesIO:
        raise self.error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError("403 for AKIAEXAMPLE"), "access is refused"),
        (OSError("https://bucket.test/a?X-Amz-Signature=AKIAEXAMPLE failed"), "cannot be read: OSError"),
        (RuntimeError("no login for AKIAEXAMPLE"), "RuntimeError: no login for ***"),
    ],
)
@pytest.mark.parametrize("on_open", [False, True])
def test_no_message_shows_a_credential(monkeypatch, error, message, on_open):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "AKIAEXAMPLE")
    for module in (listing, opening):
        monkeypatch.setattr(module, "file_system", lambda url: (Refusing(error, on_open=on_open), url[5:]))
    with pytest.raises(UserError) as caught:
        open_input(expand(["s3://bucket/a.jsonl"])[0])
    assert message in str(caught.value)
    assert "AKIAEXAMPLE" not in str(caught.value)
    assert "AWS_ACCESS_KEY_ID" in str(caught.value.remedy)


class Breaking(io.RawIOBase):
    """A file whose store fails while it is read."""

    place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self.place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self.place, os.SEEK_END: 99}[whence]
        return self.place

    def readinto(self, target: object) -> int:
        raise ConnectionResetError("https://bucket.test/a?X-Amz-Signature=AKIAEXAMPLE was reset")


def test_a_store_that_fails_while_it_is_read_is_named_and_shows_no_credential(monkeypatch):
    system = SimpleNamespace(open=lambda path, mode: Breaking())
    monkeypatch.setattr(opening, "file_system", lambda url: (system, url[5:]))
    file = InputFile("s3://bucket/a.jsonl", 3, "")
    for name in ("s3://bucket/a.jsonl", "s3://bucket/a.jsonl.zst", "s3://bucket/a.parquet", "s3://bucket/a.txt"):
        with pytest.raises(UserError, match=rf"^{name}: cannot be read: ConnectionResetError") as caught:
            list(read_range(Range(replace(file, path=name), 0, 3)))
        assert "AKIAEXAMPLE" not in str(caught.value)
        assert "AWS_ACCESS_KEY_ID" in str(caught.value.remedy)


def test_secrets_are_blotted_out_and_the_rest_stays(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "verysecret")
    assert redact("hf://org/name@main/a?b") == "hf://org/name@main/a?b"
    assert redact("s3://me:pw@bucket/a.jsonl, https://x.test/y?sig=1&k=2.") == (
        "s3://***@bucket/a.jsonl, https://x.test/y?***."
    )
    assert redact(f"Bearer verysecret or hf_{'aBc' * 11}") == "Bearer *** or ***"
    assert redact("is it there? a@b") == "is it there? a@b"


def test_where_links_lead_is_said_and_recorded(tmp_path, capsys):
    far = write(tmp_path / "far" / "1.jsonl")
    write(tmp_path / "near" / "own.jsonl", b'{"text": "other"}\n')
    (tmp_path / "near" / "2.jsonl").symlink_to(far)
    (tmp_path / "again").symlink_to(tmp_path / "near")
    (tmp_path / "near" / "deep").symlink_to(write(tmp_path / "away" / "4.jsonl", b"{}\n").parent)
    for named in ("near", "again"):
        targets = [file.target for file in expand([tmp_path / named])]
        assert targets == [str(far), str(tmp_path / "away" / "4.jsonl"), None]
    (named,) = expand([tmp_path / "near" / "2.jsonl"])
    assert identity(named)[1]["target"] == str(far)
    assert f"links lead elsewhere: {tmp_path / 'near' / '2.jsonl'} -> {far}" in capsys.readouterr().err


def test_the_identity_of_a_file_is_its_content(tmp_path):
    path = write(tmp_path / "a.jsonl")
    expected = (hashlib.sha256(LINES).hexdigest(), {"bytes": len(LINES), "digest_of": "content"})
    assert identity(local_file(path)) == expected
    os.utime(path, ns=(1, 1))
    assert identity(local_file(path)) == expected


def test_the_identity_of_a_large_file_is_a_sample(tmp_path, monkeypatch):
    monkeypatch.setattr(input_file, "WHOLE_BYTES", 100)
    monkeypatch.setattr(input_file, "SAMPLE_BYTES", 4)
    path = write(tmp_path / "a.jsonl", bytes(range(200)))
    digest, detail = identity(local_file(path))
    assert detail == {"bytes": 200, "digest_of": "size, time and samples"}
    stat = path.stat()
    for place in (0, 199):  # the ends are among the samples
        content = bytearray(range(200))
        content[place] ^= 1
        path.write_bytes(content)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert identity(local_file(path))[0] != digest
    path.write_bytes(bytes(range(200)))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert identity(local_file(path))[0] == digest
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert identity(local_file(path))[0] != digest


def test_the_identity_of_a_remote_file_is_its_version(memory):
    memory.pipe("/d/a.jsonl", LINES)
    first = identity(expand(["memory://d/a.jsonl"])[0])
    assert first[1] == {"bytes": len(LINES), "digest_of": "size and version"}
    memory.pipe("/d/a.jsonl", LINES)
    assert identity(expand(["memory://d/a.jsonl"])[0])[0] != first[0]
    pinned = InputFile("hf://datasets/o/n@abc/a.jsonl", 3, "v", "abc")
    assert identity(pinned)[1]["commit"] == "abc"


def test_a_file_that_changes_is_noticed(tmp_path, memory):
    path = write(tmp_path / "a.jsonl")
    file = local_file(path)
    check_unchanged(file)
    os.utime(path, ns=(1, 1))
    with pytest.raises(UserError, match="changed while it was being read"):
        check_unchanged(file)
    path.unlink()
    with pytest.raises(UserError, match=r"a\.jsonl: no such file any more"):
        check_unchanged(file)
    with pytest.raises(UserError, match=r"a\.jsonl: no such file any more"):
        open_input(file)
    memory.pipe("/d/a.jsonl", LINES)
    far = expand(["memory://d/a.jsonl"])[0]
    check_unchanged(far)
    memory.pipe("/d/a.jsonl", LINES + LINES)
    with pytest.raises(UserError, match="changed while it was being read"):
        check_unchanged(far)
    memory.rm("/d/a.jsonl")
    with pytest.raises(UserError, match="no such file"):
        check_unchanged(far)


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "a.jsonl")
    file = local_file(path)
    path.chmod(0)
    if os.access(path, os.R_OK):  # root may read everything, so the refusal is made
        refuse = PermissionError(13, "Permission denied", str(path))
        refused = Mock(side_effect=refuse)
        monkeypatch.setattr(Path, "open", refused)
        monkeypatch.setattr(input_file, "open", refused, raising=False)
        monkeypatch.setattr(os, "access", lambda *_: False)
    for read in (open_input, identity, check_unchanged):
        with pytest.raises(UserError, match=r"a\.jsonl: may not be read"):
            read(file)


FILES = 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(FILES):
        place = tmp_path / "rows" / str(number % 3) / f"{number}.jsonl"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps({"text": str(number)}) + "\n")
    return tmp_path / "rows"


def count(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[Any]:
    """The arguments of every call of a function."""
    calls: list[Any] = []
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *given, **named: calls.append(given) or original(*given, **named))
    return calls


def test_links_of_folders_are_followed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = count(monkeypatch, os.path, "realpath")
    assert len(expand([folder])) == FILES
    assert 0 < len(followed) < 20


def test_a_blend_looks_for_templates_and_tokenizers_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = [{"name": path.stem, "path": str(path)} for path in sorted(folder.rglob("*.jsonl"))]
    blend = folder.parent / "blend.json"
    blend.write_text(json.dumps({"datasets": sets}, indent=1))
    looked = count(monkeypatch, datasets, "own_files")
    kind = RowKind("text", folder, lambda seed, rows: [], "text")
    settings = SourceSection.model_construct(source=str(blend), subset=None, hub_split=None)
    found = kind.sources(settings, 0)
    assert len(looked) == 1
    assert [source.uri for source in found] == [str(blend), *(one["path"] for one in sets)]


def test_the_same_file_by_a_link_is_still_named_twice(folder: Path) -> None:
    link = folder.parent / "linked"
    link.symlink_to(folder / "0")
    with pytest.raises(UserError, match="named twice"):
        expand([folder, link])
    (folder / "1" / "again.jsonl").symlink_to(folder / "2" / "2.jsonl")
    with pytest.raises(UserError, match="named twice"):
        expand([folder])


def test_further_chat_templates_stay_with_the_tokenizer_unless_another_one_is_chosen(tmp_path: Path) -> None:
    inner = tmp_path / "model" / "additional_chat_templates"
    inner.mkdir(parents=True)
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    (inner / "tool_use.jinja").write_text("{{ tools }}")
    (inner / "notes.txt").write_text("x")
    made = provide_tokenizer(str(tmp_path / "model"), tmp_path / "copy")
    there = made.path / "additional_chat_templates"
    assert [path.name for path in there.iterdir()] == ["tool_use.jinja"]
    made.give_template("{{ messages }}")
    assert there.is_dir()
    made.give_template("{{ messages }}", alone=True)
    assert not there.exists() and (made.path / "chat_template.jinja").read_text() == "{{ messages }}"


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
    monkeypatch.setattr("nemotron_shared.models.folder.MOST_FILES", 2)
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
