"""The figures as tables of text, the same for the page and the terminal."""

from collections import Counter
from dataclasses import dataclass

from nemotron_app.inspect.build import Inspection
from nemotron_app.inspect.histogram import Bin, fill_histogram, histogram, quantile
from nemotron_app.inspect.measure import SplitFigures
from nemotron_app.inspect.sanity import blend_shares
from nemotron_app.report import wording

KIND_NAMES = {"documents": "pretraining documents", "packs": "packed conversations", "lines": "JSON rows"}
SHIFT_NOTE = (
    "Marked are the tokens that the model learns to write. In the file the mask stands one place earlier, "
    "because each position predicts the token after it."
)
ALL_NOTE = "Every token is trained on, so none is marked."


@dataclass(frozen=True)
class Table:
    """Headings and rows of cells; the first column names the row, the others are figures."""

    headings: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Drawing:
    """One histogram with its caption."""

    title: str
    unit: str
    bins: list[Bin]
    note: str
    look: str


def splits_table(found: Inspection) -> Table:
    """One row per split."""
    kind = found.located.kind
    headings = {
        "documents": ["split", "documents", "tokens", "share", "median", "longest"],
        "packs": ["split", "rows", "sequences", "tokens", "trained on", "fill", "median", "longest"],
        "lines": ["split", "rows", "median", "longest"],
    }[kind]
    return Table(headings, [_split_row(found, split) for split in found.figures])


def _split_row(found: Inspection, split: SplitFigures) -> list[str]:
    kind, count = found.located.kind, wording.count
    sizes = [count(quantile(split.lengths, 0.5)), count(max(split.lengths, default=0))]
    if kind == "documents":
        total = max(1, sum(other.tokens for other in found.figures))
        return [split.name, count(split.examples), count(split.tokens), f"{split.tokens / total:.1%}", *sizes]
    if kind == "lines":
        return [split.name, count(split.examples), *sizes]
    fill = split.fill(pack_size_of(found))
    return [
        split.name, count(split.examples), count(split.sequences) + (" seen" if split.sample else ""),
        count(split.tokens), f"{split.trained_share:.1%}", f"{fill:.1%}" if fill is not None else "–", *sizes,
    ]  # fmt: skip


def pack_size_of(found: Inspection) -> int | None:
    """The pack size of the stats; where nothing states it, the longest row."""
    if found.located.kind != "packs":
        return None
    return found.located.pack_size or max((max(split.row_lengths, default=0) for split in found.figures), default=0)


def tiles(found: Inspection) -> list[tuple[str, str]]:
    """The figures that stand for the set: (number, what it is)."""
    kind, count = found.located.kind, wording.short_count
    examples = sum(split.examples for split in found.figures)
    tokens = sum(split.tokens for split in found.figures)
    names = {"documents": "documents", "packs": "packed rows", "lines": "rows"}
    tiles = [(count(examples), names[kind])]
    if kind != "lines":
        tiles.append((count(tokens), "tokens"))
    if kind == "packs":
        seen = sum(split.seen_tokens for split in found.figures)
        size = pack_size_of(found)
        tiles.append((f"{sum(split.trained for split in found.figures) / max(1, seen):.0%}", "of tokens trained on"))
        if size and examples:
            tiles.append((f"{tokens / (examples * size):.1%}", f"fill of rows of {size:,}"))
    if found.refused is not None:
        tiles.append((count(sum(reason.count for reason in found.refused)), "rows refused"))
    tiles.append((count(sum(found.copies.within().values())), "extra copies"))
    return tiles


def blend_table(found: Inspection) -> Table | None:
    """Asked and realised weights; None where nothing is blended."""
    shares = blend_shares(found.figures)
    if not shares:
        return None
    rows = [
        [share.data_set, share.split, wording.count(share.documents), wording.count(share.tokens),
         f"{share.asked:.1%}", f"{share.on_disk:.1%}", _repeats(share.asked, share.on_disk)]
        for share in shares
    ]  # fmt: skip
    return Table(["data set", "split", "documents", "tokens", "asked weight", "share on disk", "drawn"], rows)


def _repeats(asked: float, on_disk: float) -> str:
    return f"{asked / on_disk:.2f}×" if on_disk else "–"


def agents_table(found: Inspection) -> Table | None:
    """Rows by agent; None where no row names one."""
    names = sorted({name for split in found.figures for name in split.agents})
    if not names:
        return None
    rows = [[name, *(wording.count(split.agents[name]) for split in found.figures)] for name in names]
    return Table(["agent", *(split.name for split in found.figures)], rows)


def drawings(found: Inspection) -> list[Drawing]:
    """Histograms of the split that is shown."""
    split = next(figures for figures in found.figures if figures.name == found.shown)
    note = f"{split.name}{', a sample: ' + split.sample if split.sample else ''}"
    exact = split.name if found.located.kind == "documents" else note
    titles = {"documents": "Document length", "packs": "Sequence length", "lines": "Question length"}
    unit = "characters" if found.located.kind == "lines" else "tokens"
    found_drawings = [Drawing(titles[found.located.kind], unit, histogram(split.lengths), exact, "base")]
    size = pack_size_of(found)
    if size:
        percents = Counter[int]()
        for length, count in split.row_lengths.items():
            percents[-(-100 * length // size) if length > size else 100 * length // size] += count
        whole = "% of pack size" if found.located.pack_size else "% of the longest row, as no stats.json states a size"
        found_drawings.append(Drawing("Fill of packed rows", whole, fill_histogram(percents), note, "rl"))
    return [drawing for drawing in found_drawings if drawing.bins]


def duplicate_lines(found: Inspection) -> list[str]:
    """What was compared, and what came out, one sentence each."""
    samples = [f"{split.name}: {split.sample}" for split in found.figures if split.sample]
    sampled = f" Only a sample was compared ({'; '.join(samples)})." if samples else ""
    how = "without regard to case and white space" if found.located.kind == "lines" else "token by token"
    lines = [f"{found.copies.items:,} {found.items} were compared whole, {how}.{sampled}"]
    if found.copies.left_out:
        lines.append(f"{found.copies.left_out:,} more were left out to bound memory.")
    for split, extra in found.copies.within().items():
        lines.append(f"{split}: {extra:,} extra copies." if extra else f"{split}: no duplicates.")
    part = ", of which only that sample was read" if found.figures[0].sample else ""
    lines += [f"{overlap.sentence}{part}." for overlap in found.overlaps]
    return lines


def mark_note(found: Inspection) -> str | None:
    """What the marks on tokens mean."""
    return {"documents": ALL_NOTE, "packs": SHIFT_NOTE, "lines": None}[found.located.kind]
