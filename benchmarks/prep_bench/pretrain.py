"""Pretraining data: JSONL to Megatron .bin/.idx, us against all available peers, then our memory."""

import re
from pathlib import Path
from typing import Any

from prep_bench.contest import Contestant, Missing, Score, compete
from prep_bench.corpus import read_texts, write_prefix
from prep_bench.identity import Digest, changed, digest_of, verdict
from prep_bench.process_tree import CommandFailed, Usage
from prep_bench.settings import REPOSITORY, Bench, artifact
from prep_bench.table import Section
from prep_bench.vocabularies import ANSWER_MARKUP, control_names, holds

MAIN, SMALL = "tok131k", "tok32k"
SMALL_VOCABULARY = 65_500
"""Token ids of smaller vocabularies take two bytes."""
PREFIX_SHARE = 8
FAST, PLAIN = "Megatron-LM preprocess_data_fast.py", "Megatron-LM preprocess_data.py"
CORE = "megatron-core IndexedDatasetBuilder"
DATATROVE = "datatrove MegatronDocumentTokenizer"
DATASETS = "datasets map"
TOOLS = (FAST, PLAIN, CORE, DATATROVE, DATASETS)
"""Tools whose bytes may be the reference, those closest to Megatron first."""
RAW = "gigatoken encode_files, nothing written"
ALLOW = "ours, control tokens allowed"
"""As in all peers: the name of a control token in a text becomes the token."""
MEMORY_COPIES = 10


