"""Checks made before a step starts, for `--dry-run` and for every real start.

    start = preflight(load(STEP, arguments))
    start.problems     with config, inputs and sources, on any machine
    start.lacking      missing on this machine: packages, processes, GPUs, memory, disk

A start raises all of them at once, `--dry-run` lists them. Which data a training uses is decided first: where the user
gives settings of data, that is the data prepared with them.

    nemotron super3 sft -c tiny data_prep.source=mine.jsonl

Without such an artifact, the data is prepared first, or the error names the command that prepares it; the newest
artifact of other data is never used instead. Data and models that a start would make first may be missing; once they
are there, `complete` makes the checks that need them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from nemotron_shared.artifacts import Artifact
from nemotron_shared.config.compose import compose, layout_for
from nemotron_shared.config.overrides import override_key
from nemotron_shared.config.references import resolve
from nemotron_shared.config.training import TrackerSection
from nemotron_shared.config.validate import validate
from nemotron_shared.engine.engine import engine_of, findings_of, problems_of
from nemotron_shared.engine.needs import NOT_ESTIMATED, Needs, missing
from nemotron_shared.engine.spec import Step
from nemotron_shared.models.folder import OPTION
from nemotron_shared.step.arguments import Arguments
from nemotron_shared.step.inputs import (
    DataChoice,
    find_inputs,
    find_tokenizers,
    is_looked_for,
    of_another_family,
    recipes_of,
    record_of,
    trust_keys,
    with_doubts,
)
from nemotron_shared.step.own_code import digests_in, own_code_problems
from nemotron_shared.step.places import place_problems, store_problems
from nemotron_shared.step.plan import identify
from nemotron_shared.step.records import differences, listed
from nemotron_shared.step.start import Input, Start, load, of_step
from nemotron_shared.system.disk import size
from nemotron_shared.system.errors import Finding, UserError, note
from nemotron_shared.system.redaction import redact_values
from nemotron_shared.tracking.trackers import tracker_problems, unseen_key

REPORTED_BYTES = 1_000_000_000
"""Report memory per process above this size."""


def preflight(start: Start[Any]) -> Start[Any]:
    """Find the inputs, validate and check; done once for each step of a start."""
    module = start.step.module
    if module not in start.checked:
        start.checked[module] = _preflight(replace(start, findings=start.reported))
    return start.checked[module]


def to_rehearse(step: Step, arguments: Arguments) -> Start[Any]:
    """The start that a training with `--rehearse` has: checked like that of a dry run."""
    return preflight(load(step, replace(arguments, dry_run=True)))


def _preflight(start: Start[Any]) -> Start[Any]:
    start = after(start, of_another_family)
    if start.problems:
        return start  # further checks would be about the wrong family's inputs
    start = replace(start, found=find_inputs(start, _described_data(start)))
    start = _with_settings(_and(start, *_of_inputs(start), *_of_preparation(start)))
    if start.machine.sees_files and not start.arguments.in_pipeline:
        start = replace(start, found=with_doubts(start))
        start = _and(start, *_of_inputs(start))
    return _with_checks(after(start, of_raw_data) if start.arguments.dry_run else start)


def complete(start: Start[Any], data: Artifact | None = None) -> Start[Any]:
    """The same start once missing data was prepared, or models were imported: with the checks that need them.

    Args:
        data: what was prepared.
    """
    known = {**start.found, "data": Input(data, data.reference)} if data is not None else start.found
    start = replace(start, found=known, findings=tuple(map(note, start.notes)))
    if start.imports:
        there = start.inputs.get("data")
        choice = DataChoice(artifact=there) if there is not None else None
        start = replace(start, found=find_inputs(start, choice), config=None)
        start = _and(start, *(finding for finding in _of_inputs(start) if finding.level != "note"))  # given before
    if start.config is None or start.reads_inputs:
        start = _with_settings(replace(start, config=None))
    return _with_checks(start)


# Every check, in order


def _with_checks(start: Start[Any]) -> Start[Any]:
    """The start with the findings about a valid config; the later ones need an engine that finds no problem with it."""
    config = start.config
    if config is not None:
        start = after(start, of_stage, of_own_code, of_store)
        if start.step.trains:
            start = after(start, of_places)
            unsound = problems_of(config, start.inputs, start.machine, start.composed.origins)
            start = _and(start, *unsound)
            if all(finding.pending for finding in unsound):
                start = after(_with_needs(start), *OF_A_SOUND_CONFIG)
        if start.arguments.dry_run:
            start = _with_estimate(after(start, of_beginnings))
    return replace(start, findings=tuple({(one.level, str(one)): one for one in start.findings}.values()))


Check = Callable[[Start[Any]], Iterable[Finding]]


def after(start: Start[Any], *checks: Check) -> Start[Any]:
    """The start with the findings of some checks."""
    found = [finding for check in checks for finding in findings_of(partial(check, start), start.composed.origins)]
    return _and(start, *found)


def of_stage(start: Start[Any]) -> Iterable[Finding]:
    """What the stage says to config and inputs."""
    recipes = recipes_of(start.composed)
    return start.step.check(start.config, start.inputs, recipes[0].family if recipes else None)


def of_own_code(start: Start[Any]) -> Iterator[Finding]:
    """Functions in the user's own files, which a job brings along: whether they can be called, and may be."""
    if not start.arguments.config_alone:
        lacks = None if start.arguments.trust_code else OPTION
        yield from own_code_problems(start.values, start.step.sections, lacks)


