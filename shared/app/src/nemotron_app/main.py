"""The `nemotron` console command.

    nemotron super3 sft -c tiny optimizer.lr=1e-3
    nemotron super3 data prep sft -c tiny --sample 100
    nemotron super3 pipeline -c tiny

It translates arguments into the command line of a stage's script and runs it: `nemotron super3 sft -c tiny` is
`python -m stages.sft.train -c tiny run.family=super3`. Keep heavy imports out of this module.
"""

import gc
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from nemotron_app import completion
from nemotron_app.request import Mode, Remote, Request
from nemotron_shared.config.overrides import require_unsplit
from nemotron_shared.families import families
from nemotron_shared.stages import DEFAULT_FAMILY, STAGES
from nemotron_shared.step.arguments import OPTIONS, machine_of, once, overrides_of
from nemotron_shared.system.console import tell
from nemotron_shared.system.errors import UserError, did_you_mean
from nemotron_shared.system.process import use_no_code_of_this_folder
from nemotron_shared.system.program import exit_code_of

COMMANDS = ("pipeline", "data", *STAGES)
STEP = "a step"
"""Internal click command for every line that starts with a model. The space keeps users from typing it by accident."""
# Imported on use, so that `nemotron --help` is quick.
OTHER_COMMANDS = {
    "airgap": "nemotron_app.airgap",
    "artifacts": "nemotron_app.artifacts",
    "chat": "nemotron_serving.chat",
    "completion": "nemotron_app.completion",
    "check": "nemotron_app.check.command",
    "check-sampling": "nemotron_serving.check_sampling",
    "config": "nemotron_app.config",
    "data": "nemotron_app.data",
    "doctor": "nemotron_app.doctor",
    "diagnose": "nemotron_app.diagnose",
    "engine": "nemotron_app.engines",
    "env": "nemotron_app.environments",
    "export": "nemotron_serving.export",
    "finetune": "nemotron_app.finetune.command",
    "jobs": "nemotron_app.jobs",
    "generate": "nemotron_serving.generate",
    "model": "nemotron_app.models",
    "new": "nemotron_app.new",
    "plan": "nemotron_app.plan",
    "report": "nemotron_app.report.command",
    "runs": "nemotron_app.runs",
    "serve": "nemotron_serving.serve",
    "verify": "nemotron_serving.verify",
}
SERVING = "nemotron_serving"
"""Optional in single-stage installs."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    if "_NEMOTRON_COMPLETE" in os.environ:
        nemotron.main(prog_name="nemotron")  # answers a shell's completion request and exits
    if argv is None:
        use_no_code_of_this_folder()
    words = list(sys.argv[1:] if argv is None else argv)
    code = exit_code_of(lambda: dispatch(words))
    if argv is None:
        gc.freeze()  # at exit: a last garbage collection over everything imported takes 0.2 s
    return code


def dispatch(words: list[str]) -> int:
    """Run the command that the words name.

    Raises:
        UserError: an unknown command, option, model or stage, or any error of the command.
    """
    try:
        with nemotron.make_context("nemotron", words) as context:
            return nemotron.invoke(context) or 0
    except click.exceptions.Exit as done:  # after --help and --version
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as error:  # a group that was called without a subcommand
        from nemotron_shared.system.console import tell

        tell(error.ctx.get_help())
        return 0
    except click.UsageError as error:
        asked = error.ctx.command_path.removesuffix(f" {STEP}") if error.ctx else "nemotron"
        remedy = f"see: {asked} --help"
        if error.ctx and (wrong := re.fullmatch(r"No such command '(.+)'\.", error.message)):
            group = error.ctx.command
            known = group.list_commands(error.ctx) if isinstance(group, click.Group) else []
            remedy = did_you_mean(wrong[1], known, remedy) or remedy
            remedy = f"say: nemotron {DEFAULT_FAMILY} {wrong[1]}" if wrong[1] in STAGES else remedy
            raise UserError(error.message, remedy) from error  # click's own message would repeat the suggestion
        raise UserError(error.format_message(), remedy) from error


class Nemotron(click.Group):
    """The commands by name. Any other line is about a model, or asks for help."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See the base class."""
        if args[1:3] in (["data", "inspect"], ["data", "import"]) and args[0] in families():
            args = ["data", args[2], "--family", args[0], *args[3:]]
        if args[1:3] == ["model", "import"] and args[0] in families() and len(args) > 3 and args[3] in STAGES:
            args = ["model", "import", "--as", STAGES[args[3]].result.name(args[0]), *args[4:]]
        if args[:2] == ["new", "environment"] and len(args) == 3:
            args = ["env", "new", args[2]]
        if args[1:3] == ["airgap", "scripts"] and args[0] in families():
            args = ["airgap", "scripts", "--family", args[0], *args[3:]]
        if args and args[0] in OTHER_COMMANDS:  # these commands compose no config, but accept its key for the store
            stores = (re.fullmatch(r"\+*run\.home=(.*)", word) for word in args)
            named = zip(args, stores, strict=True)
            args = [f"--home={'' if found[1] == 'null' else found[1]}" if found else word for word, found in named]
        return super().parse_args(ctx, args if args and args[0] in OTHER_COMMANDS else [STEP, *args])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See the base class."""
        if cmd_name not in OTHER_COMMANDS:
            return once(step)
        try:
            return once(import_module(OTHER_COMMANDS[cmd_name]).command)
        except ModuleNotFoundError as error:
            if error.name != SERVING:
                raise
            what = f"the command {cmd_name} needs the package nemotron-serving, which is not in this environment"
            raise UserError(what, "it belongs to the ordinary environment: uv sync --all-packages") from error


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str] | list[CompletionItem]:
    """Completions for the next word: models, commands, the verbs of a model, and settings of its stage."""
    before = [word for word in ctx.params.get("words") or () if not _is_override(word)]
    if "=" in incomplete:
        return completion.values(incomplete, before[-1:] if before[-1:] and before[-1] in STAGES else STAGES)
    known = {0: (*families(), *OTHER_COMMANDS), 1: COMMANDS, 2: ("prep", "inspect", "import"), 3: STAGES}.get(
        len(before), ()
    )
    fits = len(before) < 2 or before[1] == "data"
    found = [word for word in known if fits and word.startswith(incomplete)]
    if not found and before and before[-1] in STAGES:
        found = completion.settings(before[-1], ctx.params.get("config"), incomplete)
    if not found and before[1:] == ["pipeline"]:
        found = completion.of_pipeline(ctx.params.get("config"), incomplete)
    return found


def _complete_config(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Configs of the stage on the line; for a pipeline those common to all stages; without a stage all of them."""
    from nemotron_app.recipes import names

    words = (*(ctx.params.get("words") or ()), *ctx.args)  # click leaves them there: a lone `-c` is not a valid option
    named = [word for word in words if word in STAGES][-1:]
    every = [set(names(stage)) for stage in named or STAGES]
    found = set.intersection(*every) if "pipeline" in words else set.union(*every)
    return completion.beginning(incomplete, sorted(found))


