"""Find held-out questions in training text, which would invalidate the evaluation.

    find_overlap(["What is 2 + 3?"], ["Quiz. WHAT IS 2 + 3? 5."])  ->  {"What is 2 + 3?": Occurrence(text=0, ...)}

Both sides are normalised as in `split.normalise_key`. A question must be delimited: "2 + 3" does not occur in
"12 + 3" or in "2 + 3*4", because neither neighbour may be a letter, a digit or one of + * / = -.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nemotron_data.split import normalise_key
from nemotron_shared.errors import UserError

TOKEN = re.compile(r"[0-9a-z+*/=-]+")  # after case folding; also the characters that may not touch a question
ANCHOR_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Occurrence:
    """First occurrence of a question: index of the text, character in the normalised text; and the total count."""

    text: int
    position: int
    count: int


@dataclass(frozen=True, slots=True)
class _Anchor:
    """Up to four neighbouring tokens of a question that few other questions have, and their position in it."""

    question: str
    start: int
    text: str
    tokens: int


def find_overlap(keys: Iterable[str], texts: Iterable[str]) -> dict[str, Occurrence]:
    """Those of `keys` that occur in any of `texts`, in the order of `keys`.

    One pass over the texts for any number of keys: a question is compared only where its anchor occurs.
    Raises `UserError` for an empty key.
    """
    originals: defaultdict[str, list[str]] = defaultdict(list)
    for key in dict.fromkeys(keys):
        originals[normalise_key(key)].append(key)
    if "" in originals:
        raise UserError("a held-out key is empty, and so would occur in every text", "remove it")
    index = KeyIndex(list(originals))
    first: dict[str, tuple[int, int]] = {}
    counts: Counter[str] = Counter()
    for number, text in enumerate(texts):
        for question, position in index.occurrences(normalise_key(text)):
            first.setdefault(question, (number, position))
            counts[question] += 1
    return {key: Occurrence(*first[q], counts[q]) for q, same in originals.items() if q in first for key in same}


class KeyIndex:
    """Questions by anchor. Questions without any token, such as Chinese ones, are searched for directly."""

    def __init__(self, questions: list[str]) -> None:
        windows = {question: list(_windows(question)) for question in questions}
        shared = Counter(anchor.text for anchors in windows.values() for anchor in anchors)
        self.without_tokens = [question for question, anchors in windows.items() if not anchors]
        self.by_size: dict[int, dict[str, list[_Anchor]]] = {}
        for anchors in filter(None, windows.values()):
            rarest = min(anchors, key=lambda anchor: shared[anchor.text])
            self.by_size.setdefault(rarest.tokens, {}).setdefault(rarest.text, []).append(rarest)
        # fast path: most words of a text start no anchor
        self.first = {
            size: {match[0] for match in map(TOKEN.match, anchors) if match} for size, anchors in self.by_size.items()
        }

    def occurrences(self, text: str) -> Iterator[tuple[str, int]]:
        """Yield (question, position) for every delimited occurrence in the normalised `text`."""
        spans = [match.span() for match in TOKEN.finditer(text)]
        words = [text[start:end] for start, end in spans]
        for size, anchors in self.by_size.items():
            first = self.first[size]
            for place in (place for place, word in enumerate(words[: max(0, len(words) - size + 1)]) if word in first):
                start, end = spans[place][0], spans[place + size - 1][1]
                for anchor in anchors.get(text[start:end], ()):
                    position = start - anchor.start
                    if _stands_alone(anchor.question, text, position):
                        yield anchor.question, position
        for question in self.without_tokens:
            position = text.find(question)
            while position >= 0:
                if _stands_alone(question, text, position):
                    yield question, position
                position = text.find(question, position + 1)


def _windows(question: str) -> Iterator[_Anchor]:
    spans = [match.span() for match in TOKEN.finditer(question)]
    size = min(ANCHOR_TOKENS, len(spans))
    for (start, _), (_, end) in zip(spans, spans[size - 1 :] if size else [], strict=False):
        yield _Anchor(question, start, question[start:end], size)


def _stands_alone(question: str, text: str, position: int) -> bool:
    """Whether the question is at this position, with no token character on either side."""
    end = position + len(question)
    if position < 0 or not text.startswith(question, position):
        return False
    touches_before = position > 0 and TOKEN.match(text, position - 1)
    return not touches_before and not TOKEN.match(text, end)
