"""Hugging Face hub data sets as input files: `hf://org/name[@revision]` and files inside one.

    hub_files("hf://org/name", subset="en", split="train")
    # [InputFile("hf://datasets/org/name@<commit>/en/train-00000-of-00002.parquet", size=..., commit="<commit>"), ...]

The `datasets` library resolves the files of a subset and split, for the current commit of the revision; the files are
then read from the hub by byte ranges. `hf://org/name/folder/*.jsonl` names files directly.
With HF_HUB_OFFLINE=1 or HF_DATASETS_OFFLINE=1 the same files come from the local cache of the hub.

A subset that is not a configuration of the data set but a folder or file in it means these files, as in published
blends: `{"path": "hf://org/name", "subset": "part_00"}` for `data/part_00.jsonl`.
"""

import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from glob import has_magic
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from nemotron_data.sources.input_file import FORMATS, InputFile, format_of, local_file, reported
from nemotron_data.sources.listing import local_paths, not_mixed, walk
from nemotron_data.sources.reading import parse_split, rows_of
from nemotron_shared.system.console import say
from nemotron_shared.system.errors import UserError, did_you_mean, how_to_add
from nemotron_shared.system.hub_errors import HubPlace, hub_errors
from nemotron_shared.system.redaction import redact


@contextmanager
def hub_messages_off() -> Generator[None]:
    """Silence the library's progress bars and logs while it resolves files; we print one line instead."""
    import datasets

    level, bars = datasets.logging.get_verbosity(), datasets.are_progress_bars_disabled()
    datasets.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if not bars:
            datasets.enable_progress_bars()


@contextmanager
def data_set_errors(text: str, name: str, revision: str | None) -> Generator[None]:
    """Turn exceptions of the hub's libraries into errors with a remedy; others are reported like any remote error.

    Args:
        text: the address as the user wrote it, for messages.
        name: the repository, organisation/name.
    """
    try:
        from datasets.exceptions import DatasetNotFoundError
        from huggingface_hub import errors
    except ImportError as error:
        what = f"{text}: hf:// paths need the packages datasets and huggingface_hub"
        raise UserError(what, how_to_add("datasets", "huggingface-hub")) from error
    with reported(text), hub_errors(text, HubPlace(name, revision, "data set")):
        try:
            yield
        except DatasetNotFoundError as error:
            remedy = "check the name; for a private one set HF_TOKEN to a token that may read it"
            raise UserError(f"{text}: no such data set on the hub, or a private one", remedy) from error
        except errors.LocalEntryNotFoundError:
            raise  # also a FileNotFoundError, but not about the card
        except (FileNotFoundError, ValueError) as error:
            remedy = "name the files by hand, as in hf://org/name/data/*.jsonl; offline, the cache may be incomplete"
            raise UserError(f"{text}: what its card names cannot be found: {redact(str(error))}", remedy) from error
        except RuntimeError as error:
            if "script" not in str(error):
                raise
            remedy = f"scripts are not run; the hub may have a copy in Parquet: hf://{name}@refs/convert/parquet"
            raise UserError(f"{text}: a data set that is a script", remedy) from error


ALL = "all"
ADDRESS = re.compile(r"hf://(?:datasets/)?([^/@\s]+/[^/@\s]+)(?:@(refs/(?:pr|convert)/[^/\s]+|[^/\s]+))?(?:/(.*))?")
SHARD_NUMBER = r"(?:[-_.](?:part|shard|train|validation|valid|test))?(?:[-_.]?\d+)?(?:-of-\d+)?"


@dataclass(frozen=True)
class Snapshot:
    """One commit of a data set."""

    text: str
    """The path as the user wrote it, for messages."""
    repository: str
    commit: str
    root: str
    """A local folder, or a URL of the hub."""

    @property
    def online(self) -> bool:
        """Whether the files are read from the hub rather than from its local cache."""
        return self.root.startswith("hf://")

    @cached_property
    def files(self) -> dict[str, InputFile]:
        """All visible files by their path in the repository."""
        return {self.name_of(file): file for file in self.at(self.root)}

    def at(self, place: str) -> list[InputFile]:
        """Files that a path below the root names."""
        if self.online:
            return walk(place, self.commit)
        return [local_file(path, self.commit) for path in local_paths(Path(place))]

    def name_of(self, file: InputFile) -> str:
        """Path of a file in the repository."""
        return file.path.removeprefix(f"{self.root}/")


