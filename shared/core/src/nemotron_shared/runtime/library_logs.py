"""Parse the output of training libraries: which lines, records and TensorBoard scalars are which of our metrics.

An engine's package describes its library once; `nemotron check` then reads such logs, however the job was started. A
package outside this repository adds its own as an entry point in the group `nemotron.library_logs`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nemotron_shared.config.registry import Registry, shown
from nemotron_shared.errors import UserError


@dataclass(frozen=True)
class LibraryLog:
    """How one library logs its metrics.

    Attributes:
        title: the library's name.
        lines: a word a line must contain, which is fast to search for, and the pattern to match it with. Named groups
            are metrics. `step` applies to the following lines as well, `steps` is the total, and `time` is when the
            line was written.
        records: names of JSON-lines files.
        keys: our names for the keys in those files; other keys keep theirs.
        first_step: the library's number for the first step.
        scalars: reads (metric, step, value) from a TensorBoard file, if the library logs more there.
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
        "nemo_rl": "nemotron_engines.nemo_rl.metrics:LOG",
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
