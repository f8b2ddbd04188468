"""What a fine-tuning will do: its stage, its family, and the config that holds what was chosen."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

from nemotron_app.copies import note_made
from nemotron_app.launch import (
    ask_step,
    is_ours,
    libraries_of,
    module_and_words,
    run_process,
    stage_directory,
    step_process,
)
from nemotron_app.request import Request
from nemotron_app.store_options import Look
from nemotron_data.sources.detect import detect_files
from nemotron_data.sources.files import expand
from nemotron_data.sources.input_file import InputFile, Reading, identity
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.artifact import FOLDER
from nemotron_shared.artifacts.names import SCHEME, is_path, prefix_of
from nemotron_shared.config.compose import compose
from nemotron_shared.config.files import Choice, write_choices
from nemotron_shared.config.overrides import override, override_key
from nemotron_shared.config.references import resolve
from nemotron_shared.config.schema import LONGEST_PREFIX, StageConfig
from nemotron_shared.config.training import SupervisedConfig
from nemotron_shared.config.validate import validate
from nemotron_shared.engine.engine import refuse
from nemotron_shared.engine.needs import lines
from nemotron_shared.families import families
from nemotron_shared.machine.machine import Machine
from nemotron_shared.models.finding import find_model
from nemotron_shared.models.importing import find
from nemotron_shared.models.references import name_from_outside, parse_outside, spelled_out
from nemotron_shared.stages import DEFAULT_FAMILY
from nemotron_shared.step.arguments import Arguments, parse_arguments
from nemotron_shared.step.preflight import preflight, to_rehearse
from nemotron_shared.step.rehearsal import BEFORE, has_passed
from nemotron_shared.step.start import load
from nemotron_shared.system.console import say
from nemotron_shared.system.digest import json_digest
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.stop import STOPPED_EXIT_CODE

BASE = "local"
STAGES = {"chat": "sft", "text": "pretrain"}
FIELDS = {
    "sft": ("format", "messages_field", "conversations_field", "prompt_field", "response_field"),
    "pretrain": ("text_field", "text_template"),
}
OF_DATA = "run.data: "
HELD_OUT = {"valid", "validation", "val", "dev", "test", "heldout"}
"""Words in the name of a file whose rows were probably not meant for training."""
SAID_BY_WORDS = ("run.model", "run.data", "data_prep.source")


@dataclass
class Plan:
    """One fine-tuning.

    Attributes:
        model: the one to start from; `data`, where its rows lie.
        stage: `sft` for chats, `pretrain` for text.
        name: the first part of the names of all that is made.
        folder: what was chosen is kept here.
    """

    look: Look
    model: Artifact
    reference: str
    data: list[str]
    stage: str
    family: str
    name: str
    overrides: list[str]
    folder: Path
    trust_code: bool
    home_was_given: bool
    choices: list[Choice] = field(default_factory=list)

    def file(self, prepared: Artifact | None = None, steps: int | None = None) -> Path:
        """The config of the data preparation, or of the training on a version of its data, for so many steps if they
        were not chosen."""
        longer = f"-{steps}-steps" if steps else ""
        return self.folder / (f"train-v{prepared.manifest.version}{longer}.yaml" if prepared else "data.yaml")

    def request(self, stage: str, config: str, *overrides: str) -> Request:
        """The request of `nemotron FAMILY STAGE -c CONFIG` with these overrides, in this store."""
        home = override("run.home", str(self.look.store.home))
        called = [override("run.name", self.name), home, f"run.family={self.family}"]
        overrides = (*(one for one in overrides if override_key(one) != "run.name"), *called)
        return Request(self.family, (stage,), config, overrides, False, True, None, self.trust_code)

    def commands(self, prepared: Artifact | None = None) -> list[str]:
        """The commands of the stages, which make the same artifacts.

        The training's config follows from the packed rows, and its name from their version, so without these it is not
        there yet.
        """
        where = [override("run.home", str(self.look.store.home))] if self.home_was_given else []
        where += [override("run.name", self.name)] if self.name != self.family else []
        models = [f"run.model={self.stage}", override("run.base", self.reference), *where]
        given = [*(one for one in self.overrides if override_key(one) != "run.name"), *where]
        file = self.file(prepared) if prepared else self.folder / "train-vN.yaml"
        train = shlex.join(["nemotron", self.family, self.stage, "-c", str(file), *given])
        if prepared is None:
            train += "    # N: the version of the packed rows, for which finetune itself writes this file"
        return [
            shlex.join(["nemotron", self.family, "data", "prep", self.stage, "-c", str(self.file()), *given]),
            train,
            shlex.join(["nemotron", self.family, "eval", "-c", "held_out", *models]),
        ]

    def config(self, choice: str, *asked: str) -> StageConfig[Any]:
        """The stage's config with these settings and those of the command line, as its step would read it."""
        schema = import_module(f"stages.{self.stage}.train").STEP.schema
        composed = compose(stage_directory(self.stage) / "config", choice, [*asked, *self.overrides])
        return validate(schema, resolve(composed.tree, lambda role, name: 1), composed.origins)

    def choices_of_data(self, *files: str) -> list[Choice]:
        """What suits the rows; raises `UserError` where one of the first of them cannot be used."""
        return import_module(f"stages.{self.stage}.choices").data_choices(self.config(*files), self.model.path)

    def require_startable(self) -> None:
        """Raise `UserError` with all that would keep the preparation or the training from starting."""
        step = import_module(f"stages.{self.stage}.train").STEP
        overrides = self.request(self.stage, str(self.file()), *self.overrides, "run.missing_data=prepare").overrides
        asked = Arguments(str(self.file()), overrides, dry_run=True, json=False, trust_code=self.trust_code)
        found = preflight(load(step, asked)).refused
        told = {problem.message for problem in found}  # the search for prepared data may have met one already
        refuse([problem for problem in found if problem.message.removeprefix(OF_DATA) not in told - {problem.message}])

    def steps(self, prepared: Artifact) -> int:
        """Of the first training on this data."""
        config = self.config(str(self.file(prepared)))
        assert isinstance(config, SupervisedConfig)
        return config.train.train_iters

    def may_train_longer(self) -> bool:
        """Whether a second training may follow where the first taught too little: its length is ours to choose, and a
        small model is trained in minutes."""
        choices = import_module(f"stages.{self.stage}.choices")
        return not self.is_said("train.train_iters") and choices.may_train_longer(self.model.path)

    def longer(self, steps: int) -> str:
        """The command that fine-tunes in the same way for more steps."""
        others = [word for word in self.overrides if override_key(word) != "train.train_iters"]
        home = ["--home", str(self.look.store.home)] if self.home_was_given else []
        words = ["nemotron", "finetune", self.reference, *self.data, *others, f"train.train_iters={steps}", *home]
        return shlex.join(words)

    def rehearse(self, *, trains: bool) -> None:
        """Run one small training step in a separate process, which prints the result; or say that it has passed before.

        Args:
            trains: whether the training itself follows, which then shares the imports.

        Raises:
            SystemExit: the training would fail.
        """
        choices = import_module(f"stages.{self.stage}.choices")
        machine, config = Machine.here(self.look.store.home), self.config(str(self.file()))
        chosen = choices.engine_choices(config, self.model.path, machine, self.is_said)
        given = [override(one.key, one.value) for one in chosen if not self.is_said(one.key)]
        request = self.request(self.stage, str(self.file()), *given, *self.overrides, "run.missing_data=prepare")
        with step_process(self.stage, "train", request, "--rehearse") as command:
            if is_ours(command) and self._has_rehearsed(command):
                say(f"[{self.stage}] {BEFORE}")
                return
            note_made(reused=not trains)
            if code := run_process(command, libraries=libraries_of(self.stage, "train", request)):
                raise SystemExit(code)

    def _has_rehearsed(self, command: Sequence[str]) -> bool:
        """Whether the rehearsal that a command asks a training for has passed before."""
        module, words = module_and_words(command)
        step = import_module(module).STEP
        with suppress(UserError):  # the rehearsal itself reports the error
            start = to_rehearse(step, parse_arguments(module, "", words))
            return not start.problems and has_passed(start)
        return False

    def is_said(self, key: str) -> bool:
        """Whether the command line sets this value, alone or with others."""
        given = [override_key(word) for word in self.overrides]
        return any(one == key or one.startswith(f"{key}.") or key.startswith(f"{one}.") for one in given)

    def add(self, found: Sequence[Choice]) -> list[Choice]:
        """Apply choices that the command line does not make itself, and print them."""
        taken = [choice for choice in found if not self.is_said(choice.key)]
        for choice in taken:
            say(f"[finetune] {choice}")
        self.choices += taken
        return taken


