"""Descriptions and values of settings, for `nemotron config explain`."""

import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from nemotron_app.recipes import composed, tree
from nemotron_shared.config.overrides import leaves, of_the_same_name
from nemotron_shared.config.shown import described
from nemotron_shared.errors import UserError, did_you_mean
from nemotron_shared.stages import STAGES

LINK = re.compile(r"\[([^]]+)\]\(([^)#]*)(#[\w-]+)?\)")
"""A Markdown link: descriptions are shared with the READMEs of the stages."""
SHOWN = ("default", "local", "tiny")
"""Configs whose values are shown."""


def explained(key: str, stages: Sequence[str]) -> list[dict[str, Any]]:
    """The setting `key`, or every setting of a section, with its description and its values by stage and config.

    Raises:
        UserError: unknown in every stage.
    """
    words = {stage: dict(_words(stage)) for stage in stages}
    known = list(dict.fromkeys(one for keys in words.values() for one in keys))
    wanted = [one for one in known if one == key or one.startswith(f"{key}.")]
    if not wanted:
        raise _unknown(key, stages, known)
    values = {stage: {name: _values(stage, name) for name in SHOWN} for stage in stages}
    return [_explain(one, words, values) for one in wanted]


def _unknown(key: str, stages: Sequence[str], known: Sequence[str]) -> UserError:
    of = "" if len(stages) == len(STAGES) else f" in {' and '.join(stages)}"
    others = [stage for stage in STAGES if stage not in stages]
    having = [stage for stage in others if any(f"{one}.".startswith(f"{key}.") for one, _ in _words(stage))]
    by_last = of_the_same_name(key, known)
    if having:
        remedy: str | None = f"it is one of {' and '.join(having)}: nemotron config explain {key} --stage {having[0]}"
    elif by_last:
        remedy = f"there is: {', '.join(by_last)}"
    else:
        remedy = did_you_mean(key, known, f"see: nemotron config show {stages[0]}/local")
    return UserError(f"no setting{of} is called '{key}'", remedy)


def meaning_of(key: str, stage: str) -> str:
    """The description of a setting of a stage."""
    return dict(_words(stage))[key]


def _explain(key: str, words: dict[str, dict[str, str]], values: dict[str, dict[str, Any]]) -> dict[str, Any]:
    meaning = next(keys[key] for keys in words.values() if key in keys)
    found = {
        stage: {name: held[key] for name, held in configs.items() if key in held} for stage, configs in values.items()
    }
    return {"key": key, "meaning": meaning, "values": {stage: held for stage, held in found.items() if held}}


def _words(stage: str) -> Iterator[tuple[str, str]]:
    """Key and description of all settings of a stage and its engines. A key may occur twice with different meanings."""
    step = import_module(f"stages.{stage}.train").STEP
    yield from ((key, _plain(meaning, stage)) for key, meaning in described(step.schema, None))
    engines: dict[str, dict[str, list[str]]] = {}
    for name in step.engines.own:
        for key, meaning in described(step.engines.load(name).settings, None, "engine."):
            engines.setdefault(key, {}).setdefault(_plain(meaning, stage), []).append(name)
    for key, meanings in engines.items():
        yield key, "\n  ".join(f"{', '.join(names)}: {meaning}" for meaning, names in meanings.items())


def _plain(meaning: str, stage: str) -> str:
    """Replace Markdown links by the name of the section or page they point to."""
    return LINK.sub(lambda link: f"{link[1]} in {link[2] or f'stages/{stage}/README.md'}", meaning)


def _values(stage: str, name: str) -> dict[str, Any]:
    return dict(leaves(tree(composed(stage, name, []))))
