import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nemotron_shared.data.files import expand, identity, open_input
from nemotron_shared.data.hub import hub_files
from nemotron_shared.errors import UserError

datasets = pytest.importorskip("datasets")
hub = pytest.importorskip("huggingface_hub")

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CARD = """---
configs:
- config_name: en
  data_files:
  - {split: train, path: en/train-*}
  - {split: test, path: en/test.jsonl}
- config_name: de
  data_files: de/*.jsonl
---
Text.
"""
PARTS = """---
configs:
- config_name: default
  data_files:
  - {split: code_part00, path: data/code.part_00.jsonl}
  - {split: code_part01, path: data/code.part_01.jsonl}
---
"""
ROW = b'{"text": "one"}\n'


def parquet(folder: Path, rows: int) -> bytes:
    pq.write_table(pa.table({"text": [f"row {i}" for i in range(rows)]}), folder / "made.parquet", row_group_size=10)
    content = (folder / "made.parquet").read_bytes()
    (folder / "made.parquet").unlink()
    return content


def languages(folder: Path) -> dict[str, bytes]:
    """A data set with two configurations, one of them with two splits."""
    return {
        "README.md": CARD.encode(),
        "en/train-00000-of-00002.parquet": parquet(folder, 30),
        "en/train-00001-of-00002.parquet": parquet(folder, 20),
        "en/test.jsonl": ROW,
        "de/a.jsonl": ROW * 2,
        "de/b.jsonl": ROW * 2,
    }


def parts() -> dict[str, bytes]:
    """A data set whose files are splits of the one configuration."""
    named = {f"data/code.part_0{number}.jsonl": ROW * (number + 1) for number in range(2)}
    return {"README.md": PARTS.encode(), **named, "data/code.part_00_notes.md": b"notes"}


