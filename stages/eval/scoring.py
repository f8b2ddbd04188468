"""From per-sample results to scores with intervals and paired comparisons.

A sample is {"id": 3, "question": ..., "expected": ..., "output": ..., "score": 1.0}, and of answers that were generated
also `strict`, `lenient` and the harness's own `exact_match`, and the share of them that was `cut`; of several answers
to one question (`outputs`) the score is their mean. Of a text or an answer that was held out
{"id": 3, "bits": 812.5, "bytes": 406}. All models answer the same items, so differences are paired.
"""

from collections.abc import Mapping, Sequence
from math import comb
from typing import Any

import numpy as np

from stages.eval.benchmark_samples import mean_of
from stages.eval.intervals import bootstrap, standard_error, tango, wilson

METRICS = {
    "generate": "right", "choice": "acc", "text": "bits_per_byte", "answer": "bits_per_byte",
    "instructions": "followed", "code": "passed"
}  # fmt: skip
BY_BITS = ("text", "answer")
"""Kinds of which every token counts, and no answer is right or wrong."""
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
        interval = wilson(sum(values), len(values))
    found = {"metric": METRICS[kind], "value": value, "stderr": error, "ci95": list(interval), "n": len(samples)}
    if cut := [sample["cut"] for sample in samples if "cut" in sample]:
        found["cut"] = float(np.mean(cut))
    if "outputs" in samples[0]:
        found["pass_at_k"] = passes_at(samples)
    judged = [name for name in VERDICTS if all(name in sample for sample in samples)]
    found |= {name: float(np.mean([sample[name] for sample in samples])) for name in judged}
    own = samples[0].get("harness", {})  # of a benchmark, what lm-eval itself says
    return found | (
        {"harness": {name: mean_of(sample["harness"][name] for sample in samples) for name in own}} if own else {}
    )


def passes_at(samples: Samples) -> dict[str, float]:
    """pass@k for k = 1, 2, 4, ... and the number of answers to a question, by k as text, as JSON has it."""
    drawn = len(samples[0]["outputs"])
    right = [round(sample["score"] * drawn) for sample in samples]
    ks = sorted({drawn, *(2**power for power in range(drawn.bit_length()) if 2**power <= drawn)})
    return {str(k): float(np.mean([pass_at_k(drawn, one, k) for one in right])) for k in ks}


def pass_at_k(drawn: int, right: int, k: int) -> float:
    """Probability that one of k answers is right, estimated without bias from `drawn` answers of which `right` are:
    the share of all choices of k among them that hold a right one."""
    return 1 - comb(drawn - right, k) / comb(drawn, k)


def compare(kind: str, before: Samples, after: Samples) -> dict[str, Any]:
    """Difference `after - before` on the same items, with its paired 95% interval."""
    if [sample["id"] for sample in before] != [sample["id"] for sample in after]:
        raise ValueError("only the same items can be compared in pairs")
    if kind in BY_BITS:
        rows = np.hstack([_bits_and_bytes(before), _bits_and_bytes(after)])
        difference = rows[:, 2].sum() / rows[:, 3].sum() - rows[:, 0].sum() / rows[:, 1].sum()
        interval = bootstrap(rows, lambda sums: sums[:, 2] / sums[:, 3] - sums[:, 0] / sums[:, 1])
    else:
        rows = np.array([[new["score"] - old["score"]] for old, new in zip(before, after, strict=True)])
        difference = rows.mean()
        if {sample["score"] for sample in (*before, *after)} <= {0.0, 1.0}:
            interval = tango(int((rows > 0).sum()), int((rows < 0).sum()), len(rows))
        else:  # a task of one's own may give parts of a point
            interval = bootstrap(rows, lambda means: means[:, 0])
    return {"metric": METRICS[kind], "difference": float(difference), "ci95": list(interval), "n": len(before)}


def _bits_and_bytes(samples: Samples) -> np.ndarray:
    return np.array([[sample["bits"], sample["bytes"]] for sample in samples], dtype=float)
