"""The only code that `engine.overrides` may name: these losses, optimizers and collators.

    loss_fn: {_target_: torch.nn.CrossEntropyLoss}          allowed
    loss_fn: {_target_: torch.distributed.run.os.system}    refused: begins like torch and is the shell

A library imports such a name and calls it with arguments from the config. So a name must be in this table, which needs
no library, and if the library is installed, the name must resolve to the object of that entry.
"""

import importlib
import sys
from collections.abc import Iterator
from typing import Any

OPTIMIZERS = ("Adadelta", "Adagrad", "Adam", "Adamax", "AdamW", "ASGD", "NAdam", "RAdam", "RMSprop",
              "Rprop", "SGD")  # fmt: skip
LOSSES = ("BCEWithLogitsLoss", "CrossEntropyLoss", "HuberLoss", "KLDivLoss", "L1Loss", "MSELoss", "NLLLoss",
          "SmoothL1Loss")  # fmt: skip
COMPONENTS = "nemo_automodel.components"
OF_AUTOMODEL = (
    "loss.masked_ce.MaskedCrossEntropy",
    "loss.chunked_ce.ChunkedCrossEntropy",
    "loss.linear_ce.FusedLinearCrossEntropy",
    "loss.te_parallel_ce.TEParallelCrossEntropy",
    "loss.kd_loss.KDLoss",
    "datasets.utils.default_collater",
    "datasets.utils.packed_sequence_thd_collater",
    "models.common.utils.BackendConfig",
)


def _entries() -> Iterator[tuple[str, str]]:
    """Names, each with the module and qualified name that it must resolve to."""
    for name in OPTIMIZERS:
        home = f"torch.optim.{name.lower()}.{name}"
        yield from ((f"torch.optim.{name}", home), (home, home))
    for name in LOSSES:
        home = f"torch.nn.modules.loss.{name}"
        yield from ((f"torch.nn.{name}", home), (home, home))
    yield from ((f"{COMPONENTS}.{name}", f"{COMPONENTS}.{name}") for name in OF_AUTOMODEL)
    yield f"{COMPONENTS}.models.common.BackendConfig", f"{COMPONENTS}.models.common.utils.BackendConfig"


TARGETS = dict(_entries())


def is_listed(name: Any) -> bool:
    """Whether a name is in the table; nothing is imported."""
    return isinstance(name, str) and name in TARGETS


def is_allowed(name: Any) -> bool:
    """Whether a name is in the table and resolves to the object in the table."""
    if not is_listed(name):
        return False
    module, _, short = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), short)
    except (ImportError, AttributeError):  # also if the package is not installed
        return False
    home, _, own = TARGETS[name].rpartition(".")
    about = (getattr(found, "__module__", None), getattr(found, "__qualname__", None))
    return callable(found) and about == (home, own) and getattr(sys.modules.get(home), own, None) is found
