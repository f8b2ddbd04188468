"""What the report computes itself: positions, means, choices and words."""

import math
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemotron_app import export, wording
from nemotron_app.charts import (
    MAX_POINTS,
    Bin,
    Histogram,
    Series,
    bar_chart,
    fill_histogram,
    histogram,
    line_chart,
    moving_mean,
    strip_axis,
    tick_labels,
    ticks,
)
from nemotron_app.report.findings import overlap_in_short, overlap_sentence, stage_score, verdict
from nemotron_app.report.page import data_counts
from nemotron_app.report.results import choose_questions
from nemotron_app.report.training import facts, panels

NUMBERS = st.floats(-1e9, 1e9, allow_nan=False)


@given(NUMBERS, NUMBERS, st.integers(2, 9))
def test_ticks_enclose_what_they_are_for(a: float, b: float, most: int) -> None:
    low, high = min(a, b), max(a, b)
    marks = ticks(low, high, most)
    slack = 1e-6 * max(1.0, abs(low), abs(high))
    assert 2 <= len(marks) <= most + 2
    assert marks == sorted(set(marks))
    assert marks[0] <= low + slack
    assert marks[-1] >= high - slack


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0.0, 0.5, 1.0], ["0.0", "0.5", "1.0"]),
        ([0, 100, 200], ["0", "100", "200"]),
        ([0, 10000, 20000], ["0", "10k", "20k"]),
        ([0, 1e-5, 2e-5], ["0", "1e-05", "2e-05"]),
    ],
)
def test_tick_labels_are_short_and_alike(values: list[float], labels: list[str]) -> None:
    assert tick_labels(values) == labels


def test_chart_leaves_gaps_where_values_are_not_finite() -> None:
    points = [(1, 2.0), (2, math.nan), (3, 4.0), (4, math.inf), (5, 3.0)]
    chart = line_chart("loss", [Series("loss", points)], width=300, height=140)
    assert chart is not None
    assert chart.curves[0].path.count("M") == 3
    assert "nan" not in chart.curves[0].path
    assert line_chart("loss", [Series("loss", [(1, math.nan)])], width=300, height=140) is None


def test_a_single_point_is_a_dot() -> None:
    one, two = Series("loss", [(1, 2.0)]), Series("loss", [(1, 2.0), (2, 1.0)])
    chart = line_chart("loss", [one, two], width=300, height=140)
    assert chart is not None
    assert [len(curve.dots) for curve in chart.curves] == [1, 0]


@pytest.mark.parametrize(
    ("bins", "labels"),
    [
        (histogram(Counter({20: 5})), ["20"]),
        (histogram(Counter({16: 9, 20: 3})), ["16", "17", "18", "19", "20"]),
        (histogram(Counter({30: 1, 129: 4, 77: 2})), ["30", "50", "70", "90", "110", "130"]),
        (fill_histogram(Counter({20: 1, 100: 2})), ["0", "20", "40", "60", "80", "100"]),
        (fill_histogram(Counter({95: 1, 120: 2})), ["0", "20", "40", "60", "80", "101"]),
    ],
)
def test_bars_are_labelled_with_round_edges_or_their_one_value(bins: list[Bin], labels: list[str]) -> None:
    assert [tick.label for tick in bar_chart(Histogram("lengths", "tokens", bins, "", "base"), 460).x_ticks] == labels


def test_counts_of_what_was_read_are_told_from_what_is_held() -> None:
    metadata = {"total_tokens": 9, "counts": {"rows": 400, "tokens": 9, "rejected": {}}}
    assert data_counts(metadata) == [("total tokens", "9"), ("rows read", "400")]


def test_long_runs_are_thinned_but_end_where_they_end() -> None:
    points = [(step, 1.0 / step) for step in range(1, 100_001)]
    chart = line_chart("loss", [Series("loss", points)], width=300, height=140)
    assert chart is not None
    path = chart.curves[0].path
    assert path.count("L") <= MAX_POINTS + 1
    assert path.rpartition("L")[2].split()[0] == f"{chart.right:g}"


@given(st.lists(NUMBERS, min_size=1, max_size=50), st.sampled_from([1, 3, 5, 7]))
def test_moving_mean_stays_within_the_values(values: list[float], window: int) -> None:
    means = moving_mean(list(enumerate(values)), window)
    assert [x for x, _ in means] == list(range(len(values)))
    assert all(min(values) - 1e-3 <= y <= max(values) + 1e-3 for _, y in means)
    assert window > 1 or [y for _, y in means] == pytest.approx(values)


def test_strips_lie_on_their_axis() -> None:
    axis = strip_axis([0.41, 0.93], share=True)
    assert [tick.label for tick in axis.ticks] == ["0%", "25%", "50%", "75%", "100%"]
    strip = axis.strip(0.41, [0.38, 0.44])
    assert strip is not None
    assert (strip.low, strip.value, strip.high, strip.zero) == (38.0, 41.0, 44.0, 0.0)
    assert axis.strip(math.nan, [0.0, 1.0]) is None
    signed = strip_axis([-0.1, 0.52], share=True, signed=True)
    assert [tick.label for tick in signed.ticks] == ["−20", "0", "+20", "+40", "+60"]


def test_facts_of_a_resumed_run_add_up_its_starts() -> None:
    entries = [
        {"step": 1, "loss": 2.0, "tokens": 100, "seconds": 1.0},
        {"step": 2, "loss": 1.0, "tokens": 200, "seconds": 2.0},
        {"step": 3, "loss": math.nan, "tokens": 300, "seconds": 0.5},
        {"step": 4, "loss": 3.0, "tokens": 400, "seconds": 3.0},
        {"step": 4, "valid_loss": 2.5, "tokens": 400, "seconds": 3.5},
    ]
    known = facts(entries)
    assert (known.steps, known.tokens, known.seconds, known.valid_loss, known.not_finite) == (4, 400, 5.5, 2.5, 1)
    assert known.tokens_per_second == pytest.approx(400 / 5.5)
    assert [panel.title for panel in panels(entries)[1]] == ["Tokens per second"]
    assert facts([]) == facts([{"step": 1}]).__class__()


