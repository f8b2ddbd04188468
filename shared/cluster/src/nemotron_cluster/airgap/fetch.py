"""Fetch everything that an environment, a model and its data need into one folder, on a machine with a network.

    FOLDER/pylock.toml          the resolved packages
    FOLDER/wheels/*.whl         downloaded wheels, wheels built from sources, and wheels of our own packages
    FOLDER/wheels/source/NAME/  sources of packages that nvcc compiles on the target machine
    FOLDER/models, tokenizers, data
    FOLDER/build.sh             for a machine without this project
    FOLDER/manifest.json        SHA-256 of everything; written last

After an interruption, run it again: complete files are kept, partial ones are resumed.
"""

import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from nemotron_cluster.airgap.download import begun, download, is_whole, size_on_index
from nemotron_cluster.airgap.manifest import NAME, READERS, Locked, Manifest, entries, write_manifest
from nemotron_cluster.airgap.materials import Material
from nemotron_cluster.airgap.packages import LOCK, File, Package, Wanted, resolve
from nemotron_cluster.airgap.target import Target
from nemotron_cluster.airgap.uv import SCRATCH, remove_scratch, uv
from nemotron_shared.atomic import write_text
from nemotron_shared.errors import UserError
from nemotron_shared.lock import locked
from nemotron_shared.runtime.console import say
from nemotron_shared.runtime.disk import require_room, size

WHEELS = "wheels"
SOURCES = "wheels/source"
BOOTSTRAP = Path(__file__).with_name("build.sh")
SDISTS = ".sdists"
"""Sources that are built into wheels here, and are not needed on the target."""
NOT_THE_CODE = shutil.ignore_patterns("build", "dist", "tests", "*.egg-info", "__pycache__", ".venv")


@dataclass(frozen=True)
class Plan:
    """What a fetch will do, determined in advance.

    Attributes:
        missing: files to download, by their paths in the folder.
        here: bytes of them that are already present, including partial files.
    """

    target: Target
    wanted: Wanted
    packages: list[Package]
    lock: str
    materials: list[Material]
    missing: dict[str, File]
    missing_materials: dict[str, list[str]]
    here: int

    @property
    def bytes(self) -> int:
        """Total size of the folder, except for packages that are built."""
        return sum(each.bytes for each in [*self.packages, *self.materials])

    def to_json(self) -> dict[str, object]:
        """JSON output of the plan."""
        listed = [
            {"name": each.name, "version": each.version, "kind": each.kind, "bytes": each.bytes}
            for each in self.packages
        ]
        return {
            "python": self.target.python,
            "platform": self.target.platform,
            "cuda": self.wanted.cuda,
            "bytes": self.bytes,
            "to_download": self.bytes - self.here,
            "packages": listed,
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
    packages = [_with_size(each) for each in packages]
    files = {_place(each): each.file for each in packages if each.file}
    with ThreadPoolExecutor(READERS) as pool:
        whole = [*pool.map(lambda item: is_whole(folder / item[0], item[1].sha256), files.items())]
    missing = {place: file for (place, file), there in zip(files.items(), whole, strict=True) if not there}
    names = [f"{material.place}/{name}" for material in materials for name in material.files]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(f"two things would become {min(twice)}", "rename one of them, or put both into one folder")
    lacking = {material.place + material.origin: material.missing(folder) for material in materials}
    here = sum(file.bytes or 0 for place, file in files.items() if place not in missing)
    here += sum(begun(folder / place) for place in missing)
    here += sum(file.bytes for each in materials for name, file in each.files.items()
                if name not in lacking[each.place + each.origin])  # fmt: skip
    return Plan(target, wanted, packages, lock, list(materials), missing, lacking, here)


def _with_size(package: Package) -> Package:
    file = package.file
    if file is None or file.bytes is not None:
        return package
    known = File(file.name, file.url, file.sha256, size_on_index(file))
    return Package(package.name, package.version, package.kind, known)


def _place(package: Package) -> str:
    assert package.file is not None
    folder = {"wheel": WHEELS, "compiled": f"{SOURCES}/{package.name}"}.get(package.kind, SDISTS)
    return f"{folder}/{package.file.name}"


def show(plan: Plan, folder: Path) -> None:
    """Print what will happen."""
    kinds = {kind: [each for each in plan.packages if each.kind == kind] for kind in ("wheel", "compiled", "member")}
    say(f"for Python {plan.target.python} on {plan.target.platform}, CUDA {plan.wanted.cuda}, into {folder}:")
    say(f"  {len(kinds['wheel'])} wheels, {size(sum(each.bytes for each in kinds['wheel']))}")
    for each in sorted(kinds["wheel"], key=lambda each: -each.bytes)[:5]:
        say(f"    {each.name} {each.version}: {size(each.bytes)}")
    if compiled := [f"{each.name} {each.version}" for each in kinds["compiled"]]:
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
        (folder / NAME).unlink(missing_ok=True)  # the folder is incomplete from here on
        remove_scratch(folder)
        write_text(folder / LOCK, plan.lock)
        write_text(folder / BOOTSTRAP.name, BOOTSTRAP.read_text(encoding="utf-8"))
        for place in plan.missing:
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
        download({folder / place: file for place, file in plan.missing.items()})
        (folder / WHEELS).mkdir(exist_ok=True)
        files = {each.name: _wheel(each, folder, plan.target) for each in plan.packages}
        for material in plan.materials:
            if names := plan.missing_materials[material.place + material.origin]:
                say(f"{material.origin}: {len(names)} files to {folder / material.place}")
                (folder / material.place).mkdir(parents=True, exist_ok=True)
                remove_scratch(folder / material.place)
                material.bring(names, folder / material.place)
        brought = [f"{material.place}/{name}" for material in plan.materials for name in material.files]
        manifest = Manifest(
            python=plan.target.python,
            platform=plan.target.platform,
            cuda=plan.wanted.cuda,
            packages=[
                Locked(name=each.name, version=each.version, kind=each.kind, file=files[each.name])
                for each in plan.packages
            ],
            materials={_title(material): material.origin for material in plan.materials},
            files=entries(folder, [LOCK, BOOTSTRAP.name, *files.values(), *brought]),
        )
        write_manifest(folder, manifest)
    return manifest


def _title(material: Material) -> str:
    """Display name of a material, which is either a folder or a single file in a shared folder."""
    names = [*material.files]
    return f"{material.place}/{names[0]}" if len(names) == 1 else material.place


def _wheel(package: Package, folder: Path, target: Target) -> str:
    """The package's file in the folder, built if necessary."""
    if package.kind in ("wheel", "compiled"):
        return _place(package)
    say(f"building the wheel of {package.name} {package.version}")
    failed = f"{package.name} {package.version}: its wheel was not built"
    with TemporaryDirectory(dir=folder, prefix=SCRATCH) as scratch:
        source = folder / _place(package) if package.file else Path(scratch, "source")
        if package.directory:
            # build in a copy: setuptools writes into the source folder, and packages leftovers of earlier builds
            shutil.copytree(package.directory, source, ignore=NOT_THE_CODE)
        words = ["build", "--wheel", "--quiet", "--no-sources", "--python", sys.executable, "--out-dir", scratch]
        uv([*words, source], failed)
        (built,) = Path(scratch).glob("*.whl")
        if target.best([built.name]) is None:
            remedy = f"run this on a machine with Python {target.python} on {target.platform}"
            raise UserError(f"{built.name}: built for this machine, does not fit the target", remedy)
        built.replace(folder / WHEELS / built.name)
    return f"{WHEELS}/{built.name}"
