"""From per-sample results to scores with intervals and paired comparisons.

A sample is {"id": 3, "question": ..., "expected": ..., "output": ..., "score": 1.0}. Generated answers also have
`strict`, `lenient`, the harness's own `exact_match`, and the share that was `cut`; with several answers to a question
(`outputs`), the score is their mean. The sample of a text or a held-out answer is {"id": 3, "bits": 812.5,
"bytes": 406}; one that was also answered has `output`, and `right`, which is None where no rule applies. All models
answer the same items, so differences are paired.

Intervals are Wilson's for shares, Tango's for their paired differences, and the bootstrap for the rest.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import comb
from typing import Any

import numpy as np

Z95 = 1.959963984540054
RESAMPLES = 2000
BISECTIONS = 50  # halvings of an interval of length 2, beyond the precision of a float

Statistic = Callable[[np.ndarray], np.ndarray]


def wilson(successes: float, n: int) -> tuple[float, float]:
    """95% interval of a share of `n` independent trials."""
    share, z2 = successes / n, Z95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def tango(gained: int, lost: int, n: int) -> tuple[float, float]:
    """95% score interval of the difference of two shares of the same `n` trials.

    Tango, T. (1998): Equivalence test and confidence interval for the difference in proportions for the
    paired-sample design. Statistics in Medicine 17, 891-908. The interval holds the differences that the score test
    does not reject, so its width is not zero even if few trials changed, or none.

    Args:
        gained: trials that succeeded the second time only.
        lost: trials that succeeded the first time only.
    """
    difference = (gained - lost) / n

    def bound(outside: float) -> float:
        inside = difference
        for _ in range(BISECTIONS):
            middle = (inside + outside) / 2
            if abs(paired_score(gained, lost, n, middle)) <= Z95:
                inside = middle
            else:
                outside = middle
        return inside

    return bound(-1.0), bound(1.0)


def paired_score(gained: int, lost: int, n: int, difference: float) -> float:
    """Tango's statistic: distance of the observed difference from `difference`, in standard errors."""
    off = gained - lost - n * difference
    # the likeliest probability of losing a trial, if `difference` is true: the larger root of a x^2 + b x + c
    a, b = 2 * n, -gained - lost + (2 * n - gained + lost) * difference
    c = -lost * difference * (1 - difference)
    probability = (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)
    variance = n * (2 * probability + difference * (1 - difference))
    if off == 0:
        return 0.0
    return off / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, off)


def bootstrap(rows: np.ndarray, statistic: Statistic, seed: int = 0) -> tuple[float, float]:
    """95% percentile interval of a statistic over resampled rows.

    Args:
        rows: (n, columns), one row per item.
        statistic: maps sums over items, (resamples, columns), to (resamples,).
    """
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=RESAMPLES)
    low, high = np.percentile(statistic(counts @ rows / len(rows)), [2.5, 97.5])
    return float(low), float(high)


def standard_error(values: Sequence[float]) -> float:
    """Standard error of a mean of independent values."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


METRICS = {
    "generate": "right", "choice": "acc", "text": "bits_per_byte", "answer": "bits_per_byte",
    "instructions": "followed", "code": "passed",
    "episode": "reward", "call": "right", "scored": "reward",
}  # fmt: skip
BY_BITS = ("text", "answer")
"""Kinds scored by every token instead of right and wrong answers."""
ANY_NUMBER = ("episode", "scored")
"""Kinds whose scores come from an environment or from a function of the user's."""
VERDICTS = ("strict", "lenient", "exact_match")
LOWER_IS_BETTER = {"bits_per_byte"}

Samples = Sequence[Mapping[str, Any]]