def of_store(start: Start[Any]) -> Iterator[Finding]:
    """Whether the store takes files."""
    return store_problems(start.store, start.machine)


def of_places(start: Start[Any]) -> Iterator[Finding]:
    """Paths where results are shown."""
    assert start.config is not None
    return place_problems(start.config, start.name, start.store, start.machine)


def of_machine(start: Start[Any]) -> Iterator[Finding]:
    """What the machine lacks for the engine."""
    assert start.config is not None
    return missing(start.config.engine.name, start.needs, start.machine, _layout(start))


def of_settings(start: Start[Any]) -> Iterator[Finding]:
    """Notes on settings that are fitted to others."""
    assert start.config is not None
    yield from map(note, start.config.notes)


def of_files(start: Start[Any]) -> Iterable[Finding]:
    """What the engine says about files of its inputs."""
    assert start.config is not None
    return engine_of(start.config).notes(start.config, start.inputs) if start.machine.sees_files else ()


def of_trackers(start: Start[Any]) -> Iterator[Finding]:
    """What the machine lacks for the experiment trackers."""
    section = getattr(start.config, "logger", None)
    if isinstance(section, TrackerSection):
        yield from tracker_problems(section, start.machine)
        yield from unseen_key(section, start.machine)


def of_unused(start: Start[Any]) -> Iterator[Finding]:
    """Settings of the user's that have no effect."""
    assert start.config is not None
    for key, why in start.config.unused.items():
        if start.is_by_hand(key):
            yield note(f"{key} has no effect {why}")


def of_experiments(start: Start[Any]) -> Iterator[Finding]:
    """Reasons why the recipe is experimental."""
    engine = start.composed.tree.engine
    for reason in (engine.get("experimental") or []) if engine.get("allow_experimental") else []:
        yield note(f"this recipe is experimental: {reason}")


def of_memory(start: Start[Any]) -> Iterator[Finding]:
    """Memory that a process keeps, where it is much."""
    if start.needs.process_bytes >= REPORTED_BYTES:
        yield note(f"a process keeps at least {size(start.needs.process_bytes)}: {start.needs.kept}")


def of_raw_data(start: Start[Any]) -> Iterable[Finding]:
    """What to know of the data to prepare; of a training, where it is not prepared yet."""
    step, values = start.step, start.values
    if step.prepare is None:
        return step.remarks(values)
    run = values.get("run")
    wanted = isinstance(run, Mapping) and run.get("data") is not None and start.inputs.get("data") is None
    return step.prepare.remarks(values) if wanted else ()


def of_beginnings(start: Start[Any]) -> Iterable[Finding]:
    """The beginnings of the raw inputs."""
    return start.step.look(start.config) if start.machine.sees_files else ()


OF_A_SOUND_CONFIG = (of_machine, of_settings, of_files, of_trackers, of_unused, of_experiments, of_memory)
"""Checks of a config in which the engine found no problem."""


# What the checks are about


def _and(start: Start[Any], *findings: Finding) -> Start[Any]:
    return replace(start, findings=(*start.findings, *findings))


def _of_inputs(start: Start[Any]) -> Iterator[Finding]:
    """Artifacts and models: which were taken, and which are missing or damaged."""
    for found in start.found.values():
        yield from found.findings


