"""`--dry-run`: what a step would do, where each value comes from, and what prevents it from running.

Nothing is written. The exit code is 0 only if the step could start.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nemotron_shared.artifacts import Source
from nemotron_shared.config.shown import as_used, with_origins
from nemotron_shared.engine.engine import engine_of
from nemotron_shared.engine.needs import lines as estimate_lines
from nemotron_shared.engine.spec import Step
from nemotron_shared.step.attempts import began_otherwise, has_begun, require_resumable
from nemotron_shared.step.plan import identify, require_usable
from nemotron_shared.step.preflight import preflight
from nemotron_shared.step.rehearsal import is_rehearsed, rehearse_apart
from nemotron_shared.step.start import Preflight, Start
from nemotron_shared.system.console import say, tell, tell_json
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.process import launch_command
from nemotron_shared.system.redaction import redact_values

CANNOT_RUN = 1
SHOWN = 3


@dataclass
class Preview:
    """Everything shown by `--dry-run`."""

    command: str
    config: Mapping[str, Any]
    origins: dict[str, str]
    inputs: dict[str, str | None]
    produces: str
    sources: dict[str, Any]
    rendered: str | None = None
    disk_bytes: int = 0
    estimate: dict[str, Any] | None = None
    estimated: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def preview(step: Step, start: Start) -> Preview:
    """Resolve as much as possible, collecting problems instead of stopping at them."""
    checked = preflight(step, start)
    config, arguments = checked.config, start.arguments
    for note in checked.notes:
        say(note)
    problems = checked.problems + checked.lacking
    if not checked.problems and not checked.prepares and checked.is_decided and not arguments.config_alone:
        problems = _problems_of_result(checked)
    if not problems and checked.machine.sees_files and is_rehearsed(checked):
        problems = _problems_of_rehearsal(checked)
    command, rendered = launch_command(step.module, checked.machine.processes), None
    if config is not None and step.trains:
        engine = engine_of(config)
        command = engine.command(step.module, checked.machine.processes)
        if not checked.problems:
            has_model = "model" in step.consumes and config.run.model is not None
            rendered = engine.render(config, str(checked.read("model", "path")) if has_model else None)
    estimate = checked.estimate
    return Preview(
        command=shlex.join([*command, "-c", arguments.config, *arguments.overrides]),
        config=as_used(checked.values, config),
        origins=checked.composed.origins,
        inputs=checked.shown,
        produces=checked.name,
        sources=_summary(checked.sources),
        rendered=rendered,
        disk_bytes=checked.needs.disk_bytes,
        estimate=estimate.as_json() if estimate else None,
        estimated=[f"{name}: {said}" for name, said in estimate_lines(estimate)] if estimate else [],
        notes=checked.notes,
        problems=[str(problem) for problem in problems],
    )


def show(preview: Preview, *, as_json: bool) -> None:
    """Print the preview as text, or as JSON on stdout."""
    shown = Preview(**redact_values(vars(preview)))  # previews are often saved or shown to others
    if as_json:
        tell_json(vars(shown))
    else:
        tell(as_text(shown))


def _problems_of_result(checked: Preflight) -> list[UserError]:
    """What a start would refuse given its result: it may already exist, complete or damaged."""
    name, home = checked.name, checked.store.home
    known = checked.store.versions(name) or any((home / "runs").glob(f"{name}-*"))
    if not known or not checked.machine.sees_files:
        return checked.lacking
    try:
        plan = identify(checked)
        require_usable(plan, checked)
        if plan.finished is not None:
            return []  # the existing result would be reused, and nothing is lacking
        require_resumable(plan)
        checked.notes.extend(filter(None, [began_otherwise(plan)]))
    except UserError as error:
        return [error, *checked.lacking]
    return checked.lacking


def _problems_of_rehearsal(checked: Preflight) -> list[UserError]:
    """What one step of this training fails with; if it does not, a note. A run that has begun is not rehearsed."""
    try:
        if not checked.prepares and checked.is_decided and has_begun(identify(checked)):
            return []
        checked.notes.append(rehearse_apart(checked))
    except UserError as error:
        return [error]
    return []


def _summary(sources: list[Source]) -> dict[str, Any]:
    """Summary of sources outside the store, from what preflight found: nothing is read again."""
    size = sum(one.detail.get("bytes", 0) for one in sources)
    return {"count": len(sources), "bytes": size, "first": [one.uri for one in sources[:SHOWN]]}


def _read(found: dict[str, Any]) -> list[str]:
    if not found["count"]:
        return []
    more = f" and {found['count'] - SHOWN:,} more" if found["count"] > SHOWN else ""
    total = f"{found['count']:,} ({found['bytes']:,} bytes)" if found["bytes"] else f"{found['count']:,}"
    return [f"sources: {total}: {', '.join(found['first'])}{more}"]


def as_text(preview: Preview) -> str:
    """The preview as text."""
    lines = [
        "# resolved configuration, and where each value comes from",
        *with_origins(preview.config, preview.origins),
    ]
    lines += ["", "# inputs", *(f"{role}: {text or 'none'}" for role, text in preview.inputs.items())]
    lines += _read(preview.sources)
    lines += ["", "# makes", preview.produces, "", "# command", preview.command]
    lines += ["", "# input of the engine's own program", preview.rendered] if preview.rendered else []
    lines += ["", "# estimate, by arithmetic (docs/plan.md)", *preview.estimated] if preview.estimated else []
    lines += ["", "# notes", *preview.notes] if preview.notes else []
    short = preview.estimate is not None and preview.estimate["fits"] is False
    none = "none that is certain, but by the estimate its memory does not fit" if short else "none: this could run"
    lines += ["", "# problems", *(preview.problems or [none])]
    return "\n".join(lines)
