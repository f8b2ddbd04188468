"""Pretraining data: JSONL to Megatron .bin/.idx, us against every peer that is here, then our memory."""

import re
from pathlib import Path
from typing import Any

from prep_bench.contest import Contestant, Missing, Score, compete
from prep_bench.corpus import write_prefix
from prep_bench.identity import Digest, digest_of, verdict
from prep_bench.process_tree import CommandFailed, Usage
from prep_bench.settings import REPOSITORY, Bench, artifact
from prep_bench.table import Section

MAIN, SMALL = "tok131k", "tok32k"
TOKEN_BYTES = {MAIN: 4, SMALL: 2}
PREFIX_SHARE = 8
FAST, PLAIN = "Megatron-LM preprocess_data_fast.py", "Megatron-LM preprocess_data.py"
RAW = "gigatoken encode_files, nothing written"
MEMORY_COPIES = 10


def run(bench: Bench) -> list[Section]:
    """Every program on the whole corpus; the quick ones on an eighth of it and with the small vocabulary."""
    size = f"{bench.text_bytes / 1e6:.0f} MB of text"
    everyone, missing = _contestants(bench, bench.jsonl, MAIN)
    whole = _section(bench, f"pretrain, {size}, 131k vocabulary", everyone, missing)
    eighth = write_prefix(bench.jsonl, bench.work / "eighth.jsonl", bench.documents // PREFIX_SHARE)
    few = _quick(_contestants(bench, eighth, MAIN)[0])
    part = _section(bench, "pretrain, an eighth of it", few, [])
    whole.notes += steady_state(whole, part, bench.jsonl.stat().st_size - eighth.stat().st_size)
    small = _section(bench, f"pretrain, {size}, 32k vocabulary", _quick(_contestants(bench, bench.jsonl, SMALL)[0]), [])
    return [whole, part, small]


def _quick(contestants: list[Contestant]) -> list[Contestant]:
    return [c for c in contestants if not c.peer or c.name in (FAST, RAW)]


def _section(bench: Bench, title: str, contestants: list[Contestant], missing: list[Missing]) -> Section:
    scores = compete(contestants, bench.rounds, bench.slow_rounds, REPOSITORY)
    return judged(Section(title, [*scores, *missing]))


def judged(section: Section) -> Section:
    """Say of each program whether it wrote the reference's bytes.

    Peers may disagree with each other, where their tokenizer libraries do; ours must agree with one of Megatron-LM's.

    Raises:
        CommandFailed: ours are not the reference's bytes, so that speeds would mean nothing.
    """
    scores = [row for row in section.rows if isinstance(row, Score)]
    reference = _reference(scores)
    for score in scores:
        if not score.peer and _judge(score.found, reference) != "same bytes":
            raise CommandFailed(f"{score.name} wrote other bytes than {reference.name}: {score.found}")
    rows = [
        row._replace(found=_judge(row.found, reference)) if isinstance(row, Score) else row for row in section.rows
    ]  # fmt: skip
    note = f"'same bytes': .bin and .idx, shards taken together, are those of {reference.name}"
    if not reference.peer:
        note += "; Megatron-LM did not run, so only our own runs were compared"
    return Section(section.title, rows, [*section.notes, note, *work_ratios(scores)])


def _reference(scores: list[Score]) -> Score:
    """The tool of Megatron-LM that agrees with our first run, else the first that ran, else our first run."""
    tools = [score for name in (FAST, PLAIN) for score in scores if score.name == name]
    agreeing = [tool for tool in tools if tool.found == scores[0].found]
    return (agreeing or tools or scores)[0]


def _judge(found: Any, reference: Score) -> str:
    expected = reference.found
    if isinstance(found, int):
        return "same token count" if found == expected.tokens else f"OTHER: {found:,} tokens"
    return verdict(found, expected)


def work_ratios(scores: list[Score]) -> list[str]:
    """Work without start-up, by each program's own clock, next to ours."""
    ours = scores[0].own_s
    return [
        f"work phase, {score.name}: {score.own_s / ours:.2f} times ours"
        for score in scores
        if ours and score.own_s and score.peer
    ]


def steady_state(whole: Section, part: Section, extra_bytes: int) -> list[str]:
    """MB of JSONL per second of wall time once a program has started: two sizes, the difference of both."""
    small = {row.name: row for row in part.rows if isinstance(row, Score)}
    lines = []
    for row in whole.rows:
        if isinstance(row, Score) and row.name in small:
            seconds = row.wall_s - small[row.name].wall_s
            speed = f"{extra_bytes / seconds / 1e6:.0f} MB/s" if seconds > 0 else "too quick to tell"
            lines.append(f"steady state (start-up taken off, JSONL bytes), {row.name}: {speed}")
    return lines


def _contestants(bench: Bench, corpus: Path, tokenizer: str) -> tuple[list[Contestant], list[Missing]]:
    folder = bench.tokenizers[tokenizer]
    found = _ours(bench, corpus, folder)
    missing: list[Missing] = []
    for name, why, make in (
        (FAST, _no_megatron(bench, "gigatoken"), lambda: _megatron(bench, FAST, corpus, folder, ["--use-gigatoken"])),
        (PLAIN, _no_megatron(bench), lambda: _megatron(bench, PLAIN, corpus, folder, _plain(bench))),
        (f"{PLAIN} --use-gigatoken", _no_megatron(bench, "gigatoken"), lambda: _megatron(
            bench, f"{PLAIN} --use-gigatoken", corpus, folder, [*_plain(bench), "--use-gigatoken"])),
        ("datatrove MegatronDocumentTokenizer", bench.lacks("datatrove"), lambda: _datatrove(bench, corpus, folder)),
        ("datasets map", bench.lacks("datasets", "transformers"), lambda: _datasets(bench, corpus, folder, tokenizer)),
        (RAW, bench.lacks("gigatoken"), lambda: _raw(bench, corpus, folder)),
    ):  # fmt: skip
        if why:
            missing.append(Missing(name, why))
        else:
            found.append(make())
    return found, missing


def _ours(bench: Bench, corpus: Path, tokenizer: Path) -> list[Contestant]:
    def make(name: str, source: Path, workers: int, **more: str) -> Contestant:
        settings = {"source": source, "tokenizer.model": tokenizer, "workers": workers, **more}
        keys = {f"data_prep.{key}": value for key, value in settings.items()}
        return bench.ours("pretrain", name, keys, _our_digest)

    found = [make(f"ours, {bench.workers} workers", corpus, bench.workers), make("ours, 1 worker", corpus, 1)]
    if corpus == bench.jsonl:
        found.append(make(f"ours, {bench.workers} workers, Parquet", bench.corpus / "corpus.parquet", bench.workers))
    if bench.ray and corpus == bench.jsonl and tokenizer == bench.tokenizers[MAIN]:
        found.append(make(f"ours, {bench.workers} workers, Ray", corpus, bench.workers, executor="ray"))
        found[-1].may_fail = True  # a machine may not let Ray start
    return found


def _our_digest(contestant: Contestant, usage: Usage) -> Digest:
    return digest_of(sorted((artifact(contestant.output) / "train").rglob("*.bin")))


def _no_megatron(bench: Bench, *modules: str) -> str | None:
    if bench.megatron is None:
        return "give its checkout: --megatron PATH"
    return bench.lacks("torch", "transformers", "typing_extensions", *modules)


def _plain(bench: Bench) -> list[str]:
    return ["--workers", str(bench.workers), "--log-interval", "100000"]


def _megatron(bench: Bench, name: str, corpus: Path, tokenizer: Path, more: list[str]) -> Contestant:
    tool = name.split()[1]
    arguments = [
        f"{bench.megatron}/tools/{tool}", "--input", corpus, "--output-prefix", bench.output(name) / "corpus",
        "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", tokenizer, "--append-eod", *more,
    ]  # fmt: skip
    return bench.peer(name, "megatron_tool.py", arguments, _digest_here, _printed_seconds)


def _datatrove(bench: Bench, corpus: Path, tokenizer: Path) -> Contestant:
    """Its parallelism is per file, so it gets the corpus as one file per worker."""
    name, parts = "datatrove MegatronDocumentTokenizer", bench.work / f"parts-{corpus.stem}"
    cut_file(corpus, parts, bench.workers)
    arguments = [parts, tokenizer, bench.output(name), bench.workers]
    return bench.peer(name, "datatrove_megatron.py", arguments, _digest_here)


def cut_file(corpus: Path, folder: Path, parts: int) -> None:
    """Files of about equal size, cut at line ends."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    size = corpus.stat().st_size
    with corpus.open("rb") as source:
        for number in range(parts):
            with (folder / f"{number:05d}.jsonl").open("wb") as target:
                while source.tell() < size * (number + 1) // parts:
                    target.write(source.readline())


def _datasets(bench: Bench, corpus: Path, tokenizer: Path, vocabulary: str) -> Contestant:
    name, size = "datasets map", TOKEN_BYTES[vocabulary]
    arguments = [corpus, tokenizer, bench.output(name) / "corpus.bin", bench.workers]
    return bench.peer(name, "datasets_map.py", arguments, lambda contestant, _: _digest(contestant.output, size))


def _raw(bench: Bench, corpus: Path, tokenizer: Path) -> Contestant:
    return bench.peer(RAW, "gigatoken_raw.py", [corpus, tokenizer], _printed_tokens, _printed_seconds)


def _digest_here(contestant: Contestant, usage: Usage) -> Digest:
    return _digest(contestant.output, 4)


def _digest(folder: Path, token_bytes: int) -> Digest:
    return digest_of(sorted(folder.glob("*.bin")), token_bytes)


def _printed_tokens(contestant: Contestant, usage: Usage) -> int:
    return int(re.findall(r"(\d+) tokens with", usage.output)[0])


def _printed_seconds(contestant: Contestant, usage: Usage) -> float | None:
    """Megatron-LM and our programs print how long the work took."""
    found = re.findall(r"(?:Elapsed time:|own timer) ([\d.]+) seconds", usage.output)
    return float(found[-1]) if found else None


def run_memory(bench: Bench) -> list[Section]:
    """Our memory on the corpus, and on ten times as much: it should not follow the size."""
    folder = bench.work / "ten-times"
    folder.mkdir(exist_ok=True)
    for number in range(MEMORY_COPIES):
        link = folder / f"{number:02d}.jsonl"
        link.unlink(missing_ok=True)
        link.hardlink_to(bench.jsonl)
    found = []
    for name, source in (("ours, the corpus", bench.jsonl), ("ours, ten times the corpus", folder)):
        settings = {"source": source, "tokenizer.model": bench.tokenizers[MAIN], "workers": bench.workers}
        keys = {f"data_prep.{key}": value for key, value in settings.items()}
        contestant = bench.ours("pretrain", name, keys)
        contestant.most_rounds = 1
        found.append(contestant)
    notes = ["the same text ten times: good for memory only, its speed flatters caches"]
    return [Section("memory of pretrain", compete(found, 1, 1, REPOSITORY), notes)]
