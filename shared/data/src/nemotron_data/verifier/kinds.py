"""What an expected answer is, and so how an answer is compared with it.

expected("#### 1,234").kind        "number"
expected("\\\\frac{\\\\pi}{2}").kind   "math"
expected("(B)").kind               "choice"
expected("Paris").kind             "text"
"""

import re
import unicodedata
from dataclasses import dataclass
from typing import Literal

from nemotron_data.verifier.claims import final_claim, unwrapped
from nemotron_data.verifier.dates import dates_in
from nemotron_data.verifier.numbers import Number, read_number

Kind = Literal["number", "math", "choice", "text"]
LETTER = re.compile(r"\(?([A-J])\)?[.):]?")
# LaTeX, an equation, a tuple or a set, or figures that an operator joins.
FORMULA = re.compile(
    r"\\[A-Za-z]|[\^_{}=<>\u00b2\u00b3\u00b9\u2070-\u2079\u2264\u2265\u03c0\u221a\u221e]|^[(\[].*,.*[)\]]$|^-?[\d.]+(?:\s*,\s*-?[\d.]+)+$|\bsqrt\b"
    r"|^[a-z]$|\)\s*\(|\d\s*[a-zA-Z]?\s*[+*/-]\s*\d|\b\d+[a-z]\b|[a-z)]\s*[+*/-]\s*\d|\b[a-z]\s*[+*/-]\s*[a-z]\b"
    r"|^-?(?:\d[\d.]*)?[a-z]?\s*[+*/-]\s*(?:\d[\d.]*)?[a-z]$|\b\d+[abcxyz]{2,3}\b|\d!\s*[+*/^-]"
)
FACTORIAL = re.compile(r"[\d\s+*/^(){}!-]*[\d)}]!")
HYPHENATED = re.compile(r"\d+(?:[-\u2013]\d+)+")
"""Figures of a month, a season, a score or a telephone: 2024-01 is not 2023."""
ARTICLES = ("a", "an", "the")
SIGNS = "-*/%&@#"
"""Signs that Unicode counts as punctuation, besides those that it calls symbols."""


@dataclass(frozen=True)
class Expected:
    """An expected answer without the marks around it."""

    text: str
    kind: Kind
    number: Number | None = None

    @property
    def is_nothing(self) -> bool:
        """Whether no answer can be right: there is no text, or one without words and signs, such as "..."."""
        return not self.text or (self.kind == "text" and not words_of(self.text))


def expected(gold: str, kind: Kind | None = None) -> Expected:
    """Read an expected answer.

    Args:
        kind: what it is; None: by its looks.
    """
    text = gold.strip()
    claim = final_claim(text)
    said = claim.text if claim else text
    text = unwrapped(said)
    if FACTORIAL.fullmatch(said.strip(" $")):
        text = said.strip(" $")  # the sign at its end ends no sentence
    if (
        kind is None
        and len(dates_in(text)) == 1
        and not re.search(r"[a-z]{4,} [a-z]{4,} [a-z]{4,}", text, re.IGNORECASE)
    ):
        return Expected(text, "text")
    number = read_number(text) if kind in (None, "number") else None
    if number is not None and not re.search(r"\d", text):
        number = None if kind is None else number  # "seven" is a word unless it is called a number
    if kind is None:
        if number is not None:
            kind = "number"
        elif LETTER.fullmatch(text):
            kind = "choice"
        elif FACTORIAL.fullmatch(text):
            kind = "math"
        else:
            kind = "math" if FORMULA.search(text) and not HYPHENATED.fullmatch(text) else "text"
    return Expected(text, kind, number)


def words_of(text: str) -> list[str]:
    """The words of a text as they are compared, without articles unless it has nothing else; the signs, such as "+",
    of one without words."""
    text = re.sub(r"\\[a-z]+|[{}_$]", "", unwrapped(text)) if "\\" in text else unwrapped(text)
    text = re.sub(r"\bMt\b\.?", "Mount", re.sub(r"\bSt\.", "Saint", text))
    text = re.sub(r"(?<=\d)(?:st|nd|rd|th)\b", "", text)
    text = unicodedata.normalize("NFKD", text).casefold()
    text = "".join(sign for sign in text if not unicodedata.combining(sign))
    words = re.findall(r"\w+", re.sub(r"['\u2019]", "", text))
    if not words:
        return [sign for sign in text if sign in SIGNS or unicodedata.category(sign).startswith("S")]
    return [word for word in words if word not in ARTICLES] or words