def score(kind: str, samples: Samples) -> dict[str, Any]:
    """Value, standard error and 95% interval of one model on one task."""
    if kind in BY_BITS:
        rows = _bits_and_bytes(samples)
        value = float(rows[:, 0].sum() / rows[:, 1].sum())
        interval = bootstrap(rows, lambda sums: sums[:, 0] / sums[:, 1])
        error = (interval[1] - interval[0]) / 4
    else:
        values = [float(sample["score"]) for sample in samples]
        value, error = float(np.mean(values)), standard_error(values)
        if kind in ANY_NUMBER and not set(values) <= {0.0, 1.0}:
            interval = bootstrap(np.array(values)[:, None], lambda means: means[:, 0])
        else:
            interval = wilson(sum(values), len(values))
    found: dict[str, Any] = {
        "metric": METRICS[kind],
        "value": value,
        "stderr": error,
        "ci95": list(interval),
        "n": len(samples),
    }
    if cut := [sample["cut"] for sample in samples if "cut" in sample]:
        found["cut"] = float(np.mean(cut))
    if asked := [sample["right"] for sample in samples if "right" in sample]:
        judged = [right for right in asked if right is not None]
        interval = list(wilson(sum(judged), len(judged))) if judged else None
        found["answers"] = {"asked": len(asked), "judged": len(judged), "right": sum(judged), "ci95": interval}
    if names := list(samples[0].get("figures", ())):  # of an environment
        found["figures"] = {name: float(np.mean([one["figures"].get(name, 0.0) for one in samples])) for name in names}
    if "outputs" in samples[0] and kind not in ANY_NUMBER:
        found["pass_at_k"] = passes_at(samples)
    judged = [name for name in VERDICTS if all(name in sample for sample in samples)]
    found |= {name: float(np.mean([sample[name] for sample in samples])) for name in judged}
    own = samples[0].get("harness", {})  # for a benchmark, lm-eval's own metrics
    return found | (
        {"harness": {name: mean_of(sample["harness"][name] for sample in samples) for name in own}} if own else {}
    )


def mean_of(values: Iterable[Any]) -> float:
    """Mean of a harness metric, which may have several values per row."""
    flat = [float(one) for value in values for one in (value if isinstance(value, list | tuple) else [value])]
    return sum(flat) / len(flat)


def passes_at(samples: Samples) -> dict[str, float]:
    """pass@k for k = 1, 2, 4, ... and the number of answers per question, keyed by k as a string for JSON."""
    drawn = len(samples[0]["outputs"])
    right = [round(sample["score"] * drawn) for sample in samples]
    ks = sorted({drawn, *(2**power for power in range(drawn.bit_length()) if 2**power <= drawn)})
    return {str(k): float(np.mean([pass_at_k(drawn, one, k) for one in right])) for k in ks}


def pass_at_k(drawn: int, right: int, k: int) -> float:
    """Unbiased estimate of pass@k from `drawn` answers, `right` of which are right: the share of all subsets of k
    answers that contain a right one."""
    return 1 - comb(drawn - right, k) / comb(drawn, k)


def compare(kind: str, before: Samples, after: Samples) -> dict[str, Any]:
    """Difference `after - before` on the same items, with its paired 95% interval."""
    if [sample["id"] for sample in before] != [sample["id"] for sample in after]:
        raise ValueError("paired comparisons need the same items")
    if kind in BY_BITS:
        rows = np.hstack([_bits_and_bytes(before), _bits_and_bytes(after)])
        difference = rows[:, 2].sum() / rows[:, 3].sum() - rows[:, 0].sum() / rows[:, 1].sum()
        interval = bootstrap(rows, lambda sums: sums[:, 2] / sums[:, 3] - sums[:, 0] / sums[:, 1])
    else:
        rows = np.array([[new["score"] - old["score"]] for old, new in zip(before, after, strict=True)])
        difference = rows.mean()
        if {sample["score"] for sample in (*before, *after)} <= {0.0, 1.0}:
            interval = tango(int((rows > 0).sum()), int((rows < 0).sum()), len(rows))
        else:  # plugin tasks may give fractional scores
            interval = bootstrap(rows, lambda means: means[:, 0])
    return {"metric": METRICS[kind], "difference": float(difference), "ci95": list(interval), "n": len(before)}


def _bits_and_bytes(samples: Samples) -> np.ndarray:
    return np.array([[sample["bits"], sample["bytes"]] for sample in samples], dtype=float)
