"""The #SBATCH lines of every script: the site's options, from the profile."""

import re
import unicodedata
from collections.abc import Iterator, Mapping

from nemotron_cluster.profiles.schema import Slurm
from nemotron_shared.errors import UserError

PLAIN = re.compile(r"[\w./,:=@%+\[\]-]+", re.ASCII)


def site_options(
    profile: Slurm, name: str, nodes: int, *, tasks: int, gpus: int, cpus: int | None
) -> dict[str, object]:
    """Options by name, in conventional order; None: omitted.

    Args:
        tasks, gpus: per node.
        cpus: per task.
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
        UserError: a value contains a line break, after which the rest would run as a command of the script.
    """
    for name, text in ((name, str(value)) for name, value in options.items() if value is not None):
        if any(unicodedata.category(char) == "Cc" for char in text):
            what = f"--{name}={text!r}: a line break or another control character in an option of sbatch"
            raise UserError(what, "rename the folder, or correct the setting or the profile that it comes from")
        yield f"#SBATCH --{name}={_escaped(text)}"


def _escaped(value: str) -> str:
    """Quote a directive's value. sbatch supports quotes with backslash escapes, but not the whole shell syntax."""
    return value if PLAIN.fullmatch(value) else '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
