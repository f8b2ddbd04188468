"""`nemotron report`: a report of the results so far, of one evaluation, or of trainings compared.

nemotron report
nemotron report --family nano3 --out nano3.html --json
nemotron report super3-eval-results:v1
nemotron report --compare sft-model:v1 sft-model:v2
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nemotron_app import output, wording
from nemotron_app.completions import in_one_line, spread, without_shared
from nemotron_app.output import open_console, print_table, text_of
from nemotron_app.report import compare
from nemotron_app.report.collect import STEPS, Collected, collect, seconds_of
from nemotron_app.report.compare import Trained, training_named
from nemotron_app.report.findings import MODEL_OF_STAGE, overlap_in_short, score_of
from nemotron_app.report.page import by_step, rejected_rows, render
from nemotron_app.report.results import shown_task
from nemotron_app.report.training import facts, key_metric
from nemotron_app.store_options import Look, store_options
from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.names import is_path, parse_reference, prefix_of
from nemotron_shared.families import families
from nemotron_shared.stages import RESULTS
from nemotron_shared.system.atomic import output_file, write_text
from nemotron_shared.system.console import tell_json
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.process import as_typed

if TYPE_CHECKING:
    from rich.console import Console

PLAIN = str.maketrans("–−", "--")

COLUMNS = ("made", "time", "amount", "key metric")
"""Of the printed table, before the score. The README shows a sample."""
SPARE = ("amount",)
"""Left out of a narrow terminal."""


def print_report(collected: Collected, html_path: Path, console: "Console", *, whole: bool = False) -> None:
    """One line per artifact, then completions of RL and the path of the page; ASCII only outside a terminal."""
    results, task = collected.results, shown_task(collected.results)
    score = f"{task} {wording.metric_name(results['tasks'][task]['metric'])}" if task else "score"
    rows = [_row(collected, kind) for kind in collected.kinds]
    if not console.is_terminal:
        rows = [[cell.translate(PLAIN).encode("ascii", "replace").decode() for cell in row] for row in rows]
    title = " ".join(filter(None, (collected.family, collected.config)))
    console.print(output.text_of(console, title, "bold"))
    table = output.Table([*COLUMNS, score], rows)
    output.print_table(console, table, wrapped="key metric", spare=SPARE)
    if whole:
        print_completions(collected, console)
    for problem in collected.problems:
        console.print(output.text_of(console, f"warning: {problem}"), soft_wrap=True)
    if collected.newer:
        console.print(output.text_of(console, f"{wording.NEWER} {', '.join(collected.newer)}"), soft_wrap=True)
    for evaluation in (one for one in collected.newer if f"-{RESULTS}:" in one):
        own = f"the report of {evaluation}: nemotron report {evaluation}"
        console.print(output.text_of(console, own), soft_wrap=True)
    console.print(output.text_of(console, f"report: {html_path}"), soft_wrap=True)


PROMPT, EXPECTED = 24, 14
LEAST_WRITTEN, WANTED, MOST_WRITTEN = 16, 32, 60
"""Characters of the texts in the table of completions; columns that say less are left out for those wanted."""


def print_completions(collected: Collected, console: "Console") -> None:
    """What the first and the last step of RL wrote, with rewards, as wide as the console."""
    for kept in filter(None, collected.completions.values()):
        ones = [one for step in spread(list(kept.steps), 2) for one in kept.steps[step]]
        if not ones:
            continue
        prompts = [wording.plain_turns(one.prompt).rpartition("user: ")[2] for one in ones]
        columns = {
            "step": [str(one.step) for one in ones],
            "which": [one.which for one in ones],
            "reward": ["none" if one.reward is None else f"{one.reward:.3g}" for one in ones],
            "tokens": [str(one.tokens) for one in ones],
            "prompt": [in_one_line(prompt, PROMPT) for prompt in without_shared(prompts)],
            "written": [],
            "expected": [in_one_line(one.expected or "", EXPECTED) for one in ones],
        }
        wanted = max(len(in_one_line(one.completion, WANTED)) for one in ones)
        for spare in ("tokens", "which"):
            if _room_beside(columns, console) < wanted:
                del columns[spare]
        room = min(MOST_WRITTEN, max(LEAST_WRITTEN, _room_beside(columns, console)))
        columns["written"] = [in_one_line(one.completion, room) for one in ones]
        console.print()
        rows = [list(row) for row in zip(*columns.values(), strict=True)]
        output.print_table(console, output.Table(list(columns), rows), folded=LEAST_WRITTEN)
        more = as_typed(f"more of them: nemotron runs show {kept.folder.name}")
        console.print(output.text_of(console, more), soft_wrap=True)


def _room_beside(columns: Mapping[str, Sequence[str]], console: "Console") -> int:
    """Characters that filled columns leave to one without cells."""
    taken = sum(max(map(len, [name, *cells])) + wording.GAP for name, cells in columns.items() if cells)
    return console.width - taken


def _row(collected: Collected, kind: str) -> list[str]:
    """Artifact, time, amount, key metric and score."""
    artifact, results = collected.artifacts.get(kind), collected.results
    if artifact is None:
        return [f"no {kind}", "", "", "", ""]
    trained = facts(collected.metrics.get(kind.removesuffix("-model"), []))
    amount, score = "", ""
    if kind.endswith("-model"):
        value, name = key_metric(trained) or ("", "")
        amount = "" if trained.steps is None else wording.counted(trained.steps, "step")
        key = f"{name.replace('validation', 'valid')} {value}".strip()
        if entry := _score(collected, kind):
            number, low, high = (wording.value(entry["metric"], x) for x in (entry["value"], *entry["ci95"]))
            score = f"{number} [{low.rstrip('%')}, {high.rstrip('%')}] {wording.cut(entry.get('cut'))}".rstrip()
    elif kind == RESULTS:
        amount, key = wording.counted(len(results["tasks"]), "task"), overlap_in_short(results)
    else:
        metadata = artifact.manifest.metadata
        groups = [*metadata.get("splits", {}).values(), *metadata.get("tasks", {}).values()]
        for unit in ("rows", "tokens"):  # tokens, if counted
            if known := [group[unit] for group in groups if unit in group]:
                amount = f"{wording.short_count(sum(known))} {unit}"
        key = f"{sum(rejected_rows(metadata).values()):,} rejected"
    step = collected.pipeline_step(kind)
    seconds = seconds_of(artifact)
    took = "reused" if step.get("reused") else wording.duration(trained.seconds if seconds is None else seconds)
    return [artifact.reference.removeprefix(f"{collected.family}-"), took, amount, key, score]


def summary(collected: Collected) -> dict[str, Any]:
    """The table and all scores as plain JSON values."""
    steps = []
    for kind in collected.kinds:
        artifact = collected.artifacts.get(kind)
        step: dict[str, Any] = {
            "step": STEPS[kind],
            "artifact": artifact and artifact.reference,
            "absent": collected.absent.get(kind),
            "created_at": artifact and artifact.manifest.created_at,
            "seconds": artifact and seconds_of(artifact),
            "pipeline": collected.pipeline_step(kind) or None,
        }
        if kind.endswith("-model"):
            trained = facts(collected.metrics.get(kind.removesuffix("-model"), []))
            step |= {"training": dataclasses.asdict(trained), "score": _score(collected, kind)}
            if kept := collected.completions.get(kind.removesuffix("-model")):
                step["completions"] = [one.plain() for _, ones in by_step(kept) for one in ones]
        steps.append(step)
    found = {
        "family": collected.family,
        "config": collected.config,
        "newest": collected.when,
        "steps": steps,
        "problems": collected.problems,
        "newer": collected.newer,
        **{key: collected.results[key] for key in ("tasks", "scores", "comparisons", "overlap")},
    }
    # JSON has no NaN or infinity: they become null.
    return json.loads(json.dumps(found), parse_constant=lambda _: None)


def _score(collected: Collected, kind: str) -> Mapping[str, Any] | None:
    model = MODEL_OF_STAGE.get(kind.removesuffix("-model"))
    return score_of(collected.results, model, shown_task(collected.results)) if model else None


@dataclass(frozen=True)
class Report:
    """A written page and its data."""

    html_path: Path
    collected: Collected

    def summary(self) -> dict[str, Any]:
        """The data as plain JSON values."""
        return {"report": str(self.html_path), **summary(self.collected)}

    def print(self, console: "Console | None" = None, *, as_json: bool = False, whole: bool = False) -> None:
        """Print the table, or its JSON form, on stdout or a given console.

        Args:
            whole: print completions of RL, too.
        """
        if as_json:
            tell_json(self.summary())
            return
        console = console or output.open_console()
        print_report(self.collected, self.html_path, console, whole=whole)


def build_report(
    store: Store,
    family: str,
    out: Path | None = None,
    pipeline: dict[str, Any] | None = None,
    results: Artifact | None = None,
) -> Report:
    """Write the page. Equal artifacts give equal bytes.

    Args:
        out: output path; default `reports/<family>.html` in the store's home, and with `results`
            `reports/<name>-v<version>.html`.
        pipeline: facts from the command that ran the steps: {"steps": [{"name": "sft data prep", "seconds": 3.1,
            "reused": false}], "seconds": 180.2, "config": "tiny"}. All keys are optional. They do not affect the page,
            so that a later report is identical.
        results: the evaluation to report; default the newest.

    Raises:
        UserError: the store has nothing of this family, or a file in it is damaged.
    """
    collected = collect(store, family, pipeline or {}, results)
    page = family if results is None else f"{results.manifest.name}-v{results.manifest.version}"
    path = out or store.home / "reports" / f"{page}.html"
    write_text(path, render(collected))
    return Report(path, collected)


FOLDED = 16
"""Length of names and settings that stay on one line of a narrow terminal; figures are never longer."""


@click.command("report")
@click.argument("names", nargs=-1, metavar="[NAME|FOLDER]...")
@click.option("--compare", is_flag=True, help="compare two or more trainings, given as models or runs")
@click.option("--out", metavar="FILE", help="the page (default: reports/FAMILY.html in the store, or NAME-vN.html)")
@store_options
def command(look: Look, names: tuple[str, ...], compare: bool, out: str | None) -> int:
    """Write an HTML page about the results so far, one evaluation, or trainings compared."""
    path = None if out is None else output_file(out)
    if compare:
        return _compare(look, names, path or look.store.home / "reports" / "compared.html")
    evaluation = _evaluation(look, names) if names else None
    family = (prefix_of(evaluation.manifest.name) if evaluation else None) or look.family
    build_report(look.store, family, path, results=evaluation).print(as_json=look.json, whole=True)
    return 0


def _evaluation(look: Look, names: tuple[str, ...]) -> Artifact:
    """The evaluation that a single name refers to.

    Raises:
        UserError: unknown name, or the names refer to something else.
    """
    given = " ".join(names)
    try:
        named = parse_reference(names[0], look.family).name
    except UserError:
        named = ""
    if len(names) == 1 and named.endswith(f"-{RESULTS}"):
        return look.store.resolve(given, family=look.family)
    if names[0] in families():
        raise UserError(f"'{given}' is a model family", f"its report: nemotron report --family {names[0]}")
    beside = f"to compare them: nemotron report --compare {given}"
    if len(names) == 1:
        if not (is_path(given) or Path(given).is_dir() or (look.store.home / "runs" / given).is_dir()):
            look.store.resolve(given, family=look.family)  # an unknown name is another error
        beside = "to compare it with another training, name both after --compare"
    evaluation = f"{look.family}-{RESULTS}"
    made = look.store.versions(evaluation)
    about_one = f"\n  one evaluation: nemotron report {evaluation}:v{made[-1]}" if made else ""
    raise UserError(
        f"the report covers all stages together, but '{given}' names a part",
        f"{beside}\n  the whole: nemotron report{about_one}",
    )


def _compare(look: Look, names: tuple[str, ...], page: Path) -> int:
    if len(names) < 2:
        raise UserError("--compare needs two trainings or more", "see what there is: nemotron artifacts list")
    found: dict[str, Trained] = {}
    for name in names:
        one = training_named(look.store, name, look.family)
        if one.identity in found:
            raise UserError(f"'{name}' is the same training as {found[one.identity].name}", "name each one once")
        found[one.identity] = one
    trainings = list(found.values())
    title = " against ".join(one.name for one in trainings)
    write_text(page, compare.render(trainings, title))
    notes = compare.notes(trainings)
    if look.json:
        settings = compare.differing(trainings)
        look.tell({"page": str(page), "trainings": compare.plain(trainings), "settings": settings, "notes": notes})
        return 0
    console = open_console()
    print_table(console, compare.numbers(trainings), folded=FOLDED)
    if differing := compare.differing_settings(trainings):
        console.print()
        print_table(console, differing, folded=FOLDED)
    for note in notes:
        console.print(text_of(console, f"note: {note}"), soft_wrap=True)
    console.print(text_of(console, f"page: {page}"), soft_wrap=True)
    return 0
