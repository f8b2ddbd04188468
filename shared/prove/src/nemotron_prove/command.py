"""`nemotron prove`: proofs that anyone can run, each with a count of what was tried and of what failed.

nemotron prove sampling MODEL      log-probabilities of generation and of training, bit by bit
nemotron prove faults --seed 1 --count 100      faults in real steps, and what is left after them
nemotron prove resume --seed 1 --kills 20       killed trainings, continued and compared byte for byte
nemotron prove input --seed 1      damaged files and words for every parser

A proof that fails exits with 1. `--json` prints its figures for programs.
"""

from importlib import import_module

import click

PROOFS = {
    "sampling": "nemotron_prove.sampling",
    "faults": "nemotron_prove.faults.command",
    "resume": "nemotron_prove.resume.command",
    "input": "nemotron_prove.input.command",
}
"""The module of each proof, imported when it is called; its `command` is the click command."""


class Proofs(click.Group):
    """The proofs by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See the base class."""
        return [*PROOFS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See the base class."""
        return import_module(PROOFS[cmd_name]).command if cmd_name in PROOFS else None


command = Proofs("prove", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
