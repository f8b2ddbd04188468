"""A slice of a split, `train[1024:]`, is the rows that the `datasets` library means by it."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_stand_in import COMMIT, Hub, serving

from nemotron_data.prep.plan import make_shards
from nemotron_data.sources import hub as module
from nemotron_data.sources.files import expand
from nemotron_data.sources.hub import hub_files
from nemotron_data.sources.input_file import identity
from nemotron_data.sources.opening import open_input
from nemotron_data.sources.reading import parse_split, read_files, read_range, rows_of
from nemotron_shared.system.errors import UserError

datasets = pytest.importorskip("datasets")
hub = pytest.importorskip("huggingface_hub")

CARD = """---
configs:
- config_name: en
  data_files:
  - {split: train, path: en/train-*}
  - {split: test, path: en/test.parquet}
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
        "en/test.parquet": parquet(folder, 5),
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
    module._resolved.cache_clear()
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


def test_one_process_sees_one_commit(cache, capsys):
    cache.add("org/name", {"train.jsonl": ROW})
    first = hub_files("hf://org/name")
    cache.add("org/name", {"train.jsonl": ROW * 2}, commit="f" * 40)
    capsys.readouterr()
    first.append(first[0])
    assert hub_files("hf://org/name") == first[:1]
    assert capsys.readouterr().err == "", "it is said once"


def test_expand_gives_subset_and_split_on(cache, tmp_path):
    cache.add("org/name", languages(tmp_path))
    assert names(expand(["hf://org/name"], subset="en", split="test")) == ["en/test.parquet"]


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
    assert names(hub_files(f"hf://org/name@{COMMIT}/en/test.parquet")) == ["en/test.parquet"]
    assert names(hub_files("hf://org/name/de")) == ["de/a.jsonl", "de/b.jsonl"]


def test_a_data_set_without_a_card_has_what_its_file_names_say(cache):
    cache.add("org/plain", {"train.jsonl": ROW, "test.jsonl": ROW * 2})
    assert names(hub_files("hf://org/plain", split="test")) == ["test.jsonl"]
    cache.add("org/one", {"data/rows.jsonl": ROW})
    assert names(hub_files("hf://org/one")) == ["data/rows.jsonl"]


def test_a_subset_that_is_no_configuration_names_files(cache, capsys):
    cache.add("org/parts", parts())
    assert names(hub_files("hf://org/parts", subset="code.part_00")) == ["data/code.part_00.jsonl"]
    assert "'code.part_00' is not a configuration; it is read as data/code.part_00.jsonl" in capsys.readouterr().err
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
    ("hf://org/name/en/tset.parquet", {}, "no such file", "did you mean 'test.parquet'"),
    ("hf://org/name/en", {"split": "train"}, "no subset or split", "leave them out"),
    ("hf://name", {}, "not a data set's address", "hf://organisation/name"),
    ("hf://org/table", {}, "holds rows.xml, a format that cannot be read", "refs/convert/parquet"),
]


@pytest.mark.parametrize(("path", "options", "message", "remedy"), WRONG)
def test_what_cannot_be_read_is_an_error_with_a_remedy(cache, tmp_path, path, options, message, remedy):
    cache.add("org/name", languages(tmp_path))
    cache.add("org/table", {"rows.xml": b"text\none\n"})
    with pytest.raises(UserError) as caught:
        hub_files(path, **options)
    assert message in caught.value.message
    assert any(part in str(caught.value.remedy) for part in remedy.split("|"))


@pytest.mark.parametrize("absent", ["en/train-00001-of-00002.parquet", "en/test.parquet"])
def test_a_part_of_a_data_set_in_the_cache_is_not_taken_for_the_whole(cache, tmp_path, absent):
    files = languages(tmp_path)
    del files[absent]
    cache.add("org/name", files)
    with pytest.raises(UserError, match=r"cache lacks en/train-00001|card names cannot be found"):
        hub_files("hf://org/name", subset="en", split="all")


@pytest.mark.skipif(not hasattr(hub, "get_cached_repo_tree"), reason="older caches have no listing")
def test_the_listing_of_the_cache_tells_what_is_missing(cache, tmp_path):
    files = {f"data/part_{number}.jsonl": ROW * number for number in (1, 2, 3)}
    cache.add("org/name", {name: files[name] for name in list(files)[:2]})
    assert len(hub_files("hf://org/name")) == 2, "nothing tells that there is more"
    module._resolved.cache_clear()
    listing = [hub.hf_api.RepoFile(path=name, size=1, oid="0") for name in [*files, "other.jsonl"]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub, "get_cached_repo_tree", lambda *_, **__: listing)
        with pytest.raises(UserError, match=r"cache lacks data/part_3\.jsonl\n"):
            hub_files("hf://org/name/data/part_*.jsonl")


OFFLINE_BY_ENVIRONMENT = """
from nemotron_data.sources.files import expand
print([file.path for file in expand(["hf://org/name"], subset="de")])
"""


