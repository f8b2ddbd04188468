"""Scores, intervals and paired comparisons against numbers worked out by hand or by brute force."""

import math

import numpy as np
import pytest

from stages.eval.intervals import bootstrap, standard_error, wilson
from stages.eval.scoring import compare, score


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


def test_only_the_same_items_are_compared() -> None:
    with pytest.raises(ValueError, match="same items"):
        compare("generate", samples(1, 0), samples(1, 0, 1))
