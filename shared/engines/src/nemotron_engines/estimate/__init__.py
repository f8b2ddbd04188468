"""Estimates of what a training takes, by arithmetic on its config: `nemotron plan`, and a part of `--dry-run`.

    work      what one token costs: operations, bytes moved, layers passed
    speed     seconds from both, by three coefficients that published runs give
    layouts   how an engine shares a model out
    memory    bytes of one GPU by part

What GPUs can do, from their makers' data sheets, is in `nemotron_shared.runtime.machine`. `benchmarks/plan.py` fits
the coefficients and leaves each published run out in turn.
"""
