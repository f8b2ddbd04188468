"""Which models a training is rehearsed with, and which rehearsals have passed.

    ~/.nemotron/cache/rehearsals.json
    {"5e88...": "rehearsed: one step on the first rows, with random weights (its own size), saved and loaded"}

A rehearsal shows that this architecture goes through this method with these settings, this code and these libraries.
So it is remembered under a digest of all of them, and no start pays for it twice. Weights do not count, nor does what
a rehearsal replaces, such as the number of steps. A file that is lost or damaged counts as empty.
"""

import json
import platform
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.artifacts.names import parse_exact
from nemotron_shared.config.overrides import flat, override_key
from nemotron_shared.models.folder import config_of
from nemotron_shared.models.weights import WEIGHTS
from nemotron_shared.step.records import modules_of_step
from nemotron_shared.step.start import Start
from nemotron_shared.system.atomic import read_regular, write_json
from nemotron_shared.system.digest import json_digest
from nemotron_shared.system.errors import UserError

FILE = Path("cache", "rehearsals.json")
MOST = 200
"""Rehearsals that are kept, the newest ones."""
OWN_TYPE = "nemotron_h"
"""The only architecture that a training here begins with random weights."""
TEXTS = (".yaml", ".yml", ".json", ".jsonl", ".jinja", ".parquet", ".txt")
"""Endings of a user's files that are sources of a training, and no models."""
OF_THE_CODE = ("nemotron_shared.step.rehearsal", "nemotron_shared.step.remembered")
LIBRARIES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers")
PLACES = ("run.home", "run.model", "run.teacher", "run.reward_model", "run.family", "run.name", "run.publish_to")
"""Settings that count by what they lead to, or not at all."""


def comes_from_elsewhere(start: Start[Any], model: Artifact) -> bool:
    """Whether a model, or one that it was trained from, was not made here; one that the code of this start has
    trained before does not count.
    """
    if model.is_external or model.manifest.producer.verb == "import":
        return True
    made = model.manifest.producer
    if not _began_elsewhere(start.store, model):
        return False
    return made.stage != start.step.stage or made.code_digest != json_digest(_modules(start))


def _modules(start: Start[Any], *more: str) -> dict[str, str]:
    assert start.config is not None, "a training without a config is not rehearsed"
    return modules_of_step(start.step, start.config, start.store.home, *more)


def _began_elsewhere(store: Store, model: Artifact) -> bool:
    """Whether the line of models that a model was trained from begins with one from elsewhere."""
    while True:
        manifest = model.manifest
        if manifest.producer.verb == "import" or any(not one.uri.endswith(TEXTS) for one in manifest.sources):
            return True
        before = next((one for one in manifest.parents if one.role in ("model", "extends")), None)
        if before is None:
            return config_of(model.path).get("model_type") != OWN_TYPE
        reference = parse_exact(before.reference)
        if reference is None or reference.version not in store.versions(reference.name):
            return config_of(model.path).get("model_type") != OWN_TYPE
        model = store.resolve(reference)


def digest_of(start: Start[Any], replaced: Sequence[str]) -> str:
    """What a rehearsal depends on: architectures and tokenizers, settings, code and libraries.

    Args:
        replaced: overrides of the rehearsal, whose keys do not count.
    """
    without = {*PLACES, *map(override_key, replaced)}
    tree: Any = OmegaConf.to_container(start.composed.tree, resolve=False)
    settings = {key: value for key, value in flat(tree) if without.isdisjoint(_with_sections(key))}
    models = {role: _architecture(one) for role, one in start.inputs.items() if one is not None and role != "data"}
    sources = {one.uri: one.digest for one in start.sources}
    code = _modules(start, *OF_THE_CODE)
    libraries = {name: _version(name) for name in LIBRARIES} | {"python": platform.python_version()}
    where = bool(start.machine.gpus)
    return json_digest([models, settings, sources, code, libraries, where, start.arguments.trust_code])


def _with_sections(key: str) -> list[str]:
    """`a.b.c`, `a.b` and `a`."""
    return [key.rsplit(".", count)[0] for count in range(key.count(".") + 1)]


def _architecture(model: Artifact) -> dict[str, str]:
    """Digests of a model's files besides its weights, and of the names, types and shapes of those."""
    files = {name: entry.sha256 for name, entry in model.manifest.files.items() if not name.endswith(WEIGHTS)}
    shapes = {path.name: _header(path) for path in sorted(model.path.glob("*.safetensors"))}
    return files | {name: json_digest(header) for name, header in shapes.items()}


def _header(file: Path) -> str:
    """The description of a file's tensors, whose length stands before it; empty where there is none to read."""
    with suppress(OSError), file.open("rb") as opened:
        return opened.read(int.from_bytes(opened.read(8), "little") % (1 << 27)).decode("latin-1")
    return ""


def _version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None


def passed(home: Path, digest: str) -> bool:
    """Whether a rehearsal with this digest has passed before."""
    return digest in _read(home)


def remember(home: Path, digest: str, said: str) -> None:
    """Keep what a rehearsal that passed has said. If that fails, the next start rehearses again."""
    found = _read(home) | {digest: said}
    with suppress(OSError, UserError):
        write_json(home / FILE, dict([*found.items()][-MOST:]))


def _read(home: Path) -> dict[str, str]:
    with suppress(OSError, UserError, ValueError, RecursionError):
        found = json.loads(read_regular(home / FILE).decode())
        if isinstance(found, dict):
            return {key: said for key, said in found.items() if isinstance(said, str)}
    return {}