@pytest.mark.slow
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


@pytest.fixture
def online(tmp_path):
    """Runs Python code against a hub of our own and gives what it printed, and the hub."""
    with ExitStack() as running:

        def run(code: str, repositories: dict[str, dict[str, bytes]], **options) -> tuple[str, Hub]:
            served = running.enter_context(serving(Hub(repositories, **options)))
            done = subprocess.run(
                [sys.executable, "-c", code],
                env=served.environment(tmp_path / "home"),
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert "neverinamessage" not in done.stdout + done.stderr
            return done.stdout + done.stderr, served

        yield run


STREAM = """
from nemotron_data.sources.files import expand
from nemotron_data.sources.input_file import check_unchanged
from nemotron_data.sources.opening import open_input
files = expand(["hf://org/big"], split="train")
for file in files:
    print(file.path, file.size, file.version, file.commit)
    check_unchanged(file)
with open_input(files[0]) as file:
    file.seek(files[0].size - 9)
    print(file.read())
(inside,) = expand(["hf://org/big@main/data/tr*.jsonl"])
assert inside == files[0], inside
"""


def test_online_a_data_set_is_pinned_and_read_by_ranges(online):
    content = b'{"text": "' + b"x" * (30 << 20) + b'end"}\n'
    files = {"data/train.jsonl": content, "data/test.jsonl": ROW, "README.md": b"---\nlicense: mit\n---\n"}
    said, served = online(STREAM, {"org/big": files})
    path = f"hf://datasets/org/big@{COMMIT}/data/train.jsonl"
    assert f"{path} {len(content)} {sha256(content).hexdigest()} {COMMIT}" in said
    assert "xxxend" in said
    assert f"hf://org/big: 1 file of commit {COMMIT[:12]}, read from the hub" in said
    assert 0 < served.served < len(content) / 2, "the whole file was fetched"
    assert served.revisions - {"main"} == {COMMIT}


ERRORS = """
from nemotron_data.sources.hub import hub_files
from nemotron_shared.system.errors import UserError
for path, options in [("hf://org/secret", {}), ("hf://org/none", {}), ("hf://org/parts@v2", {}), ("hf://org/parts", {}),
                      ("hf://org/parts", {"subset": "code.part_01"}), ("hf://org/parts/data/x.jsonl", {})]:
    try:
        print(path, [file.path for file in hub_files(path, **options)])
    except UserError as error:
        print(path, error)
"""


def test_online_what_cannot_be_read_is_an_error_with_a_remedy(online):
    said, _ = online(ERRORS, {"org/secret": parts(), "org/parts": parts()}, gated=("org/secret",))
    for expected in (
        "hf://org/secret: a gated data set\n  ask for access on its page, then set HF_TOKEN",
        "hf://org/none: no such data set on the hub, or a private one\n  check the name; for a private one set HF_",
        "hf://org/parts@v2: no revision 'v2'",
        "hf://org/parts: which split?\n  set split to code_part00, code_part01, all",
        f"['hf://datasets/org/parts@{COMMIT}/data/code.part_01.jsonl']",
        "hf://org/parts/data/x.jsonl hf://datasets/org/parts",
    ):
        assert expected in said


hf_datasets = pytest.importorskip("datasets")
TOTAL = 50
SLICES = (
    "[10:]", "[:10]", "[29:31]", "[30:]", "[:30]", "[31:33]", "[:]", "[0:50]", "[:99]", "[-7:]", "[:-7]", "[-30:-10]",
    "[:10%]", "[10%:]", "[33%:67%]", "[-10%:]", "[:100%]",
)  # fmt: skip


def write_files(folder: Path, kind: str) -> list[Path]:
    """Rows 0 to 49 in two files of 30 and 20."""
    folder.mkdir()
    rows = [{"n": n, "pad": "x" * (n * 7 % 23)} for n in range(TOTAL)]
    for name, part in (("a", rows[:30]), ("b", rows[30:])):
        file = folder / f"{name}.{kind}"
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(part), file, row_group_size=8)
        elif kind == "json":
            file.write_text(json.dumps(part))
        else:  # blank lines are no rows
            file.write_text("\n\n".join(json.dumps(row) for row in part) + "\n")
    return sorted(folder.iterdir())


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "json"])
@pytest.mark.parametrize("text", SLICES)
def test_a_slice_has_the_rows_that_datasets_gives_it(tmp_path: Path, kind: str, text: str) -> None:
    (meant,) = hf_datasets.ReadInstruction.from_spec(f"train{text}").to_absolute({"train": TOTAL})
    name, asked = parse_split("x", f"train{text}")
    assert name == "train" and asked is not None
    files = rows_of("x", expand(write_files(tmp_path / "set", kind)), asked)
    wanted = list(range(meant.from_ or 0, TOTAL if meant.to is None else meant.to))
    assert [row.value["n"] for row in read_files(files)] == wanted
    for shard_bytes in (100, 10**6):
        shards = make_shards([files], shard_bytes)
        rows = [row.value["n"] for shard in shards for part in shard.ranges for row in read_range(part)]
        assert rows == wanted
    first = make_shards([files], 10**6, limit=3)[0].ranges
    assert [row.value["n"] for part in first for row in read_range(part)] == wanted


