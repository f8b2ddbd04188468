"""Where one case after the other is tried: a store that is put back each time, and what an undisturbed run made of it.

The store keeps its place, because what an unfinished run holds names the files that it reads by their path.
"""

import atexit
import gc
import importlib
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.steps import Command, Fault, Page, Ran, run

from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.artifact import problems
from nemotron_shared.artifacts.housekeeping import plan_cleanup
from nemotron_shared.artifacts.manifest import MANIFEST
from nemotron_shared.engine.checkpoints import COMPLETE, Layout, damage_of, step_of
from nemotron_shared.system.atomic import TEMPORARY_PREFIX
from nemotron_shared.system.errors import UserError

TIMINGS = "metrics.jsonl"
"""In an artifact: the only file whose bytes tell how long something took."""
FOREVER = 10**6
"""Versions that a cleanup keeps: of every name all."""
MODULES = "modules"
EMPTY = "empty"
"""The base that holds nothing but what is known about the code."""


@dataclass(frozen=True)
class Target:
    """A step that faults are put into, and the base that it starts from.

    Attributes:
        name: "sft data prep"; also the base that its undisturbed run leaves.
        result: name of the artifact that it makes.
    """

    name: str
    command: Command
    result: str
    base: str = EMPTY

    @property
    def forced(self) -> Command:
        """The command that makes the result again, whatever is there."""
        return Command(self.command.module, (*self.command.words, "--force"))


@dataclass(frozen=True)
class Reference:
    """What a target does when nothing disturbs it."""

    digest: str
    calls: str
    seconds: float


@dataclass
class Bench:
    """A place of its own for one worker."""

    place: Path
    page: Page = field(default_factory=Page)
    references: dict[str, Reference] = field(default_factory=dict)
    makers: dict[str, Target] = field(default_factory=dict)
    """Targets by the name of their result."""

    @property
    def home(self) -> Path:
        return self.place / "home"

    @property
    def store(self) -> Store:
        return Store(self.home)

    def restore(self, base: str) -> None:
        """Put the store back to what it was when `keep(base)` was called."""
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.copytree(self.place / "bases" / base, self.home, symlinks=True)

    def keep(self, base: str) -> None:
        """Remember the store as it is."""
        shutil.copytree(self.home, self.place / "bases" / base, symlinks=True, dirs_exist_ok=True)

    def has(self, base: str) -> bool:
        """Whether a base was kept."""
        return (self.place / "bases" / base).is_dir()

    def measure(self, target: Target) -> None:
        """Run a target undisturbed, count its calls, and keep what it leaves.

        Raises:
            UserError: it does not even work without a fault.
        """
        self.restore(target.base)
        self.page.plan(Fault(0, "count"))
        ran = run(target.command, self.home, page=self.page, before=self._note_modules)
        if ran.code:
            raise UserError(f"{target.name} does not work without any fault: {ran.last_line}", str(target.command))
        self.references[target.name] = Reference(self.digest(target), self.page.calls, ran.seconds)
        self.makers[target.result] = target
        self.keep(target.name)

    def _note_modules(self) -> None:
        """In the child: write down at its end what it has imported."""
        atexit.register(lambda: (self.place / MODULES).write_text("\n".join(sys.modules)))

    def import_what_it_did(self) -> None:
        """Import what the measured step did, once for all cases."""
        for name in (self.place / MODULES).read_text().split():
            with suppress(Exception):  # what can only be imported in a certain place is left to the step
                importlib.import_module(name)
        gc.collect()
        gc.freeze()  # or a copy's search for garbage would copy all of it

    def unfinished(self, target: Target, percent: int) -> str:
        """The base that a target leaves when it is killed after so many of its calls; made when first asked for."""
        base = f"{target.name} killed at {percent}%"
        if not self.has(base):
            self.restore(target.base)
            self.run_faulty(target, Fault(len(self.references[target.name].calls) * percent // 100, "signal", 9))
            self.keep(base)
        return base

    def run_faulty(self, target: Target, fault: Fault) -> Ran:
        """Run a target with a fault of its file system."""
        self.page.plan(fault)
        return run(target.command, self.home, page=self.page)

    def digest(self, target: Target) -> str:
        """All versions of a target's result and their content, but for the log of timings; "" without any."""
        return "; ".join(f"v{number} {self.content(target, number)}" for number in self.store.versions(target.result))

    def contents(self, target: Target) -> set[str]:
        """What the versions of a target's result hold, whatever their number."""
        return contents_of(self.digest(target))

    def content(self, target: Target, version: int) -> str:
        """Files and digests of one version, compared with what is on the disk; what is wrong in place of these."""
        try:
            artifact = self.store.load(target.result, version)
            damage = problems(artifact)
        except UserError as error:
            return f"damaged: {error.message}"
        return f"damaged: {damage[0]}" if damage else json.dumps(table(artifact), sort_keys=True)

    def kept(self) -> dict[str, int]:
        """Bytes of all that is finished and must never be lost: versions, and the newest whole checkpoint of a run."""
        found: dict[str, int] = {}
        for name, versions in self.store.shelves().items():
            for number in versions:
                folder = self.store.root / name / f"v{number}"
                if not (folder / MANIFEST).is_file():  # a damaged one, which nobody can use
                    continue
                found[f"{name}:v{number}"] = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        for mark in self.home.glob(f"runs/*/checkpoints/checkpoint-*/{COMPLETE}"):
            size = sum(path.stat().st_size for path in mark.parent.rglob("*") if path.is_file())
            found[f"{mark.parents[2].name} step {step_of(mark.parent)}"] = size
        return found

    def lost(self, before: Mapping[str, int], finished: bool) -> dict[str, int]:
        """Of what `kept` told before, the part that is neither there nor outdone by something newer.

        Args:
            finished: the result is published, and checkpoints may be gone.
        """
        now, lost = self.kept(), {}
        for what, size in before.items():
            run_name, is_checkpoint, step = what.partition(" step ")
            if is_checkpoint:
                newer = [int(one.partition(" step ")[2]) for one in now if one.startswith(f"{run_name} step ")]
                whole = any(number >= int(step) and self._is_whole(run_name, number) for number in newer)
                if not finished and not whole:
                    lost[what] = size
            elif what not in now:
                lost[what] = size
        return lost

    def _is_whole(self, run_name: str, step: int) -> bool:
        folder = self.home / "runs" / run_name / "checkpoints" / f"checkpoint-{step}"
        return damage_of(folder, Layout()) is None

    def uncleaned(self) -> list[str]:
        """Temporary files that not even `nemotron artifacts gc` would remove, however old."""
        left = [path for path in self.home.rglob(f"{TEMPORARY_PREFIX}*") if ".staging" not in path.parts]
        if not left:
            return []
        old = time.time() - 10 * 24 * 3600
        for path in left:
            for one in [path, *path.rglob("*")]:
                os.utime(one, (old, old), follow_symlinks=False)
        cleaned = plan_cleanup(self.store, FOREVER).leftovers
        return [str(path.relative_to(self.home)) for path in left if not {path, *path.parents} & set(cleaned)]


def contents_of(digest: str) -> set[str]:
    """The contents in a digest of all versions."""
    return {version.partition(" ")[2] for version in digest.split("; ")}


def table(artifact: Artifact) -> dict[str, Any]:
    """An artifact's files, but for the log of timings."""
    return {name: entry.sha256 for name, entry in artifact.manifest.files.items() if name != TIMINGS}


def damageable(folder: Path) -> list[Path]:
    """Every file below a folder that has bytes to damage, in a fixed order."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    return [path for path in files if path.stat().st_size and path.name != "lock"]
