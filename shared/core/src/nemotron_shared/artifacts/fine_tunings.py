"""Group the versions of a name by fine-tuning, because all fine-tuned models share one name.

super3-sft-model:v1     from a pipeline
super3-sft-model:v2     from the fine-tuning chats-4eb45ac9
super3-sft-model:v3     from the fine-tuning notes-0c2f11aa: another model, not a newer version of v2
"""

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

FOLDER = "finetune"
"""Folder in the store with the configs of fine-tunings."""
CONFIG = re.compile(rf"\b{FOLDER}/([^/]+)/(?:data|train-v\d+)\.yaml")

KeyT = TypeVar("KeyT")


def fine_tuning_of(command: str) -> str | None:
    """The fine-tuning whose config a command uses.

    >>> fine_tuning_of("python -m stages.sft.train -c .nemotron/finetune/chats-4eb45ac9/train-v2.yaml")
    'chats-4eb45ac9'
    """
    found = CONFIG.search(command)
    return found[1] if found else None


def origin(version: KeyT, own: Mapping[KeyT, str], parents: Mapping[KeyT, Sequence[KeyT]]) -> frozenset[str]:
    """The fine-tuning that made a version; for any other version, the fine-tunings it derives from.

    Args:
        own: the fine-tuning of each version made by one.
    """
    found, seen, waiting = set(), set(), [version]
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        if one in own:
            found.add(own[one])
        else:
            waiting += parents.get(one, ())
    return frozenset(found)
