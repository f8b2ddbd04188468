"""Decide which stages of a pipeline an override applies to.

sft.train.train_iters=100     only that stage
train.train_iters=100         every stage that trains: the evaluation has no such setting
policy.precision=float32      every stage whose engine's library has such a key
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from nemotron_app.launch import composed, config_of, stage_directory
from nemotron_app.request import Request
from nemotron_app.table import STAGES
from nemotron_shared.config.compose import find_config, shared_groups
from nemotron_shared.config.dialects import dialects, understanding
from nemotron_shared.config.keys import TRUST, is_at, leaf_keys
from nemotron_shared.config.overrides import COMMAND_LINE, is_group, override_key
from nemotron_shared.config.references import engine_of
from nemotron_shared.errors import UserError, did_you_mean
from nemotron_shared.families import families

CONSENT = "engine.allow_experimental=true"


@dataclass(frozen=True)
class _Settings:
    """Known settings of a stage's config, with the selected engine."""

    groups: Sequence[str]
    keys: Sequence[str]
    engine: str | None


def for_one_stage(override: str, stage: str) -> str | None:
    """An override without its stage prefix; None if it is meant for another stage."""
    sign = override[: len(override) - len(override.lstrip("+~"))]
    first, dot, rest = override[len(sign) :].partition(".")
    if not dot or first not in STAGES:
        return override
    return f"{sign}{rest}" if first == stage else None


def consenting(request: Request) -> Request:
    """The request with the settings that --allow-experimental implies for the engines."""
    if request.command[0] == "data":
        return request
    several = request.command == ("pipeline",)
    found = []
    for stage in families()[request.family].stages if several else request.command:
        said = [own for text in request.overrides if (own := for_one_stage(text, stage))]
        said = [text for text in said if not override_key(text).startswith("run.env.")]  # keys of env.toml
        engine = None
        with suppress(UserError):  # the command itself reports the error
            engine = composed(stage, replace(request, overrides=tuple(said))).tree.engine
        if "allow_experimental" in (engine or {}):
            found.append(f"{stage}.{CONSENT}" if several else CONSENT)
    return replace(request, overrides=(*found, *request.overrides))


def stages_with(override: str, request: Request) -> Sequence[str]:
    """The stages that an override without a stage prefix applies to.

    Raises:
        UserError: no stage has such a setting.
    """
    stages, key = families()[request.family].stages, override_key(override)
    if key == "run.family":  # `nemotron` itself sets the family, for all stages
        return stages
    found = {stage: _settings(stage, request) for stage in stages}
    if having := [stage for stage in stages if override in found[stage].groups or is_at(key, found[stage].keys)]:
        return having
    if having := [stage for stage in stages if understanding(key, found[stage].keys, found[stage].engine)]:
        return having
    # leave additions, and keys that a stage refuses with its own message, to each stage
    if override.startswith("+") or key.split(".")[-1] == TRUST or any(one.meaning(key) for one in dialects()):
        return stages
    known = list(dict.fromkeys(one for stage in stages for one in found[stage].keys))
    what = f"{COMMAND_LINE}: no stage has a setting '{key}'"
    raise UserError(what, did_you_mean(key, known, "see --dry-run for all keys"))


def _settings(stage: str, request: Request) -> _Settings:
    directory = stage_directory(stage) / "config"
    folders = [find_config(directory, config_of(request, stage)).parent, directory, *shared_groups()]
    said = [own for text in request.overrides if (own := for_one_stage(text, stage))]
    groups = [text for text in said if is_group(text, folders)]
    chosen = tuple(text for text in said if text in groups or override_key(text) == "run.family")
    tree = composed(stage, replace(request, overrides=chosen)).tree
    return _Settings(groups, list(leaf_keys(tree)), engine_of(tree))
