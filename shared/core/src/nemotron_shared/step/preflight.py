"""Checks made before a step starts, for `--dry-run` and for every real start.

    checked = preflight(step, start)
    checked.problems     with config, inputs and sources, on any machine
    checked.lacking      missing on this machine: packages, processes, GPUs, memory, disk

A start raises all of them at once, `--dry-run` lists them. Which data a training uses is decided first: where the user
gives settings of data, that is the data prepared with them.

    nemotron super3 sft -c tiny data_prep.source=mine.jsonl

Without such an artifact, the data is prepared first, or the error names the command that prepares it; the newest
artifact of other data is never used instead. Data and models that a start would make first may be missing; once they
are there, `complete` makes the checks that need them.
"""

from typing import Any

from nemotron_shared.config.compose import compose, layout_for, shared_groups
from nemotron_shared.config.overrides import COMMAND_LINE, override_key
from nemotron_shared.config.references import resolve
from nemotron_shared.config.schema import Section, StageConfig
from nemotron_shared.config.training import TrackerSection
from nemotron_shared.config.validate import validate
from nemotron_shared.engine.engine import as_errors, lacking, notes_of, problems_of
from nemotron_shared.engine.needs import NOT_ESTIMATED
from nemotron_shared.engine.spec import Step
from nemotron_shared.step.inputs import (
    SECTION,
    DataChoice,
    answer_trust_keys,
    find_inputs,
    find_tokenizers,
    is_looked_for,
    note_latest,
    of_another_family,
    recipes_of,
    record_of,
)
from nemotron_shared.step.places import place_problems, store_problems
from nemotron_shared.step.plan import identify
from nemotron_shared.step.records import differences, is_recorded, listed
from nemotron_shared.step.start import Preflight, Start
from nemotron_shared.system.disk import size
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.redaction import redact_values
from nemotron_shared.tracking.trackers import tracker_problems, unseen_key

REPORTED_BYTES = 1_000_000_000
"""Report memory per process above this size."""


def preflight(step: Step, start: Start) -> Preflight[Any]:
    """Find the inputs, validate and check; made once for each step of a start."""
    if step.module not in start.checked:
        checked: Preflight[Any] = Preflight(step, start, notes=list(start.notes))
        if wrong := of_another_family(checked, recipes_of(start.composed)):
            checked.problems.append(wrong)  # further checks would be about the wrong family's inputs
        else:
            find_inputs(checked, _described_data(checked))
            if checked.prepares and step.prepare is not None:
                checked.problems += preflight(step.prepare, start).problems
            _validate(checked)
            if checked.machine.sees_files and not start.arguments.in_pipeline:
                note_latest(checked)
            _check(checked)
        start.checked[step.module] = checked
    return start.checked[step.module]


def complete(checked: Preflight) -> None:
    """Make the checks again that need inputs which have just been prepared or imported."""
    checked.problems, checked.lacking = [], []
    if checked.imports:
        checked.imports = []
        choice = DataChoice([], checked.inputs["data"]) if checked.inputs.get("data") else None
        notes = list(checked.notes)
        find_inputs(checked, choice)
        checked.notes, checked.config = notes, None
    if checked.config is None or checked.reads_inputs:
        checked.config = None
        _validate(checked)
    _check(checked)


def _described_data(checked: Preflight) -> DataChoice | UserError | list[UserError] | None:
    """The data that the user's settings describe; None without such settings, when `run.data` alone decides.

    Returns:
        The problems of a preparation with these settings (no such file, say), if there are any, and an error if
        `run.data` is given too and names data that was prepared differently.
    """
    step, run, given = checked.step, checked.run, data_settings(checked)
    described = step.prepare is not None and "data" in step.consumes and run.data is not None and given
    if step.prepare is None or not described or not is_looked_for(checked, "data"):
        return None
    try:
        data = preflight(step.prepare, checked.start)
        if problems := data.problems + data.lacking:
            return problems
        if not data.is_decided:  # its tokenizer is not imported yet, so nothing was prepared with it
            return DataChoice(given, None)
        plan, store = identify(data), checked.store
        made = (store.load(plan.name, version) for version in reversed(store.versions(plan.name)))
        found = next((one for one in made if one.manifest.producer.config_digest == plan.identity.result), None)
        if _is_by_hand(checked, "run.data"):
            named = store.resolve(str(run.data), family=run.family, expect=step.prepare.makes.type)
            if found is None or named.manifest.producer.config_digest != plan.identity.result:
                before = record_of(store, named)
                unlike = listed(differences(before, redact_values(plan.identity.what))) if before else ""
                raise UserError(
                    f"run.data: {named.reference} is not the data that this config describes with {', '.join(given)}"
                    + (f": {unlike}" if unlike else ""),
                    "leave run.data out to use the data of these settings, or leave these settings out to use run.data",
                )
            found = named
        return DataChoice(given, found)
    except UserError as error:
        return error


