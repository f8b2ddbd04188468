"""Shards are made once each, survive kills, and come out the same on any number of workers."""

import errno
import gzip
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prep_support import CopyRows, copy, plan, setting, write_rows

from nemotron_data.prep import executors
from nemotron_data.prep.losses import Totals, finish
from nemotron_data.prep.pipeline import Prepared
from nemotron_data.prep.plan import make_shards
from nemotron_data.prep.receipts import RECEIPT, shard_folder, verified
from nemotron_data.prep.shards import clock, rejected_text, run_shards, short
from nemotron_data.sources.files import expand
from nemotron_data.sources.input_file import local_file
from nemotron_data.sources.reading import BadRow, Place, Range, Row, read_files, read_range
from nemotron_shared.system.console import CLEAR, tell
from nemotron_shared.system.disk import size
from nemotron_shared.system.errors import UserError

SHARD = 4000


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    write_rows(tmp_path / "in" / "a.jsonl", 400)
    write_rows(tmp_path / "in" / "b.jsonl", 300, start=400)
    return tmp_path / "in"


@pytest.fixture
def whole(rows: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(rows.iterdir()))


@pytest.mark.parametrize("workers", [1, 2, 7])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_any_number_of_workers_gives_the_same(tmp_path, rows, whole, workers, method, monkeypatch):
    if method == "spawn" and workers == 1:
        pytest.skip("one worker starts no process")
    monkeypatch.setattr(executors, "start_method", lambda: method)
    assert copy(plan([rows], SHARD), setting(tmp_path / "shards", workers)) == whole