nemotron = Nemotron("nemotron", context_settings={"help_option_names": ["-h", "--help"]})


CONFIG = click.Option(["-c", "--config"], metavar="NAME|PATH", shell_complete=_complete_config)


@click.command(params=[CONFIG, *(option for option in OPTIONS if option.name != "config")], add_help_option=False)
@click.option("-t", "--task", multiple=True)
@click.option("-h", "--help", "asks_help", is_flag=True)
@click.option("--version", is_flag=True)
@click.option("--allow-experimental", is_flag=True)
@click.option("-r", "--run", metavar="PROFILE")
@click.option("-b", "--batch", metavar="PROFILE")
@click.option("--stage", metavar="PROFILE")
@click.argument("words", nargs=-1, shell_complete=_complete)
@click.pass_context
def step(ctx: click.Context, words: tuple[str, ...], task: tuple[str, ...], **options: Any) -> int:
    """Run steps of a model's stages."""
    if options["version"]:
        from nemotron_shared.system.versions import package_version

        tell(f"nemotron {package_version('nemotron-shared')}")
        return 0
    require_unsplit(words)
    names = [word for word in words if not _is_override(word)]
    if options["asks_help"] or not names:
        from nemotron_app.help import guide

        if names[1:] and names[0] in families() and names[1] not in COMMANDS:
            _check_command(names[0], names[1:])
        tell(guide(names), end="")
        return 0
    family, *command = names
    if family not in families():
        raise _no_model(family, [*words, *(["-c", ctx.params["config"]] if ctx.params["config"] else [])])
    _check_command(family, command)
    if families()[family].experimental and not options["allow_experimental"]:
        raise UserError(f"{family} is experimental: it has never been run end to end here", "add --allow-experimental")
    overrides = (*overrides_of(ctx.params, [word for word in words if _is_override(word)]), f"run.family={family}")
    if task:
        if command != ["eval"]:
            chosen = f" -c {ctx.params['config']}" if ctx.params["config"] else ""
            raise UserError("-t picks tasks of an evaluation", f"say: nemotron {family} eval{chosen} -t {task[0]}")
        overrides += (f"evaluation.tasks=[{','.join(task)}]",)
    asked = options["dry_run"], options["json"], machine_of(ctx.params), bool(options["trust_code"])
    request = Request(family, tuple(command), ctx.params["config"], overrides, *asked, _remote_of(options))
    if options["allow_experimental"]:
        from nemotron_app.launch import consenting

        request = consenting(request)
    return _run(request)


