"""Split text files into documents: the whole file, or parts between blank lines or headings.

# One                 ->  "# One\\n\\nOnce upon a time ..."
                          "# Two\\n\\n..."
Once upon a time ...
# Two
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TextIO

from nemotron_data.sources.encoding import encoding_of, head_of
from nemotron_data.sources.files import format_of
from nemotron_data.sources.long_lines import lines_up_to
from nemotron_data.sources.remote import Documents, InputFile

MANY = 20
"""With this many text files or more, each is one document."""
HEADING = re.compile(r"#{1,2}[ \t]+\S")
FENCE = re.compile(r"\s*(```|~~~)")
TWO_BLANK_LINES = re.compile(r"\n[ \t\r]*\n[ \t\r]*\n")
BLANK_LINE = re.compile(r"\n[ \t\r]*\n")


def with_choice(files: Sequence[InputFile]) -> list[InputFile]:
    """Resolve `auto`: set for each text file of a data set what one document is."""
    texts = sum(format_of(file.path).content == "text" for file in files)
    return [
        replace(file, reading=replace(file.reading, documents=choice(file, texts)))
        if file.reading.documents == "auto" and format_of(file.path).content == "text"
        else file
        for file in files
    ]


def about_documents(files: Sequence[InputFile]) -> str | None:
    """One line for people about what one document of the text files is; None without text files."""
    chosen = Counter(file.reading.documents for file in files if format_of(file.path).content == "text")
    if not chosen:
        return None
    words = {"whole": "whole", "blank_lines": "cut at blank lines", "headings": "cut at headings"}
    kinds = ", ".join(f"{count:,} {words[how]}" for how, count in chosen.most_common())
    return f"documents of text files: {kinds} (data_prep.documents)"


def choice(file: InputFile, texts: int) -> Documents:
    """Meaning of `auto` for one of `texts` text files: with few files, each contains many documents."""
    if texts >= MANY:
        return "whole"
    text = head_of(file).decode(encoding_of(file), "replace")
    if ".md" in format_of(file.path).ending and sum(1 for line in text.splitlines() if HEADING.match(line)) > 1:
        return "headings"
    return "blank_lines" if BLANK_LINE.search(text.strip()) else "whole"


def documents_of(file: InputFile, content: TextIO, longest: int) -> Iterator[tuple[int, str]]:
    """Yield first line number and text of each document that is not only white space.

    Documents longer than `longest` characters are truncated just beyond it, so that callers can tell.
    """
    how = file.reading.documents
    if how == "whole":
        yield 1, content.read(longest + 1)
        return
    text = head_of(file).decode(encoding_of(file), "replace")
    # chapters are further apart than paragraphs
    gap = 2 if len(TWO_BLANK_LINES.findall(text)) > 1 else 1
    lines: list[str] = []
    begun, blank, held, fenced, body = 1, 0, 0, False, False
    for number, line in enumerate(lines_up_to(longest, content), start=1):
        fenced ^= bool(FENCE.match(line))
        heading = how == "headings" and not fenced and bool(HEADING.match(line))
        if lines and ((heading and body) or (how == "blank_lines" and blank >= gap and line.strip())):
            yield begun, "".join(lines).strip("\r\n")
            lines, held, body = [], 0, False
        blank = 0 if line.strip() else blank + 1
        if lines or line.strip():
            begun = begun if lines else number
            lines.extend([line] if held <= longest else [])
            held += len(line)
            body |= not heading and bool(line.strip())
    if lines:
        yield begun, "".join(lines).strip("\r\n")
