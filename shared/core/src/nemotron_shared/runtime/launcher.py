"""The command that starts a module in one process, or in several on this machine."""

import sys

MUST_SAVE_BY = "NEMOTRON_MUST_SAVE_BY"
"""Time by which a job must have saved, DD:HH:MM:SS after its start: for a library that ignores signals."""


def launch_command(module: str, processes: int) -> list[str]:
    """`python -m module`, or torchrun for more than one process."""
    if processes == 1:
        return [sys.executable, "-m", module]
    torchrun = ["-m", "nemotron_shared.runtime.torchrun", "--standalone", f"--nproc-per-node={processes}"]
    return [sys.executable, *torchrun, "-m", module]
