"""What every script for sbatch begins with: the options that a site asks for, as its profile has them."""

import re
import unicodedata
from collections.abc import Iterator, Mapping

from nemotron_cluster.profiles.schema import Slurm
from nemotron_shared.errors import UserError

PLAIN = re.compile(r"[\w./,:=@%+\[\]-]+", re.ASCII)


def site_options(
    profile: Slurm, name: str, nodes: int, *, tasks: int, gpus: int, cpus: int | None
) -> dict[str, object]:
    """Options by name, in the order in which people look for them; None: left out.

    Args:
        tasks, gpus: of a node.
        cpus: of a task.
    """
    shown = f"gpu:{gpus}" if profile.gpus_option == "gres" else gpus
    return {
        "job-name": name,
        "account": profile.account,
        "partition": profile.partition,
        "qos": profile.qos,
        "reservation": profile.reservation,
        "constraint": profile.constraint,
        "nodes": nodes,
        "ntasks-per-node": tasks,
        profile.gpus_option: shown if gpus and profile.gpus_option != "none" else None,
        "cpus-per-task": cpus,
        "mem": profile.mem,
        "time": profile.time,
    }


def directives(options: Mapping[str, object]) -> Iterator[str]:
    """The lines of a script.

    Raises:
        UserError: a value would end its line, and what stands behind it would be a command of the script.
    """
    for name, text in ((name, str(value)) for name, value in options.items() if value is not None):
        if any(unicodedata.category(char) == "Cc" for char in text):
            what = f"--{name}={text!r}: a line break or another control character in an option of sbatch"
            raise UserError(what, "rename the folder, or correct the setting or the profile that it comes from")
        yield f"#SBATCH --{name}={_escaped(text)}"


def _escaped(value: str) -> str:
    """A value of a directive: sbatch knows quotes and the backslash inside them, but not all of a shell's ways."""
    return value if PLAIN.fullmatch(value) else '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
