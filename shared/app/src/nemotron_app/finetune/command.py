"""`nemotron finetune`: from a file to a fine-tuned model that was compared with the one it came from.

    nemotron finetune super3-pretrain-model chats.jsonl
    nemotron finetune hf://org/name questions.csv train.train_iters=500
    nemotron finetune ./model notes/*.txt                       text goes to continued pretraining

Settings that you leave open are chosen from the rows, the model and the machine, printed with the reason, and saved in
a config next to the store, which the next run reuses. The stages do the work: --dry-run shows their commands.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from nemotron_app import completion
from nemotron_app.copies import copying
from nemotron_app.finetune.plan import choose_training, evaluate, make_plan, prepare, train
from nemotron_app.store_options import Look, store_options
from nemotron_app.wording import CONTROL, last_turn
from nemotron_data.chat.thought import after_thought, whole_answer
from nemotron_data.formats.json_lines import read_lines
from nemotron_data.verifier import AS_TAUGHT
from nemotron_shared.artifacts import Artifact
from nemotron_shared.config.overrides import override, require_once, require_unsplit
from nemotron_shared.system.atomic import read_json
from nemotron_shared.system.console import say

# Before and after, on held-out rows and on taught ones: the loss of both models, and their answers side by side.

HELD_OUT, TAUGHT = "held_out", "taught"
OF_CALLS = {"held_out_calls": "tool calls", "held_out_after_calls": "answers after the result of a call"}
"""Tasks of conversations with tool calls, and what their rows are."""
SHOWN_CALLS = 3
SHOWN = 8
"""Answers that are shown; all of them are in the results."""
MOST_CHARACTERS = 200
ENOUGH, FEWEST = 0.8, 5
"""Share of the taught answers that should be right, if so many were judged."""
MARKS = {True: "right", False: "wrong", None: "an open answer"}


@dataclass(frozen=True)
class Right:
    """How many answers were right, of those that a rule applies to."""

    before: int
    after: int
    judged: int
    asked: int

    @property
    def few(self) -> bool:
        """Whether the model has not learnt what it was taught, if these are taught answers."""
        return self.judged >= FEWEST and self.after < ENOUGH * self.judged


@dataclass(frozen=True)
class Comparison:
    """What `results.json` says of the two models; `answers` pairs a question with what each wrote, `right` counts by
    task; `called` and `calls` are the same of tool calls. `sizes` are (all conversations, those held out, the texts
    that training makes of these), where any are held out and counted."""

    scores: list[dict[str, Any]]
    difference: dict[str, Any] | None
    answers: list[dict[str, Any]]
    right: dict[str, Right]
    held_back: bool
    calls: dict[str, Right]
    called: list[dict[str, Any]]
    sizes: tuple[int, int, int] | None

    @classmethod
    def read(cls, results: Artifact, prepared: Artifact) -> "Comparison":
        """From an artifact of the evaluation.

        Args:
            prepared: the data; it may have held nothing back.
        """
        content = read_json(results.path / "results.json")
        by_task = {task: [one for one in content["scores"] if one["task"] == task] for task in (HELD_OUT, TAUGHT)}
        scores = by_task[HELD_OUT]
        files = [results.path / "samples" / entry["model"] / f"{HELD_OUT}.jsonl" for entry in scores]
        before, *_, after = ([line.value() for line in read_lines(file)] for file in files)
        answers = [
            {name: old[name] for name in ("question", "expected")}
            | {"before": old["output"], "after": new["output"], "right": new.get("right")}
            for old, new in zip(before, after, strict=True)
            if "output" in old
        ]
        splits = prepared.manifest.metadata["splits"]
        held = next((splits[name] for name in ("test", "valid") if name in splits), None)
        held_back, sizes = held is not None, None
        if held and "conversations" in held:
            all_of_them = sum(one["conversations"] for one in splits.values())
            sizes = all_of_them, held["conversations"], held["sequences"]
        right = {
            task if held_back else TAUGHT: Right(old["right"], new["right"], new["judged"], new["asked"])
            for task, entries in by_task.items()
            if entries and (old := entries[0].get("answers")) and (new := entries[-1]["answers"])
        }
        difference = next((one for one in content["comparisons"] if one["task"] == HELD_OUT), None)
        calls, called = {}, list[dict[str, Any]]()
        for task in OF_CALLS:
            if not (entries := [one for one in content["scores"] if one["task"] == task]):
                continue
            files = (results.path / "samples" / one["model"] / f"{task}.jsonl" for one in (entries[0], entries[-1]))
            old, new = ([line.value() for line in read_lines(file)] for file in files)
            counts = (round(sum(one["score"] for one in rows)) for rows in (old, new))
            calls[task] = Right(*counts, len(new), len(new))
            called += [
                {"task": task, "question": one["question"], "expected": one["expected"]}
                | {"before": one["output"], "after": other["output"], "right": bool(other["score"])}
                for one, other in list(zip(old, new, strict=True))[:SHOWN_CALLS]
            ]
        return cls(scores, difference, answers[:SHOWN], right, held_back, calls, called, sizes)

    @property
    def is_untaught(self) -> bool:
        """Whether few of the taught answers are right."""
        return TAUGHT in self.right and self.right[TAUGHT].few

    def as_json(self) -> dict[str, Any]:
        """For a program."""
        right = {task: vars(found) for task, found in self.right.items()}
        calls = {task: vars(found) for task, found in self.calls.items()}
        found = {"scores": self.scores, "difference": self.difference, "right": right, "answers": self.answers}
        return found | ({"calls": calls, "called": self.called} if calls else {})

    def lines(self) -> list[str]:
        """For people."""
        which = "held-out rows" if self.held_back else "rows, all of which were trained on"
        first, last = self.scores[0], self.scores[-1]
        loss = f"bits per byte of {last['n']} {which}: {first['value']:.3f} before, {last['value']:.3f} after"
        if self.difference is not None:
            low, high = self.difference["ci95"]
            loss += f" (difference {self.difference['difference']:+.3f}, 95% {low:+.3f} to {high:+.3f})"
        which = "of rows held out" if self.held_back else "of rows, all of which were trained on"
        calls = [
            f"{OF_CALLS[task]} {which}, {found.judged} judged: {found.before} right before, {found.after} after"
            for task, found in self.calls.items()
        ]
        told = ["tool calls are right with the same names and arguments, by meaning (docs/rewards.md)"] if calls else []
        if calls and self.sizes is not None:
            every, held, texts = self.sizes
            told = [
                f"{held:,} of {every:,} conversations are held out, as {texts:,} texts to learn from: the last answer "
                "of each is judged, and so are calls and the answers after them, which may be the same",
                *told,
            ]
        return [*self._judgement(), *told, *(f"  {line}" for line in calls), loss, *self._examples()]

    def _examples(self) -> Iterator[str]:
        """Questions with both answers, each once, under a heading for each kind."""
        which = "held out" if self.held_back else "trained on"
        groups = {OF_CALLS[task]: [one for one in self.called if one["task"] == task] for task in self.calls}
        shown = set[tuple[str, str]]()
        for heading, answers in (groups | {"last answers" if groups else "answers": self.answers}).items():
            fresh = {(one["question"], one["expected"]): one for one in answers}
            fresh = {key: one for key, one in fresh.items() if key not in shown}
            shown |= fresh.keys()
            if fresh:
                yield from ("", f"{heading}, {which}:")
            for one in fresh.values():
                yield from _example(one)

    def _judgement(self) -> list[str]:
        """The rule, and how many answers are right by it."""
        if not self.right:
            return []
        judged = {task: found for task, found in self.right.items() if found.judged}
        names = {TAUGHT: "of the taught rows", HELD_OUT: "of rows held out"}
        counts = [
            f"  {names[task]}, {found.judged} answers judged: {found.before} right before, {found.after} after"
            for task, found in sorted(judged.items(), reverse=True)
        ]
        if not counts:
            return [f"answers: none is marked right or wrong, because they are open ({AS_TAUGHT})"]
        return [f"right answers, by this rule: {AS_TAUGHT} (docs/answers.md)", *counts]


def advice(comparison: Comparison, longer: str) -> list[str]:
    """What would help where few answers are right.

    Args:
        longer: the command that trains for more steps.
    """
    if comparison.is_untaught:
        return ["few of the taught answers are right; more steps may help:", f"  {longer}"]
    held_out = comparison.right.get(HELD_OUT)
    if held_out is None or not held_out.few:
        return []
    return [
        "the taught answers are known, and few of those held out are: rows that say the same in other words may help"
    ]


def _example(one: dict[str, Any]) -> Iterator[str]:
    question = one["question"]
    asked, results = last_turn(question)
    yield from ("", f"  {_short(asked, end=True)}")
    yield from (f"    {'result':<9} {_short(result)}" for result in results)
    for name in ("expected", "before", "after"):
        said = after_thought(whole_answer(question, one[name]))
        text = "(a thought without an end)" if said is None else _short(said) or "(nothing)"
        yield f"    {name:<9} {text}" + (f"   [{MARKS[one['right']]}]" if name == "after" else "")


def _short(text: str, *, end: bool = False) -> str:
    words = " ".join(CONTROL.sub(" ", text).split())
    if len(words) <= MOST_CHARACTERS:
        return words
    return f"… {words[-MOST_CHARACTERS:]}" if end else f"{words[:MOST_CHARACTERS]} …"


LONGER = 2
"""How many times as many steps a second training has, where few of the taught answers were right after the first."""
FOLLOWS = (
    "[finetune] steps, batch size and learning rate follow from the prepared rows: the start prints them, with the "
    "estimated time, before it trains"
)
USE = ("chat {model}", "serve {model}", "export {model} my-model")


@click.command("finetune", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
@click.argument("model", metavar="MODEL", shell_complete=completion.models)
@click.argument("data", metavar="DATA... [key=value ...]", nargs=-1, required=True, shell_complete=completion.files)
@click.option(
    "-d", "--dry-run", is_flag=True, help="show the choices for the data and the stages' commands; train nothing"
)
@click.option("--prepare", "prepare_only", is_flag=True, help="prepare the data, choose all settings; train nothing")
@click.option("--name", help="first part of the names of what is made (default: that of the model)")
@click.option("--again", is_flag=True, help="discard the choices of an earlier run for the same model and data")
@click.option("--trust-code", is_flag=True, help="run the Python files of a model that needs them")
@store_options
@copying()
def command(
    look: Look,
    model: str,
    data: Sequence[str],
    dry_run: bool,
    prepare_only: bool,
    name: str | None,
    again: bool,
    trust_code: bool,
) -> int:
    """See the head of this module."""
    require_unsplit(data)
    paths = [word for word in data if not _is_override(word)]
    overrides = [word for word in data if _is_override(word)]
    overrides += [override("run.name", name)] if name is not None else []
    require_once(overrides)
    plan = make_plan(look, model, paths, overrides, again=again, trust_code=trust_code, dry_run=dry_run)
    if dry_run:
        say(FOLLOWS)
        look.tell({"choices": [str(choice) for choice in plan.choices], "commands": plan.commands()}, *plan.commands())
        return 0
    say("\n── 1/3  data ──")
    prepared = prepare(plan)
    if prepare_only:
        choose_training(plan, prepared)
        commands = plan.commands(prepared)[1:]
        look.tell({"choices": [str(choice) for choice in plan.choices], "commands": commands}, *commands)
        return 0
    say("\n── 2/3  training ──")
    tuned = train(plan, prepared)
    say("\n── 3/3  before and after ──")
    comparison = Comparison.read(evaluate(plan, tuned), prepared)
    steps = plan.steps(prepared)
    if comparison.is_untaught and plan.may_train_longer():
        found = comparison.right[TAUGHT]
        say(f"\n── 2/3  training again: {found.after} of {found.judged} taught answers are right ──")
        steps = LONGER * steps
        tuned = train(plan, prepared, steps)
        say("\n── 3/3  before and after ──")
        comparison = Comparison.read(evaluate(plan, tuned), prepared)
    home = f" --home {plan.look.store.home}" if plan.home_was_given else ""
    uses = [f"nemotron {words.format(model=tuned.reference)}{home}" for words in USE]
    found = {
        "model": tuned.reference,
        "path": str(tuned.path),
        "data": prepared.reference,
        "config": str(plan.folder),
        "steps": steps,
    }
    said = [*comparison.lines(), *advice(comparison, plan.longer(LONGER * steps)), "", *uses]
    look.tell(found | comparison.as_json(), *said)
    return 0


def _is_override(word: str) -> bool:
    """`train.train_iters=500`, and no file of such a name."""
    name, equals, _ = word.lstrip("+~").partition("=")
    looks_so = bool(equals) and "/" not in name and name.replace(".", "").replace("_", "").isalnum()
    return looks_so and not os.path.lexists(word)
