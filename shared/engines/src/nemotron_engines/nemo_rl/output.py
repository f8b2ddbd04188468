"""What NeMo-RL's driver, Ray's launcher (ray.sub, or our own) and NeMo-Gym print, for `nemotron check`.

    ========================= Step 1/50 =========================
      • Loss: 2.4817
      • Total step time: 181.52s
    Collecting rollouts:  21%|██        | 428/2048 [02:01<05:42, 4.73it/s]
    Ray: 32 of 32 nodes, 256 of 256 GPUs, 4096 CPUs

The words are those of v0.7.0 and of the branch nano-v3. The bullet is left open: a terminal without UTF-8 spells it
another way, and Ray puts the worker's name before a line that is not the driver's own.
"""

from nemotron_engines.nemo_rl.metrics import read_scalars
from nemotron_shared.runtime.library_output import LibraryLog

BULLET = r"(?:^|\))\W*"
LOG = LibraryLog(
    title="NeMo-RL",
    lines={
        "tep ": r"(?:=+ |Training )[Ss]tep (?P<step>\d+)/(?P<steps>\d+)",
        "Loss: ": rf"{BULLET}Loss: (?P<loss>\S+)",
        "Validation loss: ": rf"{BULLET}Validation loss: (?P<valid_loss>\S+)",
        "Accuracy: ": rf"{BULLET}Accuracy: (?P<valid_reward>\S+)",
        "Reward: ": rf"{BULLET}Avg (?:Total )?Reward: (?P<reward>\S+)",
        "Generation Length: ": rf"{BULLET}Mean Generation Length: (?P<completion_length>\S+)",
        "step time: ": rf"{BULLET}Total step time: (?P<step_seconds>[\d.]+)s",
        "Collecting rollouts": r"Collecting rollouts:.*?\| *(?P<rollouts>\d+)/(?P<rollouts_wanted>\d+) \[",
        " GPUs, ": r"\bRay: \d+ of \d+ nodes, (?P<actors>\d+) of (?P<actors_wanted>\d+) GPUs",  # one actor each
        "actors online": r"Number of actors online: (?P<actors>\d+)/(?P<actors_wanted>\d+)",
    },
    scalars=read_scalars,
)
