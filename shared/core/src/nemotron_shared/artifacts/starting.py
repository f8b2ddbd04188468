"""Keep the inputs of a start from being removed before the folder of its run says that it reads them.

    <home>/starting/node7-4711-1769860800.json    {"inputs": ["super3-pretrain-model:v1"], "holder": {"pid": 4711, ...}}

    with inputs_kept(store, named_inputs(store, run)):       from the composed config to the end of the step
        ...

A start takes seconds until it has resolved its inputs, with imports of torch and checks on the way; a model that is
removed in the meantime would be replaced by random weights. The record of a process that is gone means nothing, except
one of another machine, whose processes cannot be looked up: it counts for a day.
"""

import os
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nemotron_shared.artifacts.names import Reference, is_path, parse_exact, parse_reference
from nemotron_shared.artifacts.store import Store
from nemotron_shared.system import atomic
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.lock import Holder, locked, this_process

FOLDER, LOCK = "starting", "lock"
DAY = 86_400


def named_inputs(store: Store, run: Mapping[str, Any]) -> list[Reference]:
    """The versions in the store that a config's `run` section names now, in any role."""
    words = [word for value in run.values() for word in (value if isinstance(value, list) else [value])]
    found = (
        _version_of(store, word, str(run.get("name") or run.get("family"))) for word in words if isinstance(word, str)
    )
    return list(dict.fromkeys(one for one in found if one is not None))


def _version_of(store: Store, text: str, family: str) -> Reference | None:
    """The version that a reference or a path means; None for anything else, such as the name of a family."""
    with suppress(UserError, OSError):
        if is_path(text):
            folder = Path(text).expanduser().resolve()
            inside = folder.parent.parent == store.root.resolve()
            return parse_exact(f"{folder.parent.name}:{folder.name}") if inside else None
        wanted = parse_reference(text, family)
        return Reference(wanted.name, store.version_of(wanted)) if store.versions(wanted.name) else None
    return None


@contextmanager
def inputs_kept(store: Store, inputs: Sequence[Reference]) -> Generator[None]:
    """Keep these versions from being removed as long as this process is inside."""
    there = [one for one in inputs if store.folder(one).is_dir()]
    if not there:
        yield
        return
    holder = this_process()
    record = store.home / FOLDER / f"{holder.host}-{holder.pid}-{time.time_ns()}.json"
    try:
        with removals(store):
            atomic.write_json(record, {"inputs": list(map(str, there)), "holder": asdict(holder)})
    except (OSError, UserError):  # a store that cannot be written to, from which nothing can be removed, either
        yield
        return
    try:
        yield
    finally:
        with suppress(OSError):
            record.unlink()


@contextmanager
def removals(store: Store) -> Generator[None]:
    """One at a time: a removal with the look at what is in use, and the record of a start.

    Raises:
        UserError: the store cannot be written to.
    """
    folder = store.home / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOCK).touch()
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}", "ask its owner") from error
    with locked(folder / LOCK, wait=True):
        yield


def kept_inputs(store: Store) -> Iterator[tuple[Reference, str]]:
    """The inputs of every start that has not ended, each with the start in words."""
    for file in sorted((store.home / FOLDER).glob("*.json")):
        try:
            said = atomic.read_json(file)
            holder = Holder(**said["holder"])
            inputs = [found for found in map(parse_exact, said["inputs"]) if found]
        except (OSError, UserError, TypeError, KeyError):  # the lock's own record, or one that has just ended
            continue
        if holder.lives or (not holder.is_here and time.time() - holder.started < DAY):
            yield from ((one, f"a step that is starting ({holder})") for one in inputs)
        elif holder.is_here and holder.pid != os.getpid():
            with suppress(OSError):  # it was killed
                file.unlink()
