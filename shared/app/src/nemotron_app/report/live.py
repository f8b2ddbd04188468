"""`nemotron report --live`: show running trainings in the terminal and on a page that refreshes itself.

It only reads files that the trainings write, so it can be started and stopped at any time without affecting them.
"""

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from nemotron_app.report.overlay import render
from nemotron_app.report.trained import Trained, training_in, trainings_running
from nemotron_app.report.training import facts, points
from nemotron_app.rich_table import open_console, text_of
from nemotron_shared.artifacts import Store
from nemotron_shared.atomic import write_text
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.console import bar, clock, tell

if TYPE_CHECKING:
    from rich.console import Console

RENEW_SECONDS = 5
PATIENCE_SECONDS = 20.0
"""Time to wait before ending when nothing runs, e.g. between two steps of a pipeline."""
SPARKS, SPARK_WIDTH = "▁▂▃▄▅▆▇█", 50
FOLLOWED = ("reward", "loss")


def watch(store: Store, page: Path, *, renew: int = RENEW_SECONDS, patience: float = PATIENCE_SECONDS) -> int:
    """Show running trainings until none has run for a while, or until Ctrl-C, which does not affect the trainings.

    Raises:
        UserError: nothing is running.
    """
    if not trainings_running(store):
        raise UserError(f"no training is running in {store.home / 'runs'}", "see what was stopped: nemotron runs")
    console = open_console()
    console.print(text_of(console, f"page: {page} (Ctrl-C leaves; the trainings go on)"), soft_wrap=True)
    seen = dict[str, Trained]()
    with suppress(KeyboardInterrupt), _shown_on(console) as show:
        for found in _looks(store, renew, patience):
            seen |= {one.name: one for one in found}
            write_text(page, render(found, "Trainings that run now", f"Renewed every {renew} s", renew=renew))
            show(found)
        show([training_in(store.home / "runs" / name) for name in seen])
    last = [training_in(store.home / "runs" / name) for name in seen]
    going_on = any(one.state == "running" for one in last)
    title = "Trainings that were watched" if going_on else "Trainings that have ended"
    write_text(page, render(last, title, "As they were when the view ended"))
    return 0


def _looks(store: Store, renew: int, patience: float) -> Iterator[list[Trained]]:
    """Yield the running trainings repeatedly, until none has run for a while."""
    last = time.monotonic()
    while time.monotonic() - last < patience:
        if found := trainings_running(store):
            last = time.monotonic()
            yield found
        time.sleep(renew if found else min(1.0, patience / 4))


@contextmanager
def _shown_on(console: "Console") -> Generator[Callable[[Sequence[Trained]], None]]:
    """A function that displays the trainings: updates in place on a terminal, otherwise prints new lines."""
    if not console.is_terminal:
        yield _print_news()
        return
    from rich.console import Group
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as view:
        yield lambda found: view.update(
            Group(*(text_of(console, line) for one in found for line in said(one))), refresh=True
        )


def _print_news() -> Callable[[Sequence[Trained]], None]:
    """Print a line for a training only if it has changed."""
    before: set[str] = set()

    def show(found: Sequence[Trained]) -> None:
        lines = ["".join(said(one, course=False)) for one in found]
        for line in lines:
            if line not in before:
                tell(line)
        before.clear()
        before.update(lines)

    return show


def said(one: Trained, *, course: bool = True) -> list[str]:
    """Three lines about one training: its name, its progress and speed, and a sparkline of its main metric."""
    known = facts(one.entries)
    name = next((name for name in FOLLOWED if points(one.entries, name)), FOLLOWED[-1])
    values = [value for _, value in points(one.entries, name)]
    words = [one.name, f"  {'  '.join(_progress(one))}"]
    words[1] += f"  {known.tokens_per_second:,.0f} tokens/s" if known.tokens_per_second else ""
    words[1] += f"  {known.memory:.2f} GB" if known.memory else ""
    drawn = f"  {sparkline(values)}" if course else ""
    return [*words, *([f"  {name} {values[-1]:.4g}{drawn}"] if values else [])]


def _progress(one: Trained) -> list[str]:
    """Progress. Before the first step, nothing on disk shows what it is doing."""
    steps = one.steps or one.step
    if not one.entries:
        begun = "no step yet: it is starting" if one.state == "running" else f"{one.state} before its first step"
        return [f"{begun}, {steps} to make" if one.state == "running" else begun]
    if one.state != "running":
        return [f"{one.state}: step {one.step}/{steps}"]
    share, seconds = one.step / max(1, steps), facts(one.entries).seconds
    left = [f"{clock(seconds * (1 / share - 1))} left"] if seconds and share else []
    return [f"step {one.step}/{steps}", bar(share), *left]


def sparkline(values: Sequence[float], width: int = SPARK_WIDTH) -> str:
    """Values as one line of block characters; each block is the mean of an equal share of them."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    count = min(width, len(finite))
    edges = [round(number * len(finite) / count) for number in range(count + 1)]
    means = [sum(finite[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    return "".join(SPARKS[round((mean - low) / ((high - low) or 1.0) * (len(SPARKS) - 1))] for mean in means)
