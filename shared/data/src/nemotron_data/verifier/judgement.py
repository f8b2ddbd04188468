"""Where a completion says its final answer, what kind of answer is expected, and whether the two agree.

final_claim("First 3+4=7. The answer is \\\\boxed{7}.")     Claim("7", clean=True)
final_claim("So Ann has 7 apples.")                        None: nothing marks an answer
expected("#### 1,234").kind                                "number"; also "math", "choice" and "text"
count_gold(reader.counts, "1,234")                         counts["answers: number"] += 1

Marks are \\\\boxed{...}, a line after ####, and "the answer is ..."; the last of them counts, and what follows it only
where it takes the claim back ("Wait, ...").
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from nemotron_data.chat.thought import after_thought
from nemotron_data.verifier.numbers import (
    Number,
    clock_times_in,
    dates_in,
    is_in_words,
    is_operand,
    is_value,
    number_in_words,
    numbers_in,
    plain,
    ratios_in,
    read_number,
)
from nemotron_data.verifier.symbols import in_latex, readable, same_formula
from nemotron_data.verifier.units import has_variables, is_bare_equation, is_equation, names_another
from nemotron_shared.system.errors import UserError

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
    hashes = [(found.end(), Claim(unwrapped(found[1]), clean=True)) for found in HASHES.finditer(text)]
    marks = [*_boxes(text), *hashes, *_phrases(text)]
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
    """The last one that says anything; else empty."""
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


Kind = Literal["number", "math", "choice", "text"]
LONE_LETTER = re.compile(r"\(?([A-J])\)?[.):]?")
# LaTeX, an equation, a tuple or a set, or figures that an operator joins.
FORMULA = re.compile(
    r"\\[A-Za-z]|[\^_{}=<>\u00b2\u00b3\u00b9\u2070-\u2079\u2264\u2265\u03c0\u221a\u221e]|^[(\[].*,.*[)\]]$|^-?[\d.]+(?:\s*,\s*-?[\d.]+)+$|\bsqrt\b"
    r"|^-?[\d.]+ (?:and|or) -?[\d.]+$|^(?:-?[\d./]+\s*)?\u00b1\s*[\d./]+$"
    r"|^[a-z]$|\)\s*\(|\d\s*[a-zA-Z]?\s*(?:[+/-]|\*\*?)\s*\d|\b\d+[a-z]\b|[a-z)]\s*[+*/-]\s*\d|\b[a-z]\s*[+*/-]\s*[a-z]\b"
    r"|^-?(?:\d[\d.]*)?[a-z]?\s*[+*/-]\s*(?:\d[\d.]*)?[a-z]$|\b\d+[abcxyz]{2,3}\b|\d!\s*[+*/^-]"
)
FACTORIAL = re.compile(r"(?:[\d\s+*/^(){}!-]|\b[a-z]\b)*(?:[\d)}]|\b[a-z])!")
HYPHENATED = re.compile(r"\d+(?:[-\u2013]\d+)+")
"""Figures of a month, a season, a score or a telephone: 2024-01 is not 2023."""
ARTICLES = ("a", "an", "the")
TIME_OF_DAY = re.compile(r"(?:1[0-2]|0?[1-9])(?::[0-5]\d)?\s*[ap]\.?\s?m\.?", re.IGNORECASE)
"""A time such as 3 PM, whose figure alone is also that of 3 AM."""
PLUS_OR_MINUS = re.compile(r"\\pm\b|\u00b1")
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
        """Whether no answer can be right, because the text is empty or without words and signs, such as "..."."""
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
    if kind is None and TIME_OF_DAY.fullmatch(plain(text).strip()):
        return Expected(text, "text")
    number = read_number(text) if kind in (None, "number") else None
    if number is not None and not re.search(r"\d", plain(text)):
        number = None if kind is None else number  # "seven" is a word unless it is called a number
    if kind is None:
        if number is not None:
            kind = "number"
        elif LONE_LETTER.fullmatch(text):
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


ANSWERS, UNDECIDABLE = "answers: ", "answers: undecidable"
MOST_WORDS = 12
"""A longer text is a sentence or a proof, which cannot be expected word by word."""


def is_decidable(about: Expected) -> bool:
    """Whether an answer can be found right or wrong: not a long text, nor mathematics that cannot be read."""
    return not about.is_nothing and (
        about.kind in ("number", "choice")
        or (about.kind == "math" and readable(about.text))
        or (about.kind == "text" and len(about.text.split()) <= MOST_WORDS)
    )


def count_gold(counts: Counter[str], gold: str) -> None:
    """Count an expected answer under its kind."""
    about = expected(gold)
    counts[f"{ANSWERS}{about.kind}" if is_decidable(about) else UNDECIDABLE] += 1


def require_decidable(counts: Mapping[str, int], most: float) -> None:
    """Stop where too many answers could never be found right.

    Args:
        most: largest share of them, from 0 to 1.

    Raises:
        UserError: there are more.
    """
    number = sum(count for name, count in counts.items() if name.startswith(ANSWERS))
    wrong = counts.get(UNDECIDABLE, 0)
    if number and wrong / number > most:
        raise UserError(
            f"{wrong:,} of {number:,} expected answers ({wrong / number:.0%}) are of a kind that no verifier can"
            f" decide: empty, longer than {MOST_WORDS} words, or mathematics that cannot be read",
            "name the answer's place with data_prep.answer_field or data_prep.answer_pattern,"
            " or raise data_prep.max_lost",
        )


LONGEST_ANSWER = 10_000  # characters; of a longer one only the end is read, where an answer is
LONGEST_NUMBER = 500  # characters, with its unit
OR_SIGN = "\u2228"
OR = re.compile(r"\bor\b|\beither\b|\bmaybe\b|\bperhaps\b|[/|](?=\s*\\?boxed)")
REMARK = re.compile(r"\([^()]*\)|\bsee\s+(?:step|above|below|section|note)\b.*|\bstep\s+\d+")
BOLD = re.compile(r"\*\*([^*\n]+)\*\*")
FORMULAS = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
EXPLAINED = re.compile(
    r"([^\n]{1,60})\n+\W*(?:explanation|reasoning|because|since|note|working|solution|this is)\b"
    r"|(?=\W*[\d$.])(?![-*]\s)([^\n:]{1,40}):\s",
    re.IGNORECASE,
)
WORKING = re.compile(r"\n|\b(?:since|because|therefore|hence|conclude)\b", re.IGNORECASE)
COMPUTED = re.compile(r"[\d)}]\s*=")
"""Text that is more than a bare answer: several lines, a reason; and a computation."""
CONTRAST_AFTER = re.compile(r",\s*(?:and\s+)?not\s+[^,.;]*")
LINK = re.compile(
    r"(?:\b(?:is|are|was|were|called|named|by|in|on|at|be|to|from|est|sont|ist|sind|es|son)|\b[Ii]t['\u2019]s)\s+"
)
STATES = re.compile(r"\b(?:is|are|was|were|be|comes?|came)\s")
TAIL = re.compile(r"\s+(?:around|in|on|at|during|from|for|of|now|today|who|that)\b")
VERB = r"(?:is|was|are|were|has|had|did|does|can|wrote|won|made|built|became|began|led|\w+ed)\b(?!\s+(?:and|or|of)\b)"
LIST = re.compile(r"(?:^|[\s:])(?:\w++\s?){1,3},\s*(?:\w++\s?){1,3},\s*(?:and\s+|or\s+)?(?:\w++\s?){1,3}(?:[,.]|$)")
YES_OR_NO = {"yes", "no", "true", "false"}
BESIDE = re.compile(
    r"\b(?:after|before|for|in|within|during|from|when|if|because|since|those|each|of|every|per)\b(?:\s+\w+){0,2}\W*$",
    re.IGNORECASE,
)
"""Words before a number that is not what the sentence says: "12 apples are left after 3 days"."""
TOTAL = re.compile(
    r"\b(?:total|sum|cost|price|amount|number|product|value|area|length|volume|age|answer) of\W*$", re.IGNORECASE
)
BOUND = re.compile(
    r"[<>\u2260\u2264\u2265\u00b1]|\\(?:neq|ne|leq?|geq?|pm)\b|\b(?:more|less|fewer|greater|smaller|larger|higher|lower)\s+than\b|\bat\s+(?:least|most)\b(?=\D{0,15}\d)|\bbetween\s+\S+\s+and\b"
    r"|\bup\s+to\b|\bnot\s+sure\b",
    re.IGNORECASE,
)
ALSO = re.compile(r"^\W*(?:and|&|,|/)\s*\(?[A-J]\)?(?:\W|$)")
NAMED_LETTER = re.compile(
    r"\b(?:[Oo]ption|[Cc]hoice|[Aa]nswer(?:\s+is)?:?|[Pp]ick|[Cc]hoose|[Ss]elect|go\s+with|[Tt]herefore,?|[Tt]hus,?|[Ss]o,?|[Ii]t'?s|is|leaves|be)"
    r"\s+\(?([A-J])\b(?!')|\(([A-J])\)|\*\*\(?([A-J])\)?(?=\W)|\b([A-J])\s+is\s+(?:the\s+)?(?:correct|right|best|only)"
)
WORD = re.compile(r"(?<![\\\w])(?!(?:pi|sqrt|ln|log|sin|cos|tan|exp)\b)[A-Za-z]{2,}(?![\w{(])(?:'\w+)?")
LETTER = re.compile(
    r"(?:(?:option|choice|answer|letter)\s+)?[(\[]?([A-J])(?:[)\].:]|$|(?=\s*[-\u2013,]\s))", re.IGNORECASE
)
NEGATED = re.compile(r"\b(?:not|never|neither|cannot)\b|n['\u2019]t\b", re.IGNORECASE)
SAYS = re.compile(r"\b(?:is|are|was|were|equals)\W*$")
TAG = re.compile(r"</?(answer|b|i|u|p|em|strong|code|span|final)\s*/?>", re.IGNORECASE)
ONE_MEMBER = re.compile(r"^\s*(?:\\left\s*)?\\\{([^,{}]*)(?:\\right\s*)?\\\}\s*$")
DECIMAL = re.compile(r"-?\d+\.\d+")
YEAR, YEAR_IN = re.compile(r"1\d{3}|20\d\d"), re.compile(r"\bin\s+(1\d{3}|20\d\d)\W*$")
UNSURE = re.compile(r"^\W*(?:true|the\s+case|correct|right|think|believe|sure|certain|know)\b.*", re.DOTALL)
"""What is denied as a whole: "it is not true that ..."."""


@dataclass(frozen=True)
class Verdict:
    """Attributes: `lenient` the value is right; `strict` its form too; `answer` what was taken for the answer."""

    strict: bool
    lenient: bool
    answer: str | None = None


WRONG = Verdict(strict=False, lenient=False)


def judge(completion: str, gold: str | Expected, kind: Kind | None = None) -> Verdict:
    """Whether a completion's final answer is the expected one.

    Args:
        gold: the expected answer, or what `expected` read of it.
        kind: how to compare; None: by the form of the expected answer.
    """
    wanted = gold if isinstance(gold, Expected) else expected(gold, kind)
    said = (after_thought(completion) or "").strip()
    said = TAG.sub(lambda tag: "\nAnswer: " if tag[1].lower() == "answer" and "/" not in tag[0] else "", said)
    if not said or wanted.is_nothing:
        return WRONG
    said = said[-LONGEST_ANSWER:]
    marked = final_claim(said)
    bare, asked_for = unwrapped(said), wanted.kind == "math" and "=" in wanted.text
    if wanted.text.endswith("!") and FACTORIAL.fullmatch(said.strip(" $")):
        bare = said.strip(" $")  # as in `expected`
    alone = Claim(bare, clean=not (WORKING.search(bare) or (COMPUTED.search(bare) and not asked_for)))
    fits = COMPARED[wanted.kind]
    claim = marked or _first_line(said) or alone
    if names_another(claim.text, wanted.text):
        return Verdict(strict=False, lenient=False, answer=claim.text)
    if fits(claim.text, wanted):
        return Verdict(claim.clean, lenient=True, answer=claim.text)
    answer = marked.text if marked else FOUND[wanted.kind](said, wanted)
    if marked:  # "The answer is that Ann has 7 apples": a claim, in words
        answer = FOUND[wanted.kind](marked.text, wanted)
    if answer is not None and fits(answer, wanted):
        return Verdict(strict=False, lenient=True, answer=answer)
    return Verdict(strict=False, lenient=False, answer=answer or alone.text[:200])


AS_TAUGHT = f"the same final answer, or the same words; answers of more than {MOST_WORDS} words have no rule"
"""What `is_as_taught` decides, for people."""


def is_as_taught(completion: str, taught: str) -> bool | None:
    """Whether an answer says what the answer of a training row says.

    Args:
        completion: the whole answer, with its thought.
        taught: that of the row, with its thought.

    Returns:
        None where no rule applies: an open answer is neither right nor wrong.
    """
    gold = (after_thought(taught) or "").strip()
    wanted = expected(gold)
    if not is_decidable(wanted):
        return None
    said = words_of(after_thought(completion) or "")
    return judge(completion, wanted).lenient or said == words_of(gold)


def _first_line(text: str) -> Claim | None:
    """An answer at the beginning, which is explained afterwards."""
    found = EXPLAINED.match(text)
    return Claim(unwrapped(found[1] or found[2]), clean=False) if found else None


def _is_number(text: str, wanted: Expected) -> bool:
    text = ONE_MEMBER.sub(r"\1", text)
    found = read_number(text)
    if found is None or wanted.number is None:
        if wanted.number is not None and not wanted.number.percent:  # mathematics does not know 1e-3
            value = wanted.number.value
            fraction = f"\\frac{{{value.numerator}}}{{{value.denominator}}}"  # a decimal may be rounded
            wanted = Expected(wanted.text if DECIMAL.fullmatch(wanted.text) else fraction, "math")
        return is_value(text) and _is_formula(text, wanted)
    return found.equals(wanted.number)


def _number_in(text: str, wanted: Expected) -> str | None:
    """The number that the last sentence with one ends in; none where it names two as its answer."""
    lines = [line for line in marked_sentences(text) if numbers_in(REMARK.sub(" ", line))]
    last = last_sentence(text)
    if not lines or not numbers_in(last):
        if (words := number_in_words(last)) and not (BOUND.search(last) or _denies(last) or OR.search(last)):
            return words
        if not lines:
            return None
    sentence = CONTRAST_AFTER.sub("", REMARK.sub(" ", lines[-1]).strip())
    clauses = [clause for clause in re.split(r",\s+(?=[a-zA-Z])", sentence) if numbers_in(clause)] or [sentence]
    until = sentence[: max((part.end() for part in BOLD.finditer(sentence)), default=len(sentence))]
    hedged = BOUND.search(until) or re.search(r"\(\s*or\b|\breward\b", lines[-1])
    if sentence.endswith("?") or _denies(clauses[-1]) or hedged:
        return None
    bold = [part for part in BOLD.findall(sentence) if read_number(part)]
    if bold:
        return bold[-1] if len({_value(part) for part in bold}) == 1 else None
    if is_bare_equation(sentence):
        return None
    result = sentence.rpartition("=")[2] if "=" in sentence else sentence
    found = numbers_in(result)
    if not found or _lists(result, [number for _, number in found]):
        return None
    starts = [start for start, _ in found]
    aside = plain(result)
    if wanted.number is not None and YEAR.fullmatch(wanted.text) and (years := YEAR_IN.findall(aside)):
        return years[-1]
    main = [
        start for before, start in zip([0, *starts], starts, strict=False)
        if TOTAL.search(aside[before:start]) or not BESIDE.search(aside[before:start])
        or SAYS.search(aside[before:start])
    ]  # fmt: skip
    chosen = (main or starts)[-1]
    return None if is_operand(aside, chosen) else _from(result, chosen)


def _denies(sentence: str) -> bool:
    """Whether a number is denied, and not something before it: "the chance that it is not a spade is 3/4"."""
    *_, rest = NEGATED.split(sentence)
    return rest != sentence and not re.search(r"(?<!\w)(?:is|are|was|were|equals|=)\s", UNSURE.sub("", rest))


def _value(text: str) -> Fraction | None:
    number = read_number(text)
    return number.value if number else None


def _from(sentence: str, start: int) -> str | None:
    """The number that begins there, with its unit."""
    rest = re.sub(r"(?<=[\d)])\$|\*\*|__", "", plain(sentence)[start : start + LONGEST_NUMBER])
    while rest and read_number(rest) is None:
        rest = rest.rpartition(" ")[0].rstrip(",;:").removesuffix(" in")
    return rest or None


def _lists(sentence: str, found: list[Number]) -> bool:
    """Whether a sentence offers several numbers rather than one: "7 or 8", "5, 6, 7"."""
    if len({number.value for number in found}) < 2:
        return False
    text = plain(sentence)
    several = re.search(r"\d\s*[,;]\s*-?\d+\s*(?:[,;]|and\b)", text)
    either = re.search(r"\d[^\d.]{0,12}\bor\b(?=[^\d]{0,12}\d)", text)
    if either:  # "15/20, or 75 %" is one answer
        places = numbers_in(sentence)
        before = [number for start, number in places if start < either.end()]
        after = [number for start, number in places if start >= either.end()]
        return not (before and after and before[-1].equals(after[0]))
    return bool(several)


def _is_formula(text: str, wanted: Expected) -> bool:
    several = "," in in_latex(wanted.text) or PLUS_OR_MINUS.search(wanted.text) or OR.search(wanted.text)
    if OR.search(text) and not several:
        return False
    one, other = read_number(text), read_number(wanted.text)
    if one is not None and other is not None:
        return one.equals(other)
    return same_formula(wanted.text, text)


def _formula_in(text: str, wanted: Expected) -> str | None:
    """The last formula of the last sentence with one, after its last equals sign unless an equation is expected."""
    if NEGATED.search(last_sentence(text)):
        return None
    found = [next(filter(None, groups)) for groups in FORMULAS.findall(text)]
    if not found:
        several = "," in in_latex(wanted.text)
        sentence = last_sentence(text)
        if several:  # "3 or 5" stays together, and 3 and 5 without an order
            sentence = in_latex(sentence.replace(" or ", OR_SIGN))
        parts = (part.strip(" ,.;:").replace(OR_SIGN, " or ") for part in WORD.split(sentence))
        found = [part for part in parts if re.search(r"\d|\\[a-z]|[\u03c0\u221e\u221a]|\w\s*[+^(]", part)]
    if not found:
        return None
    result = found[-1].rpartition("=")[2].strip()
    return found[-1] if "=" in wanted.text or (is_equation(found[-1]) and has_variables(result)) else result


def _is_choice(text: str, wanted: Expected) -> bool:
    text = unicodedata.normalize(
        "NFKC", unwrapped(re.sub(r"\\(?:text|mathrm|mathbf|textbf)\s*\{([^{}]*)\}", r"\1", text).replace("**", ""))
    )
    found = LETTER.match(text)
    if found is None or OR.search(text) or ALSO.search(text[found.end() :]):
        return False
    return found[1].upper() == re.sub(r"[^A-J]", "", wanted.text)


def _choice_in(text: str, wanted: Expected) -> str | None:
    """The one letter that the last sentence with a letter names."""
    for sentence in reversed(marked_sentences(text)):
        letters = {letter for groups in NAMED_LETTER.findall(sentence) for letter in groups if letter}
        if letters:
            letters |= set(re.findall(r"^\W*([A-J])[.):;]\s", sentence))  # "A. Choose C only if ..." may mean either
            one = len(letters) == 1 and not NEGATED.search(sentence) and not sentence.rstrip().endswith("?")
            return letters.pop() if one else None
    return None


def _is_text(text: str, wanted: Expected) -> bool:
    if text.rstrip().endswith("?") and not wanted.text.endswith("?"):
        return False
    if is_in_words(wanted.text) and re.search(r"\d", text):  # "seven" may well be answered with 7
        return _value(text) == _value(wanted.text)
    for read in (dates_in, clock_times_in, ratios_in):
        if (asked := read(wanted.text)) and len(text) < 40:
            return read(text) == asked
    words, asked = words_of(re.sub(r"^\W*(?:on|in|at|by)\s+", "", text, flags=re.IGNORECASE)), words_of(wanted.text)
    words = words if words == asked else words_of(text)
    if "," in text and "," in wanted.text:  # "red, green and blue", "red, green, blue"
        words, asked = ([word for word in listed if word != "and"] for listed in (words, asked))
    return words == asked


def _text_in(text: str, wanted: Expected) -> str | None:
    """What the last sentence says that something is, or what it says something of."""
    sentence = CONTRAST_AFTER.sub("", last_sentence(text))
    if wanted.text.casefold() in YES_OR_NO:
        said = [word.casefold() for word in re.findall(r"\w+", text)]
        found = [word for word in said if word in YES_OR_NO]
        clear = len(set(found)) == 1 and (said[0] in YES_OR_NO or not NEGATED.search(sentence))
        return found[0] if clear else None
    if NEGATED.search(sentence) or OR.search(sentence) or sentence.endswith("?"):
        return None
    for read in (dates_in, clock_times_in, ratios_in):
        if asked := read(wanted.text):
            return wanted.text if read(sentence)[-1:] == asked else None
    if "," in wanted.text:
        said = (sentence[link.end() :] for link in LINK.finditer(sentence))
        return next((end for end in said if _is_text(end, wanted)), None)
    if LIST.search(sentence):
        return None
    clauses = re.split(r"[,;(\u2014]|\s-\s|\bwhich\b|\bbecause\b|\bsince\b", sentence)
    turned = re.search(r"\b(?:but|however|instead)\b", sentence)
    heads = (
        [clauses[-1]] if turned else [clauses[0], *(one for one in clauses[1:] if STATES.search(one) or ": " in one)]
    )
    for head in heads:
        for part in (head, head.rpartition(": ")[2], *(head[link.end() :] for link in LINK.finditer(head))):
            for end in (part, TAIL.split(part)[0]):
                if words_of(end) == words_of(wanted.text):
                    return end
    # "Jane Austen wrote it": the subject, which a verb follows
    start = re.match(rf"(?:the\s+)?{re.escape(wanted.text)}(?=\s+{VERB})", sentence, re.IGNORECASE)
    return start[0] if start else None


COMPARED: dict[Kind, Callable[[str, Expected], bool]] = {
    "number": _is_number, "math": _is_formula, "choice": _is_choice, "text": _is_text,
}  # fmt: skip
FOUND: dict[Kind, Callable[[str, Expected], str | None]] = {
    "number": _number_in, "math": _formula_in, "choice": _choice_in, "text": _text_in,
}  # fmt: skip
