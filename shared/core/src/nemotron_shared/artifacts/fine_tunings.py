"""Which versions of a name belong together: those of one fine-tuning, for all fine-tuned models share a name.

super3-sft-model:v1     of a pipeline
super3-sft-model:v2     of the fine-tuning chats-4eb45ac9
super3-sft-model:v3     of the fine-tuning notes-0c2f11aa: no newer version of v2, but another model
"""

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

FOLDER = "finetune"
"""The folder of the store where a fine-tuning keeps its configs."""
CONFIG = re.compile(rf"\b{FOLDER}/([^/]+)/(?:data|train-v\d+)\.yaml")

KeyT = TypeVar("KeyT")


def fine_tuning_of(command: str) -> str | None:
    """The fine-tuning whose config a command reads.

    >>> fine_tuning_of("python -m stages.sft.train -c .nemotron/finetune/chats-4eb45ac9/train-v2.yaml")
    'chats-4eb45ac9'
    """
    found = CONFIG.search(command)
    return found[1] if found else None


def origin(version: KeyT, own: Mapping[KeyT, str], parents: Mapping[KeyT, Sequence[KeyT]]) -> frozenset[str]:
    """The fine-tuning that made a version; of any other version, those that it comes from.

    Args:
        own: the fine-tuning of each version that one made.
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
