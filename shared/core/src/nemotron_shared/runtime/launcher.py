"""The command that starts a module as one process, or as several on this machine."""

import sys

MUST_SAVE_BY = "NEMOTRON_MUST_SAVE_BY"
"""When a job has to have saved, DD:HH:MM:SS since its start: for a library that heeds no signal but the clock."""


def launch_command(module: str, processes: int) -> list[str]:
    """`python -m module`, or torchrun where there is more than one process."""
    if processes == 1:
        return [sys.executable, "-m", module]
    torchrun = ["-m", "nemotron_shared.runtime.torchrun", "--standalone", f"--nproc-per-node={processes}"]
    return [sys.executable, *torchrun, "-m", module]
