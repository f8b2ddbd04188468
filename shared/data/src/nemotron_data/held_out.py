"""Find held-out questions in training text, which would invalidate the evaluation: verbatim, in part, or reworded.

    find_overlap(["What is 2 + 3?"], ["Quiz. WHAT IS 2 + 3? 5."])  ->  {"What is 2 + 3?": Occurrence(text=0, ...)}
    Search(items_of(task)).find("Quiz. WHAT IS 3+14-5? 12.")       ->  {0: Hit("exact", "Quiz. WHAT IS 3+14-5? 12.")}

    exact   the training text contains the row's text, or its `key`; both are normalised as in `split.normalise_key`,
            and delimited: "2 + 3" does not occur in "12 + 3" or in "2 + 3*4"
    run     13 consecutive words of the row appear in it; of a row of 8 to 12 words: all of them
    near    a stretch up to 1.5 times as long as the row contains 7 of 10 of its word trigrams

GPT-3's authors counted a run of 13 words as overlap, PaLM's seven tenths of short runs. Rows of fewer than 8 words are
only searched for verbatim: "Where does Mira live?" is not a copy of "Where does Tova live?". Trigrams shared by more
than ten rows of a task are boilerplate and ignored.

Rows of an environment may share a prompt and differ in their world. If rows of a task do, their prompts identify none
of them: `exact` is then an RL row that is the same in all its fields, and a prompt that occurs is counted as `stated`.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from nemotron_data.formats.eval_tasks import EvalTask, read_task_rows
from nemotron_data.formats.rl_rows import PARAMETERS, RLRow
from nemotron_data.split import normalise_key
from nemotron_shared.system.errors import UserError

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


How = Literal["exact", "run", "near"]
LEAST_WORDS, RUN, SHINGLE = 8, 13, 3
SHARE, STRETCH = 0.7, 1.5
WORDING = 10
SENTENCE_WORDS = 3
EXCERPT = 80

# a word with the signs of a formula; in scripts without spaces, each ideograph or syllable is a word
WORD = re.compile(r"[぀-鿿가-힯]|[0-9a-z_+*/=\u00aa-\u1fff-]+")
END_OF_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")
Gram = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Item:
    """A row of an evaluation, and what to search for.

    Attributes:
        keys: texts that identify the row if they appear verbatim.
        stated: a fact that the task expects a model to have read, or a prompt of several worlds; counted,
            but not an overlap.
        sentences: of a text; the text is found if all its sentences are.
        is_world: the prompt does not identify the row, only the whole row does.
    """

    task: str
    row: int
    text: str
    keys: tuple[str, ...]
    stated: str | None = None
    sentences: tuple[str, ...] = ()
    is_world: bool = False


@dataclass(frozen=True, slots=True)
class Hit:
    """How an item matched, and the words around it."""

    how: How
    excerpt: str


@dataclass(frozen=True, slots=True)
class Found:
    """Items found in one text; sentences by item and their index in it."""

    hits: Mapping[int, Hit]
    stated: frozenset[int]
    sentences: frozenset[tuple[int, int]]


def items_of(task: EvalTask, limit: int | None = None) -> list[Item]:
    """Items for the rows of a prepared task."""
    rows = list(read_task_rows(task.file, task.kind))
    worlds = share_prompts(rows)
    return [
        item_of(task.name, number, row, recall=task.recall, worlds=worlds) for number, row in enumerate(rows[:limit])
    ]


def episode_of(row: RLRow) -> dict[str, Any]:
    """A row in NeMo-Gym's form as a row of an evaluation."""
    return {"question": row.question, "key": row.question, "row": dict(row.value)}


def share_prompts(rows: Iterable[Mapping[str, Any]]) -> bool:
    """Whether episodes have the same prompt, and yet differ in their other fields."""
    of_prompt: dict[str, str] = {}
    episodes = (RLRow.of(row["row"]) for row in rows if _is_episode(row))
    return any(of_prompt.setdefault(row.question, row.identity) != row.identity for row in episodes)


def _is_episode(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("row"), Mapping) and PARAMETERS in row["row"]


def item_of(task: str, number: int, row: Mapping[str, Any], *, recall: bool = False, worlds: bool = False) -> Item:
    """Item for a row, which is a choice, a question, or else a text; `worlds`: see `share_prompts`."""
    question = next((row[name] for name in ("question", "prompt") if isinstance(row.get(name), str)), None)
    if question is None:
        text = str(row["text"])
        found = (sentence.strip() for sentence in END_OF_SENTENCE.split(text))
        long_enough = (one for one in found if len(words_of(normalise_key(one))) >= SENTENCE_WORDS)
        return Item(task, number, text, (text,), sentences=tuple(dict.fromkeys(long_enough)))
    if worlds and _is_episode(row):
        return Item(task, number, question, (RLRow.of(row["row"]).identity,), stated=question, is_world=True)
    if "choices" not in row:
        return Item(task, number, question, tuple({question: 0, str(row.get("key") or question): 0}))
    # the key of a choice is only its subject, which training text may well mention
    stem = row.get("stem")
    statement = f"{stem} {row['choices'][row['answer']]}" if stem else None
    keys = (question,) if recall or statement is None else (question, statement)
    return Item(task, number, question, keys, stated=statement if recall else None)


