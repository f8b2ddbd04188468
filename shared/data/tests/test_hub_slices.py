"""A slice of a split, `train[1024:]`, is the rows that the `datasets` library means by it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_stand_in import Hub, serving

from nemotron_data.prep.plan import make_shards
from nemotron_data.sources.files import expand, identity
from nemotron_data.sources.reading import parse_split, read_files, read_range, rows_of
from nemotron_shared.errors import UserError

datasets = pytest.importorskip("datasets")
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
    (meant,) = datasets.ReadInstruction.from_spec(f"train{text}").to_absolute({"train": TOTAL})
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


WRONG = {
    "train[": "not a slice of rows",
    "train[5]": "not a slice of rows",
    "train[a:]": "not a slice of rows",
    "[5:]": "not a slice of rows",
    "train[:5](closest)": "not a slice of rows",
    "train[10:20%]": "rows in one place and percent in the other",
    "train[%:20]": "rows in one place and percent in the other",
    "train[:200%]": "more than 100 percent",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_slice_is_an_error_that_shows_how_it_is_written(text: str) -> None:
    with pytest.raises(UserError, match=WRONG[text]) as caught:
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


STREAM = """
from nemotron_data.sources.files import expand
from nemotron_data.sources.reading import read_files
rows = read_files(expand(["hf://org/big"], split="train[9950:9960]"))
print([row.value["n"] for row in rows])
"""


def test_what_lies_before_a_slice_of_parquet_is_not_fetched(tmp_path: Path) -> None:
    noise = pa.array([os.urandom(2000) for _ in range(10_000)])
    pq.write_table(pa.table({"n": range(10_000), "noise": noise}), tmp_path / "made", row_group_size=100)
    content = (tmp_path / "made").read_bytes()
    with serving(Hub({"org/big": {"data/train-00000-of-00001.parquet": content}})) as hub:
        done = subprocess.run(
            [sys.executable, "-c", STREAM], env=hub.environment(tmp_path), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == list(range(9950, 9960))
        assert "hf://org/big: train[9950:9960], 1 file of commit" in done.stderr
        assert 0 < hub.served < len(content) / 2, "what comes before was fetched"
