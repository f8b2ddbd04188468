"""Statistics as text tables, shared by the page and the terminal."""

from collections import Counter

from nemotron_app.inspect.build import Inspection
from nemotron_app.inspect.examples import Example
from nemotron_app.inspect.find import LENGTHS
from nemotron_app.inspect.histogram import fill_histogram, histogram, quantile
from nemotron_app.inspect.sanity import blend_shares
from nemotron_app.report.bars import Histogram
from nemotron_app.report.wording import short_count
from nemotron_app.rich_table import Table

KIND_NAMES = {"documents": "pretraining documents", "packs": "packed conversations", "lines": "JSON rows"}
SHIFT_NOTE = (
    "Marked are the tokens that the model learns to write. In the file the mask stands one place earlier, "
    "because each position predicts the token after it."
)
ALL_NOTE = "Every token is trained on, so none is marked."


def tables(found: Inspection) -> list[Table]:
    """Tables of splits; of requested and actual weights, if blended; and of rows by agent, if rows name agents."""
    splits, kind = found.splits, found.prepared.kind
    total, pack_size = sum(split.tokens for split in splits), pack_size_of(found)
    rows = []
    for split in splits:
        cells = {"split": split.name, "documents" if kind == "documents" else "rows": f"{split.examples:,}"}
        if kind == "packs":
            cells["sequences"] = f"{split.sequences:,}{' seen' if split.sample else ''}"
        if kind != "lines":
            cells["tokens"] = f"{split.tokens:,}"
        if kind == "documents":
            cells["share"] = f"{split.tokens / max(1, total):.1%}"
        if kind == "packs":
            fill = split.fill(pack_size)
            cells["trained on"] = f"{split.trained / max(1, split.seen_tokens):.1%}"
            cells["fill"] = "–" if fill is None else f"{fill:.1%}"
        cells |= {"median": f"{quantile(split.lengths, 0.5):,}", "longest": f"{max(split.lengths, default=0):,}"}
        rows.append(cells)
    made = [Table(list(rows[0]), [list(cells.values()) for cells in rows])]
    shares = [
        [share.data_set, share.split, f"{share.documents:,}", f"{share.tokens:,}", f"{share.asked:.1%}",
         f"{share.on_disk:.1%}", f"{share.asked / share.on_disk:.2f}×" if share.on_disk else "–"]
        for share in blend_shares(splits)
    ]  # fmt: skip
    headings = ["data set", "split", "documents", "tokens", "asked weight", "share on disk", "drawn"]
    agents = [
        [name, *(f"{split.agents[name]:,}" for split in splits)]
        for name in sorted({name for split in splits for name in split.agents})
    ]
    made += [Table(headings, shares)] if shares else []
    return made + ([Table(["agent", *(split.name for split in splits)], agents)] if agents else [])


def pack_size_of(found: Inspection) -> int | None:
    """The pack size from the stats, or else the longest row."""
    if found.prepared.kind != "packs":
        return None
    return found.prepared.pack_size or max((size for split in found.splits for size in split.row_lengths), default=0)


def tiles(found: Inspection) -> list[tuple[str, str]]:
    """Headline numbers of the set: (number, label)."""
    kind = found.prepared.kind
    examples, tokens, seen, trained = (
        sum(getattr(split, name) for split in found.splits) for name in ("examples", "tokens", "seen_tokens", "trained")
    )
    names = {"documents": "documents", "packs": "packed rows", "lines": "rows"}
    tiles = [(short_count(examples), names[kind])]
    if kind != "lines":
        tiles.append((short_count(tokens), "tokens"))
    if kind == "packs":
        tiles.append((f"{trained / max(1, seen):.0%}", "of tokens trained on"))
    if (size := pack_size_of(found)) and examples:
        tiles.append((f"{tokens / (examples * size):.1%}", f"fill of rows of {size:,}"))
    if found.refused is not None:
        tiles.append((short_count(sum(reason.count for reason in found.refused)), "rows refused"))
    return [*tiles, (short_count(sum(found.copies.within().values())), "extra copies")]


def histograms(found: Inspection) -> list[Histogram]:
    """Sequence lengths of the shown split, and the fill of its packed rows."""
    kind, size = found.prepared.kind, pack_size_of(found)
    split = next(split for split in found.splits if split.name == found.shown)
    note = f"{split.name}{', a sample: ' + split.sample if split.sample else ''}"
    title, unit = LENGTHS[kind]
    exact = split.name if kind == "documents" else note
    drawn = [Histogram(title, unit, histogram(split.lengths), exact, "base")]
    if size:
        percents = Counter[int]()
        for length, count in split.row_lengths.items():  # rounded down, but up above the pack size
            percents[-(-100 * length // size) if length > size else 100 * length // size] += count
        whole = "% of pack size" if found.prepared.pack_size else "% of the longest row, as no stats.json states a size"
        drawn.append(Histogram("Fill of packed rows", whole, fill_histogram(percents), note, "rl"))
    return [one for one in drawn if one.bins]


def duplicate_lines(found: Inspection) -> list[str]:
    """One sentence per comparison for duplicates, with its result."""
    samples = [f"{split.name}: {split.sample}" for split in found.splits if split.sample]
    sampled = f" Only a sample was compared ({'; '.join(samples)})." if samples else ""
    how = "without regard to case and white space" if found.prepared.kind == "lines" else "token by token"
    lines = [f"{found.copies.kept.total():,} {found.items} were compared whole, {how}.{sampled}"]
    if found.copies.left_out:
        lines.append(f"{found.copies.left_out:,} more were left out to bound memory.")
    for split, extra in found.copies.within().items():
        lines.append(f"{split}: {extra:,} extra copies." if extra else f"{split}: no duplicates.")
    only = ", of which only that sample was read" if found.splits[0].sample else ""
    return lines + [f"{overlap.sentence}{only}." for overlap in found.overlaps]


def mark_note(found: Inspection) -> str | None:
    """Legend of the marks on tokens."""
    return {"documents": ALL_NOTE, "packs": SHIFT_NOTE, "lines": None}[found.prepared.kind]


def caption(example: Example) -> str:
    """`train, row 0 · 4 sequences · 126 tokens, 31 trained on`."""
    words = [example.place]
    if example.is_masked:
        count = len(example.sequences)
        trained = sum(sequence.trained_tokens for sequence in example.sequences)
        words += [f"{count} sequence{'s' if count != 1 else ''}", f"{example.tokens:,} tokens, {trained:,} trained on"]
    elif example.sequences:
        words.append(f"{example.tokens:,} tokens")
    return " · ".join([*words, *([f"problem: {example.problem}"] if example.problem else [])])
