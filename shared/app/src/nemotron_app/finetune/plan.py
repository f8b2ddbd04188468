"""What a fine-tuning will do: its stage, its family, and the config that holds what was chosen."""

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

from nemotron_app.launch import stage_directory
from nemotron_app.main import Request
from nemotron_app.store_options import Look
from nemotron_data.sources.detect import detect
from nemotron_shared.artifacts import Artifact
from nemotron_shared.artifacts.names import is_path
from nemotron_shared.config.compose import compose, override_key
from nemotron_shared.config.references import resolve
from nemotron_shared.config.schema import StageConfig
from nemotron_shared.config.validate import validate
from nemotron_shared.errors import UserError
from nemotron_shared.families import families
from nemotron_shared.runtime.choices import Choice, write_choices
from nemotron_shared.runtime.console import say
from nemotron_shared.runtime.machine import Machine
from nemotron_shared.runtime.models.finding import find_model
from nemotron_shared.runtime.models.importing import find
from nemotron_shared.runtime.models.references import parse_outside

BASE = "local"
STAGES = {"chat": "sft", "text": "pretrain"}


@dataclass
class Plan:
    """One fine-tuning.

    Attributes:
        model: the one to start from; `data`, where its rows lie.
        stage: `sft` for chats, `pretrain` for text.
        folder: what was chosen is kept here.
    """

    look: Look
    model: Artifact
    reference: str
    data: list[str]
    stage: str
    family: str
    overrides: list[str]
    folder: Path
    trust_code: bool
    home_was_given: bool
    choices: list[Choice] = field(default_factory=list)

    def file(self, prepared: Artifact | None = None) -> Path:
        """The config of the data preparation, or of the training on a version of its data."""
        return self.folder / (f"train-v{prepared.manifest.version}.yaml" if prepared else "data.yaml")

    def request(self, config: str, *command: str, **overrides: str) -> Request:
        """What `nemotron FAMILY COMMAND -c CONFIG` would be asked."""
        more = [f"{key.replace('__', '.')}={value}" for key, value in overrides.items()]
        common = [f"run.home={self.look.store.home}", f"run.family={self.family}"]
        given = [] if command == ("eval",) else self.overrides
        return Request(self.family, command, config, (*given, *more, *common), False, True, None, self.trust_code)

    def commands(self) -> list[str]:
        """The commands of the stages, which make the same artifacts."""
        first, then = self.file(), self.folder / "train-v1.yaml"
        given = "".join(f" {shlex.quote(word)}" for word in self.overrides)
        where = f" run.home={self.look.store.home}" if self.home_was_given else ""
        base = f"run.base={self.reference}"
        return [
            f"nemotron {self.family} data prep {self.stage} -c {first}{given}{where}",
            f"nemotron {self.family} {self.stage} -c {then}{given}{where}    # written once the rows are packed",
            f"nemotron {self.family} eval -c held_out run.model={self.stage} {base}{where}",
        ]

    def config(self, *files: str) -> StageConfig[Any]:
        """The stage's config with these settings, as its step would read it."""
        schema = import_module(f"stages.{self.stage}.train").STEP.schema
        overrides = [*files[1:], *self.overrides]
        composed = compose(stage_directory(self.stage) / "config", files[0], overrides)
        return validate(schema, resolve(composed.tree, lambda role, name: 1), composed.origins)

    def add(self, found: Sequence[Choice]) -> list[Choice]:
        """Take over what the command line does not say itself, and say it."""
        given = {override_key(word) for word in self.overrides}
        taken = [choice for choice in found if not any(_covers(key, choice.key) for key in given)]
        for choice in taken:
            say(f"[finetune] {choice}")
        self.choices += taken
        return taken