def make_plan(
    look: Look,
    reference: str,
    data: Sequence[str],
    overrides: Sequence[str],
    *,
    again: bool,
    trust_code: bool,
    dry_run: bool,
) -> Plan:
    """Find the model, read the rows, and choose the settings that the user left open.

    Raises:
        UserError: the model or a file does not exist, or the rows cannot be read.
    """
    if not all(data) or not data:
        raise UserError("no data is named", "say: nemotron finetune MODEL FILE")
    said = {override_key(word): word.partition("=")[2] for word in overrides}
    if taken := next((key for key in SAID_BY_WORDS if key in said), None):
        raise UserError(f"{taken}: the first words say it already", "say: nemotron finetune MODEL FILE")
    outside = parse_outside(spelled_out(reference, look.store, look.family)[0]) if dry_run else None
    if outside is not None and (found := find(look.store, outside, weights=True, trusted=trust_code)).bring_in:
        raise UserError(f"{found.shown}: the choices follow from it", f"say: nemotron model import {reference}")
    model = find_model(look.store, reference, family=look.family, trusted=trust_code)
    paths = [path if "://" in path else str(Path(os.path.expanduser(path)).absolute()) for path in data]  # noqa: PTH111
    if wrong := next((path for path in paths if "${" in path), None):
        raise UserError(f"{wrong}: configs take '${{' for a reference to one of their keys", "give it another name")
    files = expand(paths, subset=said.get("data_prep.subset"), split=said.get("data_prep.hub_split"))
    stage, reason, fields = _stage(files, said)
    own = next((name for name in families() if model.manifest.name.startswith(f"{name}-")), None)
    own = own or (look.family if look.family in families() else DEFAULT_FAMILY)  # `--family` may be a `run.name`
    family = said.get("run.family", own)
    # all that choices follow from: other settings or other contents are another fine-tuning
    about = [stage, model.reference, model.manifest.digest, *paths, *(identity(file)[0] for file in files), *overrides]
    name = Path(paths[0].rstrip("/*")).name.partition(".")[0] or "data"
    plan = Plan(
        look=look,
        model=model,
        reference=str(model.path) if is_path(reference) else model.reference,
        data=paths,
        stage=stage,
        family=family,
        name=said.get("run.name") or name_of(model),
        overrides=list(overrides),
        folder=look.store.home / FOLDER / f"{name}-{json_digest(about)[:8]}",
        trust_code=trust_code,
        home_was_given=str(look.store.home) != str(Store.open(None).home),
    )
    say(f"[finetune] {plan.reference}, {', '.join(data)}: {reason}")
    _warn_of_held_out([file.path for file in files])
    if again:
        for file in plan.folder.glob("*.yaml"):
            file.unlink()
    if plan.file().is_file():
        say(f"[finetune] using earlier choices: {plan.file()} (--again makes new ones)")
    else:
        _choose_data(plan, fields)
    plan.require_startable()
    if dry_run or not any(plan.folder.glob("train-v*.yaml")):  # else an earlier run has come so far
        plan.rehearse(trains=not dry_run)
    return plan


