"""Remove rows that overlap with evaluations from training data: `data_prep.decontaminate`, in every training stage.

    decontamination = Decontamination.of(config, task.store)     # reads what `against` names
    if decontamination.keeps(reader, row, texts):                # in a worker, for each row that may be trained on
        ...
    decontamination.say(prepared)                                # one line, of all workers

Each row is judged independently, so the result does not depend on the number of workers or the order of rows.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from nemotron_data.formats.eval_tasks import TASKS, read_tasks
from nemotron_data.formats.rl_rows import PARAMETERS, RLRow
from nemotron_data.held_out import Hit, Item, Search, episode_of, item_of, items_of, share_prompts
from nemotron_data.prep.pipeline import Prepared
from nemotron_data.prep.reader import ShardReader
from nemotron_data.sources.files import expand
from nemotron_data.sources.input_file import identity
from nemotron_data.sources.reading import BadRow, Row, read_files
from nemotron_shared.artifacts import Source, Store
from nemotron_shared.artifacts.names import is_path
from nemotron_shared.config.data import DecontaminateSection, TrainingDataSection
from nemotron_shared.config.schema import RunSection
from nemotron_shared.system.errors import NotFound, UserError

KEY = "data_prep.decontaminate.against"
REJECTED = "overlaps with evaluation rows"
COUNTED = "rows that overlap with evaluation rows"
NEEDED = "a row of an evaluation needs a 'question', a 'prompt' or a 'text', or NeMo-Gym's form"


class Config(Protocol):
    """The part of a stage's configuration that is used here."""

    @property
    def run(self) -> RunSection: ...
    @property
    def data_prep(self) -> TrainingDataSection: ...


def sources(config: Config) -> list[Source]:
    """Manifest entries for what `against` names.

    Raises:
        UserError: not found.
    """
    found = []
    for name in _named(config.data_prep.decontaminate):
        if _is_file(name):
            found += [Source(file.path, *identity(file)) for file in expand(_files_of(name))]
        else:
            artifact = _resolve(Store.open(config.run.home), name, config.run.name)
            found.append(Source(artifact.reference, artifact.manifest.digest))
    return found


@dataclass(frozen=True)
class Decontamination:
    """What to compare rows with, and what to do about overlaps; picklable."""

    settings: DecontaminateSection
    items: Sequence[Item]

    @classmethod
    def of(cls, config: Config, store: Store) -> "Decontamination":
        """Read everything that `against` names.

        Raises:
            UserError: not found, or a row that is not an evaluation row.
        """
        settings = config.data_prep.decontaminate
        items = [item for name in _named(settings) for item in _items(name, store, config.run.name)]
        return cls(settings, items)

    @cached_property
    def _search(self) -> Search:
        """Index of the items, built once per process."""
        return Search(self.items)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_search"}

    def keeps(self, reader: ShardReader, row: Row, texts: Iterable[str]) -> bool:
        """Whether a row may be trained on. Overlapping rows are counted, and left out or raised as configured.

        Raises:
            UserError: it overlaps, and `action` is `stop`.
        """
        hits = dict(self._hits(texts)) if self.items else {}
        if not hits:
            return True
        reader.counts[COUNTED] += 1
        for how in {hit.how for hit in hits.values()}:
            reader.counts[f"{COUNTED}: {how}"] += 1
        number = min(hits)
        item, hit = self.items[number], hits[number]
        detail = f"row {item.row} of '{item.task}' ({hit.how}): {hit.excerpt}"
        if self.settings.action == "stop":
            reader.stop_at(row, REJECTED, detail, "leave such rows out: data_prep.decontaminate.action=drop")
        if self.settings.action == "drop":
            reader.leave_out(row, REJECTED, detail, asked=True)
        return self.settings.action != "drop"

    def _hits(self, texts: Iterable[str]) -> Iterator[tuple[int, Hit]]:
        for text in texts:
            yield from ((n, hit) for n, hit in self._search.find(text).hits.items() if hit.how in self.settings.ways)

    def say(self, prepared: Prepared[Any]) -> None:
        """Print a one-line summary, if there was something to compare with."""
        if not self.items:
            return
        counts: Counter[str] = prepared.totals.counts
        ways = ", ".join(f"{counts[f'{COUNTED}: {how}']:,} {how}" for how in self.settings.ways)
        done = {"drop": ", which were left out", "report": ", which are still in it"}.get(self.settings.action, "")
        overlap = f"{counts[COUNTED]:,} rows overlap ({ways}){done if counts[COUNTED] else ''}"
        prepared.announce(f"compared with {len(self.items):,} evaluation rows: {overlap}")


def _named(settings: DecontaminateSection) -> list[str]:
    return [settings.against] if isinstance(settings.against, str) else settings.against or []


def _is_file(name: str) -> bool:
    """Whether the name is a file or folder rather than an artifact of the store."""
    return is_path(name) or "://" in name or Path(name).exists()


def _files_of(name: str) -> list[str]:
    """Data files at a path; for a prepared folder, those of its tasks."""
    if (Path(name).expanduser() / TASKS).is_file():
        return [str(task.file) for task in read_tasks(Path(name).expanduser()).values()]
    return [str(Path(name).expanduser()) if is_path(name) else name]


def _items(name: str, store: Store, family: str) -> list[Item]:
    folder = Path(name).expanduser() if _is_file(name) else _resolve(store, name, family).path
    if (folder / TASKS).is_file():
        return [item for task in read_tasks(folder).values() for item in items_of(task)]
    found = list(read_files(expand(_files_of(name))))
    rows = list(map(_evaluated, found))
    worlds = share_prompts(rows)
    return [_item(number, row, asked, worlds) for number, (row, asked) in enumerate(zip(found, rows, strict=True))]


def _evaluated(row: Row | BadRow) -> dict[str, Any]:
    """What a row of any other file than a prepared evaluation asks.

    Raises:
        UserError: not a JSON object, or a prompt without a question.
    """
    if isinstance(row, BadRow):
        raise _fault(row, row.why.reason)
    if PARAMETERS not in row.value:
        return row.value
    episode = RLRow.of(row.value)
    if not episode.question.strip():
        raise _fault(row, NEEDED)
    return episode_of(episode)


def _item(number: int, row: Row | BadRow, asked: dict[str, Any], worlds: bool) -> Item:
    """Item for what a row asks.

    Raises:
        UserError: nothing to search for.
    """
    try:
        return item_of(Path(row.file).name, number, asked, worlds=worlds)
    except (KeyError, IndexError, TypeError) as error:
        raise _fault(row, NEEDED) from error


def _fault(row: Row | BadRow, reason: str) -> UserError:
    return UserError(f"{KEY}: {row.file}:{row.line}: {reason}", "correct the row, or name other rows")


def _resolve(store: Store, name: str, family: str) -> Any:
    try:
        found = store.resolve(name, family=family)
    except NotFound as error:
        how = f"prepare it first, for example with: nemotron {family} data prep eval -c tiny"
        raise UserError(f"{KEY}: {error.message}", f"{how}; or give a file of rows, ./rows.jsonl") from error
    if not (found.path / TASKS).is_file():
        raise UserError(f"{KEY}: {found.reference} holds no evaluation tasks", f"name one of these: {family}-eval-data")
    return found