def test_the_line_that_renews_itself_is_cleared_once(tmp_path, rows, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("nemotron_data.prep.shards.TERMINAL_SECONDS", 0.0)
    copy(plan([rows], SHARD), setting(tmp_path / "shards", 1))
    assert capsys.readouterr().err.endswith(CLEAR)
    tell("a result")
    assert capsys.readouterr().err == "", "nothing is left to clear"


@pytest.mark.parametrize("workers", [1, 2])
def test_finished_shards_are_kept_and_harmed_ones_made_again(tmp_path, rows, whole, workers):
    shards, chosen = plan([rows], SHARD), setting(tmp_path / "shards", workers)
    copy(shards, chosen)
    times = receipt_times(chosen.directory)
    (shard_folder(chosen.directory, 1) / "rows.jsonl").write_bytes(b"?" * 10)
    (shard_folder(chosen.directory, 2) / "rows.jsonl").unlink()
    same_size = shard_folder(chosen.directory, 3) / "rows.jsonl"
    same_size.write_bytes(same_size.read_bytes()[::-1])
    (shard_folder(chosen.directory, 4) / RECEIPT).write_text("{")
    assert copy(shards, chosen) == whole
    now = receipt_times(chosen.directory)
    assert {name for name in now if now[name] != times[name]} == {"000001", "000002", "000003", "000004"}


def receipt_times(directory: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in directory.glob(f"*/{RECEIPT}")}


def test_shards_of_another_plan_are_not_used(tmp_path, rows):
    chosen = setting(tmp_path / "shards")
    run_shards(plan([rows], SHARD), CopyRows(), chosen)
    receipts = run_shards(plan([rows], SHARD // 2), CopyRows(), chosen)
    assert sum(receipt.figures["kept"] for receipt in receipts) == 700


def test_a_killed_worker_costs_one_attempt(tmp_path, rows, whole):
    said: list[str] = []
    chosen = setting(tmp_path / "shards", workers=2)
    chosen = type(chosen)(**{**vars(chosen), "announce": said.append})
    assert copy(plan([rows], SHARD), chosen, CopyRows(die_once=tmp_path / "died")) == whole
    assert any("a worker died" in line for line in said)


def test_workers_that_always_die_end_in_an_error_that_names_the_shard(tmp_path, rows):
    with pytest.raises(UserError, match=r"workers died 3 times.*a\.jsonl"):
        run_shards(plan([rows], SHARD), CopyRows(always_die=True), setting(tmp_path / "shards", workers=2))


@pytest.mark.parametrize("workers", [1, 3])
def test_the_first_bad_row_in_the_order_of_the_input_is_reported_with_its_line(tmp_path, rows, workers):
    for name, line in (("b.jsonl", 250), ("a.jsonl", 333)):
        lines = (rows / name).read_text().splitlines(keepends=True)
        lines[line - 1] = "{broken\n"
        (rows / name).write_text("".join(lines))
    shards = plan([rows], SHARD)
    with pytest.raises(UserError, match=r"a\.jsonl:333: malformed JSON"):
        run_shards(shards, CopyRows(), setting(tmp_path / "shards", workers, on_bad_row="error"))
    assert verified_shards(tmp_path / "shards", shards), "what was finished before is kept"
    receipts = run_shards(shards, CopyRows(), setting(tmp_path / "shards", workers))
    totals = finish(tmp_path / "shards", shards, receipts, tmp_path / "rejected.jsonl")
    places = [(Path(entry["file"]).name, entry["line"]) for entry in read(tmp_path / "rejected.jsonl")]
    assert places == [("a.jsonl", 333), ("b.jsonl", 250)]
    assert totals.counts["rows"] == 700
    assert totals.rejected == {"malformed JSON": 2}


def verified_shards(directory: Path, shards) -> list[int]:
    plans = {json.loads(path.read_text())["plan"] for path in directory.glob(f"*/{RECEIPT}")}
    return [shard.index for shard in shards for name in plans if verified(directory, shard.index, name)]


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def refuse_to_read(path: Path) -> None:
    """For root, who may read everything, by a link that leads to itself."""
    if os.geteuid() != 0:
        path.chmod(0)
        return
    path.unlink()
    path.symlink_to(path)


@pytest.mark.parametrize("harm", ["vanished", "changed", "unreadable"])
@pytest.mark.parametrize("workers", [1, 2])
def test_an_input_that_is_harmed_after_planning_is_named_and_a_rerun_completes(tmp_path, rows, whole, harm, workers):
    shards = plan([rows], SHARD)
    victim = rows / "b.jsonl"
    kept = shutil.copy2(victim, tmp_path / "kept")
    if harm == "vanished":
        victim.unlink()
    elif harm == "changed":
        victim.write_text(victim.read_text() + '{"text": "one more"}\n')
    else:
        refuse_to_read(victim)
    with pytest.raises(UserError, match=r"b\.jsonl"):
        run_shards(shards, CopyRows(), setting(tmp_path / "shards", workers))
    victim.unlink(missing_ok=True)
    shutil.copy2(kept, victim)
    assert verified_shards(tmp_path / "shards", shards), "shards of the other file are kept"
    assert copy(shards, setting(tmp_path / "shards", workers)) == whole


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_one_clear_error_and_a_rerun_completes(tmp_path, rows, whole, workers):
    shards = plan([rows], 20_000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, before[1]))
    try:
        with pytest.raises(UserError, match=os.strerror(errno.EFBIG)) as raised:
            run_shards(shards, CopyRows(), setting(tmp_path / "shards", workers))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert "finished shards are kept" in str(raised.value)
    assert not list((tmp_path / "shards").glob(".tmp-*")), "nothing half-written stays"
    assert copy(shards, setting(tmp_path / "shards", workers)) == whole


def test_a_file_without_rows_is_an_error(tmp_path, rows):
    (rows / "c.jsonl").write_text("\n\n")
    shards, chosen = plan([rows], SHARD), setting(tmp_path / "shards")
    receipts = run_shards(shards, CopyRows(), chosen)
    with pytest.raises(UserError, match=r"c\.jsonl: holds no rows"):
        finish(chosen.directory, shards, receipts, tmp_path / "rejected.jsonl")


def test_a_limit_reads_that_many_rows_in_order(tmp_path, rows, whole):
    content = copy(plan([rows], SHARD, limit=450), setting(tmp_path / "shards", workers=2))
    assert content == b"".join(whole.splitlines(keepends=True)[:450])


def test_no_worker_outlives_a_killed_parent(tmp_path, rows):
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom prep_support import *\n"
        "class Slow(CopyRows):\n    def run(self, reader, folder):\n"
        f"        Path(r'{tmp_path}', f'pid-{{os.getpid()}}').touch(); time.sleep(60); return {{}}\n"
        f"run_shards(plan([Path(r'{rows}')], {SHARD}), Slow(), setting(Path(r'{tmp_path}') / 'shards', 2))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", script], env=environment)
    try:
        workers = wait_for(lambda: [int(p.name[4:]) for p in tmp_path.glob("pid-*")], enough=2)
    finally:
        parent.kill()
        parent.wait()
    assert wait_for(lambda: [1] if not any(map(is_running, workers)) else [], enough=1)