def name_of(model: Artifact) -> str:
    """The first part of the names of what is made of a model: its own, or that by which people know it."""
    name = model.manifest.name
    if model.is_external or model.manifest.producer.verb == "import":
        name = name_from_outside(name)
    return (prefix_of(name) or name)[:LONGEST_PREFIX].strip("._-")


def _warn_of_held_out(paths: Sequence[str]) -> None:
    """Say that files are trained on, too, which by their names were to be held out."""
    names = [PurePosixPath(path).name for path in paths]
    meant = [name for name in names if HELD_OUT & set(re.split(r"[^a-z]+", name.lower()))]
    if meant and len(meant) < len(names):
        it = "it" if len(meant) == 1 else "them"
        remedy = f"to hold {it} out, leave {it} out here; docs/finetune.md says how to measure on {it}"
        say(f"[finetune] WARNING: {', '.join(meant)} will be trained on, too: all files are pooled; {remedy}")


def _choose_data(plan: Plan, fields: Mapping[str, str]) -> None:
    source = plan.data[0] if len(plan.data) == 1 else plan.data
    # by its name in the store, because a store may be moved
    model = str(plan.model.path) if plan.model.is_external else f"{SCHEME}{plan.model.reference}"
    given = {"run.model": plan.reference, "data_prep.source": source, "data_prep.tokenizer.model": model, **fields}
    chosen = plan.add(plan.choices_of_data(BASE, *(override(key, value) for key, value in given.items())))
    write_choices(plan.file(), BASE, chosen, given)
    say(f"[finetune] kept in {plan.file()}")


