"""`nemotron finetune`: from a file to a fine-tuned model that was compared with the one it came from.

    nemotron finetune super3-pretrain-model chats.jsonl
    nemotron finetune hf://org/name questions.csv train.train_iters=500
    nemotron finetune ./model notes/*.txt                       text goes to continued pretraining

Settings that you leave open are chosen from the rows, the model and the machine, printed with the reason, and saved in
a config next to the store, which the next run reuses. The stages do the work: --dry-run shows their commands.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from nemotron_app import completion
from nemotron_app.finetune.plan import evaluate, make_plan, prepare, train
from nemotron_app.store_options import Look, store_options
from nemotron_app.wording import CONTROL, plain_turns
from nemotron_data.formats.json_lines import read_lines
from nemotron_shared.artifacts import Artifact
from nemotron_shared.atomic import read_json
from nemotron_shared.runtime.console import say

# Before and after on the held-out rows: the loss of both models, and their answers side by side.

TASK = "held_out"
MOST_CHARACTERS = 200


@dataclass(frozen=True)
class Comparison:
    """What `results.json` says of the two models; `answers` pairs a question with what each wrote."""

    scores: list[dict[str, Any]]
    difference: dict[str, Any] | None
    answers: list[dict[str, str]]

    @classmethod
    def read(cls, results: Artifact) -> "Comparison":
        """From an artifact of the evaluation."""
        content = read_json(results.path / "results.json")
        scores = [entry for entry in content["scores"] if entry["task"] == TASK]
        files = [results.path / "samples" / entry["model"] / f"{TASK}.jsonl" for entry in scores]
        before, *_, after = ([line.value() for line in read_lines(file)] for file in files)
        answers = [
            {"question": old["question"], "expected": old["expected"], "before": old["output"], "after": new["output"]}
            for old, new in zip(before, after, strict=True)
            if "output" in old
        ]
        return cls(scores, next((one for one in content["comparisons"] if one["task"] == TASK), None), answers)

    def as_json(self) -> dict[str, Any]:
        """For a program."""
        return {"scores": self.scores, "difference": self.difference, "answers": self.answers}

    def lines(self, prepared: Artifact) -> list[str]:
        """For people.

        Args:
            prepared: the data; it may have held nothing back.
        """
        held_back = set(prepared.manifest.metadata["splits"]) & {"valid", "test"}
        which = "held-out rows" if held_back else "rows, all of which were trained on"
        shown = []
        for answer in self.answers:
            shown += ["", f"  {_short(plain_turns(answer['question']), end=True)}"]
            shown += [f"    {name:<9} {_short(answer[name])}" for name in ("expected", "before", "after")]
        first, last = self.scores[0], self.scores[-1]
        loss = f"bits per byte of {last['n']} {which}: {first['value']:.3f} before, {last['value']:.3f} after"
        if self.difference is not None:
            low, high = self.difference["ci95"]
            loss += f" (difference {self.difference['difference']:+.3f}, 95% {low:+.3f} to {high:+.3f})"
        return [loss, *shown]


def _short(text: str, *, end: bool = False) -> str:
    words = " ".join(CONTROL.sub(" ", text).split())
    if len(words) <= MOST_CHARACTERS:
        return words
    return f"… {words[-MOST_CHARACTERS:]}" if end else f"{words[:MOST_CHARACTERS]} …"


USE = ("chat {model}", "serve {model}", "export {model} my-model")


@click.command("finetune", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
@click.argument("model", metavar="MODEL", shell_complete=completion.models)
@click.argument("data", metavar="DATA... [key=value ...]", nargs=-1, required=True, shell_complete=completion.files)
@click.option("-d", "--dry-run", is_flag=True, help="show the choices and the stages' commands; train nothing")
@click.option("--again", is_flag=True, help="discard the choices of an earlier run for the same model and data")
@click.option("--trust-code", is_flag=True, help="run the Python files of a model that needs them")
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
    home = f" --home {plan.look.store.home}" if plan.home_was_given else ""
    uses = [f"nemotron {words.format(model=tuned.reference)}{home}" for words in USE]
    found = {"model": tuned.reference, "path": str(tuned.path), "data": prepared.reference, "config": str(plan.folder)}
    look.tell(found | comparison.as_json(), *comparison.lines(prepared), "", *uses)
    return 0


def _is_override(word: str) -> bool:
    """`train.train_iters=500`, and no file of such a name."""
    name, equals, _ = word.lstrip("+~").partition("=")
    looks_so = bool(equals) and "/" not in name and name.replace(".", "").replace("_", "").isalnum()
    return looks_so and not os.path.lexists(word)
