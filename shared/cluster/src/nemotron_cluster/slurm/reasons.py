"""What Slurm means when a job waits or is refused, in a sentence with what to do about it.

    sentence("QOSMaxGRESPerUser")     "you have as many GPUs as your QOS gives one user; ..."

The sentences are in reasons.yaml, by Slurm's own words; `*` stands for any text, and the first that fits counts.
"""

import functools
from fnmatch import fnmatchcase
from pathlib import Path

import yaml

AGAIN = "requeued"
"""The entry for a job that waits because it has just been queued again."""


@functools.cache
def _sentences(kind: str) -> dict[str, str]:
    return yaml.safe_load(Path(__file__).with_name("reasons.yaml").read_text())[kind]


def sentence(reason: str, restarts: int | None = 0) -> str:
    """Why a job waits, for people.

    Args:
        reason: as squeue has it: "Priority", "ReqNodeNotAvail, UnavailableNodes:n2".
        restarts: how often the job was queued again.
    """
    if reason == "BeginTime" and restarts:
        return _sentences("pending")[AGAIN]
    for pattern, text in _sentences("pending").items():
        if fnmatchcase(reason, pattern):
            return text
    return f"Slurm says '{reason}', which we have no words for; your site's support knows what it means"


def refusal(stderr: str) -> str:
    """What to change, out of what sbatch says when it takes a job not."""
    # Where a limit is the cause, its name stands in a line before the general one.
    for line in stderr.splitlines():
        text = line.removeprefix("sbatch: ").removeprefix("error: ").removeprefix("Batch job submission failed: ")
        for pattern, remedy in _sentences("refused").items():
            if fnmatchcase(text, pattern):
                return remedy
        if text.startswith(("QOS", "Assoc")) and " " not in text:
            return sentence(text)
    return "Slurm's own words say why; your site's support knows its rules"