def hub_files(path: str, *, subset: str | None = None, split: str | None = None) -> list[InputFile]:
    """Files of one split of a hub data set, in the order given by its card, for the current commit.

    Cached per process, so that its plan and its record of the inputs use the same commit.

    Args:
        subset: a configuration of the data set, or a folder or file of its repository; required if it has several.
        split: required if there are several; "all" means all of them; `train[1024:]` a part: see `slices`.

    Raises:
        UserError: the path is malformed; the data set, revision, subset, split or format is unknown; it is private or
            gated; or in offline mode not in the cache.
    """
    return list(_resolved(path, subset, split))


@cache
def _resolved(path: str, subset: str | None, split: str | None) -> tuple[InputFile, ...]:
    match = ADDRESS.fullmatch(path)
    if match is None:
        raise UserError(f"{path}: not a data set's address", "write hf://organisation/name, or .../name@revision")
    # inside is a file, folder or glob in the repository; if empty, it is the data set as its card describes it
    repository, revision, inside = match[1], match[2], (match[3] or "").strip("/")
    if inside and (subset or split):
        raise UserError(f"{path}: a path inside a data set has no subset or split", "leave them out")
    split, part = parse_split(path, split)
    with data_set_errors(path, repository, revision):
        snapshot = _snapshot(path, repository, revision)
        if inside:
            chosen = snapshot.at(f"{snapshot.root}/{inside}")
            _require_readable(snapshot, chosen, inside)
            chosen = chosen if has_magic(inside) else not_mixed(path, chosen)
        else:
            with hub_messages_off():
                chosen = _chosen(snapshot, subset, split)
        _require_whole(snapshot, chosen)
        chosen = chosen if part is None else rows_of(path, chosen, part)
    source = "read from the hub" if snapshot.online else "read from the local cache"
    files = "1 file" if len(chosen) == 1 else f"{len(chosen)} files"
    say(f"{path}: {f'{part.text}, ' if part else ''}{files} of commit {snapshot.commit[:12]}, {source}")
    return tuple(chosen)


def _snapshot(path: str, repository: str, revision: str | None) -> Snapshot:
    """Current commit of the revision: on the hub, or in its local cache if offline."""
    from datasets import config
    from huggingface_hub import HfApi, constants, snapshot_download

    if not (config.HF_HUB_OFFLINE or constants.HF_HUB_OFFLINE):
        info = HfApi().dataset_info(repository, revision=revision)
        if info.gated:
            HfApi().auth_check(repository, repo_type="dataset")
        return Snapshot(path, repository, str(info.sha), f"hf://datasets/{repository}@{info.sha}")
    # without a pattern, the call refuses a cache with a part of a repository, although that part may be enough
    found = snapshot_download(
        repository, repo_type="dataset", revision=revision, local_files_only=True, allow_patterns=[]
    )
    return Snapshot(path, repository, Path(found).name, Path(found).resolve().as_posix())


def _chosen(snapshot: Snapshot, subset: str | None, split: str | None) -> list[InputFile]:
    """Files of a subset and split, as the `datasets` library reads the data set's card."""
    from datasets import get_dataset_config_names, load_dataset_builder

    text = snapshot.text
    where, pinned = (snapshot.root, None) if not snapshot.online else (snapshot.repository, snapshot.commit)
    if subset is not None:
        known = get_dataset_config_names(where, revision=pinned)
        if subset not in known:
            return _named(snapshot, subset, split, known)
    with TemporaryDirectory() as unused:
        try:
            builder = load_dataset_builder(where, name=subset, revision=pinned, cache_dir=unused)
        except ValueError as error:
            if subset is None and len(known := get_dataset_config_names(where, revision=pinned)) > 1:
                raise UserError(f"{text}: which subset?", _listed("set subset to", known)) from error
            raise
    splits = {str(name): list(files) for name, files in (builder.config.data_files or {}).items()}
    if split is None and len(splits) > 1:
        raise UserError(f"{text}: which split?", _listed("set split to", [*splits, ALL]))
    if split is not None and split not in (*splits, ALL):
        remedy = did_you_mean(split, splits, _listed("it has", splits))
        raise UserError(f"{text}: no split '{split}'", remedy)
    names = splits.get(split or "", [name for files in splits.values() for name in files])
    chosen = [snapshot.files[name.removeprefix(f"{snapshot.root}/")] for name in dict.fromkeys(names)]
    _require_readable(snapshot, chosen, split or next(iter(splits), ""))
    return chosen


