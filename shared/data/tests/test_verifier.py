"""The verifier against answers that were labelled before it was asked: answers*.jsonl."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nemotron_data.verifier import expected, judge
from nemotron_data.verifier.judgement import UNDECIDABLE, count_gold, require_decidable
from nemotron_data.verifier.numbers import read_number
from nemotron_shared.errors import UserError

Rows = list[dict[str, Any]]
SUITES = {path.stem: path for path in Path(__file__).parent.glob("answers*.jsonl")}


def rows_of(name: str) -> Rows:
    return [json.loads(line) for line in SUITES[name].read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", SUITES)
def test_the_verdicts_are_those_of_people(name: str) -> None:
    """97 % of the verdicts on values, and at most 1 % of the wrong answers rewarded; forms likewise."""
    rows = rows_of(name)
    verdicts = [(judge(row["completion"], row["gold"]), row) for row in rows]
    right = sum(verdict.lenient == row["value"] for verdict, row in verdicts)
    wrong = [verdict for verdict, row in verdicts if not row["value"]]
    formed = [(verdict.strict, row["form"]) for verdict, row in verdicts if row["form"] is not None]
    forms = sum(ours == theirs for ours, theirs in formed) / len(formed) if formed else 1.0
    assert len(rows) >= 300
    assert right / len(rows) >= 0.97
    assert sum(verdict.lenient for verdict in wrong) / len(wrong) <= 0.01
    assert forms >= 0.97
    assert all(verdict.lenient for verdict, _ in verdicts if verdict.strict)


def test_a_number_is_exact() -> None:
    assert not judge("123456789012345678901", "123456789012345678902").lenient
    assert not judge("0.333", "1/3").lenient
    assert read_number("7 of 8") is None
    assert not judge("42 hours", "42 minutes").lenient
    assert judge("0.7 hours", "42 minutes").lenient
    assert not judge("60 km/h", "60 mph").lenient
    assert judge("60 miles per hour", "60 mph").lenient
    assert judge("$15 per hour", "15 dollars").lenient


@pytest.mark.parametrize("text", ["half of 48", "twice 48", "48 squared", "48 and a half", "over 48"])
def test_a_number_that_is_made_into_another_is_not_the_answer(text: str) -> None:
    assert not judge(text, "48").lenient


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("9-4-4+1", "2"), ("\\boxed{9-4-4+1}", "2"), ("The answer is $3+4$.", "7"), ("2024-01", "2023"),
        ("3 \\times 4", "12"), ("3*10^5*2", "600000"), ("(3+4)/2", "3.5"), ("\\frac{3+4}{2}", "3.5"), ("8/2/2", "2"),
        ("\\frac{8}{\\frac{4}{2}}", "4"), ("\\sqrt{3^2+4^2}", "5"), ("\\frac{1}{2}(8)", "4"), ("(-3)-(-10)", "7"),
        ("28 \\div 4", "7"), ("\\gcd(12,18)", "6"), ("150%-100%", "50%"),
        ("3 + 4", "4"), ("The answer is 3 * 4", "4"), ("It is 3 plus 4.", "4"), ("28 \\div 4", "4"), ("3 x 4", "4"),
    ],
)  # fmt: skip
def test_a_computation_that_nobody_carried_out_is_no_answer(text: str, gold: str) -> None:
    assert not judge(text, gold).lenient


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("3*10^5", "300000"), ("3 \\times 10^{-5}", "0.00003"), ("-(-7)", "7"), ("2^{10}", "1024"), ("2**10", "1024"),
        ("2^{-3}", "0.125"), ("2\u00b3", "8"), ("\\sqrt{16}", "4"), ("\u221a16", "4"), ("2\\sqrt{4}", "4"),
        ("8/2", "4"), ("-\\frac{8}{2}", "-4"), ("\\frac{\\sqrt{16}}{2}", "2"), ("2 1/2", "2.5"), ("2\\frac12", "2.5"),
        ("50%", "0.5"), ("1,234", "1234"), ("3+4=7", "7"), ("1 + x", "x + 1"), ("1+2\\sqrt{3}", "2\\sqrt{3}+1"),
    ],
)  # fmt: skip
def test_a_power_a_root_and_one_fraction_are_values_and_formulas_are_compared_as_such(text: str, gold: str) -> None:
    assert judge(text, gold).lenient


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("\\boxed{1}", "1/x"), ("The answer is 100.", "100-x"), ("3", "3 - n"), ("2/y", "2/x"), ("12", "12/t"),
        ("100-y", "100-x"), ("7", "7 mod n"), ("3", "3xy"), ("5", "5yx^2"), ("7pi", "7"), ("7 + x", "7"), ("7-", "7"),
        ("2 sin x", "2"), ("2 log n", "2"), ("6 times x", "6"), ("6 more than x", "6"), ("Paris?", "Paris"),
        ("So is the answer \\boxed{7}?", "7"), ("7 doubled", "7"), ("7 tenths", "7"),
        ("7 degrees below zero", "7"), ("The answer is 7?", "7"),
    ],
)  # fmt: skip
def test_a_number_in_a_formula_is_not_that_formula(text: str, gold: str) -> None:
    assert not judge(text, gold).lenient


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("\\frac{1}{x}", "1/x"), ("x^{-1}", "1/x"), ("\\boxed{-x+100}", "100-x"), ("\\boxed{x+1}", "1+x"),
        ("5x^2y", "5yx^2"), ("10^-3", "0.001"), ("10\u207b\u00b3", "0.001"), ("2^10", "1024"), ("e^-x", "e^{-x}"),
        ("x\u00b9\u2070", "x^{10}"),
        ("0.\\bar{3}", "1/3"), ("0.1212...", "4/33"), ("\\binom{n+1}{2}", "\\frac{n(n+1)}{2}"), ("6 times a week", "6"),
        ("$30 - $15 = $15 more than Tom.", "15"),
        ("0.333...", "1/3"), ("0.1(6)", "1/6"),
        ("7 tenths", "0.7"), ("7,", "7"), ("42\u200b", "42"), ("12 a day", "12"), ("a 12-m pole", "12"),
    ],
)  # fmt: skip
def test_the_same_value_written_otherwise_is_right(text: str, gold: str) -> None:
    assert judge(text, gold).lenient


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("1 hour 30 minutes", "90 minutes"), ("1 hour and 30 minutes", "1.5 hours"), ("1 h, 30 min", "90"),
        ("It takes 2 hours and 5 minutes.", "2 hours 5 minutes"), ("125 minutes", "2 hours 5 minutes"),
        ("7 feet 6 inches", "7.5 ft"), ("7 dollars and 50 cents", "7.50"), ("2 days 3 hours", "51 hours"),
        ("\\boxed{1\\text{ hour }30\\text{ min}}", "90 min"), ("$3 and 25 cents", "$3.25"), ("\u00a342", "42 pounds"),
        ("5 mA", "0.005 A"), ("5 k\u03a9", "5000 \u03a9"), ("5 MW", "5000000 W"), ("500 cents", "$5"),
        ("12 months", "1 year"), ("42\u20ac", "42 euros"), ("7.50 \u20ac", "\u20ac7.5"), ("5 K", "5"), ("5k", "5000"),
    ],
)  # fmt: skip
def test_a_quantity_counts_with_all_its_units(text: str, gold: str) -> None:
    assert judge(text, gold).lenient


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("1 hour and 30 minutes", "30"), ("2 hours and 5 minutes", "5"), ("5 lbs 3 oz", "3"),
        ("5 dollars and 25 cents", "25"), ("5 MB", "5 GB"), ("5 years", "5 months"), ("5 A", "5 V"),
        ("5 \u03a9", "5 V"), ("5 eV", "5 J"), ("5 acres", "5 hectares"), ("\u20ac42", "$42"), ("7 euros", "7 dollars"),
        ("5\u20ac", "$5"), ("\u00a35", "$5"), ("\u00a35", "5 kg"), ("5 mA", "5 A"), ("5 mW", "5 MW"), ("5 MB", "5 Mb"),
        ("5 nm", "5 m"), ("5 m/s^2", "5 m"), ("5 decades", "5 years"), ("$3 and 25 cents", "25"),
    ],
)  # fmt: skip
def test_a_quantity_in_another_unit_is_another_quantity(text: str, gold: str) -> None:
    assert not judge(text, gold).lenient


@pytest.mark.parametrize("repeated", ["7 ", "1,", "x=7 ", "\\boxed{1", "1", "'", "\\frac{1}{", "step 1: 3+4=7. "])
def test_an_answer_that_repeats_itself_for_pages_is_judged_by_its_end(repeated: str) -> None:
    """In the time that it takes to read it: a model in training writes such answers."""
    answer = repeated * (100_000 // len(repeated))
    assert not judge(answer, "9").lenient
    assert judge(f"{answer}\nThe answer is 9.", "9").strict


def test_a_number_in_words_may_be_answered_with_figures() -> None:
    assert judge("The answer is 7.", "seven").strict
    assert judge("three", "3").strict
    assert not judge("8", "seven").lenient
    assert not judge("1", "One Direction").lenient


def test_a_number_of_inches_is_told_from_one_in_something() -> None:
    assert judge("5 ft", "60 in").strict
    assert judge("60 in.", "5 ft").strict
    assert not judge("5 in", "5 ft").lenient
    assert judge("60 in total", "60 cm").lenient
    assert judge("It grew by 60 in 2024.", "60 cm").lenient


@pytest.mark.parametrize(("gold", "other"), [("2024-01", "2023"), ("3-1", "2"), ("555-1234", "-679")])
def test_figures_with_hyphens_are_no_difference_to_be_worked_out(gold: str, other: str) -> None:
    assert judge(gold, gold).strict
    assert not judge(other, gold).lenient


@pytest.mark.parametrize("text", ["1.5M", "1_500_000"])
def test_what_may_mean_something_else_is_not_read_as_a_number(text: str) -> None:
    assert not judge(text, "1500000").lenient


@pytest.mark.parametrize("gold", ["", " ", "...", "$$", "\\displaystyle", "\\boxed{}", "?"])
@pytest.mark.parametrize("text", ["", "the", "...", "$$", "$\\displaystyle$", "?", "7", "The answer is: ."])
def test_where_nothing_is_expected_nothing_is_right(text: str, gold: str) -> None:
    assert not judge(text, gold).lenient


@pytest.mark.parametrize(("gold", "other"), [("the", "an"), ("+", "-"), ("%", "&"), ("->", "<-"), ("NaN", "null")])
def test_an_answer_without_a_word_of_its_own_is_compared_as_it_is(gold: str, other: str) -> None:
    assert judge(f"The answer is {gold}", gold).strict
    assert not judge(other, gold).lenient
    assert not judge("...", gold).lenient


@pytest.mark.parametrize("text", ["Don't pick D", "The correct answer is B; many pick D.", "A. Choose D only if wet"])
def test_a_letter_that_is_only_named_is_not_the_choice(text: str) -> None:
    assert not judge(text, "D").lenient


@pytest.mark.parametrize(
    "text",
    [
        "\\binom{10^9}{5\\cdot 10^8}", "x+\\binom{1000000000}{500000000}", "\\int \\frac{dx}{x^{50}+x+1}",
        "\\sum_{k=1}^{10^6} k", "(a+b+c+d+e+f+g+h+i+j)^{99}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("gold", ["x+1", "7", "\\ln x"])
def test_what_would_take_long_to_work_out_is_no_answer(text: str, gold: str) -> None:
    assert not judge(text, gold).lenient
    assert not judge(gold, text).lenient


@pytest.mark.parametrize("text", ["9^9^9^9", "10!!!!", "(" * 500, "\\boxed{" * 200, "1e99999999", "x" * 100_000])
def test_hostile_answers_are_wrong_and_quick(text: str) -> None:
    assert not judge(text, "\\frac{1}{2}").lenient
    assert not judge(text, "7").lenient


@pytest.mark.parametrize(
    ("gold", "kind"),
    [
        ("#### 1,234", "number"), ("$\\frac{1}{2}$", "number"), ("\\pi/2", "math"), ("x^2-1", "math"),
        ("(B)", "choice"), ("1,-2", "math"), ("Paris", "text"), ("3:45 PM", "text"),
        ("\\boxed{7}", "number"), ("a^2 - b^2", "math"),
    ],
)  # fmt: skip
def test_an_expected_answer_is_of_a_kind(gold: str, kind: str) -> None:
    assert expected(gold).kind == kind


def test_answers_that_nobody_could_find_right_are_counted_and_refused() -> None:
    counts: Counter[str] = Counter()
    for gold in ("7", "B", "Paris", "\\frac{\\pi}{2}", "", "...", "word " * 20):
        count_gold(counts, gold)
    assert counts[UNDECIDABLE] == 3
    with pytest.raises(UserError, match=r"3 of 7 expected answers \(43%\)"):
        require_decidable(counts, 0.05)
    require_decidable(counts, 0.5)


RIGHT = [
    # equations of curves and planes, whichever way they are turned
    ("2x - 9y + 4z + 13 = 0", "2x-9y+4z+13=0"),
    ("2x - 9y + 4z + 13 = 0", r"\boxed{4x - 18y + 8z = -26}"),
    ("2x - 9y + 4z + 13 = 0", r"\boxed{13 + 4z = 9y - 2x}"),
    ("3x + 2y = 12", r"\boxed{y = 6 - \frac{3}{2}x}"),
    ("4x - 3y + 8 = 0", r"y=\frac{4}{3}x+\frac{8}{3}"),
    ("x^2 + y^2 = 49", r"\boxed{49 = x^2+y^2}"),
    ("(x-1)^2 + (y+2)^2 = 16", r"\boxed{x^2 - 2x + y^2 + 4y = 11}"),
    (r"\frac{x^2}{16} + \frac{y^2}{25} = 1", r"\boxed{25x^2 + 16y^2 = 400}"),
    ("y^2 = 12x", r"\boxed{12x = y^2}"),
    ("xy = 6", r"\boxed{6 - xy = 0}"),
    (r"y = \frac{6}{x}", r"\boxed{\frac{6}{x} = y}"),
    ("y = 2x + 7", "y = 7 + 2x"),
    ("y = 2x + 7", r"\boxed{2x+7}"),
    ("y = 2x + 7", r"\boxed{2x - y + 7 = 0}"),
    ("f(x) = x^2 - 5", r"\boxed{x^2-5}"),
    ("f(x) = x^2 - 5", r"\boxed{f(x) = x^2-5}"),
    ("x^2 - 5", r"\boxed{f(x) = x^2 - 5}"),
    ("a_n = 3n - 1", r"\boxed{a_n = 3n-1}"),
    (r"A = \frac{1}{2}bh", r"\boxed{A=\frac{bh}{2}}"),
    ("V = \\pi r^2 h", r"\boxed{V=\pi h r^2}"),
    ("E = mc^2", "E = mc^2"),
    # values with a name
    ("x = 9", r"\boxed{9}"),
    ("x = 9", r"\boxed{x = 9}"),
    ("x = 9", "x = 3^2 = 9"),
    ("x = 9", "9"),
    ("9", r"\boxed{x = 9}"),
    ("n=-3", r"\boxed{-3}"),
    (r"x = \frac{3}{4}", r"\boxed{0.75}"),
    (r"x = \frac{3}{4}", r"\boxed{x = 0.75}"),
    (r"x = \sqrt{5}", r"\boxed{\sqrt{5}}"),
    (r"\theta = \frac{\pi}{6}", r"\boxed{\theta = \pi/6}"),
    ("f(2) = 11", r"\boxed{11}"),
    ("3 + 8 = 11", r"\boxed{11}"),
    ("Area = 24", r"\boxed{24}"),
    (r"\text{Area} = 24", "The area is 24."),
    ("24", "Area = 24"),
    ("7", "2(3)+1 = 7"),
    ("8 m", "5 m + 3 m = 8 m"),
    # several values
    ("x = 2, y = 5", r"\boxed{y = 5, x = 2}"),
    ("x = 2, y = 5", r"\boxed{x=2,\ y=5}"),
    ("x = 2 or x = -3", r"\boxed{x = -3, x = 2}"),
    ("x = 2 or x = -3", r"\boxed{-3, 2}"),
    (r"x = \pm 4", r"\boxed{x = 4, x = -4}"),
    ("x + y = 4, x - y = 2", r"\boxed{x - y = 2, x + y = 4}"),
    ("x + y = 4, x - y = 2", r"\boxed{2x + 2y = 8, y = x - 2}"),
    (r"\begin{cases} x + y = 4 \\ x - y = 2 \end{cases}", r"\boxed{x+y=4, x-y=2}"),
    (r"\begin{cases} x = 3 \\ y = 1 \end{cases}", r"\boxed{\begin{cases} y = 1 \\ x = 3 \end{cases}}"),
    ("(x, y) = (3, 1)", r"\boxed{(3, 1)}"),
    ("(x, y) = (3, 1)", r"\boxed{(x,y) = (3,1)}"),
    # intervals and inequalities
    ("(2, 5]", r"\boxed{2 < x \le 5}"),
    ("(2, 5]", r"\boxed{(2,5]}"),
    (r"x \in (2, 5]", r"\boxed{(2,5]}"),
    (r"x \in [0, \infty)", r"\boxed{x \ge 0}"),
    ("x > 6", r"\boxed{(6, \infty)}"),
    ("x > 6", r"\boxed{6 < x}"),
    ("x > 6", "x > 6"),
    (r"(-\infty, 1) \cup (4, \infty)", r"\boxed{x < 1 \text{ or } x > 4}"),
    (r"(-\infty, 1) \cup (4, \infty)", r"\boxed{(4,\infty)\cup(-\infty,1)}"),
    (r"x \neq 2", r"\boxed{x \ne 2}"),
    (r"-1 \leq x \leq 1", r"\boxed{[-1, 1]}"),
    # sets, vectors, matrices
    (r"\{2, 3, 7\}", r"\boxed{\{7, 2, 3\}}"),
    (r"\emptyset", r"\boxed{\varnothing}"),
    (r"\varnothing", r"\boxed{\emptyset}"),
    (r"\emptyset", r"\boxed{\{\}}"),
    (r"\begin{pmatrix} 1 & 0 \\ 2 & 5 \end{pmatrix}", r"\boxed{\begin{bmatrix} 1 & 0 \\ 2 & 5 \end{bmatrix}}"),
    # constants and products
    (r"3 - \frac{2}{\mathrm{e}}", r"\boxed{3 - \frac{2}{e}}"),
    (r"\mathrm{e}^{2}", r"\boxed{e^2}"),
    ("6 + 2i", r"\boxed{6.0 + 2.0i}"),
    ("6 - i", r"\boxed{6.0-1.0i}"),
    ("i", r"\boxed{\sqrt{-1}}"),
    (r"\sqrt{-9}", r"\boxed{3i}"),
    ("2pq", r"\boxed{2qp}"),
    ("6!", r"\boxed{720}"),
    ("720", r"\boxed{6!}"),
    ("5! + 1", r"\boxed{121}"),
    ("2^{-40}", r"\boxed{\frac{1}{2^{40}}}"),
    ("10^{-15}", r"\boxed{10^{-15}}"),
    (r"\sqrt{\frac{1}{3}}", r"\boxed{\frac{1}{\sqrt{3}}}"),
    (r"\sin(2x)", r"\boxed{2\sin x\cos x}"),
    # labelled before they were tried
    ("3x - y + 2z = 7", "\\boxed{3x - y + 2z - 7 = 0}"),
    ("x^2/4 + y^2/9 = 1", "\\boxed{\\frac{x^2}{4}+\\frac{y^2}{9}=1}"),
    ("y - 3 = 2(x - 1)", "\\boxed{y = 2x + 1}"),
    ("r = 4\\cos\\theta", "\\boxed{r = 4\\cos\\theta}"),
    ("P(A \\cap B) = 0.2", "\\boxed{0.2}"),
    ("P(A) = 0.3", "0.3"),
    ("m = 3, b = -2", "\\boxed{m=3,\\; b=-2}"),
    ("m = 3, b = -2", "m = 3 and b = -2"),
    ("k=7", "k = 7"),
    ("k=7", "The value of k is 7."),
    ("k=7", "so $k = 7$"),
    ("AB = 12", "\\boxed{12}"),
    ("AB = 12", "\\boxed{AB = 12}"),
    ("2x^2 + 3x - 5 = 0", "\\boxed{2x^2+3x=5}"),
    ("[3, 8)", "\\boxed{3 \\le x < 8}"),
    ("x < -2 or x > 2", "\\boxed{(-\\infty,-2)\\cup(2,\\infty)}"),
    ("\\{-1, 1\\}", "\\boxed{x = \\pm 1}"),
    ("\\{-1, 1\\}", "\\boxed{-1, 1}"),
    ("x = 1, y = 2, z = 3", "\\boxed{(1, 2, 3)}"),
    ("(1, 2)", "\\boxed{x = 1, y = 2}"),
    ("(5, 2)", "\\boxed{x = 5, y = 2}"),
    ("y' = 3y", "\\boxed{y' = 3y}"),
    ("a^2 + b^2 = c^2", "\\boxed{c^2 = a^2+b^2}"),
    ("18", "3x + 2x = 5x, and x = 18"),
    ("18", "5x = 90, so x = 18"),
    ("18", "\\boxed{x=18}"),
    ("18", "6 + 12 = 18"),
    ("18", "Total = 6 + 12 = 18"),
    ("18", "T = 6 \\cdot 3 = 18"),
    ("5 cm", "AB = 5 cm"),
    ("500 g", "0.5 kg = 500 g"),
    ("x \\ge 3", "\\boxed{[3,\\infty)}"),
    ("t = 2\\pi n", "\\boxed{t = 2\\pi n}"),
    ("\\lambda = 4", "\\boxed{λ = 4}"),
    ("\\lambda = 4", "\\boxed{4}"),
    ("4 - 3i", "\\boxed{-3i + 4}"),
    ("5e^{2}", "\\boxed{5\\mathrm{e}^2}"),
    ("1.6 \\times 10^{-19}", "\\boxed{1.6e-19}"),
    ("7!", "\\boxed{5040}"),
    ("\\binom{5}{2}", "\\boxed{10}"),
    ("f(x) = 2x + c", "\\boxed{2x+c}"),
    ("y = e^{2x}", "\\boxed{y = e^{2x}}"),
    ("\\ln x = 3", "\\boxed{\\ln x = 3}"),
    ("x = e^3", "\\boxed{e^{3}}"),
    ("x=\\log_2 5", "\\boxed{\\log_2 5}"),
    ("2x+3y=6, x-y=1", "\\boxed{x-y=1, 4x+6y=12}"),
    ("\\sqrt{2}\\cdot\\sqrt{3}", "\\boxed{\\sqrt 6}"),
    ("i^2 = -1", "\\boxed{-1}"),
    ("PV = nRT", "\\boxed{PV=nRT}"),
    ("y=3", "y=3"),
    ("x+3=y", "\\boxed{y = x+3}"),
]
WRONG = [
    (r"A = \frac{1}{2}bh", r"\boxed{\frac{1}{2}}"),
    (r"\pi r^2 h", r"\boxed{\pi r^2}"),
    ("V = \\pi r^2 h", r"\boxed{V = \pi r^2}"),
    ("2x - 9y + 4z + 13 = 0", r"\boxed{0}"),
    ("2x - 9y + 4z + 13 = 0", "0"),
    ("2x - 9y + 4z + 13 = 0", r"\boxed{2x - 9y + 4z + 12 = 0}"),
    ("2x - 9y + 4z + 13 = 0", r"\boxed{2x + 9y + 4z + 13 = 0}"),
    ("2x - 9y + 4z + 13 = 0", r"\boxed{x + y + z = 0}"),
    ("2x - 9y + 4z + 13 = 0", r"\boxed{2x - 9y + 4z + 13}"),
    ("2x - 9y + 4z + 13 = 0", r"\boxed{2x - 9y + 13 = 0}"),
    ("2x - 9y + 4z + 13 = 0", r"\boxed{0 = 0}"),
    ("3x + 2y = 12", "12"),
    ("3x + 2y = 12", r"\boxed{12}"),
    ("3x + 2y = 12", r"\boxed{2x + 3y = 12}"),
    ("3x + 2y = 12", r"\boxed{x = 12}"),
    ("3x + 2y = 12", r"The answer is \boxed{y = 6 + \frac{3}{2}x}"),
    ("x^2 + y^2 = 49", "49"),
    ("x^2 + y^2 = 49", r"\boxed{7}"),
    ("x^2 + y^2 = 49", r"\boxed{x^2 - y^2 = 49}"),
    ("x^2 + y^2 = 49", r"\boxed{x + y = 7}"),
    (r"\frac{x^2}{16} + \frac{y^2}{25} = 1", r"\boxed{1}"),
    (r"\frac{x^2}{16} + \frac{y^2}{25} = 1", r"\boxed{\frac{x^2}{25} + \frac{y^2}{16} = 1}"),
    (r"y = \frac{6}{x}", r"\boxed{y = 6x}"),
    ("y = 2x + 7", r"\boxed{y = 2x - 7}"),
    ("y = 2x + 7", r"\boxed{z = 2x + 7}"),
    ("y = 2x + 7", r"\boxed{7}"),
    ("2x + 7", r"\boxed{2y = 2x + 7}"),
    ("f(x) = x^2 - 5", r"\boxed{x^2+5}"),
    ("f(x) = x^2 - 5", r"\boxed{g(x) = x^2-5}"),
    ("x = 9", r"\boxed{y = 9}"),
    ("x = 9", "y = 9"),
    ("x = 9", r"\boxed{x = 8}"),
    ("x = 9", r"\boxed{x + y = 9}"),
    ("x = 9", r"\boxed{2x = 9}"),
    ("0", r"\boxed{x + y = 0}"),
    ("9", r"\boxed{2x + 1 = 9}"),
    (r"x = \sqrt{5}", r"\boxed{y = \sqrt{5}}"),
    (r"\theta = \frac{\pi}{6}", r"\boxed{\alpha = \frac{\pi}{6}}"),
    ("f(2) = 11", r"\boxed{f(3) = 11}"),
    ("x = 2, y = 5", r"\boxed{x = 5, y = 2}"),
    ("x = 2, y = 5", r"\boxed{x = 2}"),
    ("x = 2 or x = -3", r"\boxed{x = 2}"),
    ("x = 2 or x = -3", r"\boxed{y = 2, y = -3}"),
    (r"x = \pm 4", r"\boxed{4}"),
    ("x + y = 4, x - y = 2", r"\boxed{x + y = 2, x - y = 4}"),
    ("x + y = 4, x - y = 2", r"\boxed{x + y = 4}"),
    ("x + y = 4, x - y = 2", r"\boxed{4, 2}"),
    (r"\begin{cases} x + y = 4 \\ x - y = 2 \end{cases}", r"\boxed{x+y=4, x-y=3}"),
    (r"\begin{cases} x + y = 4 \\ x - y = 2 \end{cases}", r"\boxed{2}"),
    ("(x, y) = (3, 1)", r"\boxed{(1, 3)}"),
    ("(2, 5]", r"\boxed{[2, 5)}"),
    ("(2, 5]", r"\boxed{(2, 5)}"),
    ("(2, 5]", r"\boxed{5}"),
    (r"x \in (2, 5]", r"\boxed{x \in [2, 5]}"),
    ("x > 6", r"\boxed{6}"),
    ("x > 6", r"\boxed{x \ge 6}"),
    ("x > 6", r"\boxed{x < 6}"),
    ("x > 6", r"\boxed{x = 6}"),
    ("x > 6", r"\boxed{y > 6}"),
    (r"(-\infty, 1) \cup (4, \infty)", r"\boxed{(1, 4)}"),
    (r"x \neq 2", r"\boxed{x = 2}"),
    (r"\{2, 3, 7\}", r"\boxed{\{2, 3\}}"),
    (r"\{2, 3\}", r"\boxed{(2, 3, 3, 4)}"),
    (r"\emptyset", r"\boxed{\{0\}}"),
    (r"\emptyset", r"\boxed{0}"),
    ("6 + 2i", r"\boxed{6 - 2i}"),
    ("i", r"\boxed{1}"),
    ("ab", r"\boxed{a+b}"),
    ("6!", r"\boxed{6}"),
    ("6!", "6"),
    ("6", r"\boxed{6!}"),
    ("10^{-15}", r"\boxed{0}"),
    ("10^{-15}", r"\boxed{2 \cdot 10^{-15}}"),
    ("2^{-40}", r"\boxed{2^{-41}}"),
    (r"10^{-20}\pi", r"\boxed{10^{-21}\pi}"),
    (r"\frac{\pi}{10^{14}}", r"\boxed{0}"),
    (r"3 - \frac{2}{\mathrm{e}}", r"\boxed{3 + \frac{2}{e}}"),
    # labelled before they were tried
    ("3x - y + 2z = 7", "\\boxed{6x-2y+4z=7}"),
    ("3x - y + 2z = 7", "7"),
    ("x^2/4 + y^2/9 = 1", "1"),
    ("y - 3 = 2(x - 1)", "\\boxed{y = 2x - 1}"),
    ("r = 4\\cos\\theta", "\\boxed{r = 4\\sin\\theta}"),
    ("P(A) = 0.3", "\\boxed{P(B)=0.3}"),
    ("m = 3, b = -2", "\\boxed{m=-2, b=3}"),
    ("k=7", "\\boxed{m=7}"),
    ("AB = 12", "CD = 12"),
    ("2x^2 + 3x - 5 = 0", "x=1"),
    ("2x^2 + 3x - 5 = 0", "0"),
    ("[3, 8)", "\\boxed{3 < x \\le 8}"),
    ("x < -2 or x > 2", "\\boxed{-2 < x < 2}"),
    ("\\{-1, 1\\}", "\\boxed{1}"),
    ("x = 1, y = 2, z = 3", "\\boxed{(3, 2, 1)}"),
    ("(1, 2)", "\\boxed{x = 2, y = 1}"),
    ("a^2 + b^2 = c^2", "\\boxed{c^2}"),
    ("90", "\\boxed{5x = 90}"),
    ("x \\ge 3", "\\boxed{(3,\\infty)}"),
    ("x \\ge 3", "3"),
    ("4 - 3i", "\\boxed{4+3i}"),
    ("3^{-30}", "\\boxed{3^{-31}}"),
    ("1.6 \\times 10^{-19}", "\\boxed{0}"),
    ("7!", "7"),
    ("y = e^{2x}", "\\boxed{y=e^{-2x}}"),
    ("\\ln x = 3", "3"),
    ("2x+3y=6, x-y=1", "\\boxed{x-y=1, 4x+6y=6}"),
    ("A = \\frac{1}{2}bh", "\\boxed{A=bh}"),
    ("E = mc^2", "\\boxed{E = m c}"),
    ("PV = nRT", "\\boxed{PV = RT}"),
    ("y=3", "x=3"),
    ("x+3=y", "\\boxed{3}"),
]


@pytest.mark.parametrize(("gold", "answer"), RIGHT)
def test_a_formula_that_means_the_same_is_right(gold: str, answer: str) -> None:
    assert judge(answer, gold).lenient
    if "boxed" in answer:
        assert judge(answer, gold).strict


@pytest.mark.parametrize(("gold", "answer"), WRONG)
def test_a_formula_that_means_something_else_is_wrong(gold: str, answer: str) -> None:
    assert judge(answer, gold).lenient is False