def words_of(normalised: str) -> list[str]:
    """Words of a text that `normalise_key` has folded."""
    return WORD.findall(normalised)


class Search:
    """Search for all items in one pass over each text."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.items = items
        self._roles: defaultdict[str, list[tuple[str, int, int]]] = defaultdict(list)
        for number, item in enumerate(items):
            self._remember(number, item)
        self._keys = KeyIndex([key for key in self._roles if key])
        self._lengths = [len(words_of(normalise_key(item.text))) for item in items]
        self._grams = self._distinctive_grams()
        left = Counter(number for places in self._grams.values() for number, _ in places)
        self._needed = {number: max(1, round(SHARE * count)) for number, count in left.items()}

    def _remember(self, number: int, item: Item) -> None:
        for key in item.keys:
            self._roles[normalise_key(key)].append(("exact", number, 0))
        if item.stated is not None:
            self._roles[normalise_key(item.stated)].append(("stated", number, 0))
        for place, sentence in enumerate(item.sentences):
            self._roles[normalise_key(sentence)].append(("sentence", number, place))

    def _distinctive_grams(self) -> dict[Gram, list[tuple[int, int]]]:
        """Trigrams -> the items that contain them, and where; without a task's boilerplate."""
        grams: defaultdict[Gram, list[tuple[int, int]]] = defaultdict(list)
        for number, item in enumerate(self.items):
            if self._lengths[number] >= LEAST_WORDS and not item.is_world:
                for place, gram in enumerate(_grams(words_of(normalise_key(item.text)))):
                    grams[gram].append((number, place))
        distinctive = {}
        for gram, places in grams.items():
            sharing = Counter(self.items[number].task for number in {number for number, _ in places})
            if kept := [place for place in places if sharing[self.items[place[0]].task] <= WORDING]:
                distinctive[gram] = kept
        return distinctive

    def comparable(self, number: int) -> bool:
        """Whether an item is long enough for matches that are not verbatim."""
        return number in self._needed

    def find(self, text: str) -> Found:
        """All items that occur in `text`, each with its strongest kind of match."""
        folded = normalise_key(text)
        hits: dict[int, Hit] = {}
        stated: set[int] = set()
        sentences: set[tuple[int, int]] = set()
        for key, position in self._keys.occurrences(folded):
            for role, number, place in self._roles[key]:
                if role == "exact":
                    hits.setdefault(number, Hit("exact", _around(folded, position, len(key))))
                elif role == "stated":
                    stated.add(number)
                else:
                    sentences.add((number, place))
        for number, how, start, end in self._alike(words := words_of(folded)) if self._grams else ():
            excerpt = " ".join(words[start : min(end, start + EXCERPT // 2)])
            if number not in hits or (hits[number].how, how) == ("near", "run"):
                hits[number] = Hit(how, excerpt)
        return Found(hits, frozenset(stated), frozenset(sentences))

    def _alike(self, words: Sequence[str]) -> Iterator[tuple[int, How, int, int]]:
        """Items that share a run or most of their trigrams with a stretch: number, how, and the stretch."""
        seen: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for place, gram in enumerate(_grams(words)):
            for number, own in self._grams.get(gram, ()):
                seen[number].append((place, own))
        for number, places in seen.items():
            run = min(RUN, self._lengths[number])
            if len(places) < min(run - SHINGLE + 1, self._needed[number]):
                continue
            if (start := _run_of(places, run - SHINGLE + 1)) is not None:
                yield number, "run", start, start + run
            elif (stretch := self._stretch(number, places)) is not None:
                yield number, "near", *stretch

    def _stretch(self, number: int, places: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
        """First stretch, not much longer than the item, that has enough of its trigrams."""
        needed, width = self._needed[number], STRETCH * self._lengths[number]
        if len(places) < needed:
            return None
        inside: Counter[int] = Counter()
        first = 0
        for place, own in places:
            inside[own] += 1
            while place - places[first][0] > width:
                left = places[first][1]
                inside[left] -= 1
                if not inside[left]:
                    del inside[left]
                first += 1
            if len(inside) >= needed:
                return places[first][0], place + SHINGLE
        return None


def _grams(words: Sequence[str]) -> Iterable[Gram]:
    return zip(words, words[1:], words[2:], strict=False)


def _run_of(places: Sequence[tuple[int, int]], length: int) -> int | None:
    """Position of `length` trigrams that are consecutive in both text and item; None if not found."""
    by_offset: defaultdict[int, list[int]] = defaultdict(list)
    for place, own in places:
        by_offset[place - own].append(place)
    for run in by_offset.values():
        start = run[0]
        if length <= 1:
            return start
        for before, place in pairwise(run):
            start = start if place == before + 1 else place
            if place - start + 1 >= length:
                return start
    return None


def _around(text: str, position: int, length: int) -> str:
    start, end = max(0, position - EXCERPT), min(len(text), position + length + EXCERPT)
    shown = text[start:end] if end - start <= 4 * EXCERPT else text[start : start + 4 * EXCERPT]
    return ("…" if start else "") + shown + ("…" if start + len(shown) < len(text) else "")
