"""Estimate memory and time of a training from its config, for `nemotron plan` and `--dry-run`.

    work      cost of one token: operations, bytes moved, layers passed
    speed     seconds, by three coefficients fitted to published runs
    layouts   how an engine distributes a model
    memory    bytes of one GPU by part

GPU data sheets are in `nemotron_shared.machine.machine`. `benchmarks/plan.py` fits
the coefficients and leaves each published run out in turn.
"""