def _of_preparation(start: Start[Any]) -> Iterable[Finding]:
    """Problems of data preparation, where it would be done first."""
    prepare = start.step.prepare
    return preflight(of_step(start, prepare)).problems if start.prepares and prepare is not None else ()


def _with_settings(start: Start[Any]) -> Start[Any]:
    """The start with `values`, `config`, `sources` and `contents`, or with the first error that prevents them."""
    step, read = start.step, set[str]()

    def value_of(role: str, name: str) -> Any:
        read.add(role)
        return start.read(role, name)

    try:
        values = resolve(start.composed.tree, value_of)
        start = after(replace(start, values=values, reads_inputs=bool(read)), trust_keys)
        if not start.arguments.config_alone:
            for key, tokenizer in find_tokenizers(start, values):
                start = replace(start, found={**start.found, "tokenizer": tokenizer})
                start = _and(start, *tokenizer.findings)
                if tokenizer.artifact is None:
                    return start  # its folder is known only after the import
                _put(values, key, str(tokenizer.artifact.path))
        config = validate(step.schema, values, start.composed.origins)
        if start.machine.sees_files:
            # prepared data is looked up by its settings and contents alone; code of a training counts as its modules
            own = {} if step.trains else digests_in(values, step.sections)
            start = replace(start, sources=step.sources(config), contents={**step.contents(config), **own})
        return replace(start, config=config)
    except UserError as error:
        not_yet = [f" of {shown}>" for shown in start.shown.values() if shown]
        # a value from data that would be prepared first is checked later, when it exists
        if start.prepares and any(words in str(error) for words in not_yet):
            return start
        return _and(start, error.finding)


def _put(values: dict[str, Any], key: str, value: str) -> None:
    """Set a dotted key in nested values."""
    *sections, name = key.split(".")
    for section in sections:
        values = values[section]
    values[name] = value


def _with_needs(start: Start[Any]) -> Start[Any]:
    """The start with the engine's needs; if these cannot be told, with the reason."""
    assert start.config is not None
    try:
        needs: Needs = engine_of(start.config).needs(start.config, start.inputs, start.machine)
    except UserError as error:
        return _and(start, replace(error.finding, level="lacking"))
    return replace(start, needs=needs)


def _with_estimate(start: Start[Any]) -> Start[Any]:
    try:
        estimate = start.step.estimate(start.config, start.inputs, start.machine, start.needs)
    except UserError as why:
        return _and(start, note(f"{NOT_ESTIMATED}{why.message}"))
    return replace(start, estimate=estimate)


def _described_data(start: Start[Any]) -> DataChoice | None:
    """The data that the user's settings describe; None without such settings, when `run.data` alone decides."""
    prepare, run = start.step.prepare, start.run
    if prepare is None or "data" not in start.step.consumes or run.data is None:
        return None
    given = tuple(start.data_settings)
    if not given or not is_looked_for(start, "data"):
        return None
    try:
        preparation = preflight(of_step(start, prepare))
        if preparation.refused:
            return DataChoice(given, problems=tuple(preparation.refused))
        if not preparation.is_decided:  # its tokenizer is not imported yet, so nothing was prepared with it
            return DataChoice(given)
        task, store = identify(preparation), start.store
        made = (store.load(task.name, version) for version in reversed(store.versions(task.name)))
        found = next((one for one in made if one.manifest.producer.config_digest == task.result), None)
        if start.is_by_hand("run.data"):
            named = store.resolve(str(run.data), family=run.name, expect=prepare.makes.type)
            if found is None or named.manifest.producer.config_digest != task.result:
                before = record_of(store, named)
                unlike = listed(differences(before, redact_values(dict(task.what)))) if before else ""
                raise UserError(
                    f"run.data: {named.reference} is not the data that this config describes with {', '.join(given)}"
                    + (f": {unlike}" if unlike else ""),
                    "leave run.data out to use the data of these settings, or leave these settings out to use run.data",
                )
            found = named
        return DataChoice(given, found)
    except UserError as error:
        return DataChoice(given, error=error)


def _layout(start: Start[Any]) -> str | None:
    """The recipe's layout for a machine of this size."""
    arguments, machine = start.arguments, start.machine
    others = [text for text in arguments.overrides if override_key(text) != "engine"]
    gpus = max(machine.processes, machine.nodes * len(machine.gpus))
    config_dir = start.step.directory / "config"
    return layout_for(start.composed, gpus, lambda word: compose(config_dir, arguments.config, [word, *others]))
