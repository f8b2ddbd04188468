"""Where a completion says its final answer.

    final_claim("First 3+4=7. The answer is \\\\boxed{7}.")     Claim("7", clean=True)
    final_claim("So Ann has 7 apples.")                        None: nothing marks an answer

Marks are \\boxed{...}, a line after ####, and "the answer is ..."; the last of them counts, and what follows it only
where it takes the claim back ("Wait, ...").
"""

import re
from dataclasses import dataclass

DEEPEST_MARKUP = 20
BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
HASHES = re.compile(r"####[ \t]*(\S[^\n]*)")
JSON = re.compile(r"[\"'](?:final_)?answer[\"']\s*:\s*[\"']?([^\"'\n}]+)", re.IGNORECASE)
PHRASE = re.compile(
    r"(?:\b(?:answer|result|solution)\b(?:\s+(?:to|of|for)\s[^.\n:=]{1,60}?)?[*_`\s]*(?:\bis\b|\bare\b|\bequals\b|=|:|\uff1a)"
    r"|\u7b54\u6848\u662f|\u7b54\u6848[:\uff1a]|\bAntwort(?:\s+ist|:)|\br\u00e9ponse(?:\s+est|\s*:)|\brespuesta(?:\s+es|:)"
    r"|\bcorrect\s+(?:option|choice)\s+is\b)[*_`:\s]*(?=(?P<claim>[^\n]*\S))",
    re.IGNORECASE,
)
ASKED = re.compile(r"[\s$.)\]*]{0,9}\?")
DENIED = re.compile(r"^(?:not\b|n't\b|neither\b|never\b|unknown\b|unclear\b)", re.IGNORECASE)
TAKEN_BACK = re.compile(
    r"\b(?:wait|actually|correction|oops|sorry|scratch that|no,|let me (?:re-?check|correct|redo)|i made a mistake)\b",
    re.IGNORECASE,
)
# A full stop, but not the one of "B. Paris" or of 3.5.
SENTENCE_END = re.compile(
    r"(?<=[^\d\s.])(?<!\b[A-J])(?<!i\.e)(?<!e\.g)[.!?](?=\s|$)|\u3002|(?<=\d)[.!?](?=\s+[A-Z\u00c0-\u00dc(]|\s*$)"
    r"|(?<=\b[A-J])\.(?=\s+(?:Wait|No|Actually|Options?|The|However|But|This|That|Because|Since|It)\b|\s*$)"
)


@dataclass(frozen=True)
class Claim:
    """What is claimed, and whether it stands where a program finds it."""

    text: str
    clean: bool


def final_claim(text: str) -> Claim | None:
    """The last answer that a text marks as its own; None where nothing is marked."""
    marks = [*_boxes(text), *_hashes(text), *_phrases(text)]
    if not marks:
        return None
    end, claim = max(marks, key=lambda mark: mark[0])
    corrected = TAKEN_BACK.search(text, end)
    if corrected and re.search(r"\w", text[corrected.end() :]):
        rest = text[corrected.end() :]
        return final_claim(rest) or Claim(last_sentence(rest), clean=False)
    return claim


def sentences(text: str) -> list[str]:
    """Sentences and lines, without white space and markup around them."""
    return [sentence for sentence in map(unwrapped, marked_sentences(text)) if re.search(r"\w", sentence)]


def marked_sentences(text: str) -> list[str]:
    """Sentences and lines as they stand."""
    found = []
    for line in text.splitlines():
        start = 0
        for end in SENTENCE_END.finditer(line):
            found.append(line[start : end.end()])
            start = end.end()
        found.append(line[start:])
    return [sentence.strip() for sentence in found if re.search(r"\w", sentence)]


def last_sentence(text: str) -> str:
    """The last one that says anything; empty where there is none."""
    found = sentences(text)
    while len(found) > 1 and found[-1].endswith("?"):  # "Would you like to know more?"
        found.pop()
    return found[-1] if found else ""


def unwrapped(text: str) -> str:
    """Without markup around it: bold, code, quotes, brackets of mathematics, \\text{...}, a final full stop."""
    for _ in range(DEEPEST_MARKUP):
        before = text
        text = text.strip().strip("*_`").strip()
        text = re.sub(r"^(?:\$+|\\\(|\\\[)\s*([^$]*?)\s*(?:\$+|\\\)|\\\])\s*\.?$", r"\1", text, flags=re.DOTALL)
        text = re.sub(r"^\\(?:text|mathrm|textbf|mathbf|boxed|mbox)\s*\{([^{}]*)\}\.?$", r"\1", text)
        text = re.sub(r"^[\"'\u201c\u2018](.*)[\"'\u201d\u2019]\.?$", r"\1", text, flags=re.DOTALL)
        text = re.sub(r"(?<=[^.])[.!]$", "", text)
        if text == before:
            break
    return text


def _boxes(text: str) -> list[tuple[int, Claim]]:
    found: list[tuple[int, str, int]] = []
    closings = _closings(text)
    for opening in BOX.finditer(text):
        start, inside = opening.span()
        closing = closings.get(inside - 1)
        if (
            closing is None
            or ASKED.match(text, closing + 1)
            or re.search(r"\bnot\W*$", text[max(0, start - 40) : start])
        ):
            continue
        found.append((start, text[inside:closing], closing + 1))
    if len(found) > 1:
        between = text[found[-2][2] : found[-1][0]]
        if "\n" not in between.strip() and not re.search(r"[.!?]\s", between) and len(between) < 40:
            # two boxes in one breath are two answers
            return [(found[-1][2], Claim(f"{found[-2][1]} or {found[-1][1]}", clean=False))]
    return [(end, Claim(inside.strip(), clean=True)) for _, inside, end in found]


def _closings(text: str) -> dict[int, int]:
    """Where each opened brace is closed."""
    closed: dict[int, int] = {}
    opened: list[int] = []
    for sign in re.finditer(r"(?<!\\)[{}]", text):
        if sign[0] == "{":
            opened.append(sign.start())
        elif opened:
            closed[opened.pop()] = sign.start()
    return closed


def _hashes(text: str) -> list[tuple[int, Claim]]:
    return [(found.end(), Claim(unwrapped(found[1]), clean=True)) for found in HASHES.finditer(text)]


def _phrases(text: str) -> list[tuple[int, Claim]]:
    marks = []
    for found in [*PHRASE.finditer(text), *JSON.finditer(text)]:
        said = found["claim"] if "claim" in found.re.groupindex else found[1]
        start = found.end() if found.re is PHRASE else found.start(1)
        end = SENTENCE_END.search(said)
        claim = said[: end.start()] if end else said
        if BOX.search(claim) or DENIED.match(claim.lstrip("*_ ")) or (end and end[0] == "?"):
            continue
        stop = start + (end.end() if end else len(said))
        marks.append((stop, Claim(unwrapped(claim), clean=not re.search(r"\w", text[stop:]))))
    return marks