def _run(request: Request) -> int:
    """Run the request locally, or submit it as jobs."""
    command = request.command
    # `data prep sft` is the first step of a stage, `sft` alone the second
    stage, verb = command[-1], "data_prep" if command[0] == "data" else "train"
    if request.remote is not None:
        if command == ("pipeline",):
            from nemotron_app.remote.command import run_chain

            return run_chain(request)
        from nemotron_app.remote.command import run_remote

        return run_remote(stage, verb, request)
    if request.machine_settings:
        raise UserError("run.env is about the machines of a job, and this runs here", "add --run or --batch PROFILE")
    if command == ("pipeline",):
        from nemotron_app.pipeline import run_pipeline

        return run_pipeline(request)
    from nemotron_app.launch import run_step

    return run_step(stage, verb, request)


def _remote_of(options: Mapping[str, Any]) -> Remote | None:
    """The target of --run, --batch or --stage.

    Raises:
        UserError: more than one of them.
    """
    modes: tuple[Mode, ...] = ("run", "batch", "stage")
    given = [(mode, options[mode]) for mode in modes if options[mode]]
    if len(given) > 1:
        raise UserError(
            f"--{' and --'.join(mode for mode, _ in given)} exclude each other",
            "--run waits for the job, --batch does not",
        )
    if not given:
        return None
    if options["machine"] is not None:
        raise UserError("--machine describes a machine, and so does the profile", "leave one of them out")
    return Remote(*given[0])


def _no_model(word: str, words: list[str]) -> UserError:
    """The error for a first word that is not a model: the model may be missing, or a command misspelled."""
    if word in COMMANDS:
        line = shlex.join(["nemotron", DEFAULT_FAMILY, *words])
        return UserError(f"'{word}' needs a model before it", f"say: {line}")
    if close := did_you_mean(word, [*families(), *OTHER_COMMANDS]):
        return UserError(f"no model or command named '{word}'", close)
    if close := did_you_mean(word, COMMANDS):
        return UserError(
            f"no model or command named '{word}'", f"{close.rstrip('?')}, after a model: {DEFAULT_FAMILY}?"
        )
    return UserError(f"no model or command named '{word}'", "see: nemotron --help")


def _check_command(family: str, command: list[str]) -> None:
    if not command:
        raise UserError(f"{family} needs a command", f"say one of: {', '.join(COMMANDS)}; see: nemotron --help")
    if command[0] not in COMMANDS:
        wrong = command[0]
        if wrong in OTHER_COMMANDS and not _has(wrong, command[1:]):  # `model eval`, as another program calls it
            raise UserError(f"no command '{' '.join(command)}' for {family}", f"say: nemotron {family} {command[1]}")
        if wrong in OTHER_COMMANDS:
            raise UserError(f"no command '{wrong}' for {family}", f"say it without {family}: nemotron {wrong}")
        raise UserError(
            f"no command '{wrong}' for {family}", did_you_mean(wrong, COMMANDS, f"there are: {', '.join(COMMANDS)}")
        )
    if command[0] == "data" and (len(command) != 3 or command[1] != "prep" or command[2] not in STAGES):
        raise UserError(
            f"'{' '.join(command)}' is not a command",
            "say: data prep STAGE, data inspect PATH or data import STAGE DIR",
        )
    if command[0] != "data" and len(command) != 1:
        from nemotron_app.recipes import names

        is_config = command[0] in STAGES and command[1] in names(command[0])
        remedy = f"for the config: -c {command[1]}" if is_config else "overrides are written key=value"
        raise UserError(f"unexpected argument '{command[1]}' after '{command[0]}'", remedy)
    stage = command[-1]
    if stage in STAGES and stage not in families()[family].stages:
        raise UserError(f"{family} has no {stage} stage", f"it has: {', '.join(families()[family].stages)}")


def _has(name: str, words: list[str]) -> bool:
    """Whether a command accepts these words. A group does not if the next word is a stage instead of a subcommand."""
    return not (words and words[0] in STAGES and isinstance(import_module(OTHER_COMMANDS[name]).command, click.Group))


def _is_override(word: str) -> bool:
    return "=" in word or word.startswith(("~", "+"))


if __name__ == "__main__":
    sys.exit(main())
