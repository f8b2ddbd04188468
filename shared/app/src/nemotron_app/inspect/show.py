"""Show an inspection: tables and histograms, in the terminal and on an HTML page."""

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any

from nemotron_app import output
from nemotron_app.charts import Histogram, bar_chart, fill_histogram, histogram, quantile
from nemotron_app.inspect.find import LENGTHS
from nemotron_app.inspect.measure import Inspection, Piece, blend_shares, visible
from nemotron_app.inspect.splits import Example, TokenSequence
from nemotron_app.output import Table, open_console, print_table, text_of
from nemotron_app.wording import short_count

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

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
    """Lengths in the shown split, and the fill of its packed rows."""
    kind, size = found.prepared.kind, pack_size_of(found)
    split = next(split for split in found.splits if split.name == found.shown)
    note = f"{split.name}{', a sample: ' + split.sample if split.sample else ''}"
    title, unit = LENGTHS[kind]
    exact = split.name if kind == "documents" else note
    drawn = [Histogram(title, unit, histogram(split.lengths), exact, "base")]
    for name, counts in split.answers.items():
        drawn.append(Histogram(f"Length of {name} answers", unit, histogram(counts), note, "base"))
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


# An inspection in the terminal. Without colors, trained tokens are enclosed in ⟦ ⟧.
#
# train, row 0 · 4 sequences · 126 tokens, 31 trained on
#   1  <|im_start|>user↵
#      2+2?<|im_end|>↵
#      <|im_start|>assistant↵
#      ⟦4<|im_end|>⟧↵

BAR = 44
EIGHTHS = " ▏▎▍▌▋▊▉█"
# Backgrounds of alternating packed sequences; readable on any terminal because the text color is set as well.
GROUNDS = ("grey15", "grey27")
INK = {"context": "grey78", "trained": "bold #7fe0a8", "special": "#8ab8ff", "bad": "bold #ff8a7e"}


def print_inspection(found: Inspection, tokens: int, console: "Console | None" = None) -> None:
    """Print everything to one console, with at most `tokens` tokens per example."""
    console = console or open_console()
    _print(console, found.prepared.title, "bold")
    _print(console, f"{KIND_NAMES[found.prepared.kind]} in {found.prepared.path}")
    for warning in found.warnings:
        _print(console, f"warning: {visible(warning, ' ')}", "bold yellow")
    for table in tables(found):
        console.print()
        rows = [[visible(cell, " ") for cell in row] for row in table.rows]
        print_table(console, Table(table.headings, rows), right=True, wrapped=table.headings[0])
    for shown in histograms(found):
        _print_histogram(console, shown)
    if found.examples:
        _print_examples(console, found, tokens)
    if found.refused is not None:
        _heading(console, f"Refused rows: {sum(reason.count for reason in found.refused):,}")
        for reason in found.refused:
            _print(console, f"  {reason.count:,} × {visible(reason.reason, ' ')}")
            for example in reason.examples:
                _print(console, "      " + "  ".join(visible(text, "↵") for text in example if text))
    _heading(console, "Duplicates and overlap")
    lines = duplicate_lines(found)
    for count, text, places in found.copies.most_common():
        lines.append(f"{count:,} × {visible(text, '↵')}  ({'; '.join(places)})")
    for overlap in found.overlaps:
        lines += [f"{overlap.split}, also in training: {visible(text, '↵')}" for text in overlap.examples]
    for line in lines:
        _print(console, f"  {line}")


def _print(console: "Console", text: str, style: str = "") -> None:
    # Keep lines whole in a pipe; wrap words on a terminal.
    console.print(text_of(console, text, style), soft_wrap=not console.is_terminal)


def _heading(console: "Console", text: str) -> None:
    console.print()
    _print(console, text, "bold")


def _print_histogram(console: "Console", histogram: Histogram) -> None:
    """One bar per bin from the first non-empty one; three or more empty bins in a row become dots."""
    _heading(console, f"{histogram.title}, {histogram.unit} ({histogram.note})")
    most = max(found.count for found in histogram.bins)
    width = max(len(found.label) for found in histogram.bins)
    for number, (is_empty, run) in enumerate(groupby(histogram.bins, lambda found: found.count == 0)):
        bins = list(run)
        if is_empty and number == 0:
            continue
        if is_empty and len(bins) > 2:
            _print(console, f"  {'...':>{width}}")
            continue
        for found in bins:
            share = found.count / most
            eighths = max(round(share * BAR * 8), 1 if share else 0)
            bar = EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip()
            bar = "#" * round(share * BAR) if console.options.ascii_only else bar
            _print(console, f"  {found.label:>{width}} {bar} {found.count:,}")


