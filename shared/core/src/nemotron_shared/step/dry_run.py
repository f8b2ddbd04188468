"""`--dry-run`: what a step would do, where each value comes from, and what prevents it from running.

Nothing is written. The exit code is 0 only if the step could start.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nemotron_shared.artifacts import Source
from nemotron_shared.config.shown import as_used, with_origins
from nemotron_shared.engine.engine import engine_of
from nemotron_shared.engine.needs import lines as estimate_lines
from nemotron_shared.step.start import Start
from nemotron_shared.system.console import tell, tell_json
from nemotron_shared.system.process import as_typed, launch_command
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
    pending: list[str] = field(default_factory=list)
    """What can be settled before a job is submitted. Of a step on this machine, these are among the problems."""
    sees_files: bool = True


def preview(start: Start[Any]) -> Preview:
    """Put a checked start down as a dry run shows it."""
    config, arguments, estimate = start.config, start.arguments, start.estimate
    command, rendered = launch_command(start.step.module, start.machine.processes), None
    if config is not None and start.step.trains:
        engine = engine_of(config)
        command = engine.command(start.step.module, start.machine.processes)
        if all(finding.pending for finding in start.problems):
            has_model = "model" in start.step.consumes and config.run.model is not None
            rendered = engine.render(config, str(start.read("model", "path")) if has_model else None)
    return Preview(
        command=shlex.join([*command, "-c", arguments.config, *arguments.overrides]),
        config=as_used(start.values, config),
        origins=start.composed.origins,
        inputs=start.shown,
        produces=start.name,
        sources=_summary(start.sources),
        rendered=rendered,
        disk_bytes=start.needs.disk_bytes,
        estimate=estimate.as_json() if estimate else None,
        estimated=[f"{name}: {said}" for name, said in estimate_lines(estimate)] if estimate else [],
        notes=start.notes,
        problems=[str(finding) for finding in start.refused],
        pending=[str(finding) for finding in start.refused if finding.pending],
        sees_files=start.machine.sees_files,
    )


def show(preview: Preview, *, as_json: bool) -> None:
    """Print the preview as text, or as JSON on stdout."""
    shown = Preview(**redact_values(vars(preview)))  # previews are often saved or shown to others
    if as_json:
        tell_json(vars(shown))
    else:
        tell(as_text(shown))


def _summary(sources: Sequence[Source]) -> dict[str, Any]:
    """Summary of sources outside the store, from what preflight found: nothing is read again."""
    size = sum(one.detail.get("bytes", 0) for one in sources)
    return {"count": len(sources), "bytes": size, "first": [one.uri for one in sources[:SHOWN]]}


def _read(found: dict[str, Any]) -> list[str]:
    if not found["count"]:
        return []
    more = f" and {found['count'] - SHOWN:,} more" if found["count"] > SHOWN else ""
    total = f"{found['count']:,} ({found['bytes']:,} bytes)" if found["bytes"] else f"{found['count']:,}"
    return [f"sources: {total}: {', '.join(found['first'])}{more}"]


def as_text(preview: Preview, job: Sequence[str] = ()) -> str:
    """The preview as text, with its problems at the end.

    Args:
        job: lines about the job that would be submitted.
    """
    lines = [
        "# resolved configuration, and where each value comes from",
        *with_origins(preview.config, preview.origins),
    ]
    lines += ["", "# inputs", *(f"{role}: {text or 'none'}" for role, text in preview.inputs.items())]
    lines += _read(preview.sources)
    lines += ["", "# makes", preview.produces, "", "# command", preview.command]
    lines += ["", "# input of the engine's own program", preview.rendered] if preview.rendered else []
    lines += ["", "# estimate, by arithmetic (docs/plan.md)", *preview.estimated] if preview.estimated else []
    lines += job
    lines += ["", "# notes", *map(as_typed, preview.notes)] if preview.notes else []
    before = preview.pending if job else []
    lines += ["", "# to do before it is submitted", *map(as_typed, before)] if before else []
    none = _none_of(preview, " after that" if before else "")
    lines += ["", "# problems", *map(as_typed, preview.problems or [none])]
    return "\n".join(lines)


def _none_of(preview: Preview, then: str) -> str:
    """What stands in the place of problems."""
    if preview.estimate is not None and preview.estimate["fits"] is False:
        return "none that is certain, but by the estimate its memory does not fit"
    return f"none: this could run{then}{'' if preview.sees_files else ', if its inputs are there'}"