class Cache:
    """A local cache of the hub, made by hand as the hub's library lays it out."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, repository: str, files: dict[str, bytes], commit: str = COMMIT) -> None:
        folder = self.root / f"datasets--{repository.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True, exist_ok=True)
        (folder / "refs" / "main").write_text(commit)
        (folder / "blobs").mkdir(exist_ok=True)
        for name, content in files.items():
            blob = folder / "blobs" / f"{hash(content):x}".strip("-")
            blob.write_bytes(content)
            place = folder / "snapshots" / commit / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(os.path.relpath(blob, place.parent))


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Cache:
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    return Cache(tmp_path / "hub")


def names(files) -> list[str]:
    return [file.path.partition(COMMIT + "/")[2] for file in files]


def test_a_split_of_a_subset_from_the_cache(cache, tmp_path, capsys):
    cache.add("org/name", languages(tmp_path))
    files = hub_files("hf://org/name", subset="en", split="train")
    assert names(files) == ["en/train-00000-of-00002.parquet", "en/train-00001-of-00002.parquet"]
    assert [file.commit for file in files] == [COMMIT] * 2
    assert identity(files[0])[1]["commit"] == COMMIT
    with open_input(files[0]) as file, pq.ParquetFile(file) as table:
        assert table.metadata.num_rows == 30
    said = capsys.readouterr().err
    assert said.splitlines() == [f"hf://org/name: 2 files of commit {COMMIT[:12]}, read from the local cache"]


def test_expand_gives_subset_and_split_on(cache, tmp_path):
    cache.add("org/name", languages(tmp_path))
    assert names(expand(["hf://org/name"], subset="en", split="test")) == ["en/test.jsonl"]


def test_equal_files_are_not_taken_for_one_named_twice(cache, tmp_path):
    cache.add("org/name", languages(tmp_path))
    assert names(expand(["hf://org/name"], subset="de")) == ["de/a.jsonl", "de/b.jsonl"]


def test_all_splits_and_a_revision(cache, tmp_path):
    cache.add("org/name", languages(tmp_path))
    assert len(hub_files(f"hf://org/name@{COMMIT}", subset="en", split="all")) == 3
    assert len(hub_files("hf://datasets/org/name@main", subset="en", split="all")) == 3


def test_a_path_inside_a_data_set(cache, tmp_path):
    cache.add("org/name", languages(tmp_path))
    assert names(hub_files("hf://org/name/de/*.jsonl")) == ["de/a.jsonl", "de/b.jsonl"]
    assert names(hub_files(f"hf://org/name@{COMMIT}/en/test.jsonl")) == ["en/test.jsonl"]
    assert names(hub_files("hf://org/name/de")) == ["de/a.jsonl", "de/b.jsonl"]


def test_a_data_set_without_a_card_has_what_its_file_names_say(cache):
    cache.add("org/plain", {"train.jsonl": ROW, "test.jsonl": ROW * 2})
    assert names(hub_files("hf://org/plain", split="test")) == ["test.jsonl"]
    cache.add("org/one", {"data/rows.jsonl": ROW})
    assert names(hub_files("hf://org/one")) == ["data/rows.jsonl"]


def test_a_subset_that_is_no_configuration_names_files(cache, capsys):
    cache.add("org/parts", parts())
    assert names(hub_files("hf://org/parts", subset="code.part_00")) == ["data/code.part_00.jsonl"]
    assert "'code.part_00' is no configuration; it is read as data/code.part_00.jsonl" in capsys.readouterr().err
    both = ["data/code.part_00.jsonl", "data/code.part_01.jsonl"]
    assert names(hub_files("hf://org/parts", subset="code")) == both
    assert len(hub_files("hf://org/parts", subset="data")) == 3
    with pytest.raises(UserError, match="have no split 'train'"):
        hub_files("hf://org/parts", subset="code", split="train")


WRONG = [
    ("hf://org/name", {}, "which subset?", "en, de"),
    ("hf://org/name", {"subset": "en"}, "which split?", "train, test, all"),
    ("hf://org/name", {"subset": "en", "split": "trian"}, "no split 'trian'", "did you mean 'train'"),
    ("hf://org/name", {"subset": "en", "split": "x"}, "no split 'x'", "it has train, test"),
    ("hf://org/name", {"subset": "fr", "split": "train"}, "no subset 'fr'", "it has en, de"),
    ("hf://org/name", {"subset": "enn"}, "no subset 'enn'", "did you mean 'en'"),
    ("hf://org/absent", {}, "not in the local cache", "hf download --repo-type dataset org/absent"),
    ("hf://org/name@v9", {"subset": "en"}, "not in the local cache", "HF_HUB_OFFLINE|offline mode"),
    ("hf://org/name/en/tset.jsonl", {}, "no such file", "did you mean 'test.jsonl'"),
    ("hf://org/name/en", {"split": "train"}, "no subset or split", "leave them out"),
    ("hf://name", {}, "not a data set's address", "hf://organisation/name"),
    ("hf://org/table", {}, "holds rows.csv, a format that cannot be read", "refs/convert/parquet"),
]


@pytest.mark.parametrize(("path", "options", "message", "remedy"), WRONG)
def test_what_cannot_be_read_is_an_error_with_a_remedy(cache, tmp_path, path, options, message, remedy):
    cache.add("org/name", languages(tmp_path))
    cache.add("org/table", {"rows.csv": b"text\none\n"})
    with pytest.raises(UserError) as caught:
        hub_files(path, **options)
    assert message in caught.value.message
    assert any(part in str(caught.value.remedy) for part in remedy.split("|"))


@pytest.mark.parametrize("absent", ["en/train-00001-of-00002.parquet", "en/test.jsonl", "de/b.jsonl"])
def test_a_part_of_a_data_set_in_the_cache_is_not_taken_for_the_whole(cache, tmp_path, absent):
    files = languages(tmp_path)
    del files[absent]
    cache.add("org/name", files)
    if hasattr(hub, "get_cached_repo_tree") and absent == "de/b.jsonl":
        pytest.skip("nothing in such a cache tells that this file exists")
    with pytest.raises(UserError, match="cache lacks|names files that are not there"):
        hub_files("hf://org/name", subset="en", split="all")


OFFLINE_BY_ENVIRONMENT = """
from nemotron_shared.data.files import expand
print([file.path for file in expand(["hf://org/name"], subset="de")])
"""


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"])
def test_the_offline_variables_are_honoured(tmp_path, variable):
    Cache(tmp_path / "home" / "hub").add("org/name", languages(tmp_path))
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), variable: "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
    for other in {"HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"} - {variable}:
        environment.pop(other, None)
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE_BY_ENVIRONMENT], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.replace("'", '"'))[1].endswith("de/b.jsonl")
