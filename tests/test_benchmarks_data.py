"""The parts of benchmarks/data_prep.py that its figures stand on: the corpus, byte identity, the measuring."""

import gzip
import sys
from pathlib import Path

import numpy as np
import orjson
import pytest
from packed_support import add_document

from nemotron_data.formats.bin_idx import IndexedDatasetWriter

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))

from prep_bench import corpus, identity, packing, pretrain, process_tree, sft, vocabularies  # noqa: E402
from prep_bench.contest import Missing, Score  # noqa: E402
from prep_bench.process_tree import CommandFailed  # noqa: E402
from prep_bench.table import Section  # noqa: E402

LINUX = pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="reads /proc")
BUSY = """
import multiprocessing, time
def work(_):
    block = b"x" * 50_000_000
    while time.process_time() < 0.4:
        pass
if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        pool.map(work, range(2), chunksize=1)
    print("done")
"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A folder as developers have it: prose, code, and what must not get into a corpus."""
    folder = tmp_path / "sources"
    folder.mkdir()
    for number in range(12):
        (folder / f"page{number}.md").write_text(f"Page {number}.\n" + "A line of the page, long enough.\n" * 30)
        (folder / f"code{number}.py").write_text(f"NUMBER = {number}\n" + "print('a line of code')\n" * 30)
    (folder / "packed.md.gz").write_bytes(gzip.compress(b"A packed page.\n" * 20))
    (folder / "long.md").write_text("".join(f"Line {number} of a long text.\n" for number in range(4000)))
    (folder / "copy.md").write_bytes((folder / "page0.md").read_bytes())
    (folder / "short.md").write_text("short")
    (folder / "latin.md").write_bytes(b"caf\xe9 " * 100)
    (folder / "nul.md").write_text("a\0b" * 100)
    (folder / "minified.js").write_text("x" * 30_000)
    (folder / "picture.png").write_bytes(b"p" * 500)
    (folder / "link.md").symlink_to(folder / "page1.md")
    return folder


def test_corpus_takes_usable_files_once(sources: Path) -> None:
    documents = corpus.collect([str(sources)], budget=10_000_000)
    names = [Path(document.source).name for document in documents]
    pages = {f"page{number}.md" for number in range(12)} | {f"code{number}.py" for number in range(12)}
    same_text = {"page0.md", "copy.md"}  # whichever comes first in the seeded order
    assert len(names) == len(set(names)) == 26
    assert set(names) | same_text == pages | {"packed.md.gz", "long.md", "copy.md"}


def test_corpus_is_the_same_again_and_stops_at_its_size(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "default_folders", lambda: [str(sources)])
    first, second = sources.parent / "first", sources.parent / "second"
    described = [corpus.build_corpus(folder, 1, []) for folder in (first, second)]
    assert described[0] == described[1]
    assert (first / "corpus.jsonl").read_bytes() == (second / "corpus.jsonl").read_bytes()
    assert len(corpus.collect([str(sources)], budget=3000)) < 6


def test_cutting_loses_no_text() -> None:
    text = "".join(f"Line {number} of a long text.\n" for number in range(9000)) + "no newline at the end"
    pieces = list(corpus.cut(text, np.random.default_rng(0)))
    assert "".join(pieces) == text
    assert len(pieces) > 10
    assert all(piece.endswith("\n") for piece in pieces[:-1])


@pytest.mark.parametrize("vocabulary", [1000, 100_000])
def test_shards_together_are_the_whole(tmp_path: Path, vocabulary: int) -> None:
    documents = [np.arange(length) % 900 for length in (5, 1, 7, 300, 2)]
    for name, part in {"whole": documents, "shard0": documents[:2], "shard1": documents[2:]}.items():
        with IndexedDatasetWriter(tmp_path / name, vocabulary) as writer:
            for ids in part:
                add_document(writer, ids)
    whole = identity.digest_of([tmp_path / "whole.bin"])
    parts = identity.digest_of([tmp_path / "shard0.bin", tmp_path / "shard1.bin"])
    swapped = identity.digest_of([tmp_path / "shard1.bin", tmp_path / "shard0.bin"])
    assert whole.tokens == 315
    assert identity.verdict(parts, whole) == "same bytes"
    assert identity.verdict(swapped, whole) == "same token count"