WRONG_SLICES = {
    "train[": "not a slice of rows",
    "train[5]": "not a slice of rows",
    "train[a:]": "not a slice of rows",
    "[5:]": "not a slice of rows",
    "train[:5](closest)": "not a slice of rows",
    "train[10:20%]": "rows in one place and percent in the other",
    "train[%:20]": "rows in one place and percent in the other",
    "train[:200%]": "more than 100 percent",
}


@pytest.mark.parametrize("text", WRONG_SLICES)
def test_what_is_no_slice_is_an_error_that_shows_how_it_is_written(text: str) -> None:
    with pytest.raises(UserError, match=WRONG_SLICES[text]) as caught:
        parse_split("hf://org/name", text)
    assert "write train[1024:]" in str(caught.value.remedy)


@pytest.mark.parametrize("text", ["train[50:]", "train[20:10]", "train[:0]", "train[1%:1%]", "train[-60:-50]"])
def test_a_slice_without_a_row_is_an_error(tmp_path: Path, text: str) -> None:
    asked = parse_split("x", text)[1]
    assert asked is not None
    with pytest.raises(UserError, match=r"holds no row\n"):
        rows_of("x", expand(write_files(tmp_path / "set", "parquet")), asked)


def test_the_record_of_an_input_says_which_rows(tmp_path: Path) -> None:
    asked = parse_split("x", "train[25:]")[1]
    assert asked is not None
    first, second = rows_of("x", expand(write_files(tmp_path / "set", "jsonl")), asked)
    assert identity(first)[1]["rows"] == [25, None]
    assert "rows" not in identity(second)[1]


STREAM_SLICE = """
from nemotron_data.sources.files import expand
from nemotron_data.sources.reading import read_files
from nemotron_data.sources.datasets import file_sources
from nemotron_shared.config.data import SourceSection
rows = read_files(expand(["hf://org/big"], split="train[9950:9960]"))
asked = SourceSection.model_construct(source="hf://org/big", subset=None, hub_split="train[9950:9960]")
print([row.value["n"] for row in rows], [source.detail["rows"] for source in file_sources(asked)])
"""


def test_what_lies_before_a_slice_of_parquet_is_not_fetched(tmp_path: Path) -> None:
    noise = pa.array([os.urandom(2000) for _ in range(10_000)])
    pq.write_table(pa.table({"n": range(10_000), "noise": noise}), tmp_path / "made", row_group_size=100)
    content = (tmp_path / "made").read_bytes()
    with serving(Hub({"org/big": {"data/train-00000-of-00001.parquet": content}})) as hub:
        done = subprocess.run(
            [sys.executable, "-c", STREAM_SLICE],
            env=hub.environment(tmp_path),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{list(range(9950, 9960))} [[9950, 9960]]\n"
        assert "hf://org/big: train[9950:9960], 1 file of commit" in done.stderr
        assert 0 < hub.served < len(content) / 2, "what comes before was fetched"


STREAM_TYPES = """
import json
from nemotron_data.sources.files import expand
from nemotron_data.sources.reading import read_files
print(json.dumps([row.value for row in read_files(expand(["hf://org/chats"], split="train"))]))
"""


def test_columns_of_json_and_maps_are_read_from_the_hub_as_from_a_disk(online, tmp_path: Path) -> None:
    said = ["plain", "007", [{"type": "text", "text": "in parts"}]]
    turns = [[{"role": "user", "content": "q"}, {"role": "assistant", "content": text}] for text in said]
    part = {"role": datasets.Value("string"), "content": datasets.Json()}
    made = datasets.Dataset.from_dict(
        {"messages": turns, "grid": [[[1.0, 2.0]]] * 3},
        features=datasets.Features({"messages": datasets.List(part), "grid": datasets.Array2D((1, 2), "float32")}),
    )
    made.to_parquet(tmp_path / "made.parquet")
    table = pq.read_table(tmp_path / "made.parquet")
    places = pa.array([[("city", "Oslo")], [], None], pa.map_(pa.string(), pa.string()))
    pq.write_table(table.append_column("place", places), tmp_path / "made.parquet")
    content = (tmp_path / "made.parquet").read_bytes()
    printed, _ = online(STREAM_TYPES, {"org/chats": {"data/train-00000-of-00001.parquet": content}})
    wanted = [
        {"messages": messages, "grid": [[1.0, 2.0]], "place": place}
        for messages, place in zip(turns, ({"city": "Oslo"}, {}, None), strict=True)
    ]
    assert json.loads(printed.splitlines()[0]) == wanted
    assert [row.value for row in read_files(expand([tmp_path / "made.parquet"]))] == wanted
