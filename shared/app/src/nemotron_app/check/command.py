"""`nemotron check`: compare a run with what a healthy one shows, while it runs or afterwards.

nemotron check sft                                      the newest super3-sft-model, or the run that is making it
nemotron check super3-rl-model-891fc106f3a7 --watch     check again every half minute until it ends
nemotron check 9453356-logs logs/exp_001 --expect rl/nano3     logs of a job that was started in another way
nemotron check /models/super49b                         facts about a model folder: type, class, block_configs
"""

import json
import math
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import click

from nemotron_app.check.expectations import Expected, choose
from nemotron_app.check.judge import Judged, Situation, judge, overall
from nemotron_app.check.model import probe
from nemotron_app.check.readings import Readings, gpus_now, read
from nemotron_app.check.target import Target, find, merged
from nemotron_app.plain import table_lines
from nemotron_app.store_options import Look, store_options
from nemotron_shared.errors import printable
from nemotron_shared.runtime.console import renew, tell

EVERY = 30.0
SHARE_OF_READING = 0.2
"""With `--watch`, spend at most this share of the time on reading, however large the logs are."""


@click.command("check", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
@click.argument("wanted", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--expect", metavar="STAGE/NAME|FILE", help="the expectations to judge by; without it the run's config tells"
)
@click.option("--watch", is_flag=True, help="look again as long as the run goes on")
@click.option("--every", type=click.FloatRange(min=0.1), default=EVERY, show_default=True, metavar="S")
@store_options
def command(look: Look, wanted: tuple[str, ...], expect: str | None, watch: bool, every: float) -> int:
    """See the module docstring."""
    shown: tuple[Any, ...] = ()
    while True:
        began = time.monotonic()
        target = merged([find(one, look) for one in wanted])
        if target.model is not None and expect is None:
            facts, lines = probe(target.model)
            look.tell({"model": str(target.model), **facts}, f"{target.title}: {target.kind}", *lines)
            return 0 if facts["ok"] else 1
        expected = choose(expect, target.stage, target.config)
        readings = read(target.files, [one.line for one in expected.content.expectations if one.line])
        asked_for = {one.metric for one in expected.content.expectations} - readings.moments.keys()
        readings.notes += target.notes
        if "gpu_utilization" in asked_for and target.state == "running" and target.is_here:
            readings.moments["gpu_utilization"] = gpus_now()
        situation = Situation.of(target, readings)
        judged = [judge(one, situation) for one in expected.content.expectations]
        now = tuple((one.expectation.id, one.verdict) for one in judged)
        if look.json:
            document = _document(situation, expected, judged)
            # one line per check, so that a program can read a stream of them
            finite = json.loads(json.dumps(document), parse_constant=lambda _: None)  # JSON has no NaN
            tell(json.dumps(finite, ensure_ascii=True, indent=None if watch else 2))
        elif now != shown:
            tell("\n".join(_lines(situation, expected, judged)))
        if not watch or situation.over or situation.silent:
            return 0 if overall(judged) in {"pass", "watch"} else 1
        shown = now
        if not look.json:
            renew(f"{datetime.now():%H:%M:%S}  step {_progress(readings, target)}  {overall(judged)}")
        time.sleep(max(every, (time.monotonic() - began) / SHARE_OF_READING))


def _progress(readings: Readings, target: Target) -> str:
    train = (target.config or {}).get("train")
    steps = readings.steps or (train.get("train_iters") if isinstance(train, Mapping) else None)
    return f"{readings.step} of {steps}" if steps else str(readings.step)


def _lines(situation: Situation, expected: Expected, judged: list[Judged]) -> list[str]:
    """Text output: the run, one line per expectation, and the remedies of those that failed."""
    target, readings = situation.target, situation.readings
    state = target.state or ("over" if situation.over else "silent for half an hour" if situation.silent else "")
    step = f"; step {_progress(readings, target)}" if target.files else ""
    lines = [f"{target.title}: {', '.join(filter(None, (target.kind, state)))}{step}"]
    read_from = [*readings.libraries, *(["the artifact's scores"] if target.scores else [])]
    in_files = f", in {len(target.files)} file{'s' if len(target.files) > 1 else ''}" if target.files else ""
    lines += [f"read: {', '.join(read_from) or 'nothing that is known'}{in_files}"]
    lines += [f"expected: {expected.content.title} ({expected.path})", ""]
    rows = []
    for one in judged:
        rows.append(
            [one.verdict, one.expectation.id, _found(one, readings), str(one.expectation.within), one.expectation.what]
        )
    lines += table_lines(("verdict", "expectation", "found", "expected", "what"), rows, right=("found",))
    for one in judged:
        if one.verdict == "not judged":
            lines += ["", f"not judged: {one.expectation.id}", f"  {one.why}"]
        elif one.verdict != "pass":
            lines += ["", f"{one.verdict}: {one.expectation.id}", *([f"  found: {one.why}"] if one.why else [])]
            lines += [f"  {one.remedy}"]
    lines += ["", *(f"note: {note}" for note in readings.notes), f"verdict: {_summary(judged)}"]
    return [printable(line, keep="\n") for line in lines]


def _found(one: Judged, readings: Readings) -> str:
    """The value. For counts with a known total, such as rollouts, also the progress: `540 of 2,048 (26 %)`."""
    metric = one.expectation.metric
    have, wanted = (readings.moments.get(name) for name in (str(metric), f"{metric}_wanted"))
    if one.value is not None and have and wanted and wanted[-1]:
        return f"{have[-1]:,.0f} of {wanted[-1]:,.0f} ({100 * have[-1] / wanted[-1]:.0f} %)"
    return "" if one.value is None else f"{one.value:.4g}"


def _summary(judged: list[Judged]) -> str:
    verdicts = [one.verdict for one in judged]
    counts = [f"{verdicts.count(kind)} {kind}" for kind in ("pass", "watch", "fail", "not judged") if kind in verdicts]
    return f"{overall(judged)} ({', '.join(counts)})"


def _document(situation: Situation, expected: Expected, judged: list[Judged]) -> dict[str, Any]:
    """JSON output. Non-finite numbers become null, because JSON cannot represent them."""
    return {
        "run": situation.target.title,
        "kind": situation.target.kind,
        "state": situation.target.state,
        "over": situation.over,
        "step": situation.readings.step,
        "steps": situation.readings.steps,
        "read": situation.readings.libraries,
        "files": [str(file) for file in situation.target.files],
        "expectations": str(expected.path),
        "verdict": overall(judged),
        "judged": [
            {
                "id": one.expectation.id,
                "what": one.expectation.what,
                "verdict": one.verdict,
                "value": one.value if one.value is not None and math.isfinite(one.value) else None,
                "expected": str(one.expectation.within),
                "why": one.why,
                "remedy": one.remedy if one.verdict in {"watch", "fail"} else None,
            }
            for one in judged
        ],
        "notes": situation.readings.notes,
    }
