"""Pairs of answers with labels that follow from how they are made: the verifier's rules, without the verifier.

    python shared/data/tests/judged_pairs.py 2000     one JSON line for each pair

Each rule of docs/answers.md has a function here. It makes a value from plain Python numbers, writes it in two of the
forms that the rule allows, and for a wrong pair changes the value first. So no label depends on a parser. Nothing is
imported but the standard library.
"""

import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import isqrt

Draw = random.Random


@dataclass(frozen=True)
class Pair:
    """Two answers, of which either may be the expected one."""

    rule: str
    one: str
    other: str
    same: bool


def pairs(count: int, seed: int = 0) -> list[Pair]:
    """So many different pairs, the rules in turn; every second one of a rule is wrong."""
    draw, found, made = random.Random(seed), dict[tuple[str, str], Pair](), 0
    while len(found) < count:
        rule = RULES[made % len(RULES)]
        one, other, same = rule(draw, made // len(RULES) % 2 == 0)
        made += 1
        if one != other:
            found.setdefault((one, other), Pair(rule.__name__, one, other, same))
    return list(found.values())


# Numbers


def written(draw: Draw, value: Fraction) -> str:
    """A number in one of its forms."""
    forms = [rf"\frac{{{value.numerator}}}{{{value.denominator}}}", f"{value.numerator}/{value.denominator}"]
    times = draw.randint(2, 9)
    forms.append(rf"\dfrac{{{value.numerator * times}}}{{{value.denominator * times}}}")
    digits = decimal(value)
    if digits is not None:
        forms += [digits, digits, f"{digits}0" if "." in digits else f"{digits}.0"]
    if value.denominator == 1:
        forms += [str(value), f"{int(value):,}".replace(",", draw.choice([",", "{,}"]))]
    return draw.choice(forms)


def decimal(value: Fraction) -> str | None:
    """All digits of a number that has an end."""
    scale = next((power for power in range(25) if (value * 10**power).denominator == 1), None)
    if scale is None:
        return None
    figures = str(abs(value.numerator * 10**scale // value.denominator)).rjust(scale + 1, "0")
    whole, part = figures[: len(figures) - scale], figures[len(figures) - scale :]
    return ("-" if value < 0 else "") + whole + (f".{part}" if part else "")


def some(draw: Draw) -> Fraction:
    """A small number, whole more often than not."""
    return Fraction(draw.choice([-1, 1]) * draw.randint(1, 60), draw.choice([1, 1, 1, 2, 3, 4, 5, 8, 10]))


def another(draw: Draw, value: Fraction) -> Fraction:
    return value + draw.choice([1, -1]) * Fraction(draw.randint(1, 9), draw.choice([1, 1, 2, 10]))


def number(draw: Draw, same: bool) -> tuple[str, str, bool]:
    value = some(draw) * draw.choice([1, 1, 137])
    return written(draw, value), written(draw, value if same else another(draw, value)), same


def long_number(draw: Draw, same: bool) -> tuple[str, str, bool]:
    """Only the last of many digits tells two numbers from each other."""
    scale = draw.choice([0, 0, 7, 19])
    value = Fraction(draw.randint(10**24, 10**25), 10**scale)
    return decimal(value) or "", written(draw, value if same else value + Fraction(1, 10**scale)), same


def percentage(draw: Draw, same: bool) -> tuple[str, str, bool]:
    value = Fraction(draw.randint(2, 400), draw.choice([1, 2, 4]))
    share = (value if same else value + 1) / 100
    return f"{decimal(value)}{draw.choice(['%', ' %', ' percent', chr(92) + '%'])}", written(draw, share), same


def repeating(draw: Draw, same: bool) -> tuple[str, str, bool]:
    period = str(draw.randint(1, 98))
    value = Fraction(int(period), 10 ** len(period) - 1)
    if value.denominator == 1 or len(set(period)) < len(period):
        return repeating(draw, same)
    signs = rf"0.\overline{{{period}}}", rf"0.({period})", f"0.{period * 3}..."
    told = value if same else Fraction(int(period), 10 ** len(period))
    return draw.choice(signs), f"{told.numerator}/{told.denominator}", same


ONES = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen",
]  # fmt: skip
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def in_words(draw: Draw, same: bool) -> tuple[str, str, bool]:
    value = draw.choice([draw.randint(1, 16), draw.randint(20, 99)])
    words = ONES[value] if value < 17 else TENS[value // 10 - 2] + (f"-{ONES[value % 10]}" if value % 10 else "")
    return words, str(value if same else value + draw.choice([1, 10])), same


AMOUNTS = [
    [("hours", 3600), ("minutes", 60), ("seconds", 1)],
    [("km", 1000), ("m", 1), ("cm", Fraction(1, 100))],
    [("ft", 12), ("in", 1)],
    [("kg", 1000), ("g", 1)],
    [("dollars", 1), ("cents", Fraction(1, 100))],
]


def amount(draw: Draw, same: bool) -> tuple[str, str, bool]:
    units = draw.choice(AMOUNTS)
    (one, factor), (other, divisor) = draw.sample(units, 2)
    value = Fraction(draw.randint(2, 90) * 10)
    converted = value * factor / divisor
    if decimal(converted) is None:
        return amount(draw, same)
    told = converted if same else draw.choice([value, converted + 1])
    return f"{value} {one}", f"{decimal(told)} {other}", same


def power_or_root(draw: Draw, same: bool) -> tuple[str, str, bool]:
    base, exponent = draw.randint(2, 12), draw.randint(2, 6)
    value = base**exponent
    form = draw.choice([f"{base}^{exponent}", f"{base}^{{{exponent}}}", f"{base}**{exponent}", rf"\sqrt{{{value**2}}}"])
    return form, str(value if same else value + draw.choice([-1, 1])), same


# Exact values that are close to each other


def close(draw: Draw, same: bool) -> tuple[str, str, bool]:
    """1 - 1/2^60 is not 1 - 1/2^61."""
    base, exponent, whole = draw.choice([2, 3, 10]), draw.randint(30, 98), draw.randint(1, 9)
    changed = exponent if same else exponent + 1
    return _beside(draw, whole, base, exponent), _beside(draw, whole, base, changed), same


def _beside(draw: Draw, whole: int, base: int, exponent: int) -> str:
    part = draw.choice([rf"\frac{{1}}{{{base}^{{{exponent}}}}}", f"1/{base}^{{{exponent}}}", f"{base}^{{-{exponent}}}"])
    joined = rf"\frac{{{whole}\cdot {base}^{{{exponent}}}-1}}{{{base}^{{{exponent}}}}}"
    return draw.choice([f"{whole}-{part}", f"{whole} - {part}", f"-{part}+{whole}", joined])


def rounded(draw: Draw, same: bool) -> tuple[str, str, bool]:
    """A root with twelve correct digits or more is that root; with fewer, or a wrong one, it is not."""
    value = draw.choice([number for number in range(2, 99) if isqrt(number) ** 2 != number])
    places = draw.randint(12, 30) if same else draw.randint(1, 9)
    digits = isqrt(value * 10 ** (2 * places))
    if not same and draw.random() < 0.5:
        places = draw.randint(12, 30)
        digits = isqrt(value * 10 ** (2 * places)) + 10 ** (places - 9)
    return rf"\sqrt{{{value}}}", f"{digits // 10**places}.{digits % 10**places:0{places}d}", same


def root(draw: Draw, same: bool) -> tuple[str, str, bool]:
    inner, factor = draw.choice([2, 3, 5, 6, 7, 10]), draw.randint(2, 9)
    outer = factor if same else factor + 1
    forms = rf"\sqrt{{{outer**2 * inner}}}", rf"\frac{{{outer * inner}}}{{\sqrt{{{inner}}}}}"
    return rf"{factor}\sqrt{{{inner}}}", draw.choice(forms), same


def sum_with_root(draw: Draw, same: bool) -> tuple[str, str, bool]:
    whole, factor, inner = draw.randint(1, 9), draw.randint(2, 9), draw.choice([2, 3, 5, 7])
    changed = factor if same else -factor
    return (
        rf"{whole}+{factor}\sqrt{{{inner}}}",
        draw.choice([rf"{changed}\sqrt{{{inner}}}+{whole}", rf"{whole}+{changed}\sqrt{inner}".replace("+-", "-")]),
        same,
    )


def share_of_pi(draw: Draw, same: bool) -> tuple[str, str, bool]:
    value = Fraction(draw.randint(2, 12), draw.choice([5, 7, 11, 13]))
    told = value if same else value + Fraction(1, value.denominator)
    return (
        rf"\frac{{{value.numerator}\pi}}{{{value.denominator}}}",
        draw.choice([
            rf"\frac{{{told.numerator}}}{{{told.denominator}}}\pi", rf"{told.numerator}\pi/{told.denominator}",
            f"{told.numerator}\u03c0/{told.denominator}",
        ]),
        same,
    )  # fmt: skip


# Formulas


def joined(terms: Sequence[str]) -> str:
    return "+".join(terms).replace("+-", "-")


def term(factor: int, name: str) -> str:
    return f"{factor}{name}".replace("1", "", 1) if abs(factor) == 1 else f"{factor}{name}"


def product(draw: Draw, same: bool) -> tuple[str, str, bool]:
    """(ax + b)(cx + d), and its terms in any order."""
    a, c = draw.randint(1, 5), draw.randint(1, 5)
    b, d = (draw.choice([-1, 1]) * draw.randint(1, 9) for _ in range(2))
    left, right = (joined([term(x, "x"), str(y)]) for x, y in draw.sample([(a, b), (c, d)], 2))
    factors = [a * c, a * d + b * c, b * d]
    if not same:
        factors[draw.randrange(3)] += draw.choice([11, -13])
    parts = [term(factors[0], "x^2"), term(factors[1], "x"), str(factors[2])]
    parts = [part for part, factor in zip(parts, factors, strict=True) if factor]
    draw.shuffle(parts)
    return f"({left})({right})", joined(parts), same


def close_formula(draw: Draw, same: bool) -> tuple[str, str, bool]:
    base, exponent = draw.choice([2, 10]), draw.randint(50, 90)
    changed = exponent if same else exponent + 1
    return rf"x - \frac{{1}}{{{base}^{{{exponent}}}}}", rf"x-{base}^{{-{changed}}}", same


def line(draw: Draw) -> tuple[int, int, int]:
    a, b, c = (draw.choice([-1, 1]) * draw.randint(2, 9) for _ in range(3))
    return a, b, c


def equation_text(draw: Draw, a: int, b: int, c: int) -> str:
    """ax + by = c, with its parts anywhere and times anything."""
    times = draw.choice([1, 1, 2, -3])
    a, b, c = a * times, b * times, c * times
    left = draw.sample([term(a, "x"), term(b, "y")], 2)
    sides = draw.choice([
        (joined(left), str(c)), (joined([*left, str(-c)]), "0"), (term(a, "x"), joined([str(c), term(-b, "y")])),
    ])  # fmt: skip
    return " = ".join(draw.sample(sides, 2))


def equation(draw: Draw, same: bool) -> tuple[str, str, bool]:
    a, b, c = line(draw)
    return equation_text(draw, a, b, c), equation_text(draw, a, b, c if same else c + 1), same


def system(draw: Draw, same: bool) -> tuple[str, str, bool]:
    lines = [line(draw), line(draw)]
    changed = [*lines] if same else [lines[0], (lines[1][0], lines[1][1], lines[1][2] + 1)]
    if Fraction(lines[0][0], lines[0][1]) == Fraction(lines[1][0], lines[1][1]):
        return system(draw, same)
    return _system(draw, lines), _system(draw, changed), same


def _system(draw: Draw, lines: list[tuple[int, int, int]]) -> str:
    return ", ".join(equation_text(draw, *each) for each in draw.sample(lines, len(lines)))


def named(draw: Draw, same: bool) -> tuple[str, str, bool]:
    """x = 4 and 4; not y = 4."""
    value, name = some(draw), draw.choice("xynt")
    if same:
        return f"{name} = {written(draw, value)}", draw.choice([f"{name}=", ""]) + written(draw, value), True
    other = draw.choice([f"{name}={written(draw, value + 1)}", f"z = {written(draw, value)}", written(draw, value + 1)])
    return f"{name} = {written(draw, value)}", other, False


# Sets, pairs and intervals


def members(draw: Draw, count: int) -> list[Fraction]:
    """Different ones."""
    return [value / 2 for value in map(Fraction, draw.sample(range(-40, 41), count))]


def _in_braces(draw: Draw, values: Sequence[Fraction]) -> str:
    inner = ", ".join(written(draw, value) for value in values)
    return draw.choice([rf"\{{{inner}\}}", rf"\left\{{{inner}\right\}}"])


def _in_brackets(draw: Draw, values: Sequence[Fraction]) -> str:
    inner = ", ".join(written(draw, value) for value in values)
    return draw.choice([f"({inner})", rf"\left({inner}\right)"])


def _one_name(draw: Draw, values: Sequence[Fraction]) -> str:
    return draw.choice([" or ", ", "]).join(f"x = {written(draw, value)}" for value in values)


def _bare(draw: Draw, values: Sequence[Fraction]) -> str:
    return ", ".join(written(draw, value) for value in values)


def _names(draw: Draw, values: Sequence[Fraction]) -> str:
    named = [f"{name} = {written(draw, value)}" for name, value in zip("xyz", values, strict=False)]
    return ", ".join(draw.sample(named, len(named)))


AS_SET, AS_TUPLE, EITHER = [_in_braces, _one_name], [_in_brackets, _names], [_bare]


def set_of_values(draw: Draw, same: bool) -> tuple[str, str, bool]:
    """In any order, with any sign of a set."""
    values = members(draw, draw.randint(2, 4))
    others = draw.sample(values, len(values))
    if not same:
        others[0] = others[0] + 1 if draw.random() < 0.7 else others[-1]
        if set(others) == set(values) or len(set(others)) == 1:  # nobody writes x=1 or x=1
            return set_of_values(draw, same)
    forms = draw.choice([(AS_SET, AS_SET), (AS_SET, EITHER), (EITHER, AS_SET)])
    return draw.choice(forms[0])(draw, values), draw.choice(forms[1])(draw, others), same


def ordered_values(draw: Draw, same: bool) -> tuple[str, str, bool]:
    """In this order."""
    values = members(draw, draw.randint(2, 3))
    others = values if same else [*reversed(values)]
    if not same and others == values:
        return ordered_values(draw, same)
    forms = draw.choice([(AS_TUPLE, AS_TUPLE), (AS_TUPLE, EITHER), (EITHER, AS_TUPLE)])
    return draw.choice(forms[0])(draw, values), draw.choice(forms[1])(draw, others), same


def set_and_pair(draw: Draw, _: bool) -> tuple[str, str, bool]:
    """Never the same, in whatever order."""
    values = members(draw, draw.randint(2, 3))
    pair = draw.choice([values, sorted(values), sorted(values, reverse=True)])
    one, other = draw.choice(AS_SET)(draw, values), draw.choice(AS_TUPLE)(draw, pair)
    return (one, other, False) if draw.random() < 0.5 else (other, one, False)


def set_and_interval(draw: Draw, _: bool) -> tuple[str, str, bool]:
    low, high = sorted(members(draw, 2))
    one = draw.choice([*AS_SET, _bare])(draw, draw.sample([low, high], 2))
    return one, draw.choice([f"{low} < x < {high}", rf"{low} \le x \le {high}", f"[{low}, {high}]"]), False


def set_of_pairs(draw: Draw, same: bool) -> tuple[str, str, bool]:
    points = [members(draw, 2) for _ in range(draw.randint(2, 3))]
    others = draw.sample(points, len(points))
    if not same:
        others[0] = [*reversed(others[0])]
        if sorted(others) == sorted(points):
            return set_of_pairs(draw, same)
    sign = draw.choice([r"\{%s\}", "%s"])
    one, other = (sign % ", ".join(_in_brackets(draw, each) for each in made) for made in (points, others))
    return one, other, same


def close_members(draw: Draw, same: bool) -> tuple[str, str, bool]:
    exponent, whole = draw.randint(45, 90), draw.randint(2, 9)
    form = draw.choice([r"\{1-1/2^{%d}, %d\}", r"(1-\frac{1}{2^{%d}}, %d)", r"[1-2^{-%d}, %d)"])
    return form % (exponent, whole), form.replace(", ", ",") % (exponent if same else exponent + 1, whole), same


def interval(draw: Draw, same: bool) -> tuple[str, str, bool]:
    low, high = sorted(members(draw, 2))
    ends = draw.choice([True, False]), draw.choice([True, False])
    changed = (low, high, *ends)
    if not same:
        changed = draw.choice([(low, high, not ends[0], ends[1]), (low, high, ends[0], not ends[1]),
                               (low, high + 1, *ends), (low - 1, high, *ends)])  # fmt: skip
    return _interval(draw, low, high, *ends), _interval(draw, *changed), same


def _interval(draw: Draw, low: Fraction, high: Fraction, from_low: bool, to_high: bool) -> str:
    less, until = (r"\le" if from_low else "<"), (r"\le" if to_high else "<")
    more = r"\ge" if from_low else ">"
    return draw.choice([
        f"{'[' if from_low else '('}{written(draw, low)}, {written(draw, high)}{']' if to_high else ')'}",
        f"{written(draw, low)} {less} x {until} {written(draw, high)}",
        f"x {more} {written(draw, low)} and x {until} {written(draw, high)}",
    ])  # fmt: skip


def ray(draw: Draw, same: bool) -> tuple[str, str, bool]:
    value, closed = some(draw), draw.choice([True, False])
    changed = (value, closed) if same else draw.choice([(value, not closed), (value + 1, closed)])
    return _ray(draw, value, closed), _ray(draw, *changed), same


def _ray(draw: Draw, value: Fraction, closed: bool) -> str:
    text = written(draw, value)
    return draw.choice([
        f"x {'>=' if closed else '>'} {text}", rf"{text} {'<=' if closed else '<'} x",
        rf"{'[' if closed else '('}{text}, \infty)",
    ])  # fmt: skip


def two_rays(draw: Draw, same: bool) -> tuple[str, str, bool]:
    """x < 1 or x > 4; not x > 1 or x < 4."""
    low, high = sorted(members(draw, 2))
    changed = (low, high) if same else draw.choice([(low - 1, high), (low, high + 1)])
    return _two_rays(draw, low, high), _two_rays(draw, *changed), same


def _two_rays(draw: Draw, low: Fraction, high: Fraction) -> str:
    return draw.choice([
        " or ".join(draw.sample([f"x < {low}", f"x > {high}"], 2)),
        r" \cup ".join(draw.sample([rf"(-\infty, {low})", rf"({high}, \infty)"], 2)),
    ])  # fmt: skip


def both_or_either(draw: Draw, _: bool) -> tuple[str, str, bool]:
    low, high = sorted(members(draw, 2))
    return f"x > {low} and x < {high}", f"x > {low} or x < {high}", False


# Choices and words


def choice(draw: Draw, same: bool) -> tuple[str, str, bool]:
    letter = draw.choice("ABCDEFGH")
    told = letter if same else draw.choice([other for other in "ABCDEFGH" if other != letter])
    return draw.choice(["%s", "(%s)", "%s."]) % letter, draw.choice(["%s", "(%s)", "%s)", r"\text{(%s)}"]) % told, same


NAMES = ["New York", "Jane Austen", "S\u00e3o Paulo", "Z\u00fcrich", "red panda", "Marie Curie", "oxygen", "sea water"]


def words(draw: Draw, same: bool) -> tuple[str, str, bool]:
    name = draw.choice(NAMES)
    told = name if same else draw.choice([other for other in NAMES if other != name])
    plain = told.replace("\u00e3", "a").replace("\u00fc", "u")
    return name, draw.choice([told.lower(), told.upper(), f"The {told}", f"{told}!", plain, f'"{told}"']), same


MONTHS = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
]  # fmt: skip


def date(draw: Draw, same: bool) -> tuple[str, str, bool]:
    year, month, day = draw.randint(1500, 2029), draw.randint(1, 12), draw.randint(4, 19)
    changed = (year, month, day) if same else draw.choice([(year + 1, month, day), (year, month, day + 1)])
    return _date(draw, year, month, day), _date(draw, *changed), same


def _date(draw: Draw, year: int, month: int, day: int) -> str:
    name = MONTHS[month - 1]
    return draw.choice([
        f"{name} {day}, {year}", f"{day} {name} {year}", f"the {day}th of {name} {year}",
        f"{name[:3]} {day}, {year}", f"{year}-{month:02d}-{day:02d}",
    ])  # fmt: skip


def clock(draw: Draw, same: bool) -> tuple[str, str, bool]:
    hour, minute = draw.randint(13, 23), draw.randint(10, 59)
    told = hour if same else draw.choice([hour - 12, hour - 1])
    return f"{hour - 12}:{minute} {draw.choice(['PM', 'p.m.', 'pm'])}", f"{told}:{minute}", same


RULES: list[Callable[[Draw, bool], tuple[str, str, bool]]] = [
    number, long_number, percentage, repeating, in_words, amount, power_or_root, close, rounded, root, sum_with_root,
    share_of_pi, product, close_formula, equation, system, named, set_of_values, ordered_values, set_and_pair,
    set_and_interval, set_of_pairs, close_members, interval, ray, two_rays, both_or_either, choice, words, date, clock,
]  # fmt: skip


def lines(found: Sequence[Pair]) -> Iterator[str]:
    return (json.dumps(asdict(pair)) for pair in found)


if __name__ == "__main__":
    print("\n".join(lines(pairs(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))))
