"""Scores, intervals and paired comparisons against numbers worked out by hand or by brute force."""

import math
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from nemotron_shared.tracking.run import Run
from stages.eval.evaluate import as_table, other_verdict, score_lines, write_results
from stages.eval.scoring import bootstrap, compare, pass_at_k, score, standard_error, tango, wilson


def samples(*scores: float) -> list[dict]:
    return [{"id": number, "score": value} for number, value in enumerate(scores)]


def test_wilson_matches_published_values() -> None:
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(10, 20) == pytest.approx((0.2993, 0.7007), abs=1e-4)
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)


def test_wilson_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    drawn = rng.binomial(200, 0.3, size=2000)
    inside = [low <= 0.3 <= high for low, high in (wilson(int(hits), 200) for hits in drawn)]
    assert 0.93 <= np.mean(inside) <= 0.97


def test_tango_matches_a_published_example() -> None:
    # airway hyper-responsiveness of 21 children before and after transplantation (Bentur et al. 2009), as computed by
    # Fagerland, Lydersen and Laake (2014): Recommended tests and confidence intervals for paired binomial proportions
    assert tango(gained=1, lost=7, n=21) == pytest.approx((-0.517, -0.026), abs=5e-4)


def test_tango_treats_both_directions_alike_and_has_a_width_where_nothing_changed() -> None:
    low, high = tango(12, 3, 60)
    assert tango(3, 12, 60) == pytest.approx((-high, -low))
    # in closed form: z^2 / (n + z^2)
    assert tango(0, 0, 400) == pytest.approx((-0.00951, 0.00951), abs=1e-5)
    assert tango(20, 0, 20) == pytest.approx((0.67775, 1.0), abs=1e-4)
    assert tango(0, 0, 1) == pytest.approx((-0.79346, 0.79346), abs=1e-4)


# Probability that a trial is gained, that it is lost -> coverage of 20, 60 and 400 trials, summed over every outcome.
COVERAGE = {
    (0.02, 0.03): (0.9994, 0.9829, 0.9512),
    (0.05, 0.05): (0.9864, 0.9525, 0.9506),
    (0.20, 0.05): (0.9692, 0.9494, 0.9503),
    (0.40, 0.02): (0.9628, 0.9527, 0.9504),
    (0.30, 0.30): (0.9574, 0.9507, 0.9499),
}


@pytest.mark.parametrize("probabilities", COVERAGE)
@pytest.mark.parametrize("n", [20, 60])
def test_tango_covers_the_truth_as_often_as_it_says(n: int, probabilities: tuple[float, float]) -> None:
    assert coverage(n, *probabilities) == pytest.approx(COVERAGE[probabilities][(20, 60).index(n)], abs=1e-4)


@pytest.mark.slow
def test_tango_covers_the_truth_of_400_trials() -> None:
    assert coverage(400, 0.02, 0.03) == pytest.approx(COVERAGE[0.02, 0.03][2], abs=1e-4)


def coverage(n: int, gain: float, loss: float) -> float:
    """Probability of an outcome whose interval holds the true difference; outcomes below 1e-9 are left out."""
    covered = 0.0
    for gained in range(n + 1):
        for lost in range(n + 1 - gained):
            kept = n - gained - lost
            log = math.lgamma(n + 1) - math.lgamma(gained + 1) - math.lgamma(lost + 1) - math.lgamma(kept + 1)
            log += gained * math.log(gain) + lost * math.log(loss) + kept * math.log(1 - gain - loss)
            likely = math.exp(log)
            if likely > 1e-9:
                low, high = tango(gained, lost, n)
                covered += likely * (low <= gain - loss <= high)
    return covered


def test_the_standard_error_of_a_share() -> None:
    values = [1.0] * 30 + [0.0] * 70
    assert standard_error(values) == pytest.approx(math.sqrt(0.3 * 0.7 / 99))


def test_the_bootstrap_of_a_mean_agrees_with_the_normal_interval() -> None:
    values = np.random.default_rng(1).normal(5, 2, size=(400, 1))
    low, high = bootstrap(values, lambda means: means[:, 0])
    half = 1.96 * standard_error(values[:, 0].tolist())
    assert low == pytest.approx(values.mean() - half, abs=0.03)
    assert high == pytest.approx(values.mean() + half, abs=0.03)


def test_a_score_has_value_interval_and_n() -> None:
    found = score("generate", samples(1, 1, 0, 0, 0))
    assert found["metric"] == "right"
    assert found["value"] == pytest.approx(0.4)
    assert found["ci95"] == list(wilson(2, 5))
    assert found["n"] == 5