def choose_training(plan: Plan, prepared: Artifact, steps: int | None = None) -> Path:
    """The config of the training on prepared data; chosen now, unless an earlier run did.

    Args:
        steps: of a training that is to be longer than the choices would have it.
    """
    file = plan.file(prepared, steps)
    if file.is_file():
        return file
    machine = Machine.here(plan.look.store.home)
    longer = [override("train.train_iters", str(steps))] if steps else []
    config = plan.config(str(plan.file()), *longer)
    choices = import_module(f"stages.{plan.stage}.choices")
    is_said = replace(plan, overrides=[*plan.overrides, *longer]).is_said
    chosen = plan.add(choices.train_choices(config, plan.model.path, prepared, machine, is_said))
    write_choices(file, plan.file().stem, chosen, {})
    return file


def _stage(files: Sequence[InputFile], said: Mapping[str, str]) -> tuple[str, str, Mapping[str, str]]:
    """The stage that reads such rows, why, and settings that follow from their fields.

    What the command line says of the fields is not asked of the rows.
    """
    for stage, keys in FIELDS.items():
        if named := [f"data_prep.{key}" for key in keys if f"data_prep.{key}" in said]:
            return stage, f"read by {' and '.join(named)}", {}
    reading = Reading(said.get("data_prep.encoding"))
    found = detect_files([replace(file, reading=reading) for file in files])
    fields = {"data_prep.text_field": found.fields[0]} if found.kind == "text" else {}
    return STAGES[found.kind], found.reason, fields


# The three steps of a fine-tuning, each run as the stage's own process.


def prepare(plan: Plan) -> Artifact:
    """The prepared rows."""
    return _run(plan, plan.stage, "data_prep", plan.request(plan.stage, str(plan.file()), *plan.overrides))


def train(plan: Plan, prepared: Artifact, steps: int | None = None) -> Artifact:
    """The fine-tuned model; `steps` where they are not those that the choices have."""
    data = override("run.data", prepared.reference)
    request = plan.request(plan.stage, str(choose_training(plan, prepared, steps)), *plan.overrides, data)
    step = import_module(f"stages.{plan.stage}.train").STEP
    asked = Arguments(str(request.config), request.overrides, dry_run=True, json=False, trust_code=plan.trust_code)
    estimate = preflight(load(step, asked)).estimate  # what keeps it from starting, the training says itself
    for name, said in lines(estimate) if estimate else ():
        if name.startswith(("memory", "all steps")):
            say(f"[finetune] the training, estimated: {name} {said}")
    return _run(plan, plan.stage, "train", request)


def evaluate(plan: Plan, tuned: Artifact) -> Artifact:
    """Scores of both models on the held-out rows."""
    models = override("run.model", tuned.reference), override("run.base", plan.reference)
    return _run(plan, "eval", "train", plan.request("eval", "held_out", *models))


def _run(plan: Plan, stage: str, verb: str, request: Request) -> Artifact:
    code, answer = ask_step(stage, verb, request, "--rehearsed")
    if code == STOPPED_EXIT_CODE:
        raise SystemExit(code)
    if code:
        what = "the data preparation" if verb == "data_prep" else f"the {stage} stage"
        raise UserError(f"{what} ended with exit code {code}", "see above; what is finished is kept")
    return plan.look.store.resolve(answer["artifact"], family=plan.family)
