"""Verify artifacts before use: no step starts from one that changed since publishing.

    require_intact(artifact, home, how_to_make)     hashes files changed since they were last found intact

Digests are cached in the store's `cache/verified/`, one small file per version, by each file's inode, size, mtime and
ctime. A change that keeps all four goes unnoticed here; `nemotron artifacts verify` hashes everything.
"""

import shlex
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nemotron_shared.artifacts.artifact import STRAY, Artifact, manifest_change, problems
from nemotron_shared.artifacts.manifest import DAMAGED, MANIFEST, Manifest
from nemotron_shared.stages import DEFAULT_FAMILY, PACKAGE
from nemotron_shared.system.console import clear_renewed
from nemotron_shared.system.digest import file_digest
from nemotron_shared.system.errors import UserError, printable
from nemotron_shared.system.file_cache import FileCache

CACHE = Path("cache", "verified")
MOST_SHOWN = 3
ANNOUNCED_BYTES = 2 * 10**9
"""Announce hashing above this size, because it takes seconds."""


def require_intact(artifact: Artifact, home: Path, how_to_make: str, *, ask_manifest: bool = True) -> None:
    """Refuse an artifact that differs from its manifest.

    Args:
        home: of the store, whose cache makes a second check take milliseconds.
        how_to_make: command that makes it again.
        ask_manifest: take that command from the manifest instead, unless the manifest is damaged.

    Raises:
        UserError: with the files, and the commands that restore them or make them again.
    """
    if artifact.is_external:
        return  # just hashed to build its manifest, so there is nothing to compare with
    damage = damage_of(artifact, home)
    if not damage:
        return
    if not any(line.startswith(f"{MANIFEST}:") for line in damage):
        how_to_make = ways_out(artifact, damage, None if ask_manifest else how_to_make)
    raise UserError(f"{artifact.reference} is damaged: {in_short(artifact, damage)}", how_to_make)


def ways_out(artifact: Artifact, damage: Sequence[str], how_to_make: str | None = None) -> str:
    """Remedies for files that differ; making it again comes last, because that makes another version."""
    if strays := strays_in(artifact, damage):
        return f"delete what does not belong there: {shlex.join(strays)}"
    again = how_to_make or f"make it again: {command_that_made(artifact.manifest)}"
    return f"restore its files from a copy; or {again}"


def remove_and_make(artifact: Artifact) -> str:
    """Remedy for a damaged manifest, which cannot be trusted to say how the artifact was made."""
    remove = f"remove the version and make it again: nemotron artifacts rm {artifact.reference}"
    return f"restore {artifact.path / MANIFEST} from a copy; or {remove}"


def strays_in(artifact: Artifact, damage: Sequence[str]) -> list[str]:
    """Paths of extra files, if they are all that is wrong with an artifact."""
    names = [line.removesuffix(STRAY) for line in damage if line.endswith(STRAY)]
    return [str(artifact.path / name) for name in names] if len(names) == len(damage) else []


def damage_of(artifact: Artifact, home: Path) -> list[str]:
    """Differences between an artifact and its manifest, one line per file."""
    with known_digests(home, artifact.reference.replace(":", "-"), artifact.reference) as digest:
        return problems(artifact, digest=digest)


def in_short(artifact: Artifact, damage: Sequence[str]) -> str:
    """Summarise the damage: `model.safetensors: content changed (in FOLDER)`."""
    more = f"; and {len(damage) - MOST_SHOWN} more" if len(damage) > MOST_SHOWN else ""
    return f"{'; '.join(damage[:MOST_SHOWN])}{more} (in {artifact.path})"


def manifest_problem(artifact: Artifact) -> str | None:
    """A sentence warning that a manifest was edited or damaged; None if it is intact."""
    change = manifest_change(artifact)
    return f"{artifact.reference} is damaged: {in_short(artifact, [change])}; {DAMAGED}" if change else None


def command_that_made(manifest: Manifest) -> str:
    """The `nemotron` command for a recorded `producer.command` such as python -m stages.sft.train; with --force."""
    if manifest.producer.verb == "import":
        return manifest.producer.command
    try:
        words = shlex.split(manifest.producer.command)
    except ValueError:  # an unbalanced quotation mark
        words = manifest.producer.command.split()
    package = ".".join(words[2].split(".")[:-2]) if len(words) > 2 else ""
    return forced_command(manifest.producer.stage, manifest.producer.verb, words[3:], package or PACKAGE)


def forced_command(stage: str, verb: str, arguments: Sequence[str], package: str = PACKAGE) -> str:
    """The command that runs a step from the start, given its script's arguments: `nemotron`, for a stage of ours."""
    family = next((word.partition("=")[2] for word in arguments if word.startswith("run.family=")), DEFAULT_FAMILY)
    step = [family, "data", "prep", stage] if verb == "data_prep" else [family, stage]
    ours = package == PACKAGE
    program = ["nemotron", *step] if ours else ["python", "-m", f"{package}.{stage}.{verb}"]
    flags = {"--json", "--force", "run.force=true", *([f"run.family={family}"] if ours else [])}
    return shlex.join([*program, *(word for word in arguments if word not in flags), "--force"])


@contextmanager
def known_digests(home: Path, name: str, label: str) -> Generator[Callable[[Path], str]]:
    """A function returning a file's SHA-256, cached as long as the file does not change.

    If the store at `home` is not writable, every call hashes again; so it does where even the folder of the store is
    not there, as with a cluster's path in a dry run on another machine.

    Args:
        name: of the cache file.
        label: what the files belong to, for the line announcing a long wait.
    """
    cache = FileCache(home / CACHE / f"{name}.json" if home.parent.is_dir() else None)
    begun, announced = 0, False

    def take(path: Path) -> str:
        nonlocal begun, announced
        begun += path.stat().st_size  # many small files take as long as a large one
        if begun >= ANNOUNCED_BYTES and not announced:
            announced = True
            line = f"[{label}] hashing {begun / 1e9:.0f} GB and more: once, until something changes"
            clear_renewed()
            print(printable(line), file=sys.stderr, flush=True)
        return file_digest(path)

    yield lambda path: cache.get(path, take)
    cache.save()
