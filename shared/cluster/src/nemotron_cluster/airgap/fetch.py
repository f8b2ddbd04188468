"""Fetch everything that an environment, a model and its data need into one folder, on a machine with a network.

    FOLDER/pylock.toml          the resolved packages
    FOLDER/wheels/*.whl         downloaded wheels, wheels built from sources, and wheels of our own packages
    FOLDER/wheels/source/NAME/  sources of packages that nvcc compiles on the target machine
    FOLDER/models, tokenizers, data
    FOLDER/build.sh             for a machine without this project
    FOLDER/manifest.json        SHA-256 of everything; written last: a folder without it is incomplete

After an interruption, run it again: complete files are kept, partial ones (`NAME.partial`) are resumed. Downloads use
Python's HTTP client, which takes HTTPS_PROXY, NO_PROXY and SSL_CERT_FILE from the environment.
"""

import http.client
import shutil
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from packaging.utils import parse_wheel_filename
from pydantic import BaseModel, ConfigDict, ValidationError

from nemotron_cluster.airgap.packages import LOCK, SCRATCH, Kind, Package, Target, Wanted, remove_scratch, resolve, uv
from nemotron_shared.models.hub import fetch as fetch_model
from nemotron_shared.models.hub import is_as_promised, look_at
from nemotron_shared.models.references import HubModel, artifact_name, parse_outside
from nemotron_shared.system.atomic import read_json, sync, write_json, write_text
from nemotron_shared.system.console import clock, renew, say
from nemotron_shared.system.digest import file_digest, tree_files
from nemotron_shared.system.disk import full_disk_explained, require_room, size
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.lock import locked
from nemotron_shared.system.redaction import redact

MANIFEST, WHEELS, SOURCES = "manifest.json", "wheels", "wheels/source"
SDISTS = ".sdists"
"""Sources that are built into wheels here, and are not needed on the target."""
BOOTSTRAP = Path(__file__).with_name("build.sh")
NOT_THE_CODE = shutil.ignore_patterns("build", "dist", "tests", "*.egg-info", "__pycache__", ".venv")
PARTIAL = ".partial"
READERS, TRANSFERS, TRIES = 4, 4, 3
TIMEOUT = 60.0
"""Seconds without data after which a connection counts as lost."""
BLOCK = 1 << 20
PROGRESS_SECONDS = 5.0
REMEDY = "run the same command again, which continues with what is here; check the connection and HTTPS_PROXY"


class Entry(BaseModel):
    """A file of a fetched folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: str
    bytes: int


class Locked(BaseModel):
    """A package, and its file in the folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    version: str
    kind: Kind
    file: str


class Manifest(BaseModel):
    """The contents of a folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    python: str
    platform: str
    cuda: str
    packages: list[Locked]
    materials: dict[str, str]
    """Folders of models, tokenizers and data, with their origins."""
    files: dict[str, Entry]


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a fetched folder.

    Raises:
        UserError: missing or invalid manifest.
    """
    if not (folder / MANIFEST).is_file():
        what = f"{folder} has no {MANIFEST}: it is not a folder of airgap fetch, or the fetch has not ended"
        raise UserError(what, "where there is a network, run the command that makes it again")
    try:
        return Manifest.model_validate(read_json(folder / MANIFEST))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{folder / MANIFEST}: {where}: {first['msg']}", "bring the folder here once more") from error


def require_intact(folder: Path, manifest: Manifest) -> None:
    """Compare every file with the manifest.

    Raises:
        UserError: a file is missing or has changed.
    """

    def wrong(name: str) -> str | None:
        path, entry = folder / name, manifest.files[name]
        if not path.is_file():
            return f"{name} is missing"
        if (here := path.stat().st_size) != entry.bytes:
            return f"{name} has {here} bytes instead of {entry.bytes}"
        return None if file_digest(path) == entry.sha256 else f"{name} has another content"

    with ThreadPoolExecutor(READERS) as pool:
        found = [problem for problem in pool.map(wrong, manifest.files) if problem]
    if found:
        shown = "; ".join(found[:5]) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")
        raise UserError(f"{folder}: {shown}", "fetch again into the same folder, which repairs it, or copy it again")


@dataclass(frozen=True)
class Promise:
    """Expected size and content of a file.

    Attributes:
        is_right: checks the content; None if no digest is known: then a file of the right size is accepted.
    """

    bytes: int
    is_right: Callable[[Path], bool] | None = None

    def kept_by(self, path: Path) -> bool:
        """Whether the file at `path` is as expected."""
        there = path.is_file() and path.stat().st_size == self.bytes
        return there and (self.is_right is None or self.is_right(path))