def data_settings(checked: Preflight) -> list[str]:
    """Settings given by the user that change the data, not those that change only how it is prepared."""
    schema = checked.step.schema.model_fields[SECTION].annotation
    how = schema.how_keys() if isinstance(schema, type) and issubclass(schema, Section) else frozenset()
    keys = (key for key in checked.composed.origins if key.startswith(f"{SECTION}.") and key.split(".")[1] not in how)
    return sorted(key for key in keys if _is_by_hand(checked, key))


def _is_by_hand(checked: Preflight, key: str) -> bool:
    """Whether a setting is on the command line or in a file of the user's; not in one recorded by a run."""
    origin = checked.composed.origins.get(key, "")
    shipped = [folder.resolve() for folder in (checked.step.directory / "config", *shared_groups())]
    others = [file for file in checked.composed.files if not any(map(file.resolve().is_relative_to, shipped))]
    return origin == COMMAND_LINE or origin.rpartition(":")[0] in {one.name for one in others if not is_recorded(one)}


def _validate(checked: Preflight) -> None:
    """Fill in `values`, `config`, `sources` and `contents`, stopping at the first error."""
    step, config_alone = checked.step, checked.start.arguments.config_alone
    try:
        checked.values = resolve(checked.composed.tree, checked.read)
        answer_trust_keys(checked)
        if not config_alone and not find_tokenizers(checked):
            return
        config = validate(step.schema, checked.values, checked.composed.origins)
        if checked.machine.sees_files:
            checked.sources, checked.contents = step.sources(config), step.contents(config)
        checked.config = config
    except UserError as error:
        not_yet = [f" of {shown}>" for shown in checked.shown.values() if shown]
        # a value from data that would be prepared first is checked later, when it exists
        if not (checked.prepares and any(words in str(error) for words in not_yet)):
            checked.problems.append(error)


def _check(checked: Preflight) -> None:
    """What stage, engine and machine say to the config, and for a dry run to the beginnings of its sources."""
    step, config, machine, origins = checked.step, checked.config, checked.machine, checked.composed.origins
    if config is not None:
        recipes = recipes_of(checked.composed)
        recipe = recipes[0].family if recipes else None
        checked.problems += as_errors(lambda: step.check(config, checked.inputs, recipe), origins)
        checked.lacking += as_errors(lambda: store_problems(checked.store, machine), origins)
        if step.trains:
            _check_engine(checked, config)
        if checked.start.arguments.dry_run:
            if machine.sees_files:
                looked = step.look(config)
                checked.problems += looked.problems
                checked.notes += looked.notes
            try:
                checked.estimate = step.estimate(config, checked.inputs, machine, checked.needs)
            except UserError as why:
                checked.notes.append(f"{NOT_ESTIMATED}{why.message}")
    checked.problems = list({str(problem): problem for problem in checked.problems}.values())
    checked.notes = list(dict.fromkeys(checked.notes))


def _check_engine(checked: Preflight, config: StageConfig) -> None:
    """Whether the engine can do the work, and can do it on this machine."""
    machine, origins = checked.machine, checked.composed.origins
    checked.problems += as_errors(lambda: place_problems(config, checked.name, checked.store, machine), origins)
    unsound = problems_of(config, checked.inputs, machine, origins)
    checked.problems += unsound
    if unsound:
        return
    found, checked.needs = lacking(config, checked.inputs, machine, origins, _layout(checked))
    checked.lacking += found
    checked.notes += config.notes
    if machine.sees_files:
        said, unreadable = notes_of(config, checked.inputs, origins)
        checked.notes += said
        checked.problems += unreadable
    section = getattr(config, "logger", None)
    if isinstance(section, TrackerSection):
        checked.lacking += as_errors(lambda: tracker_problems(section, machine), origins)
        checked.notes += unseen_key(section, machine)
    unused = config.unused.items()
    checked.notes += [f"{key} has no effect {why}" for key, why in unused if _is_by_hand(checked, key)]
    engine = checked.composed.tree.engine
    known = (engine.get("experimental") or []) if engine.get("allow_experimental") else []
    checked.notes += [f"this recipe is experimental: {reason}" for reason in known]
    if checked.needs.process_bytes >= REPORTED_BYTES:
        checked.notes.append(f"a process keeps at least {size(checked.needs.process_bytes)}: {checked.needs.kept}")


def _layout(checked: Preflight) -> str | None:
    """The recipe's layout for a machine of this size."""
    arguments, machine = checked.start.arguments, checked.machine
    others = [text for text in arguments.overrides if override_key(text) != "engine"]
    gpus = max(machine.processes, machine.nodes * len(machine.gpus))
    config_dir = checked.step.directory / "config"
    return layout_for(checked.composed, gpus, lambda word: compose(config_dir, arguments.config, [word, *others]))
