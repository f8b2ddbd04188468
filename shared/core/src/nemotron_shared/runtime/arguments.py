"""The command line that every step understands.

python stages/sft/train.py -c tiny train.train_iters=20 --dry-run
torchrun stages/sft/train.py -c tiny
python stages/sft/data_prep.py -c tiny --sample 100
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nemotron_shared.errors import UserError

# The seeds write `sample=1000` and `force=true`; in the one config file these have a section.
SHORT_KEYS = {"sample": "data_prep.sample", "force": "run.force"}


@dataclass(frozen=True)
class Arguments:
    """What was asked for: a config, overrides of it, and how to run; `machine` describes another one for a dry run."""

    config: str
    overrides: tuple[str, ...]
    dry_run: bool
    json: bool
    machine: Path | None = None


def parse_arguments(program: str, description: str, argv: Sequence[str] | None) -> Arguments:
    """Parse a step's command line; options may stand before or after the overrides."""
    parser = argparse.ArgumentParser(
        prog=program, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="change config values (Hydra grammar)")
    options = parser.parse_intermixed_args(argv)
    overrides = flags_as_overrides(options)
    return Arguments(options.config, overrides, options.dry_run, options.json, machine_of(options))


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options shared by the scripts and by the `nemotron` command."""
    parser.add_argument("-c", "--config", default="default", metavar="NAME|PATH", help="config file (default: default)")
    parser.add_argument("--sample", type=int, metavar="N", help="prepare at most N rows (data_prep.sample=N)")
    parser.add_argument("--workers", type=int, metavar="N", help="processes of data preparation (data_prep.workers=N)")
    parser.add_argument("--executor", choices=("local", "ray"), help="who prepares data (data_prep.executor=...)")
    parser.add_argument("--force", action="store_true", help="redo the work even where a result exists")
    parser.add_argument("-d", "--dry-run", action="store_true", help="show what would run, and whether it could")
    parser.add_argument(
        "--machine", type=Path, metavar="FILE", help="with --dry-run: judge for the machine it describes"
    )
    parser.add_argument("--json", action="store_true", help="print results as JSON on stdout")


def machine_of(options: argparse.Namespace) -> Path | None:
    """The machine to judge for.

    Raises:
        UserError: a real start, which can only be made on this machine.
    """
    if options.machine is not None and not options.dry_run:
        raise UserError("--machine describes another machine, and nothing starts there", "add --dry-run")
    return options.machine


def flags_as_overrides(options: argparse.Namespace) -> tuple[str, ...]:
    """Overrides as typed, the short keys spelled out, followed by what the flags mean."""
    overrides = [_spell_out(override) for override in options.overrides]
    for name in ("sample", "workers", "executor"):
        if getattr(options, name) is not None:
            overrides.append(f"data_prep.{name}={getattr(options, name)}")
    if options.force:
        overrides.append("run.force=true")
    return tuple(overrides)


def _spell_out(override: str) -> str:
    key, equals, value = override.partition("=")
    return f"{SHORT_KEYS.get(key, key)}{equals}{value}"