def wait_for(found, enough: int, seconds: float = 300.0) -> list:
    end = time.monotonic() + seconds
    while len(values := found()) < enough:
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)
    return values


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_numbers_for_people():
    assert [size(n) for n in (42, 99_999, 205_000_000)] == ["42 bytes", "100.0 kB", "205.0 MB"]
    assert [short(n) for n in (999, 1234, 5_600_000, 7.8e9)] == ["999", "1.2k", "5.6M", "7.8B"]
    assert [clock(n) for n in (5, 75, 3675)] == ["0:05", "1:15", "1:01:15"]
    assert rejected_text({}) == ""
    assert rejected_text({"a": 1, "b": 2, "c": 3, "d": 4}) == "10 rejected (4 d, 3 c, 2 b, ...)"


def numbers_in(shards) -> list[int]:
    rows = [row for shard in shards for part in shard.ranges for row in read_range(part)]
    return [row.value["n"] for row in rows]


@pytest.mark.parametrize("shard_bytes", [1, 7, 64, 1000, 10**6])
def test_every_line_belongs_to_just_one_range(tmp_path: Path, shard_bytes: int):
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"n": n, "pad": "é" * (n * 7 % 23)}) + "\n" for n in range(60)))
    shards = plan([file], shard_bytes)
    assert numbers_in(shards) == list(range(60))
    assert [shard.index for shard in shards] == list(range(len(shards)))


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 200), st.booleans())
@settings(max_examples=300, deadline=None)
def test_lines_of_any_length_with_any_shard_size(tmp_path_factory, lengths, shard_bytes, ends_with_newline):
    file = tmp_path_factory.mktemp("range") / "a.jsonl"
    lines = [json.dumps({"n": n, "pad": "x" * length}) for n, length in enumerate(lengths)]
    file.write_text("\n".join(lines) + ("\n" if ends_with_newline and lines else ""))
    assert numbers_in(plan([file], shard_bytes)) == list(range(len(lengths)))


@pytest.mark.parametrize(("sizes", "count"), [(1, 1), (3, 3), (4, 4), (5, 8), (8, 8), (9, 12)])
def test_a_large_file_gives_two_and_four_workers_the_same(tmp_path: Path, sizes: int, count: int):
    (tmp_path / "a.jsonl").write_bytes(b'{"text":"a"}\n' * (sizes * 1000))
    shards = make_shards([[local_file(tmp_path / "a.jsonl")]], 13_000)
    assert len(shards) == count


def test_small_neighbours_share_a_shard_and_order_is_kept(tmp_path: Path):
    for name in "abcdef":
        (tmp_path / f"{name}.txt").write_text(name * 300)
    shards = plan([tmp_path], 1000)
    assert [len(shard.ranges) for shard in shards] == [3, 3]
    assert "".join(Path(p.file.path).stem for s in shards for p in s.ranges) == "abcdef"


def test_a_file_never_stands_twice_in_a_shard(tmp_path: Path):
    for length in range(1, 60, 3):
        write_rows(tmp_path / f"{length:02d}.jsonl", length)
    for shard_bytes in (3, 20, 100, 333, 1000, 2048):
        for shard in plan([tmp_path], shard_bytes):
            names = [part.file.path for part in shard.ranges]
            assert len(names) == len(set(names))


def test_parquet_is_cut_between_row_groups(tmp_path: Path):
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": list(range(1000))}), file, row_group_size=100)
    shards = plan([file], 500)
    assert len(shards) > 2
    assert numbers_in(shards) == list(range(1000))
    rows = [row for shard in shards for part in shard.ranges for row in read_range(part)]
    assert [row.line for row in rows] == list(range(1, 1001)), "rows are counted in their file"


