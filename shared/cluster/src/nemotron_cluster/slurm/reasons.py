"""Explain why Slurm lets a job wait or refuses it, and what to do about it.

    sentence("QOSMaxGRESPerUser")     "you have as many GPUs as your QOS gives one user; ..."

reasons.yaml maps Slurm's messages to sentences; `*` stands for any text, and the first match is used.
"""

import functools
from fnmatch import fnmatchcase
from pathlib import Path

import yaml

AGAIN = "requeued"
"""The entry for a job that waits because it was just requeued."""


@functools.cache
def _sentences(kind: str) -> dict[str, str]:
    return yaml.safe_load(Path(__file__).with_name("reasons.yaml").read_text())[kind]


def sentence(reason: str, restarts: int | None = 0) -> str:
    """Why a job waits, for people.

    Args:
        reason: as squeue prints it: "Priority", "ReqNodeNotAvail, UnavailableNodes:n2".
        restarts: how often the job was requeued.
    """
    if reason == "BeginTime" and restarts:
        return _sentences("pending")[AGAIN]
    for pattern, text in _sentences("pending").items():
        if fnmatchcase(reason, pattern):
            return text
    return f"Slurm says '{reason}', which we have no words for; your site's support knows what it means"


def refusal(stderr: str) -> str:
    """What to change, from sbatch's rejection message."""
    # If a limit is the cause, its name is in a line before the general message.
    for line in stderr.splitlines():
        text = line.removeprefix("sbatch: ").removeprefix("error: ").removeprefix("Batch job submission failed: ")
        for pattern, remedy in _sentences("refused").items():
            if fnmatchcase(text, pattern):
                return remedy
        if text.startswith(("QOS", "Assoc")) and " " not in text:
            return sentence(text)
    return "Slurm's own words say why; your site's support knows its rules"
