"""What a training library's output tells: which lines, records and TensorBoard scalars are which of our metrics.

The package of an engine describes its library once; `nemotron check` then reads such logs, whoever started the job.
A package outside this repository adds its own by an entry point of the group `nemotron.library_logs`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nemotron_shared.config.registry import Registry, shown
from nemotron_shared.errors import UserError


@dataclass(frozen=True)
class LibraryLog:
    """How one library writes its metrics down.

    Attributes:
        title: the library's name.
        lines: a word that a line must hold, which is quick to look for, and the pattern that it is then tried with.
            Named groups are metrics. `step` holds for the lines that follow, `steps` is how many there will be, and
            `time` is when the line was written.
        records: names of JSON-lines files, and what their keys are called here; other keys keep their names.
        first_step: the number that the library gives to the first step.
        scalars: (metric, step, value) of a TensorBoard file, where the library writes more there than in its log.
    """

    title: str
    lines: Mapping[str, str]
    records: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    first_step: int = 1
    scalars: Callable[[Path], Iterable[tuple[str, int, float]]] | None = None


LIBRARY_LOGS: Registry[LibraryLog] = Registry(
    "library log",
    "nemotron.library_logs",
    {
        "nemotron": "nemotron_shared.runtime.progress:LOG",
        "nemo_rl": "nemotron_engines.nemo_rl.output:LOG",
        "automodel": "nemotron_engines.automodel.output:LOG",
    },
    lambda found: isinstance(found, LibraryLog),
    "a LibraryLog",
)


def require_usable(name: str, log: LibraryLog) -> None:
    """Refuse the log of a package whose lines and files cannot be looked for.

    Raises:
        UserError: naming it.
    """
    try:
        texts = [log.title, *log.records, *log.keys, *log.keys.values(), *log.lines, *log.lines.values()]
        wrong = [one for one in texts if not isinstance(one, str)]
        problem = f"{shown(wrong[0])} is no text" if wrong else None
        if type(log.first_step) is not int:
            problem = f"first_step is {shown(log.first_step)}, and no whole number"
        for pattern in () if wrong else log.lines.values():
            re.compile(pattern)
    except (TypeError, AttributeError, re.error) as error:
        problem = str(error)
    if problem:
        raise UserError(f"library log '{name}' of {LIBRARY_LOGS.module_of(name)}: {problem}")