def _covers(given: str, key: str) -> bool:
    return given == key or given.startswith(f"{key}.") or key.startswith(f"{given}.")


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
    """Find the model, look at the rows, and choose what nobody said.

    Raises:
        UserError: there is no such model or file, or the rows cannot be read.
    """
    if not data:
        raise UserError("no data is named", "say: nemotron finetune MODEL FILE")
    model = _model(look, reference, trusted=trust_code, dry_run=dry_run)
    paths = [path if "://" in path else str(Path(os.path.expanduser(path)).absolute()) for path in data]  # noqa: PTH111
    if wrong := next((path for path in paths if "${" in path), None):
        raise UserError(f"{wrong}: configs take '${{' for a reference to one of their keys", "give it another name")
    found = detect(paths, **_of_source(overrides))
    stage = STAGES[found.kind]
    family = next((name for name in families() if model.manifest.name.startswith(f"{name}-")), look.family)
    about = sha256("\n".join([stage, model.reference, model.manifest.digest, *paths]).encode()).hexdigest()[:8]
    name = Path(paths[0].rstrip("/*")).name.partition(".")[0] or "data"
    plan = Plan(
        look=look,
        model=model,
        reference=str(model.path) if is_path(reference) else model.reference,
        data=paths,
        stage=stage,
        family=family,
        overrides=list(overrides),
        folder=look.store.home / "finetune" / f"{name}-{about}",
        trust_code=trust_code,
        home_was_given=str(look.store.home) != str(look.store.open(None).home),
    )
    say(f"[finetune] {plan.reference}, {', '.join(data)}: {found.reason}")
    if again:
        for file in plan.folder.glob("*.yaml"):
            file.unlink()
    if plan.file().is_file():
        say(f"[finetune] as chosen before: {plan.file()} (--again chooses anew)")
        return plan
    given = {
        "run.model": plan.reference,
        "data_prep.source": paths[0] if len(paths) == 1 else paths,
        "data_prep.tokenizer.model": str(model.path),
    }
    source = ",".join(json_text(path) for path in paths)
    asked = [f"run.model={json_text(plan.reference)}", f"data_prep.source=[{source}]"]
    config = plan.config(BASE, *asked, f"data_prep.tokenizer.model={json_text(str(model.path))}")
    chosen = plan.add(import_module(f"stages.{stage}.choices").data_choices(config, model.path))
    write_choices(plan.file(), BASE, chosen, given)
    say(f"[finetune] kept in {plan.file()}")
    return plan


def choose_training(plan: Plan, prepared: Artifact) -> Path:
    """The config of the training on prepared data; chosen now, unless an earlier run did."""
    file = plan.file(prepared)
    if file.is_file():
        return file
    machine = Machine.here(plan.look.store.home)
    config = plan.config(str(plan.file()))
    chosen = plan.add(
        import_module(f"stages.{plan.stage}.choices").train_choices(config, plan.model.path, prepared, machine)
    )
    write_choices(file, plan.file().stem, chosen, {})
    return file


def _of_source(overrides: Sequence[str]) -> dict[str, str]:
    """What the command line says of how the source is to be read."""
    names = {"data_prep.subset": "subset", "data_prep.hub_split": "split", "data_prep.encoding": "encoding"}
    said = {override_key(word): word.partition("=")[2] for word in overrides}
    return {name: said[key] for key, name in names.items() if key in said}


def json_text(text: str) -> str:
    """A text as Hydra's grammar quotes it: backslashes count twice only before a quotation mark."""
    return "'" + re.sub(r"(\\*)('|\Z)", lambda end: end[1] * 2 + end[2].replace("'", "\\'"), text) + "'"


def _model(look: Look, reference: str, *, trusted: bool, dry_run: bool) -> Artifact:
    outside = parse_outside(reference) if dry_run else None
    if outside is not None and (found := find(look.store, outside, weights=True, trusted=trusted)).bring_in:
        raise UserError(f"{found.shown}: the choices follow from it", f"say: nemotron model import {reference}")
    return find_model(look.store, reference, family=look.family, trusted=trusted)