def test_pass_at_k_is_the_share_of_all_choices_of_k_answers_that_hold_a_right_one() -> None:
    tried = 0
    for drawn in range(1, 9):
        for right in range(drawn + 1):
            answers = [True] * right + [False] * (drawn - right)
            for k in range(1, drawn + 1):
                chosen = list(combinations(answers, k))
                share = Fraction(sum(map(any, chosen)), len(chosen))
                assert pass_at_k(drawn, right, k) == pytest.approx(float(share), abs=1e-12)
                tried += 1
    assert tried == 240


def test_pass_at_k_has_no_bias() -> None:
    """Drawn again and again, it is on average what k answers reach that are each right with one probability."""
    rng = np.random.default_rng(0)
    for k in (1, 3, 8):
        found = [pass_at_k(8, int(right), k) for right in rng.binomial(8, 0.3, size=20_000)]
        assert np.mean(found) == pytest.approx(1 - 0.7**k, abs=4 * np.std(found) / math.sqrt(len(found)) + 1e-12)


def test_several_answers_to_a_question_give_pass_at_k_and_the_share_that_was_cut() -> None:
    rows = [
        {"id": number, "outputs": ["a"] * 6, "score": right / 6, "cut": cut}
        for number, (right, cut) in enumerate([(0, 1.0), (3, 0.5), (6, 0.0)])
    ]
    found = score("generate", rows)
    assert (found["value"], found["cut"]) == (pytest.approx(0.5), pytest.approx(0.5))
    half = {1: 0.5, 2: 1 - 3 / 15, 4: 1.0, 6: 1.0}  # three of six are right
    assert found["pass_at_k"] == {str(k): pytest.approx((0 + one + 1) / 3) for k, one in half.items()}
    results = {"scores": [{"task": "sums", "model": "rl", **found}], "models": {"rl": {"label": "after RL"}}}
    assert as_table(results).splitlines()[2:4] == [
        "| sums | right | 3 | after RL | 0.500 | 0.125 to 0.875 | 50.0% |",
        "| sums | pass@1 | 3 | after RL | 0.500 | | |",
    ]
    assert list(score_lines(results))[:3] == [
        "  sums: right, n=3",
        "    after RL    0.500  0.125 to 0.875  50.0% cut",
        "                0.500  pass@1",
    ]
    assert "cut" not in score("choice", samples(1, 0)) and "pass_at_k" not in score("choice", samples(1, 0))


def test_bits_per_byte_weigh_texts_by_their_bytes() -> None:
    rows = [{"id": 0, "bits": 100.0, "bytes": 50}, {"id": 1, "bits": 10.0, "bytes": 50}]
    found = score("text", rows)
    assert found["value"] == pytest.approx(1.1)
    assert found["ci95"][0] <= 1.1 <= found["ci95"][1]


def test_a_paired_difference_is_narrower_than_an_unpaired_one() -> None:
    hard = [0.0] * 50 + [1.0] * 50
    better = [0.0] * 40 + [1.0] * 60
    found = compare("generate", samples(*hard), samples(*better))
    assert found["difference"] == pytest.approx(0.1)
    assert 0.03 < found["ci95"][0] < 0.1 < found["ci95"][1] < 0.18


def test_models_that_are_both_always_wrong_may_differ_a_little() -> None:
    found = compare("generate", samples(*[0.0] * 400), samples(*[0.0] * 400))
    assert (found["difference"], found["ci95"]) == (0.0, pytest.approx([-0.0095, 0.0095], abs=1e-4))


def test_parts_of_a_point_are_compared_too() -> None:
    found = compare("generate", samples(*[0.25, 0.5] * 50), samples(*[0.5, 0.75] * 50))
    assert found["difference"] == pytest.approx(0.25)


def test_only_the_same_items_are_compared() -> None:
    with pytest.raises(ValueError, match="same items"):
        compare("generate", samples(1, 0), samples(1, 0, 1))


def test_the_table_has_a_heading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {"task": "sums", "model": "rl", **score("generate", samples(1, 0))}
    results = {"tasks": {}, "models": {"rl": {"label": "after RL"}}, "scores": [found], "overlap": {}}
    output = write_results(Run(tmp_path, "eval-results"), results, {})
    assert capsys.readouterr().err.splitlines()[:2] == ["[eval-results] scores:", "  sums: right, n=2"]
    assert (output / "results.md").read_text().startswith("| task |")


def test_right_values_in_another_form_are_told() -> None:
    about = {"task": "sums", "model": "sft", "metric": "right"}
    labels = {"models": {"sft": {"label": "after SFT"}}}

    def told(**scores: float) -> list[str]:
        return list(other_verdict({"scores": [about | scores], **labels}))

    assert told(value=0.1, strict=0.1, lenient=0.7) == [
        "sums, after SFT: 70.0% of the answers have the right value in any form, such as within a sentence: "
        "evaluation.verdict=lenient counts these (docs/answers.md)"
    ]
    assert told(value=0.7, strict=0.1, lenient=0.7) == told(value=0.6, strict=0.6, lenient=0.7) == told(value=0.1) == []