def test_compressed_files_are_read_whole(tmp_path: Path):
    file = tmp_path / "a.jsonl.gz"
    with gzip.open(file, "wt") as lines:
        lines.writelines(json.dumps({"n": n}) + "\n" for n in range(5000))
    shards = plan([file], 100)
    assert len(shards) == 1
    assert numbers_in(shards) == list(range(5000))


def test_a_limit_makes_one_shard_per_data_set(tmp_path: Path):
    files = [local_file(write_rows(tmp_path / f"{name}.jsonl", 100)) for name in "ab"]
    shards = make_shards([[files[0]], [files[1]]], 10, limit=7)
    assert [(shard.part, shard.limit, len(shard.ranges)) for shard in shards] == [(0, 7, 1), (1, 7, 1)]


def test_a_line_longer_than_can_be_held_is_a_bad_row_and_costs_no_memory(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("nemotron_data.sources.reading.LONGEST_LINE", 1000)
    monkeypatch.setattr("nemotron_data.sources.reading.BLOCK_BYTES", 64)
    file = tmp_path / "a.jsonl"
    file.write_text(f'{{"n": 1}}\n{{"n": "{"9" * 5000}"}}\n{{"n": 2}}\n')
    for part in (Range(local_file(file), 0, sys.maxsize), Range(local_file(file), 3, file.stat().st_size)):
        rows = list(read_range(part))
        bad = [row for row in rows if isinstance(row, BadRow)]
        assert [row.why.reason for row in bad] == ["line too long"]
        assert [row.value["n"] for row in rows if isinstance(row, Row)][-1] == 2


def test_blank_lines_are_counted(tmp_path: Path):
    file = tmp_path / "a.jsonl"
    file.write_text('\n{"n": 1}\n   \n\r\n{"n": 2}')
    place = Place()
    rows = list(read_range(Range(local_file(file), 0, 100), place))
    assert [row.value["n"] for row in rows] == [1, 2]
    assert (place.lines, place.blank_lines) == (5, 3)


def test_a_vanished_file_is_named(tmp_path: Path):
    file = local_file(write_rows(tmp_path / "a.jsonl", 1))
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(UserError, match=r"a\.jsonl"):
        list(read_range(Range(file, 0, 10)))


def test_the_loss_of_all_rows_cannot_be_allowed() -> None:
    totals = Totals(Counter(rows=10), Counter({"no assistant turn": 8, "asked for": 2}), asked={"asked for"})
    with pytest.raises(UserError) as caught:
        totals.require_few_lost(0.05, {}, "home/rejected.jsonl")
    assert caught.value.remedy == "look at them in home/rejected.jsonl and correct them"
    totals.require_few_lost(1.0, {})


def test_nothing_left_says_why(tmp_path: Path) -> None:
    def prepared(refused: int) -> Prepared:
        totals = Totals(Counter(rows=10), Counter({"no assistant turn": refused}))
        return Prepared([], totals, tmp_path / "rejected.jsonl", print)

    error = prepared(10).nothing_left("conversation")
    assert error.message == "no conversation is left for training\n  mostly: no assistant turn, 10 rows"
    assert str(error.remedy).endswith(f"listed with its reason in {tmp_path / 'rejected.jsonl'}")
    error = prepared(4).nothing_left("conversation")
    assert "6 rows can be used, and none is in the split 'train'" in error.message
    assert str(error.remedy).endswith("data_prep.split='{train: 1, valid: 0, test: 0}'")
    error = prepared(4).nothing_left("held-out question", "test")
    assert error.message.startswith("no held-out question is left: 6 rows")
    assert str(error.remedy).endswith("data_prep.split='{train: 0, valid: 0, test: 1}'")


def test_a_list_that_stands_twice_is_left_to_its_writer(tmp_path: Path) -> None:
    """jq keeps the last of them, and says nothing of the first."""
    file = tmp_path / "a.json"
    file.write_text('{"data": [{"a": 1}],\n "data": [{"a": 2}]}')
    with pytest.raises(UserError, match="'data' and 'data', two lists of objects") as caught:
        list(read_files(expand([file])))
    assert "give one of them another name" in str(caught.value.remedy) and "jq -c" not in str(caught.value.remedy)