@dataclass(frozen=True)
class Material:
    """A model, tokenizer or data set.

    Attributes:
        place: its folder: "models/hf-org--name".
        origin: as the user wrote it.
        files: the files that belong in the folder; those that are there and as expected are kept.
        bring: function that puts these files into the folder.
    """

    place: str
    origin: str
    files: dict[str, Promise]
    bring: Callable[[list[str], Path], None]

    @property
    def bytes(self) -> int:
        """Total size."""
        return sum(file.bytes for file in self.files.values())

    @property
    def title(self) -> str:
        """Display name: a folder, or a single file in a shared folder."""
        names = [*self.files]
        return f"{self.place}/{names[0]}" if len(names) == 1 else self.place

    def missing(self, folder: Path) -> list[str]:
        """Files that are missing or not as expected."""
        return [name for name, file in self.files.items() if not file.kept_by(folder / self.place / name)]


def find_model(text: str, *, weights: bool, trusted: bool) -> Material:
    """A model, or only its tokenizer, from the hub or from a folder.

    Raises:
        UserError: not found, or not loadable with this project.
    """
    kind = "models" if weights else "tokenizers"
    outside = parse_outside(text)
    if outside is None:
        folder = Path(text).expanduser()
        required = "config.json" if weights else "tokenizer.json"
        if not (folder / required).is_file():
            remedy = "write hf://organisation/name for a repository of the hub"
            raise UserError(f"{text}: no folder with a {required}", remedy)
        return find_files(folder, kind)
    if not isinstance(outside, HubModel):
        raise UserError(f"{text}: a checkpoint of Megatron cannot be fetched as a model", "copy its folder with --data")
    look = look_at(outside, weights=weights, trusted=trusted)

    def bring(names: list[str], into: Path) -> None:
        with TemporaryDirectory(dir=into, prefix=SCRATCH) as scratch:
            fetch_model(look, Path(scratch))
            for name in names:
                if (linked := Path(scratch, name)).is_symlink():  # the hub's cache is on another disk
                    _copy(linked.resolve(), into / name)
                else:
                    linked.replace(into / name)

    # use the hub's digests, not those of cached files
    promises = {
        name: Promise(file.bytes, partial(is_as_promised, expected=look.expected[name]))
        for name, file in look.artifact.manifest.files.items()
    }
    return Material(f"{kind}/{outside.name()}", text, promises, bring)


def find_files(path: Path, kind: str) -> Material:
    """Copy a file or a folder of this machine.

    Raises:
        UserError: missing or empty.
    """
    if not path.exists():
        raise UserError(f"{path}: no such file or folder", "check the path")
    files = {path.name: path} if path.is_file() else {str(one.relative_to(path)): one for one in tree_files(path)}
    if not files:
        raise UserError(f"{path}: an empty folder", "check the path")

    def bring(names: list[str], into: Path) -> None:
        for name in names:
            _copy(files[name], into / name)

    def same(source: Path, copied: Path) -> bool:
        return file_digest(source) == file_digest(copied)

    place = kind if path.is_file() else f"{kind}/{artifact_name(path.resolve().name)}"
    promises = {name: Promise(one.stat().st_size, partial(same, one)) for name, one in files.items()}
    return Material(place, str(path), promises, bring)