def _print_examples(console: "Console", found: Inspection, tokens: int) -> None:
    from rich.table import Table

    _heading(console, f"Examples of {found.shown}")
    brackets = ("[[", "]]") if console.options.ascii_only else ("⟦", "⟧")
    if console.is_terminal and not console.no_color:
        brackets = ("", "")
    if note := mark_note(found):
        bracketed = brackets[0] and found.prepared.kind == "packs"
        _print(console, f"{note} They stand in {' '.join(brackets)}." if bracketed else note)
    for example in found.examples:
        console.print()
        _print(console, visible(caption(example), " "), "underline")
        grid = Table.grid(padding=(0, 1, 0, 2))
        grid.add_column(justify="right", style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        left = tokens
        for number, sequence in enumerate(example.sequences):
            if left <= 0:
                grid.add_row("", text_of(console, f"… {len(example.sequences) - number:,} more sequences"))
                break
            pieces = found.decoder.pieces(sequence, left)
            grid.add_row(str(number + 1), _sequence_text(console, pieces, sequence, number, brackets))
            left -= len(sequence.ids)
        for label, text in (*example.turns, *example.facts):
            grid.add_row(text_of(console, visible(label, " ")), text_of(console, visible(text)))
        console.print(grid)


def _sequence_text(
    console: "Console", pieces: list[Piece], sequence: TokenSequence, number: int, brackets: tuple[str, str]
) -> "Text":
    """The pieces of a sequence, colored or in brackets, on a background that alternates with the sequence number."""
    text = text_of(console, "")
    newline = "\\n\n" if console.options.ascii_only else "↵\n"
    for trained, run in groupby(pieces, lambda piece: piece.trained and sequence.trained is not None):
        text.append(brackets[0] if trained else "")
        for piece in run:
            ink = "bad" if piece.kind == "bad" else "trained" if trained else piece.kind
            style = f"{INK.get(ink, INK['context'])} on {GROUNDS[number % 2]}"
            text.append_text(text_of(console, visible(piece.text, newline), style))
        text.append(brackets[1] if trained else "")
    shown = sum(len(piece.ids) for piece in pieces)
    if len(sequence.ids) > shown:
        text.append_text(text_of(console, f" … {len(sequence.ids) - shown:,} more tokens", "dim"))
    if text.plain.endswith("\n"):
        text.right_crop(1)  # the table adds its own line break
    return text


WIDTH, WIDTH_ALONE = 520, 1036


def render(found: Inspection, tokens: int) -> str:
    """Render the page, with at most `tokens` tokens per example."""
    shown = histograms(found)
    values = {
        "found": found,
        "kind": KIND_NAMES[found.prepared.kind],
        "tiles": tiles(found),
        "tables": tables(found),
        "mark_note": mark_note(found),
        "duplicates": duplicate_lines(found),
        "caption": caption,
        "charts": [bar_chart(one, WIDTH if len(shown) > 1 else WIDTH_ALONE) for one in shown],
        "examples": [_shown(found, example, tokens) for example in found.examples],
        "limit": tokens,
    }
    return output.render("inspection.html.jinja", values, {"visible": visible})


def _shown(found: Inspection, example: Example, tokens: int) -> dict[str, Any]:
    """An example: its sequences as runs of trained or untrained pieces, and the position of each run in the pack.

    The strip that shows the pack has (x, width, look) per run, in percent of the pack size.
    """
    sequences, strip, left, position = [], [], tokens, 0
    whole = max(pack_size_of(found) or 0, example.tokens, 1)
    for number, sequence in enumerate(example.sequences):
        if left > 0:
            pieces = found.decoder.pieces(sequence, left)
            sequences.append([(trained, list(run)) for trained, run in groupby(pieces, lambda piece: piece.trained)])
        left -= len(sequence.ids)
        for trained, run in groupby([] if sequence.trained is None else sequence.trained.tolist()):
            size = len(list(run))
            look = "trained" if trained else "odd" if number % 2 else "even"
            strip.append((round(100 * position / whole, 3), round(100 * size / whole, 3), look))
            position += size
    return {"example": example, "sequences": sequences, "strip": strip}
