"""`nemotron finetune`: from a file to a fine-tuned model that was compared with the one it came from.

    nemotron finetune super3-pretrain-model chats.jsonl
    nemotron finetune hf://org/name questions.csv train.train_iters=500
    nemotron finetune ./model notes/*.txt                       text goes to continued pretraining

What nobody said is chosen from the rows, the model and the machine, told with its reason, and kept in a config beside
the store, which the next run uses again. The work is done by the stages: --dry-run shows their commands.
"""

import os
from collections.abc import Sequence

import click

from nemotron_app import complete
from nemotron_app.finetune.compare import Comparison
from nemotron_app.finetune.plan import Plan, make_plan
from nemotron_app.finetune.steps import evaluate, prepare, train
from nemotron_app.store_options import Look, store_options
from nemotron_shared.runtime.console import say

USE = ("chat {model}", "serve {model}", "export {model} my-model")


@click.command("finetune", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
@click.argument("model", metavar="MODEL", shell_complete=complete.models)
@click.argument("data", metavar="DATA... [key=value ...]", nargs=-1, required=True, shell_complete=complete.files)
@click.option("-d", "--dry-run", is_flag=True, help="show the choices and the stages' commands; train nothing")
@click.option("--again", is_flag=True, help="choose anew what an earlier run chose for the same model and data")
@click.option("--trust-code", is_flag=True, help="run the Python files of a model that cannot do without")
@store_options
def command(look: Look, model: str, data: Sequence[str], dry_run: bool, again: bool, trust_code: bool) -> int:
    """See the head of this module."""
    paths = [word for word in data if not _is_override(word)]
    overrides = [word for word in data if _is_override(word)]
    plan = make_plan(look, model, paths, overrides, again=again, trust_code=trust_code, dry_run=dry_run)
    if dry_run:
        look.tell({"choices": [str(choice) for choice in plan.choices], "commands": plan.commands()}, *plan.commands())
        return 0
    say("\n── 1/3  data ──")
    prepared = prepare(plan)
    say("\n── 2/3  training ──")
    tuned = train(plan, prepared)
    say("\n── 3/3  before and after ──")
    results = evaluate(plan, tuned)
    comparison = Comparison.read(results)
    found = {"model": tuned.reference, "path": str(tuned.path), "data": prepared.reference, "config": str(plan.folder)}
    look.tell(found | comparison.as_json(), *comparison.lines(prepared), "", *_next_commands(plan, tuned.reference))
    return 0


def _next_commands(plan: Plan, model: str) -> list[str]:
    home = f" --home {plan.look.store.home}" if plan.home_was_given else ""
    return [f"nemotron {words.format(model=model)}{home}" for words in USE]


def _is_override(word: str) -> bool:
    """`train.train_iters=500`, and no file of such a name."""
    name, equals, _ = word.lstrip("+~").partition("=")
    looks_so = bool(equals) and "/" not in name and name.replace(".", "").replace("_", "").isalnum()
    return looks_so and not os.path.lexists(word)