@LINUX
def test_measuring_counts_the_children(tmp_path: Path) -> None:
    script = tmp_path / "busy.py"
    script.write_text(BUSY)
    usage = process_tree.run_measured([sys.executable, str(script)], {}, tmp_path)
    assert usage.output == "done\n"
    assert usage.cpu_s > 0.6  # two children of 0.4 each
    assert usage.peak_mb > usage.largest_mb > 50


@LINUX
def test_a_failing_command_tells_its_last_lines(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; print('what went wrong'); sys.exit(3)"]
    with pytest.raises(process_tree.CommandFailed, match=r"ended with 3[\s\S]*what went wrong"):
        process_tree.run_measured(command, {}, tmp_path)


def test_packed_files_are_compared_by_sequence(tmp_path: Path) -> None:
    from packed_support import write_packed

    sequences = [([5, 6, 7], [0, 1, 1]), ([8, 9], [0, 1]), ([1, 2, 3, 4], [0, 0, 1, 1])]
    write_packed(tmp_path / "one.parquet", sequences, [[0, 1], [2]])
    write_packed(tmp_path / "two.parquet", sequences, [[2, 1], [0]])
    other_mask = [*sequences[:2], ([1, 2, 3, 4], [0, 1, 1, 1])]
    write_packed(tmp_path / "other.parquet", other_mask, [[0, 1], [2]])
    one, two, other = (sft.packed_digest(tmp_path / f"{name}.parquet") for name in ("one", "two", "other"))
    assert one == two
    assert (one.count, one.tokens, one.trained, one.rows) == (3, 9, 5, 2)
    assert other.sequences != one.sequences


def test_lost_sequences_are_noticed() -> None:
    lengths = np.array([3000, 2000, 1000])
    assert packing.figures([[0, 2], [1]], lengths) == "2 bins, 73.242% full"
    for wrong in ([[0], [1]], [[0, 1], [2]], [[0, 2], [1, 1]]):
        with pytest.raises(ValueError, match=r"in one bin|too large"):
            packing.figures(wrong, lengths)


def test_chats_are_the_same_again(tmp_path: Path) -> None:
    rows = [{"text": f"Text number {number}. " * 200} for number in range(20)]
    (tmp_path / "corpus.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    one = sft.write_chats(tmp_path / "corpus.jsonl", tmp_path / "one.jsonl", 30)
    two = sft.write_chats(tmp_path / "corpus.jsonl", tmp_path / "two.jsonl", 30)
    assert one.read_bytes() == two.read_bytes()
    chats = [orjson.loads(line)["messages"] for line in one.read_bytes().splitlines()]
    assert len(chats) == 30
    assert all(chat[-1]["role"] == "assistant" and chat[-1]["content"] for chat in chats)


def score(name: str, ids: str, peer: bool = True) -> Score:
    """Of a program that wrote documents of one letter each."""
    documents = tuple(letter.encode() for letter in ids)
    return Score(name, 1, 2.0, 1.0, 1.0, 1.0, None, identity.Digest(ids, "index", 5, documents), peer, [2.0])


def judged(ours: str, allowed: str, *peers: Score, held: frozenset[int] = frozenset({1})) -> list[str]:
    rows: list[Score | Missing] = [score("ours", ours, peer=False), score(pretrain.ALLOW, allowed, peer=False), *peers]
    return [str(row.found) for row in pretrain.judged(Section("", rows), set(held)).rows if isinstance(row, Score)]


def test_ours_are_the_bytes_of_a_peer_but_for_control_tokens() -> None:
    tools = [score(pretrain.FAST, "fxx"), score(pretrain.PLAIN, "abc")]
    assert judged("aXc", "abc", *tools) == [
        "same bytes but for 1 documents",
        "same bytes",
        "same token count",
        "same bytes",
    ]
    for wrong in (("abc", "abc"), ("XXc", "abc"), ("aXc", "abd"), ("aX", "abc")):
        with pytest.raises(CommandFailed, match=r"other bytes|other ids|number of documents"):
            judged(*wrong, *tools)


def test_without_a_peer_only_our_own_runs_are_compared() -> None:
    assert judged("aXc", "abc") == ["same bytes but for 1 documents", "same bytes"]
    assert judged("abc", "abc", held=frozenset()) == ["same bytes", "same bytes"]


def test_names_of_control_tokens_are_found() -> None:
    names = frozenset({"<s>", "<|im_end|>"})
    assert [vocabularies.holds(text, names) for text in ("a <s> b", "<|im_end|>", "<sss>", "< s>", "<<s>>")] == [
        True, True, False, False, True,
    ]  # fmt: skip