def _copy(source: Path, target: Path) -> None:
    """Copy a file, giving it its final name only when complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, _partial(target))
    _partial(target).replace(target)


def _partial(path: Path) -> Path:
    return path.with_name(path.name + PARTIAL)


@dataclass(frozen=True)
class Plan:
    """What a fetch will do, determined in advance.

    Attributes:
        missing: files to download, by their paths in the folder.
        missing_materials: names of the files that each material lacks.
        here: bytes that are already present, including partial files.
    """

    target: Target
    wanted: Wanted
    packages: list[Package]
    lock: str
    materials: list[Material]
    missing: dict[str, Package]
    missing_materials: list[list[str]]
    here: int

    @property
    def bytes(self) -> int:
        """Total size of the folder, except for packages that are built."""
        return sum(each.bytes or 0 for each in [*self.packages, *self.materials])

    def to_json(self) -> dict[str, object]:
        """JSON output of the plan."""
        keys = ("name", "version", "kind", "bytes")
        return {
            "python": self.target.python,
            "platform": self.target.platform,
            "cuda": self.wanted.cuda,
            "bytes": self.bytes,
            "to_download": self.bytes - self.here,
            "packages": [{key: getattr(each, key) for key in keys} for each in self.packages],
            "materials": [{"place": each.place, "from": each.origin, "bytes": each.bytes} for each in self.materials],
        }


def plan(root: Path, folder: Path, target: Target, wanted: Wanted, materials: Sequence[Material]) -> Plan:
    """Determine what is needed, its size, and what is already present.

    Args:
        root: the checkout whose uv.lock to use.

    Raises:
        UserError: something does not exist, either for the target or at all.
    """
    packages, lock = resolve(root, target, wanted)
    packages = [replace(each, bytes=_size_on_index(each)) if each.bytes is None else each for each in packages]
    files = {_place(each): each for each in packages if each.url}
    with ThreadPoolExecutor(READERS) as pool:
        whole = [*pool.map(lambda item: _is_whole(folder / item[0], item[1]), files.items())]
    missing = {place: file for (place, file), there in zip(files.items(), whole, strict=True) if not there}
    names = [f"{material.place}/{name}" for material in materials for name in material.files]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(f"two things would become {min(twice)}", "rename one of them, or put both into one folder")
    lacking = [material.missing(folder) for material in materials]
    here = sum(file.bytes or 0 for place, file in files.items() if place not in missing)
    here += sum(_bytes_here(folder / place) for place in missing)
    for material, without in zip(materials, lacking, strict=True):
        here += sum(file.bytes for name, file in material.files.items() if name not in without)
    return Plan(target, wanted, packages, lock, list(materials), missing, lacking, here)


def _place(package: Package) -> str:
    folder = {"wheel": WHEELS, "compiled": f"{SOURCES}/{package.name}"}.get(package.kind, SDISTS)
    return f"{folder}/{package.filename}"


def show(plan: Plan, folder: Path) -> None:
    """Print what will happen."""
    wheels = sorted((each for each in plan.packages if each.kind == "wheel"), key=lambda each: -(each.bytes or 0))
    say(f"for Python {plan.target.python} on {plan.target.platform}, CUDA {plan.wanted.cuda}, into {folder}:")
    say(f"  {len(wheels)} wheels, {size(sum(each.bytes or 0 for each in wheels))}")
    for each in wheels[:5]:
        say(f"    {each.name} {each.version}: {size(each.bytes or 0)}")
    if compiled := [f"{each.name} {each.version}" for each in plan.packages if each.kind == "compiled"]:
        say(f"  sources, to be compiled with nvcc on the other side: {', '.join(compiled)}")
    if built := [each.name for each in plan.packages if each.kind in ("sdist", "member")]:
        say(f"  wheels built here: {', '.join(built)}")
    for material in plan.materials:
        say(f"  {material.origin}: {size(material.bytes)}, to {material.place}")
    say(f"  to download or copy: {size(plan.bytes - plan.here)}; here already: {size(plan.here)}")


def fetch(plan: Plan, folder: Path) -> Manifest:
    """Carry out the plan, and declare the folder complete.

    Raises:
        UserError: no space, no connection, wrong content, or a failed build. Existing files are kept for the next run.
    """
    require_room(folder, plan.bytes - plan.here, "the download")
    with locked(folder / ".lock", wait=False):
        (folder / MANIFEST).unlink(missing_ok=True)  # the folder is incomplete from here on
        remove_scratch(folder)
        write_text(folder / LOCK, plan.lock)
        write_text(folder / BOOTSTRAP.name, BOOTSTRAP.read_text(encoding="utf-8"))
        download({folder / place: file for place, file in plan.missing.items()})
        (folder / WHEELS).mkdir(exist_ok=True)
        files = {each.name: _wheel(each, folder, plan.target) for each in plan.packages}
        for material, names in zip(plan.materials, plan.missing_materials, strict=True):
            if names:
                place = folder / material.place
                say(f"{material.origin}: {len(names)} files to {place}")
                place.mkdir(parents=True, exist_ok=True)
                remove_scratch(place)
                material.bring(names, place)
        brought = [f"{material.place}/{name}" for material in plan.materials for name in material.files]
        everything = [LOCK, BOOTSTRAP.name, *files.values(), *brought]
        with ThreadPoolExecutor(READERS) as pool:
            digests = pool.map(lambda name: file_digest(folder / name), everything)
            sizes = [(folder / name).stat().st_size for name in everything]
            entries = [Entry(sha256=digest, bytes=bytes) for digest, bytes in zip(digests, sizes, strict=True)]
        manifest = Manifest(
            python=plan.target.python,
            platform=plan.target.platform,
            cuda=plan.wanted.cuda,
            packages=[
                Locked(name=each.name, version=each.version, kind=each.kind, file=files[each.name])
                for each in plan.packages
            ],
            materials={material.title: material.origin for material in plan.materials},
            files=dict(zip(everything, entries, strict=True)),
        )
        write_json(folder / MANIFEST, manifest.model_dump())
    return manifest


def _wheel(package: Package, folder: Path, target: Target) -> str:
    """The package's file in the folder, built if necessary."""
    if package.kind in ("wheel", "compiled"):
        return _place(package)
    say(f"building the wheel of {package.name} {package.version}")
    failed = f"{package.name} {package.version}: its wheel was not built"
    with TemporaryDirectory(dir=folder, prefix=SCRATCH) as scratch:
        source = folder / _place(package)
        if package.directory:
            # build in a copy: setuptools writes into the source folder, and packages leftovers of earlier builds
            source = Path(scratch, "source")
            shutil.copytree(package.directory, source, ignore=NOT_THE_CODE)
        words = ["build", "--wheel", "--quiet", "--no-sources", "--python", sys.executable, "--out-dir", scratch]
        uv([*words, source], failed)
        (built,) = Path(scratch).glob("*.whl")
        if parse_wheel_filename(built.name)[3].isdisjoint(target.tags()):
            remedy = f"run this on a machine with Python {target.python} on {target.platform}"
            raise UserError(f"{built.name}: built for this machine, does not fit the target", remedy)
        built.replace(folder / WHEELS / built.name)
    return f"{WHEELS}/{built.name}"