def run(bench: Bench) -> list[Section]:
    """Every program on the whole corpus; the fast ones also on an eighth of it and with the small vocabulary."""
    size = f"{bench.text_bytes / 1e6:.0f} MB of text"
    everyone, missing = _contestants(bench, bench.jsonl, MAIN)
    whole = _section(bench, f"pretrain, {size}, 131k vocabulary", everyone, missing, bench.jsonl, MAIN)
    eighth = write_prefix(bench.jsonl, bench.work / "eighth.jsonl", bench.documents // PREFIX_SHARE)
    few = _quick(bench, _contestants(bench, eighth, MAIN)[0])
    part = _section(bench, "pretrain, an eighth of it", few, [], eighth, MAIN)
    whole.notes += steady_state(whole, part, bench.jsonl.stat().st_size - eighth.stat().st_size)
    whole.notes += workers_told(whole)
    few = _quick(bench, _contestants(bench, bench.jsonl, SMALL)[0])
    small = _section(bench, f"pretrain, {size}, 32k vocabulary", few, [], bench.jsonl, SMALL)
    return [whole, part, small]


def _quick(bench: Bench, contestants: list[Contestant]) -> list[Contestant]:
    ours = {ALLOW, _named(bench.workers)}
    return [
        c for c in contestants if c.name in (FAST, RAW) or (not c.peer and (not bench.rehearsal or c.name in ours))
    ]  # fmt: skip


def _section(
    bench: Bench, title: str, contestants: list[Contestant], missing: list[Missing], corpus: Path, tokenizer: str
) -> Section:
    names = control_names(bench.tokenizers[tokenizer]) - ANSWER_MARKUP
    held = {number for number, text in enumerate(read_texts(corpus)) if holds(text, names)}
    scores = compete(contestants, bench.rounds, bench.slow_rounds, REPOSITORY)
    return judged(Section(title, [*scores, *missing]), held)


def judged(section: Section, held: set[int]) -> Section:
    """Add to each program how its bytes relate to the reference's.

    If control tokens are allowed in texts, as in the peers, our bytes must equal those of a peer. With our default,
    exactly the documents with the name of a control token must differ. Peers may disagree with each other if their
    tokenizer libraries do.

    Args:
        held: indices of the documents with such a name.

    Raises:
        CommandFailed: our bytes differ in another way, so that speeds would be meaningless.
    """
    scores = [row for row in section.rows if isinstance(row, Score)]
    allowed = next(score for score in scores if score.name == ALLOW)
    reference = _reference(scores, allowed)
    if _judge(allowed.found, reference) not in ("same bytes", "same .bin"):
        raise CommandFailed(f"{ALLOW} wrote other bytes than {reference.name}: {_short(allowed)} {_short(reference)}")
    for score in scores:
        if not score.peer and score is not allowed and (others := changed(score.found, allowed.found)) != held:
            found = "another number of documents" if others is None else f"{len(others)} documents with other ids"
            raise CommandFailed(f"{score.name}: {found}, where {len(held)} hold the name of a control token")
    but = f"same bytes but for {len(held):,} documents" if held else "same bytes"
    rows = [
        row._replace(found=_judge(row.found, reference) if row.peer or row.name == ALLOW else but)
        if isinstance(row, Score)
        else row
        for row in section.rows
    ]
    return Section(section.title, rows, [*section.notes, *_relation(reference, allowed, held), *work_ratios(scores)])


def _short(score: Score) -> str:
    return str(score.found._replace(documents=()))


def _relation(reference: Score, allowed: Score, held: set[int]) -> list[str]:
    """How our bytes and those of the peers are related, in words."""
    note = f"'same bytes': .bin and .idx, shards taken together, are those of {reference.name}"
    if reference.found.idx is None:
        note = f"'same .bin', shards taken together, is that of {reference.name}, which writes no index"
    if not reference.peer:
        note = "no peer that writes tokens ran here, so only our own runs were compared"
    many, total = len(held), len(allowed.found.documents)
    return [
        note,
        f"{many:,} of {total:,} documents hold the name of a control token: ours encode it as text, and peers as the "
        f"token, so exactly these documents are others; with data_prep.control_tokens=allow none is",
    ]


def _reference(scores: list[Score], allowed: Score) -> Score:
    """The first tool that agrees with ours if control tokens are allowed, else the first that ran, else ours."""
    tools = [score for name in TOOLS for score in scores if score.name == name]
    agreeing = [tool for tool in tools if _judge(allowed.found, tool) in ("same bytes", "same .bin")]
    return (agreeing or tools or [allowed])[0]


def _judge(found: Any, reference: Score) -> str:
    expected = reference.found
    if isinstance(found, int):
        return "same token count" if found == expected.tokens else f"OTHER: {found:,} tokens"
    if expected.idx is None and found.bin == expected.bin:
        return "same .bin"
    others = changed(found, expected)
    if others and found.tokens != expected.tokens:
        return f"OTHER: {len(others):,} documents"
    return verdict(found, expected)


def work_ratios(scores: list[Score]) -> list[str]:
    """Work without start-up, by each program's own clock, compared with ours."""
    ours = scores[0].own_s
    return [
        f"work phase, {score.name}: {score.own_s / ours:.2f} times ours"
        for score in scores
        if ours and score.own_s and score.peer
    ]


def steady_state(whole: Section, part: Section, extra_bytes: int) -> list[str]:
    """MB of JSONL per second of wall time after start-up, from the difference of two sizes."""
    small = {row.name: row for row in part.rows if isinstance(row, Score)}
    lines = []
    for row in whole.rows:
        if isinstance(row, Score) and row.name in small:
            seconds = row.wall_s - small[row.name].wall_s
            speed = f"{extra_bytes / seconds / 1e6:.0f} MB/s" if seconds > 0 else "too quick to tell"
            lines.append(f"steady state (start-up taken off, JSONL bytes), {row.name}: {speed}")
    return lines


def workers_told(section: Section) -> list[str]:
    """Effect of more workers, and the cores that one of them uses: a thread writes and hashes its files."""
    many, one = [row for row in section.rows if isinstance(row, Score) and not row.peer][:2]
    if one.name != _named(1):
        return []  # there was only one worker anyway
    busy = ", ".join(f"{row.name} kept {row.cpu_s / row.wall_s:.2f} cores busy" for row in (many, one))
    why = "the thread that writes and hashes a worker's files keeps another core busy"
    return [f"{many.name} took {many.wall_s / one.wall_s:.2f} times as long as one; {busy}; {why}"]


def _contestants(bench: Bench, corpus: Path, tokenizer: str) -> tuple[list[Contestant], list[Missing]]:
    folder = bench.tokenizers[tokenizer]
    found = _ours(bench, corpus, folder)
    missing: list[Missing] = []
    for name, why, make in (
        (FAST, _no_megatron(bench, "gigatoken"), lambda: _megatron(bench, FAST, corpus, folder, ["--use-gigatoken"])),
        (PLAIN, _no_megatron(bench), lambda: _megatron(bench, PLAIN, corpus, folder, _plain(bench))),
        (f"{PLAIN} --use-gigatoken", _no_megatron(bench, "gigatoken"), lambda: _megatron(
            bench, f"{PLAIN} --use-gigatoken", corpus, folder, [*_plain(bench), "--use-gigatoken"])),
        (CORE, bench.lacks("megatron.core", "transformers"), lambda: _core(bench, corpus, folder)),
        (DATATROVE, bench.lacks("datatrove"), lambda: _datatrove(bench, corpus, folder)),
        (DATASETS, bench.lacks("datasets", "transformers"), lambda: _datasets(bench, corpus, folder)),
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

    found = [make(_named(workers), corpus, workers) for workers in dict.fromkeys((bench.workers, 1))]
    found.append(make(ALLOW, corpus, bench.workers, control_tokens="allow"))
    if corpus == bench.jsonl:
        found.append(make(f"ours, {bench.workers} workers, Parquet", bench.corpus / "corpus.parquet", bench.workers))
    if bench.ray and corpus == bench.jsonl and tokenizer == bench.tokenizers[MAIN]:
        found.append(make(f"ours, {bench.workers} workers, Ray", corpus, bench.workers, executor="ray"))
        found[-1].may_fail = True  # some machines do not let Ray start
    return found


def _named(workers: int) -> str:
    return f"ours, {workers} worker{'s' * (workers > 1)}"


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
    """datatrove parallelizes over files, so it gets the corpus as one file per worker."""
    name, parts = DATATROVE, bench.work / f"parts-{corpus.stem}"
    cut_file(corpus, parts, bench.workers)
    arguments = [parts, tokenizer, bench.output(name), bench.workers]
    return bench.peer(name, "datatrove_megatron.py", arguments, _digest_here)


def cut_file(corpus: Path, folder: Path, parts: int) -> None:
    """Split a file into parts of about equal size, cut at line ends."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    size = corpus.stat().st_size
    with corpus.open("rb") as source:
        for number in range(parts):
            with (folder / f"{number:05d}.jsonl").open("wb") as target:
                while source.tell() < size * (number + 1) // parts:
                    target.write(source.readline())


def _core(bench: Bench, corpus: Path, tokenizer: Path) -> Contestant:
    arguments = [corpus, tokenizer, bench.output(CORE) / "corpus", bench.workers]
    return bench.peer(CORE, "megatron_core.py", arguments, _digest_here, _printed_seconds)


def _datasets(bench: Bench, corpus: Path, tokenizer: Path) -> Contestant:
    from tokenizers import Tokenizer

    size = 2 if Tokenizer.from_file(str(tokenizer / "tokenizer.json")).get_vocab_size() < SMALL_VOCABULARY else 4
    arguments = [corpus, tokenizer, bench.output(DATASETS) / "corpus.bin", bench.workers]
    return bench.peer(DATASETS, "datasets_map.py", arguments, lambda contestant, _: _digest(contestant.output, size))


def _raw(bench: Bench, corpus: Path, tokenizer: Path) -> Contestant:
    return bench.peer(RAW, "gigatoken_raw.py", [corpus, tokenizer], _printed_tokens, _printed_seconds)


def _digest_here(contestant: Contestant, usage: Usage) -> Digest:
    return _digest(contestant.output, 4)


def _digest(folder: Path, token_bytes: int) -> Digest:
    return digest_of(sorted(folder.glob("*.bin")), token_bytes)


def _printed_tokens(contestant: Contestant, usage: Usage) -> int:
    return int(re.findall(r"(\d+) tokens with", usage.output)[0])


def _printed_seconds(contestant: Contestant, usage: Usage) -> float | None:
    """Seconds of work, as printed by Megatron-LM and our programs."""
    found = re.findall(r"(?:Elapsed time:|own timer) ([\d.]+) seconds", usage.output)
    return float(found[-1]) if found else None


def run_memory(bench: Bench) -> list[Section]:
    """Our memory on the corpus, and on ten times as much: it should not grow with the size."""
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
