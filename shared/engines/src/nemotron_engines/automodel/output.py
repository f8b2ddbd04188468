"""Automodel's log lines and metric files, for `nemotron check`.

2026-08-10 15:48:59 | INFO | root | step 13 | epoch 0 | loss 0.6407 | grad_norm 1.1754 | lr 1.00e-05 | mem 31.55 GiB |
tps 6574.51(821.81/gpu) | num_label_tokens 26779                                                       (one line)
"""

from nemotron_shared.runtime.library_output import LibraryLog

LOG = LibraryLog(
    title="Automodel",
    lines={
        "| grad_norm ": (
            r"^(?:(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) \|.*)?"
            r"\bstep (?P<step>\d+) \| epoch \d+ \| loss (?P<loss>\S+) \| grad_norm (?P<grad_norm>\S+)"
            r" \| lr (?P<lr>\S+)(?: \|.*?\| tps (?P<tokens_per_second>[\d.]+))?"
        ),
        "[val] name": r'\[val\] name "[^"]*" \| step (?P<step>\d+) \| epoch \d+ \| loss (?P<valid_loss>\S+)',
        "parameters percentage": r"Trainable parameters percentage: (?P<trained_percent>[\d.]+)%",
    },
    records=("training.jsonl", "validation.jsonl"),
    keys={"tps": "tokens_per_second", "val_loss": "valid_loss", "timestamp": "time"},
    first_step=0,
)