def answers(scores: str) -> list[dict]:
    return [
        {
            "id": index,
            "question": f"q{index}",
            "expected": "x",
            "output": f"<think>hm</think>{index}",
            "score": int(mark),
        }
        for index, mark in enumerate(scores)
    ]


def test_chosen_questions_show_every_pattern_failures_too() -> None:
    samples = {"base": answers("0000000001"), "rl": answers("1111110100")}
    found = choose_questions(samples, ["base", "rl"])
    assert [question.id for question in found] == [0, 1, 2, 3, 4, 6, 8, 9]
    assert {(question.answers[0].right, question.answers[1].right, question.same_pattern) for question in found} == {
        (False, True, 7), (False, False, 2), (True, False, 1),
    }  # fmt: skip
    assert (found[0].answers[0].thinking, found[0].answers[0].text) == ("hm", "0")
    assert choose_questions(samples, []) == []


def test_long_answers_are_cut_and_keep_what_follows_the_thinking() -> None:
    row = {"id": 0, "question": "q", "expected": "x", "output": "a" * 1000 + "</think>" + "b\n" * 9 + "c", "score": 0}
    answer = choose_questions({"rl": [row]}, ["rl"])[0].answers[0]
    assert answer.thinking == "a" * 300 + " … (700 more characters)"
    assert answer.text == "b\nb\nb\nb\nb … (10 more characters)"


@pytest.mark.parametrize(
    ("interval", "lower_is_better", "expected"),
    [
        ([0.1, 0.2], False, "better"),
        ([0.1, 0.2], True, "worse"),
        ([-0.2, -0.1], True, "better"),
        ([-0.2, -0.1], False, "worse"),
        ([-0.1, 0.1], False, "no clear change"),
        ([0.0, 0.1], False, "no clear change"),
        ([math.nan, 0.1], False, "no clear change"),
    ],
)
def test_verdict_needs_an_interval_without_zero(interval: list[float], lower_is_better: bool, expected: str) -> None:
    results = {"tasks": {"t": {"lower_is_better": lower_is_better}}}
    assert verdict(results, {"task": "t", "ci95": interval}) == expected


def test_overlap_with_data_that_nobody_knows_is_not_called_none() -> None:
    check = {"found": 0, "of": 60, "exact": 0, "near": 0, "checked_against": [], "unknown": ["sft-model:v1"]}
    results = {"overlap": {"facts": check}, "tasks": {}}
    assert overlap_in_short(results) == "overlap not checked: what sft-model:v1 was trained on is not known"
    assert overlap_sentence(results, "facts") == "facts was not checked: what sft-model:v1 was trained on is not known."
    results["overlap"]["facts"] = check | {"checked_against": ["rl-data:v1"]}
    known_part = "overlap 0 of 60 exact, 0 near, as far as known"
    assert overlap_in_short(results) == known_part
    assert overlap_sentence(results, "facts").endswith(
        "Looked for in rl-data:v1 only. What else sft-model:v1 was trained on is not known."
    )


def test_stage_is_judged_by_a_fixed_task_not_by_its_best() -> None:
    def entry(model: str, task: str, value: float) -> dict:
        return {"model": model, "task": task, "metric": "acc", "value": value}

    results = {
        "tasks": {"facts": {"kind": "choice"}, "sums": {"kind": "generate"}},
        "scores": [*(entry(model, "facts", 0.4) for model in ("base", "sft")), entry("sft", "sums", 0.1)],
    }
    assert stage_score(results, "pretrain") == results["scores"][0]
    assert stage_score(results, "sft") == results["scores"][2]
    assert stage_score(results, "rl") is None


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (wording.value("exact_match", 0.41249), "41.2%"),
        (wording.value("bits_per_byte", 1.2068), "1.207"),
        (wording.value("acc", math.nan), "not finite"),
        (wording.change("acc", -0.0104), "−1.0 points"),
        (wording.change("acc", 0.0), "0.0 points"),
        (wording.change_interval("bits_per_byte", [-0.1, 0.2]), "−0.100 to +0.200"),
        (wording.amount("bits_per_byte", -0.108), "0.108 bits per byte"),
        (wording.counted(1, "step"), "1 step"),
        (wording.counted(1480, "step"), "1,480 steps"),
        (wording.short_count(1_234_567), "1.2M"),
        (wording.short_count(9_999), "9,999"),
        (wording.short_count(163_840), "164k"),
        (wording.duration(185), "3 min 5 s"),
        (wording.duration(7_800), "2 h 10 min"),
        (wording.duration(None), "–"),
    ],
)
def test_numbers_in_words(written: str, expected: str) -> None:
    assert written == expected


def test_command_line_start_imports_neither_templates_nor_tables() -> None:
    program = "import sys, nemotron_app.main; print([m for m in ('jinja2', 'matplotlib') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"


def test_the_share_of_answers_that_were_cut_stands_beside_a_score() -> None:
    assert [wording.cut(share) for share in (None, 0.0, 0.125)] == ["", "", "12.5% cut"]
    score = {"task": "sums", "metric": "right", "n": 8, "value": 0.5, "ci95": [0.2, 0.8], "from": "results:v1"}
    assert "| 50.0%, 12.5% cut | 20.0% to 80.0% |" in export._scores([score | {"cut": 0.125}])
    assert "| 50.0% | 20.0% to 80.0% |" in export._scores([score])