def _named(snapshot: Snapshot, subset: str, split: str | None, known: list[str]) -> list[InputFile]:
    """Files of the folder named like the subset, or with that file name, with or without a shard number."""
    wanted = re.compile(re.escape(subset) + SHARD_NUMBER)
    names = []
    for name in snapshot.files:
        path = PurePosixPath(name)
        if path.name == "README.md" or not name.lower().endswith(tuple(FORMATS)):
            continue
        if subset in path.parts[:-1] or wanted.fullmatch(path.name[: -len(format_of(name).ending)]):
            names.append(name)
    if not names:
        remedy = did_you_mean(subset, known, _listed("it has", known))
        raise UserError(f"{snapshot.text}: no subset '{subset}'", remedy)
    if split is not None and split != ALL:
        what = f"{snapshot.text}: '{subset}' is not a configuration but files, which have no split '{split}'"
        raise UserError(what, f"leave split out to read the files; {_listed('configurations are', known)}")
    say(f"{snapshot.text}: '{subset}' is not a configuration; it is read as {', '.join(names[:3])}"
        + (f" and {len(names) - 3} more" if len(names) > 3 else ""))  # fmt: skip
    return [snapshot.files[name] for name in names]


def _require_readable(snapshot: Snapshot, files: Iterable[InputFile], what: str) -> None:
    for file in files:
        if not file.path.lower().endswith(tuple(FORMATS)):
            parquet = f"hf://{snapshot.repository}@refs/convert/parquet"
            name = PurePosixPath(file.path).name
            raise UserError(
                f"{snapshot.text}: '{what}' holds {name}, a format that cannot be read",
                f"readable are JSON lines, Parquet and text; the hub may have a copy in Parquet: {parquet}",
            )


def _require_whole(snapshot: Snapshot, chosen: list[InputFile]) -> None:
    """Raise an error if the local cache holds only a part of the data set."""
    if not chosen:
        raise UserError(f"{snapshot.text}: no files", "check the data set's card")
    if snapshot.online:
        return
    names = {snapshot.name_of(file) for file in chosen}
    # shards have the same name except for their numbers
    families = {re.sub(r"\d+", "#", name) for name in names}
    absent = _expected(snapshot, names) - snapshot.files.keys()
    missing = [name for name in absent if re.sub(r"\d+", "#", name) in families]
    if missing:
        remedy = f"complete it: hf download --repo-type dataset {snapshot.repository}"
        raise UserError(f"{snapshot.text}: the local cache lacks {', '.join(sorted(missing)[:3])}", remedy)


def _expected(snapshot: Snapshot, names: Iterable[str]) -> set[str]:
    """Files of the repository that the cache knows of: from its listing, and from `-00000-of-00002` in names."""
    import huggingface_hub

    expected: set[str] = set()
    for name in names:
        if numbered := re.fullmatch(r"(.*-)(\d{5})(-of-(\d{5})\D*)", name):
            expected |= {f"{numbered[1]}{number:05d}{numbered[3]}" for number in range(int(numbered[4]))}
    if hasattr(huggingface_hub, "get_cached_repo_tree"):  # since 2.0
        try:
            tree = huggingface_hub.get_cached_repo_tree(
                snapshot.repository, repo_type="dataset", revision=snapshot.commit
            )
        except huggingface_hub.errors.CachedRepoTreeNotFoundError:
            return expected  # a cache that was filled file by file has no listing
        expected |= {entry.path for entry in tree}
    return expected


def _listed(words: str, names: Iterable[str]) -> str:
    listed = list(names)
    return f"{words} {', '.join(listed[:20])}" + (f" and {len(listed) - 20} more" if len(listed) > 20 else "")
