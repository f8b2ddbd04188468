"""The `nemotron` console command.

    nemotron super3 sft -c tiny optimizer.lr=1e-3
    nemotron super3 data prep sft -c tiny --sample 100
    nemotron super3 pipeline -c tiny

It turns words into the stage's own script and runs that: `nemotron super3 sft -c tiny` is
`python -m stages.sft.train -c tiny run.family=super3`. Nothing heavy is imported here.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nemotron_app.table import STAGES, families, usage
from nemotron_shared.errors import UserError, did_you_mean, exit_code_of
from nemotron_shared.runtime.arguments import add_options, flags_as_overrides, machine_of

COMMANDS = ("pipeline", "data", *STAGES)


@dataclass(frozen=True)
class Request:
    """One parsed command line."""

    family: str
    command: tuple[str, ...]
    config: str
    overrides: tuple[str, ...]
    dry_run: bool
    json: bool
    machine: Path | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return exit_code_of(lambda: dispatch(words))


def dispatch(words: list[str]) -> int:
    """Run what the words ask for."""
    if words[:1] == ["artifacts"]:
        from nemotron_app.artifacts import main as artifacts

        return artifacts(words[1:])
    if words[:1] == ["runs"]:
        from nemotron_app.runs import main as runs

        return runs(words[1:])
    if words[:1] == ["report"]:
        from nemotron_app.report.command import main as report

        return report(words[1:])
    inspected = _inspect_words(words)
    if inspected is not None:
        from nemotron_app.inspect.command import main as inspect

        return inspect(inspected)
    request = parse(words)
    if request is None:
        return 0
    if request.command == ("pipeline",):
        from nemotron_app.pipeline import run_pipeline

        return run_pipeline(request)
    from nemotron_app.launch import run_step

    stage, verb = step_of(request.command)
    return run_step(stage, verb, request)


def _inspect_words(words: list[str]) -> list[str] | None:
    """What follows `data inspect`, or `MODEL data inspect`; None for any other command."""
    if words[:2] == ["data", "inspect"]:
        return words[2:]
    if words[1:3] == ["data", "inspect"] and words[0] in families():
        return ["--family", words[0], *words[3:]]
    return None


def parse(words: list[str]) -> Request | None:
    """Understand a command line; None when it only asked for help or the version, which is then printed.

    Raises:
        UserError: an unknown model, command or stage.
    """
    parser = _parser()
    options = parser.parse_intermixed_args(words)
    if options.version:
        from nemotron_shared.runtime.provenance import package_version

        print(f"nemotron {package_version('nemotron-shared')}")
        return None
    names = [word for word in options.overrides if not _is_override(word)]
    if options.help or not names:
        print(usage(), end="")
        return None
    options.overrides = [word for word in options.overrides if _is_override(word)]
    return _request(names, options)


def _request(names: list[str], options: argparse.Namespace) -> Request:
    family, *command = names
    if family not in families():
        raise UserError(f"no model named '{family}'", did_you_mean(family, families(), "see: nemotron --help"))
    _check_command(family, command)
    if families()[family].experimental and not options.allow_experimental:
        raise UserError(f"{family} is experimental: nobody has run it whole here", "add --allow-experimental")
    overrides = (*flags_as_overrides(options), f"run.family={family}")
    if options.task:
        if command != ["eval"]:
            raise UserError("-t picks tasks of an evaluation", f"say: nemotron {family} eval -t {options.task[0]}")
        overrides += (f"evaluation.tasks=[{','.join(options.task)}]",)
    machine = machine_of(options)
    return Request(family, tuple(command), options.config, overrides, options.dry_run, options.json, machine)


def _check_command(family: str, command: list[str]) -> None:
    if not command or command[0] not in COMMANDS:
        wrong = command[0] if command else ""
        raise UserError(
            f"no command '{wrong}' for {family}", did_you_mean(wrong, COMMANDS, f"there are: {', '.join(COMMANDS)}")
        )
    if command[0] == "data" and (len(command) != 3 or command[1] != "prep" or command[2] not in STAGES):
        raise UserError(
            f"'{' '.join(command)}' is not a command", "say: data prep pretrain|sft|rl|eval, or data inspect PATH"
        )
    if command[0] != "data" and len(command) != 1:
        raise UserError(f"'{command[1]}' after '{command[0]}' means nothing", "overrides are written key=value")
    stage = command[-1]
    if stage in STAGES and stage not in families()[family].stages:
        raise UserError(f"{family} has no {stage} stage", f"it has: {', '.join(families()[family].stages)}")


def step_of(command: tuple[str, ...]) -> tuple[str, str]:
    """(stage, verb) of a command that runs one step."""
    return (command[2], "data_prep") if command[0] == "data" else (command[0], "train")


def _is_override(word: str) -> bool:
    return "=" in word or word.startswith(("~", "+"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nemotron", add_help=False, usage="nemotron MODEL COMMAND [options]")
    add_options(parser)
    parser.add_argument("-t", "--task", action="append")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("--allow-experimental", action="store_true")
    parser.add_argument("overrides", nargs="*")
    return parser


if __name__ == "__main__":
    sys.exit(main())