def _is_whole(path: Path, package: Package) -> bool:
    """Whether the file exists and has the digest of the lock."""
    return path.is_file() and file_digest(path) == package.sha256


def _bytes_here(path: Path) -> int:
    """Bytes of a file, or of its part from an earlier process."""
    return next((one.stat().st_size for one in (path, _partial(path)) if one.is_file()), 0)


def _size_on_index(package: Package) -> int:
    """The size of a file according to the index, if the lock has none; 0 if unknown."""
    try:
        with _open(urllib.request.Request(package.url, method="HEAD")) as answer:
            return int(answer.headers.get("Content-Length") or 0)
    except (OSError, http.client.HTTPException, ValueError):
        return 0


def download(files: Mapping[Path, Package]) -> None:
    """Download files to their paths, several in parallel, verified against the digests of the lock.

    Raises:
        UserError: the server cannot be reached or sends unexpected content, or the disk is full.
    """
    total, done, stop = sum(file.bytes or 0 for file in files.values()), threading.Event(), threading.Event()

    def watch() -> None:
        start, before = time.monotonic(), sum(map(_bytes_here, files))
        while not done.wait(PROGRESS_SECONDS):
            got = sum(map(_bytes_here, files))
            rate = (got - before) / (time.monotonic() - start)
            left = f"  {clock((total - got) / rate)} left" if rate > 0 else ""
            renew(f"{size(got)} of {size(total)}{left}")

    threading.Thread(target=watch, daemon=True).start()
    try:
        with ThreadPoolExecutor(TRANSFERS) as pool:
            running = [pool.submit(_download, path, file, stop) for path, file in files.items()]
            try:
                for each in running:
                    each.result()
            except BaseException:
                stop.set()  # other threads stop soon, and keep their partial files
                pool.shutdown(wait=True, cancel_futures=True)
                raise
    finally:
        done.set()


def _download(path: Path, package: Package, stop: threading.Event) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beginning, url = _partial(path), redact(package.url)
    for attempt in range(1, TRIES + 1):
        try:
            with full_disk_explained(path):
                _transfer(beginning, package, stop)
        except urllib.error.HTTPError as error:
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:  # longer than the file, so invalid
                beginning.unlink(missing_ok=True)
                continue
            raise UserError(f"{url}: HTTP {error.code} {error.reason}", REMEDY) from error
        except (OSError, http.client.HTTPException) as error:
            if attempt == TRIES:
                raise UserError(f"{url}: {getattr(error, 'reason', None) or error}", REMEDY) from error
            stop.wait(attempt)
            continue
        if stop.is_set():
            return
        if _is_whole(beginning, package):
            sync(beginning)
            beginning.replace(path)
            return
        beginning.unlink()  # restart from the beginning, since no part can be trusted
    what = f"{url}: the content has another SHA-256 than the lock says, even when fetched again"
    raise UserError(what, "something on the way changes it: check the proxy, and tell its administrator")


def _transfer(beginning: Path, package: Package, stop: threading.Event) -> None:
    """Append the missing bytes."""
    start = beginning.stat().st_size if beginning.is_file() else 0
    if start and start == package.bytes:
        return
    request = urllib.request.Request(package.url, headers={"Range": f"bytes={start}-"} if start else {})
    with _open(request) as answer:
        continued = answer.status == http.HTTPStatus.PARTIAL_CONTENT
        with beginning.open("ab" if continued else "wb") as target:
            while not stop.is_set() and (block := answer.read(BLOCK)):
                target.write(block)
                target.flush()
            length = target.tell()
    if package.bytes and length < package.bytes and not stop.is_set():
        raise ConnectionError(f"the connection ended after {length} of {package.bytes} bytes")


def _open(request: urllib.request.Request) -> http.client.HTTPResponse:
    # urlopen would keep the proxy of its first call
    return urllib.request.build_opener().open(request, timeout=TIMEOUT)
