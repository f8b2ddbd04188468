"""`--dry-run`: what a step would do, where each value comes from, and what prevents it from running.

Nothing is written. The exit code is 0 only if the step could start.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nemotron_shared.artifacts import Source
from nemotron_shared.config.shown import as_used, with_origins
from nemotron_shared.errors import UserError
from nemotron_shared.redaction import redact_values
from nemotron_shared.runtime.arguments import Arguments
from nemotron_shared.runtime.attempts import require_resumable
from nemotron_shared.runtime.console import say, tell, tell_json
from nemotron_shared.runtime.engine import engine_of
from nemotron_shared.runtime.estimate import lines as estimate_lines
from nemotron_shared.runtime.launcher import launch_command
from nemotron_shared.runtime.plan import identify, require_usable
from nemotron_shared.runtime.preflight import Preflight, preflight

if TYPE_CHECKING:
    from nemotron_shared.runtime.step import Step

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


def dry_run(step: "Step", arguments: Arguments) -> int:
    """Print the preview as text, or as JSON on stdout."""
    preview = make_preview(step, arguments)
    preview = Preview(**redact_values(vars(preview)))  # previews are often saved or shown to others
    if arguments.json:
        tell_json(vars(preview))
    else:
        tell(as_text(preview))
    return CANNOT_RUN if preview.problems else 0


def make_preview(step: "Step", arguments: Arguments) -> Preview:
    """Resolve as much as possible, collecting problems instead of stopping at them."""
    checked = preflight(step, arguments)
    config = checked.config
    for note in checked.notes:
        say(note)
    problems = checked.problems + checked.lacking
    if not checked.problems and not checked.prepares and checked.is_decided and not arguments.config_alone:
        problems = _problems_of_result(step, checked, arguments)
    command, rendered = launch_command(step.module, checked.machine.processes), None
    if config is not None and step.engines is not None:
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
        produces=step.produces.format(family=checked.run.family),
        sources=_summary(checked.sources),
        rendered=rendered,
        disk_bytes=checked.needs.disk_bytes,
        estimate=estimate.as_json() if estimate else None,
        estimated=[f"{name}: {said}" for name, said in estimate_lines(estimate)] if estimate else [],
        notes=checked.notes,
        problems=[str(problem) for problem in problems],
    )


def _problems_of_result(step: "Step", checked: Preflight, arguments: Arguments) -> list[UserError]:
    """What a start would refuse given its result: it may already exist, complete or damaged."""
    name, home = step.produces.format(family=checked.run.family), checked.store.home
    known = checked.store.versions(name) or any((home / "runs").glob(f"{name}-*"))
    if not known or not checked.machine.sees_files:
        return checked.lacking
    try:
        plan = identify(step, checked)
        require_usable(plan, step, arguments)
        if plan.finished is not None:
            return []  # the existing result would be reused, and nothing is lacking
        require_resumable(plan)
    except UserError as error:
        return [error, *checked.lacking]
    return checked.lacking


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
    lines += ["", "# what the engine's own program is told", preview.rendered] if preview.rendered else []
    lines += ["", "# estimate, by arithmetic (docs/plan.md)", *preview.estimated] if preview.estimated else []
    lines += ["", "# notes", *preview.notes] if preview.notes else []
    short = preview.estimate is not None and preview.estimate["fits"] is False
    none = "none that is certain, but by the estimate its memory does not fit" if short else "none: this could run"
    lines += ["", "# problems", *(preview.problems or [none])]
    return "\n".join(lines)
