"""How many rows a pass takes where `train.micro_batch_size` is `null`, by the estimated peak of a step.

16 rows of 512 tokens, a Llama of 8M parameters on a CPU     1 row a pass: more would not be faster
8 rows of 64 tokens, a model of 0.3M parameters              all 8: each pass has its own costs
the same Llama on a GPU                                      all 16, or as many as fit into run.memory
"""

from collections.abc import Callable
from dataclasses import replace

from nemotron_engines.estimate.memory import Layout

PASS_OPERATIONS = 20e9
"""Of a forward and a backward pass on a CPU, beyond which more rows a pass make a step no faster: a quarter of a second
on a core, next to which its fixed costs are small. Measured with a Llama of 8M parameters on rows of 512 tokens, whose
tokens per CPU second are 1,100 with one row a pass, and 1,070 with four."""


def fitted(
    layout: Layout, operations: float, peak: Callable[[Layout], float], budget: float, *, on_gpu: bool
) -> Layout:
    """The layout with as many rows a pass as fit, and on a CPU no more than make a step faster.

    Args:
        layout: with all rows in a pass.
        operations: floating-point operations of a token, forward and backward.
        peak: bytes of a step with a layout.
        budget: bytes that it may take. Where nothing fits, a pass has one row.
    """
    layouts = [replace(layout, micro_rows=rows) for rows in _divisors(layout.micro_rows)]
    fitting = [one for one in layouts if peak(one) <= budget] or layouts[:1]
    fast = [one for one in fitting if one.micro_tokens * operations >= PASS_OPERATIONS]
    return fast[0] if fast and not on_gpu else fitting[-1]


def _divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if not number % one]
