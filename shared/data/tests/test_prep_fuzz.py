"""Whatever bytes come: no crash, no row lost or read twice, and counts that add up."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prep_support import CopyRows, copy, plan, setting

from nemotron_data.prep.losses import join_rejected
from nemotron_data.prep.reader import Heartbeat, ShardReader
from nemotron_data.prep.shards import run_shards

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.sampled_from(["text", "messages", "n", "é"]), VALUES, max_size=3)
GOOD = OBJECTS.map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))
CUT = st.tuples(GOOD, st.integers(1, 30)).map(lambda pair: pair[0][: -pair[1]])
ODD = st.sampled_from(
    [b"", b" ", b"\t \r", b"\x00", b'{"text": "\x00"}', b"\xff\xfe", b'{"text": "\xff"}', b'{"text": "\\ud800"}',
     b"null", b"[]", b'"text"', b"17", b"NaN", b'{"text": NaN}', b"{", b"}", b"{}{}", b'{"a": 1,}', b"\xef\xbb\xbf{}",
     b'{"text": "a\xe2\x80\xa8b"}', b"[" * 3000, b'{"n": ' + b"9" * 40 + b"}", b'{"text": "' + b"x" * 20000 + b'"}']
)  # fmt: skip
LINES = st.lists(GOOD | CUT | ODD | st.binary(max_size=20), max_size=12)
ENDINGS = st.sampled_from([b"\n", b"\r\n"])

FIRST = b'{"text": "a first line tells that these are JSON lines"}'


def expected(content: bytes) -> tuple[list[dict], int]:
    """The rows and the number of bad lines, by the plainest reading of what JSON lines are."""
    good, bad = [], 0
    for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if not line.strip(b" \t\r\n\x0b\x0c"):
            continue
        try:
            value = json.loads(line.decode("utf-8"), parse_constant=lambda name: 1 / 0)
            json.dumps(value, ensure_ascii=False).encode("utf-8")
            bad, good = (bad, [*good, value]) if isinstance(value, dict) else (bad + 1, good)
        except (ValueError, RecursionError, ZeroDivisionError):
            bad += 1
    return good, bad


def bare(value):
    """Without null fields: those that tables add to the objects of a list are left out, and look like anybody's own."""
    if isinstance(value, dict):
        return {key: bare(one) for key, one in value.items() if one is not None}
    return [bare(one) for one in value] if isinstance(value, list) else value


def check_rows(tmp_path_factory, lines, ending, at_end, shard_bytes):
    lines = [FIRST, *lines]
    folder = Path(tmp_path_factory.getbasetemp()) / "fuzz"
    folder.mkdir(exist_ok=True)
    file = folder / "a.jsonl"
    content = ending.join(lines) + (ending if at_end else b"")
    file.write_bytes(content)
    found, counts, rejected = [], Counter(), Counter()
    for shard in plan([file], shard_bytes):
        with ShardReader(shard, folder, "reject", Heartbeat(folder)) as reader:
            found += [row.value for row in reader]
        counts.update(reader.counts)
        rejected.update(reader.rejected)
    good, bad = expected(content)
    assert json.dumps(bare(found)) == json.dumps(bare(good))
    assert rejected.total() == bad
    assert counts["rows"] == len(good) + bad


def with_examples(count: int):
    """The check as a test of so many examples."""
    anything = given(LINES, ENDINGS, st.booleans(), st.sampled_from([5, 40, 300, 10**6]))
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])(
        anything(check_rows)
    )


test_rows_and_rejected_rows_are_just_what_is_there = with_examples(200)
test_the_same_with_many_more_examples = pytest.mark.slow(with_examples(2000))


@given(LINES, st.integers(1, 8))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_rejected_rows_are_found_at_their_line(tmp_path_factory, lines, parts):
    lines = [FIRST, *lines]
    folder = tmp_path_factory.mktemp("lines")
    file = folder / "a.jsonl"
    content = b"\n".join(lines)
    file.write_bytes(content)
    shards, chosen = plan([file], len(content) // parts + 1), setting(folder / "shards")
    receipts = run_shards(shards, CopyRows(), chosen)
    join_rejected(chosen.directory, shards, receipts, folder / "rejected.jsonl", {})
    rejected = [json.loads(line) for line in (folder / "rejected.jsonl").read_bytes().split(b"\n")[:-1]]
    assert len(rejected) == sum(sum(receipt.rejected.values()) for receipt in receipts)
    for entry in rejected:
        line = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")[entry["line"] - 1]
        assert expected(b"\n" + line) == ([], 1), "the line it points to is a bad one"


@pytest.mark.parametrize("content", [b"", b"\n", b"\n\n \n"])
def test_a_file_without_rows_gives_none(tmp_path: Path, content: bytes):
    (tmp_path / "a.jsonl").write_bytes(content)
    assert copy(plan([tmp_path / "a.jsonl"]), setting(tmp_path / "shards")) == b""
