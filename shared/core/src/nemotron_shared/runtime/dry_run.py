"""`--dry-run`: what a step would do, where each value comes from, and what keeps it from running.

Nothing is written. The exit code is 0 only when the step could start.
"""

import json
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.verified import require_intact
from nemotron_shared.config.compose import Composed, compose
from nemotron_shared.config.references import resolve
from nemotron_shared.config.schema import RunSection
from nemotron_shared.config.validate import validate
from nemotron_shared.errors import NotFound, UserError
from nemotron_shared.runtime import distributed
from nemotron_shared.runtime.arguments import Arguments
from nemotron_shared.runtime.data_choice import data_by_settings, how_to_prepare
from nemotron_shared.runtime.engine import engine_of, problems_of
from nemotron_shared.runtime.launcher import launch_command
from nemotron_shared.runtime.plan import artifact_field, how_to_make, run_section

if TYPE_CHECKING:
    from nemotron_shared.runtime.step import Step

CANNOT_RUN = 1


@dataclass
class Preview:
    """Everything `--dry-run` shows."""

    command: str
    config: dict[str, Any]
    origins: dict[str, str]
    inputs: dict[str, str | None]
    produces: str
    rendered: str | None = None
    problems: list[str] = field(default_factory=list)


def dry_run(step: "Step", arguments: Arguments) -> int:
    """Print the preview for people, or as JSON on stdout."""
    preview = make_preview(step, arguments)
    print(json.dumps(vars(preview), indent=2) if arguments.json else _as_text(preview))
    return CANNOT_RUN if preview.problems else 0


def make_preview(step: "Step", arguments: Arguments) -> Preview:
    """Resolve as much as can be resolved; collect what is wrong instead of stopping at it."""
    composed = compose(step.directory / "config", arguments.config, arguments.overrides)
    run = run_section(step, composed)
    store = Store.open(run.home)
    problems: list[str] = []
    inputs, shown = _preview_inputs(step, run, store, arguments, composed, problems)
    read = _reader(inputs, shown)
    values = resolve(composed.tree, read)
    rendered = None
    command = launch_command(step.module, max(run.nproc_per_node, distributed.world_size()))
    try:
        config = validate(step.schema, values, composed.origins)
        step.sources(config)
        if step.engines is not None:
            engine = engine_of(config)
            found = [str(problem) for problem in problems_of(config, inputs, store.home, composed.origins)]
            problems += found
            if not found:
                has_model = "model" in step.consumes and run.model is not None
                rendered = engine.render(config, str(read("model", "path")) if has_model else None)
            command = engine.command(step.module, max(run.nproc_per_node, distributed.world_size()))
    except UserError as error:
        problems.append(str(error))
    return Preview(
        command=shlex.join([*command, "-c", arguments.config, *arguments.overrides]),
        config=values,
        origins=composed.origins,
        inputs=shown,
        produces=step.produces.format(family=run.family),
        rendered=rendered,
        problems=problems,
    )


def _preview_inputs(
    step: "Step", run: RunSection, store: Store, arguments: Arguments, composed: Composed, problems: list[str]
) -> tuple[dict[str, Artifact | None], dict[str, str | None]]:
    inputs: dict[str, Artifact | None] = {}
    shown: dict[str, str | None] = {}
    for role in (*step.consumes, *step.optional):
        reference = getattr(run, role)
        inputs[role] = None
        shown[role] = None
        if reference is None:
            continue
        try:
            choice = data_by_settings(step, run, store, arguments, composed) if role == "data" else None
            if choice and choice.artifact is None:
                shown[role] = f"(none with {', '.join(choice.given)} as given{_instead(step, role, run)})"
                if not _instead(step, role, run):
                    problems.append(f"run.data: no such data\n  {how_to_prepare(step, run, arguments)}")
                continue
            found = choice.artifact if choice else store.resolve(reference, family=run.family)
            assert found is not None
            inputs[role], shown[role] = found, found.reference
            require_intact(found, store.home, how_to_make(step, role, run, arguments, again=True))
        except NotFound as error:
            shown[role] = f"{reference} (missing{_instead(step, role, run)})"
            if not _instead(step, role, run):
                problems.append(f"run.{role}: {error.message}\n  {how_to_make(step, role, run, arguments)}")
        except UserError as error:
            shown[role] = f"{reference} (cannot be used)"
            problems.append(f"run.{role}: {error}")
    return inputs, shown


def _instead(step: "Step", role: str, run: RunSection) -> str:
    """What would happen without this input; empty where the run could not start."""
    if role in step.optional:
        return ": left out"
    if role == "data" and run.missing_data == "prepare" and step.prepare is not None:
        return ": would be prepared first"
    if role == "model" and run.missing_model == "random":
        return ": would start from random weights"
    return ""


def _reader(inputs: dict[str, Artifact | None], shown: dict[str, str | None]) -> Callable[[str, str], Any]:
    def read(role: str, name: str) -> Any:
        if inputs.get(role) is None and shown.get(role):
            return f"<{name} of {shown[role]}>"
        return artifact_field(inputs, role, name)

    return read


def _as_text(preview: Preview) -> str:
    lines = ["# resolved configuration, and where each value comes from", *_with_origins(preview)]
    lines += ["", "# inputs", *(f"{role}: {text or 'none'}" for role, text in preview.inputs.items())]
    lines += ["", "# makes", preview.produces, "", "# command", preview.command]
    lines += ["", "# what the engine's own program is told", preview.rendered] if preview.rendered else []
    lines += ["", "# problems", *(preview.problems or ["none: this could run"])]
    return "\n".join(lines)


def _with_origins(preview: Preview) -> Iterator[str]:
    """YAML lines, each leaf with its origin as a comment."""
    for key, depth, value in _walk(preview.config):
        name = key.rpartition(".")[2]
        indent = "  " * depth
        if value is None:
            yield f"{indent}{name}:"
        else:
            yield f"{f'{indent}{name}: {value}':<56}  # {_origin(key, preview.origins)}"


def _walk(node: dict[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, int, str | None]]:
    for name, child in node.items():
        if isinstance(child, dict) and child:
            yield f"{prefix}{name}", depth, None
            yield from _walk(child, f"{prefix}{name}.", depth + 1)
        else:
            text = yaml.safe_dump(child, default_flow_style=True, width=1000, allow_unicode=True)
            yield f"{prefix}{name}", depth, text.removesuffix("\n").removesuffix("\n...").strip()


def _origin(key: str, origins: dict[str, str]) -> str:
    while key and key not in origins:
        key = key.rpartition(".")[0]
    return origins.get(key, "default")
