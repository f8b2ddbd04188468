"""Artifacts of the store as objects, for a notebook.

tuned = artifact("sft")             # Artifact('super3-sft-model:v2')
tuned.summary["valid_loss"]         # 0.0887
tuned.metrics["loss"]               # a column of a pyarrow table with a row for each step
tuned.parents["model"]              # Artifact('super3-pretrain-model:v1')

They are read when they are requested; nothing here changes the store. The tables are pyarrow's, which has `to_pandas()`
where pandas is installed, and `to_pylist()` where it is not.
"""

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from nemotron_app.completions import kept_in
from nemotron_app.training_log import folder_still_of, log_of
from nemotron_shared import artifacts as stored
from nemotron_shared.artifacts.lineage import inputs, tree_text
from nemotron_shared.stages import DEFAULT_FAMILY
from nemotron_shared.system.atomic import read_json, read_regular
from nemotron_shared.system.errors import UserError, printable
from nemotron_shared.tracking.metrics import FILE as METRICS
from nemotron_shared.tracking.metrics import read_metrics

if TYPE_CHECKING:
    import pyarrow

RESULTS = "results.json"
Home = str | Path | None


class Artifact:
    """A version in the store. As text, and in an override, it is its reference: `super3-sft-model:v2`.

    Attributes:
        path: its folder.
    """

    def __init__(self, found: stored.Artifact, store: stored.Store) -> None:
        """Args: found: what `store` has."""
        self._found, self._store = found, store
        self.path = found.path.absolute()

    def __repr__(self) -> str:
        return f"Artifact({self.reference!r})"

    def __str__(self) -> str:
        return self.reference

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Artifact) and (self.path, self.digest) == (other.path, other.digest)

    def __hash__(self) -> int:
        return hash((self.path, self.digest))

    @property
    def reference(self) -> str:
        """Name and version."""
        return self._found.reference

    @property
    def name(self) -> str:
        """Name without the version."""
        return self._found.manifest.name

    @property
    def version(self) -> int:
        """Number of the version."""
        return self._found.manifest.version

    @property
    def type(self) -> str:
        """`ModelArtifact`, `SFTDataArtifact` and so on."""
        return self._found.manifest.type

    @property
    def created_at(self) -> str:
        """ISO 8601, in UTC."""
        return self._found.manifest.created_at

    @property
    def digest(self) -> str:
        """SHA-256 over its files: equal digests are equal bytes."""
        return self._found.manifest.digest

    @property
    def command(self) -> str:
        """The command that made it."""
        return self._found.manifest.producer.command

    @property
    def home(self) -> Path:
        """The store that it is in."""
        return self.path.parents[2]

    @property
    def summary(self) -> dict[str, Any]:
        """Its result in a few numbers, such as `valid_loss`; and `step`, `parameters`, `splits` and the like."""
        return {**self._found.manifest.metadata, **self._found.manifest.metrics}

    @property
    def metrics(self) -> "pyarrow.Table":
        """Of a training, a row for each step, with the columns that docs/report.md explains; of an evaluation, a row
        for each model and task; of data, no rows.

        Raises:
            UserError: the file is damaged.
        """
        if (self.path / RESULTS).is_file():
            return table_of(scores_in(read_json(self.path / RESULTS)))
        if problem := log_of(self._found, self._store).problem:
            raise UserError(problem)
        rows: dict[int, dict[str, Any]] = {}
        for entry in read_metrics(self.path / METRICS):
            row = rows.setdefault(entry["step"], {})
            for name, value in entry.items():  # a validation is a second line of its step, with its own time
                row.setdefault(name, value)
        return table_of(rows.values())

    @property
    def config(self) -> dict[str, Any]:
        """Every setting of the run that made it.

        Raises:
            UserError: the run's folder was removed, or used again.
        """
        file = folder_still_of(self._found, self._store) / "config.yaml"
        if not file.is_file():
            raise UserError(f"{self.reference}: {file} is gone", f"it was made by: {self.command}")
        return yaml.safe_load(read_regular(file))

    @property
    def parents(self) -> dict[str, "Artifact"]:
        """The artifacts that it was made from, by role, such as `data` and `model`.

        Raises:
            UserError: one is missing, or has changed since.
        """
        found = {}
        for one in inputs(self._store, self._found):
            if one.problem:
                what = f"{self.reference}: its {one.role} {one.label}: {one.problem}"
                raise UserError(what, "`lineage` shows all of its history")
            if one.artifact is not None:
                found[one.role] = Artifact(one.artifact, self._store)
        return found

    @property
    def lineage(self) -> str:
        """Its history as an indented tree, up to the raw sources."""
        return tree_text(self._store, self._found)

    @property
    def completions(self) -> list[dict[str, Any]]:
        """What was kept of the completions of reinforcement learning, by step; see docs/rewards.md.

        Raises:
            UserError: the file is damaged; or the run's folder was removed, or used again.
        """
        if METRICS not in self._found.manifest.files:
            return []  # nothing that was trained here
        kept = kept_in(folder_still_of(self._found, self._store))
        if kept.problem:
            raise UserError(kept.problem, "remove these lines")
        return [one.plain() for step in kept.steps.values() for one in step]


def artifact(reference: str, *, home: Home = None, family: str = DEFAULT_FAMILY) -> Artifact:
    """An artifact of the store: `sft`, `sft:v2`, `sft:best`, `sft-data` or a whole name.

    Args:
        home: the store; None for the one that `nemotron` uses here.
        family: the family for which a short name stands.

    Raises:
        UserError: the store has no such artifact, or a damaged one.
    """
    store = open_store(home)
    found = store.resolve(reference, family=family)
    if found.is_external:
        raise UserError(f"{reference}: a folder, and not an artifact of the store", "import it: nemotron model import")
    return Artifact(found, store)


def artifacts(*, home: Home = None) -> list[Artifact]:
    """Every artifact of the store, by name and version. A damaged one is a warning."""
    store, found = open_store(home), list[Artifact]()
    for reference, entry in store.entries():
        try:
            if isinstance(entry, UserError):
                raise entry
            found.append(Artifact(store.resolve(reference), store))
        except UserError as error:
            warnings.warn(f"{reference} is left out: {printable(str(error))}", stacklevel=2)
    return found


def open_store(home: Home) -> stored.Store:
    """The store at `home`, or the one that `nemotron` uses in this folder."""
    return stored.Store.open(None if home is None else str(home))


def made_at(path: str) -> Artifact:
    """The artifact in a folder of a store: what a command has made."""
    folder = Path(path).absolute()
    store = stored.Store.open(str(folder.parents[2]))
    return Artifact(store.load(folder.parent.name, int(folder.name[1:])), store)


def scores_in(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each model and task of an evaluation's results, with the 95% interval of the value."""
    models = results["models"]
    return [
        {
            "model": models[score["model"]]["label"],
            "artifact": models[score["model"]]["reference"],
            **{name: score[name] for name in ("task", "metric", "value")},
            **dict(zip(("low", "high"), score["ci95"], strict=True)),
            "n": score["n"],
        }
        for score in results["scores"]
    ]


def table_of(rows: Iterable[Mapping[str, Any]]) -> "pyarrow.Table":
    """A table with a column for every key, null where a row lacks it.

    `pyarrow.Table.from_pylist` (pyarrow 26) takes its columns from the first row, and drops all others.
    """
    import pyarrow  # takes longer to import than everything else here

    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return pyarrow.table({name: [row.get(name) for row in rows] for name in names})
