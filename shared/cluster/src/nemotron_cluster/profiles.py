"""Profiles of machines from env.toml, which is in the working folder or a parent; NEMOTRON_ENV_FILE names another.

    [leonardo]
    executor = "slurm"
    account = "IscrC_ABC"
    partition = "boost_usr_prod"
    gpus_per_node = 4

loaded = load_profile("leonardo")
loaded.profile.partition         "boost_usr_prod"
loaded.origins["partition"]      "env.toml:4 [leonardo]"

An unknown key is an error. A profile has facts about machines and nothing about a run: what a run is stays in the
recipes, images of containers included. A recipe's own `run.env` comes before a profile, and `run.env.KEY=VALUE` on the
command line after it.
"""

import os
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)  # fmt: skip

from nemotron_cluster.limits import (
    accelerator_count,
    require_accelerators,
    require_cpus,
    require_memory,
    require_node_memory,
    seconds_of,
)  # fmt: skip
from nemotron_shared.config.schema import a_number
from nemotron_shared.system.errors import UserError, did_you_mean

Count = Annotated[int, Field(ge=1)]
NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
OURS = frozenset({
    "--array", "-a", "--output", "-o", "--error", "-e", "--signal", "--dependency", "-d", "--requeue", "--no-requeue",
    "--export", "--wrap", "--chdir", "-D", "--open-mode", "--job-name", "-J", "--kill-on-invalid-dep",
})  # fmt: skip
ONE_LINE = re.compile(r"[^\n\r\0]*")
Model = TypeVar("Model", bound=BaseModel)
Lines = dict[tuple[str | None, str | None], int]
FILE = "env.toml"
VARIABLE = "NEMOTRON_ENV_FILE"
EXTENDS = "extends"
LARGEST = 100_000
TWINS = ("nproc_per_node", "ntasks_per_node")
SHOWN = "env.toml.example shows how each key is written"
COPY = f"copy env.toml.example to {FILE} and fill in your machine"


def _line(value: object) -> object:
    """A text that ends up in a script stays one line of it; a number is a text here, too."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and not ONE_LINE.fullmatch(value):
        raise ValueError("must be one line")
    return value


def _two_paths(mount: str) -> str:
    if ":" not in mount or not all(mount.split(":")[:2]):
        raise ValueError(f"'{mount}' is not a mount: write SOURCE:TARGET, or SOURCE:TARGET:ro")
    return mount


Line = Annotated[str, BeforeValidator(_line)]
Mount = Annotated[Line, AfterValidator(_two_paths)]


class Profile(BaseModel):
    """What all executors have in common."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)
    runs_here: ClassVar[bool] = False

    @field_validator("*", mode="before")
    @classmethod
    def _no_number(cls, value: object, info: ValidationInfo) -> object:
        return a_number(cls, value, info)

    executor: str
    home: Line | None = None
    """Artifact store of the jobs, as the nodes see it. Without it: the one of the command that submits."""
    python: Line | None = None
    """The interpreter that the jobs use, as the nodes see it. Without it: this one."""
    nodes: Count = 1
    gpus_per_node: int = Field(0, ge=0)
    nproc_per_node: Count | None = None
    """Processes on each node. Without it: one for each GPU, or one."""
    env_vars: dict[Annotated[str, Field(pattern=NAME)], Line] = {}
    """Variables of the jobs. What is secret belongs into `secrets`: these stand in scripts."""
    secrets: list[Annotated[str, Field(pattern=NAME)]] = ["HF_TOKEN", "WANDB_API_KEY"]
    """Names of variables that are handed over, where they are set here, in a file that only you can read."""
    setup_lines: list[Line] = []
    """Lines of shell before the step, such as `module load cuda`."""
    mounts: list[Mount] = []
    """Folders that a container sees: "/lustre:/lustre"."""
    container_image: Line | None = None
    """The image, where the recipe names none."""
    set: dict[str, Any] = {}
    """Settings of recipes on this machine, by their keys: after the recipe, before the command line."""

    @property
    def processes_per_node(self) -> int:
        """How many processes a step has on each node."""
        return self.nproc_per_node or self.gpus_per_node or 1


class Local(Profile):
    """This machine, in the background."""

    runs_here: ClassVar[bool] = True
    executor: Literal["local"]


class Docker(Profile):
    """A container on this machine, through NeMo-Run."""

    executor: Literal["docker"]
    runtime: Line | None = None
    """Docker's runtime; `nvidia` where there are GPUs."""
    ipc_mode: Line | None = None
    shm_size: Line | None = None


class Remote(Profile):
    """What every executor has that copies code to another file system."""

    packager: Literal["git", "pattern", "hybrid", "none"] = "git"
    """What of your own folder travels besides the packages: committed files, those of a pattern, both, or nothing."""
    packager_include_pattern: list[Line] = []


class Slurm(Remote):
    """Slurm, from a login node or over ssh. Names as in sbatch."""

    executor: Literal["slurm"]
    account: Line | None = None
    partition: Line | None = None
    run_partition: Line | None = None
    """For --run, where it differs."""
    batch_partition: Line | None = None
    """For --batch, where it differs."""
    build_partition: Line | None = None
    """For what is compiled or imported."""
    qos: Line | None = None
    reservation: Line | None = None
    constraint: Line | None = None
    ntasks_per_node: Count | None = None
    """The same as nproc_per_node, in Slurm's word."""
    gpus_option: Literal["gpus-per-node", "gres", "none"] = "gpus-per-node"
    """How GPUs are requested."""
    cpus_per_task: Count | None = None
    """CPUs of a process. Without it: all of a whole node, else as many as the step uses."""
    mem: Annotated[Line, AfterValidator(require_node_memory)] | None = None
    """Memory of a node; "0" is all of it. Without it: all of a whole node, else the partition's default."""
    exclusive: bool | None = None
    """Whether jobs have their nodes for themselves. Without it: those that use all GPUs or all CPUs of them."""
    time: Line = "04:00:00"
    """As Slurm reads it; 0 and UNLIMITED mean no limit."""
    build_time: Line | None = None
    """For what is compiled or imported. Without it: two hours, or `time` where that is shorter and the partition is
    the same."""
    signal_lead: int = Field(300, ge=10)
    """Seconds before the time limit at which a step gets the signal to save; longer than writing a checkpoint takes."""
    requeue: bool = True
    """Whether a job that ran out of time, was preempted or lost a node is queued again and continues."""
    launcher: Literal["torchrun", "srun", "single"] = "torchrun"
    """What starts the processes: torchrun on each node, one Slurm task for each process, or one process alone."""
    container_runtime: Literal["pyxis", "apptainer", "none"] | None = None
    """What runs an image. Without it: pyxis where an image is named."""
    ray_sub: Line | None = None
    """NeMo-RL's own ray.sub, whose head and workers are used instead of ours. As its header says, nodes are then not
    shared, and a job waits for earlier ones of the same name."""
    extra_directives: list[Line] = []
    """Further options of sbatch: "--nodelist=n[1-4]"."""
    tunnel: Literal["local", "ssh"] = "local"
    host: Line | None = None
    user: Line | None = None
    port: Count | None = None
    identity: Line | None = None
    """The key file for ssh; without it, what ssh itself finds."""
    ssh_options: list[Line] = []
    """Further options of ssh: "-oProxyJump=gate"."""
    remote_job_dir: Line | None = None
    """Folder on the cluster's shared file system where jobs lie. Without it, and without a tunnel: `.nemotron/jobs`."""

    @property
    def processes_per_node(self) -> int:
        """See the base class."""
        return self.nproc_per_node or self.ntasks_per_node or self.gpus_per_node or 1

    @field_validator("time", "build_time")
    @classmethod
    def _is_time(cls, time: str | None) -> str | None:
        if time is not None:
            seconds_of(time)
        return time

    @field_validator("extra_directives")
    @classmethod
    def _are_options(cls, options: list[str]) -> list[str]:
        for option in options:
            if not option.startswith("-"):
                raise ValueError(f"'{option}' is not an option of sbatch: those begin with - or --")
            if option.partition("=")[0].split()[0] in OURS:
                raise ValueError(f"'{option}' is an option that the job's script depends on")
        return options

    def wrong_together(self) -> str | None:
        """What is wrong between keys, as `key: what`."""
        if self.tunnel == "ssh" and not self.host:
            return "host: a tunnel over ssh needs the login node's name"
        if self.tunnel == "ssh" and not self.remote_job_dir:
            return "remote_job_dir: over ssh the folder for jobs on the cluster must be named"
        for key in ("remote_job_dir", "home"):
            if (place := getattr(self, key)) and not place.startswith(("/", "$")):
                return f"{key}: '{place}' is not an absolute path, and the nodes start elsewhere"
        if self.nproc_per_node and self.ntasks_per_node and self.nproc_per_node != self.ntasks_per_node:
            return "nproc_per_node: it means the same as ntasks_per_node, which says another number"
        return None


class SkyPilot(Remote):
    """SkyPilot, by its own YAML and command."""

    executor: Literal["skypilot"]
    cloud: Line | None = None
    region: Line | None = None
    instance_type: Line | None = None
    accelerators: Annotated[Line, AfterValidator(require_accelerators)] | None = None
    """As SkyPilot writes them: "H100:8"."""
    use_spot: bool = False
    disk_size: Count | None = None
    """GB."""
    file_mounts: dict[str, Line] = {}
    cluster_name: Line | None = None

    @property
    def processes_per_node(self) -> int:
        """One for each accelerator, unless the profile says otherwise."""
        return self.nproc_per_node or self.gpus_per_node or accelerator_count(self.accelerators or "")


class Cloud(Remote):
    """What the clouds behind NeMo-Run have in common."""

    send_code: bool = True
    """Whether the packages travel with the job. Not where the image holds them."""
    secret_refs: dict[Annotated[str, Field(pattern=NAME)], Line] = {}
    """Where the cloud keeps a secret variable. Lepton: the secret's name; Kubernetes: "SECRET/KEY"."""


class DGXCloud(Cloud):
    """NVIDIA DGX Cloud (Run:ai), through NeMo-Run."""

    executor: Literal["dgxcloud"]
    base_url: Line
    kube_apiserver_url: Line
    client_id: Line
    client_secret_env: Annotated[str, Field(pattern=NAME)] = "DGX_CLIENT_SECRET"
    """The variable that holds the client's secret: it stands in no file."""
    project_name: Line
    pvc_nemo_run_dir: Line
    pvcs: list[dict[str, Any]] = []
    distributed_framework: Line = "PyTorch"
    custom_spec: dict[str, Any] = {}


class Lepton(Cloud):
    """NVIDIA DGX Cloud Lepton, through NeMo-Run."""

    executor: Literal["lepton"]
    nemo_run_dir: Line
    resource_shape: Line
    node_group: Line
    node_reservation: Line | None = None
    shared_memory_size: int = Field(65536, ge=0)
    mounts: list[dict[str, Line]] = []  # ty: ignore[incompatible-attribute-override] - Lepton's own form: path, mount_path
    image_pull_secrets: list[Line] = []
    pre_launch_commands: list[Line] = []
    custom_spec: dict[str, Any] = {}

    @field_validator("mounts")
    @classmethod
    def _paths_of_lepton(cls, mounts: list[dict[str, str]]) -> list[dict[str, str]]:
        for mount in mounts:
            if not {"path", "mount_path"} <= set(mount):
                raise ValueError("a mount of Lepton has the keys path and mount_path")
        return mounts


class Kubeflow(Cloud):
    """Kubeflow's training operator, through NeMo-Run."""

    executor: Literal["kubeflow"]
    namespace: Line = "default"
    workdir_pvc: Line | None = None
    workdir_pvc_path: Line = "/nemo_run"
    image_pull_secrets: list[Line] = []
    labels: dict[str, Line] = {}
    annotations: dict[str, Line] = {}
    tolerations: list[dict[str, Any]] = []
    volumes: list[dict[str, Any]] = []
    volume_mounts: list[dict[str, Any]] = []
    cpu_requests: Annotated[Line, AfterValidator(require_cpus)] | None = None
    """As Kubernetes writes them: "8", or "500m" for half of one."""
    memory_requests: Annotated[Line, AfterValidator(require_memory)] | None = None
    """As Kubernetes writes it: "64Gi", or "64G" in powers of 1000."""


PROFILES: dict[str, type[Profile]] = {
    "local": Local,
    "docker": Docker,
    "slurm": Slurm,
    "skypilot": SkyPilot,
    "dgxcloud": DGXCloud,
    "lepton": Lepton,
    "kubeflow": Kubeflow,
}


class Wandb(BaseModel):
    """[wandb]: where runs are mirrored to."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    project: Line
    entity: Line | None = None
    name: Line | None = None
    group: Line | None = None
    job_type: Line | None = None
    tags: list[Line] = []


RESERVED: dict[str, type[BaseModel]] = {"wandb": Wandb}
NOT_OURS = ("artifacts", "cache", "cli")
"""Tables of NVIDIA's own tools in the same file, which mean nothing here."""
ALIASES = {"container": "container_image", "startup_commands": "setup_lines", "app_id": "client_id", "run_name": "name"}
"""Other words for a key."""


@dataclass(frozen=True)
class Loaded:
    """A profile, and where each of its keys was written; `gpus_of_node` is the GPU count from env.toml, before any
    overrides.
    """

    name: str
    profile: Profile
    file: Path
    origins: dict[str, str] = field(default_factory=dict)
    wandb: Wandb | None = None
    gpus_of_node: int = 0


def env_file(start: Path | None = None) -> Path | None:
    """The env.toml for a folder, or None.

    Raises:
        UserError: NEMOTRON_ENV_FILE names a missing file.
    """
    if named := os.environ.get(VARIABLE):
        path = Path(named).expanduser()
        if not path.is_file():
            raise UserError(f"{VARIABLE} names {named}, which does not exist", "correct the variable, or unset it")
        return path.resolve()
    for folder in [here := (start or Path.cwd()).resolve(), *here.parents]:
        if (folder / FILE).is_file():
            return folder / FILE
        if (folder / ".git").exists() or folder == Path.home():
            return None
        root = folder / "pyproject.toml"
        if root.is_file() and "[tool.uv.workspace]" in root.read_text(encoding="utf-8", errors="replace"):
            return None
    return None


def load_profile(name: str, start: Path | None = None) -> Loaded:
    """Load a profile, merged with the profiles that it extends.

    Raises:
        UserError: no file, no such profile, or an unknown key or invalid value; the message names file and line.
    """
    file = env_file(start)
    if file is None:
        raise UserError(f"profile '{name}' needs {FILE}, which is not here or in a parent folder", COPY)
    tables = read_tables(file)
    names = profile_names(tables)
    if name not in names:
        there = f"{file} has: {', '.join(names)}" if names else f"{file} has no profile; {COPY}"
        raise UserError(f"no profile named '{name}'", did_you_mean(name, names, there))
    values, origins = _extended(file, tables, name)
    wandb = None
    if "wandb" in tables:
        section = {ALIASES.get(key, key): value for key, value in tables["wandb"].items()}
        wandb = _validate(file, "wandb", Wandb, section)
    profile = _make_profile(file, name, values, origins)
    return Loaded(name, profile, file, origins, wandb, profile.gpus_per_node)


def read_tables(file: Path) -> dict[str, Any]:
    """The tables of the file, unprocessed.

    Raises:
        UserError: invalid TOML, an unreasonably large file, or a top-level value that is not a table.
    """
    if file.stat().st_size > LARGEST:
        raise UserError(f"{file}: larger than {LARGEST:,} bytes", "leave in it what is true of your machines")
    try:
        tables = tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: not valid TOML: {error}", SHOWN) from error
    for name, table in tables.items():
        if not isinstance(table, dict):
            where = f"{file}:{line_of(file, None, name)}"
            raise UserError(f"{where}: '{name}' stands outside of a table", "put it below a [NAME]")
    return tables


def profile_names(tables: Iterable[str]) -> list[str]:
    """Names of the tables that are profiles."""
    return [name for name in tables if name not in (*RESERVED, *NOT_OURS)]


def _extended(file: Path, tables: dict[str, Any], name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """A profile's values merged over those of its parents, and the origin of each."""
    chain = [name]
    while (parent := tables[chain[-1]].get(EXTENDS)) is not None:
        where = f"{file}:{line_of(file, chain[-1], EXTENDS)}: [{chain[-1]}] extends '{str(parent)[:80]}'"
        if parent not in profile_names(tables):
            near = did_you_mean(str(parent), profile_names(tables), f"there are: {', '.join(profile_names(tables))}")
            raise UserError(f"{where}, which is not a profile", near)
        if parent in chain:
            raise UserError(f"{where} in a circle: {' -> '.join([*chain, parent])}", "take one of them out")
        chain.append(parent)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for link in reversed(chain):
        for written, value in tables[link].items():
            if written == EXTENDS:
                continue
            key = ALIASES.get(written, written)
            joined = isinstance(value, dict) and isinstance(values.get(key), dict)
            values[key] = values[key] | value if joined else value
            origins[key] = f"{file.name}:{line_of(file, link, written)} [{link}]"
            for inner in value if isinstance(value, dict) else ():
                origins[f"{key}.{inner}"] = f"{file.name}:{line_of(file, link, inner)} [{link}]"
    return values, origins


def _make_profile(file: Path, name: str, values: dict[str, Any], origins: dict[str, str]) -> Profile:
    executor = values.get("executor", "local")
    where = f"{file}:{line_of(file, name, None)}: [{name}]"
    if not isinstance(executor, str) or executor not in PROFILES:
        shown = str(executor)[:80]
        near = did_you_mean(shown, PROFILES, f"there are: {', '.join(PROFILES)}")
        raise UserError(f"{where} executor '{shown}' is unknown", near)
    values = {"executor": executor} | values
    profile = _validate(file, name, PROFILES[executor], values, origins)
    if isinstance(profile, Slurm) and (wrong := profile.wrong_together()):
        raise UserError(f"{where} {wrong}", SHOWN)
    return profile


def _validate(
    file: Path, table: str, model: type[Model], values: dict[str, Any], origins: dict[str, str] | None = None
) -> Model:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][0]) if first["loc"] else ""
        line = (origins or {}).get(key) or f"{file.name}:{line_of(file, table, key)} [{table}]"
        where = f"{file.parent}/{line}" if line.startswith(file.name) else line
        if first["type"] == "extra_forbidden":
            raise UserError(f"{where} unknown key '{key}'", _suggest(key, model, values)) from error
        if first["type"] == "missing":
            raise UserError(f"{file}:{line_of(file, table, None)} [{table}] lacks the key '{key}'", SHOWN) from error
        deeper = "".join(f".{part}" for part in first["loc"][1:])
        message = first["msg"].removeprefix("Value error, ")
        what = f"{where} {key}{deeper}: {message}, not {first['input']!r}"[:1000]
        raise UserError(what, SHOWN) from error


def _suggest(key: str, model: type[BaseModel], values: dict[str, Any]) -> str | None:
    """What an unknown key may mean: a similar key, or a key of another executor."""
    others = [name for name, other in PROFILES.items() if key in other.model_fields]
    if others and values.get("executor") not in others:
        return f"it is a key of executor = {' or '.join(map(repr, others))}; without one it is 'local'"
    keys = [*model.model_fields, EXTENDS]
    return did_you_mean(key, keys, f"there are: {', '.join(keys)}")


def line_of(file: Path, table: str | None, key: str | None) -> int:
    """The line of a key in a table, or of the table itself. tomllib does not report positions."""
    heads, keys = _lines(file.read_text(encoding="utf-8-sig", errors="replace"))
    head = heads.get((table, None), 1)
    return head if key is None else keys.get((table, key)) or heads.get((table, key), head)


@lru_cache(maxsize=2)
def _lines(text: str) -> tuple[Lines, Lines]:
    """Line numbers of tables, subtables and keys. Cached, since every key is looked up."""
    heads: Lines = {}
    keys: Lines = {}
    table: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if head := re.match(r"\s*\[\[?\s*([^\]]+?)\s*\]", line):
            table, *inner = [part.strip().strip("'\"") for part in head[1].split(".", 1)]
            heads.setdefault((table, None), number)
            heads |= {(table, name): number for name in inner}
        elif found := re.match(r"""\s*(?:"([^"]*)"|'([^']*)'|([\w.-]+))\s*[=.]""", line):
            names = found[3].split(".") if found[3] else [found[1] or found[2] or ""]
            for length in range(len(names)):
                keys.setdefault((table, ".".join(names[: length + 1])), number)
    return heads, keys


def merge_settings(loaded: Loaded, recipe: dict[str, Any], typed: dict[str, Any], origins: dict[str, str]) -> Loaded:
    """Merge a recipe's requests, the profile and typed overrides, in increasing precedence.

    Args:
        origins: where the keys of recipe and overrides were written.

    Raises:
        UserError: an unknown key or an invalid value; the message says where it was written.
    """
    own = loaded.profile.model_dump(exclude_unset=True)
    typed = {ALIASES.get(key, key): value for key, value in typed.items()}
    for one, other in (TWINS, TWINS[::-1]):
        if one in typed and other not in typed:
            own.pop(other, None)
    if "executor" in typed or "executor" in recipe:
        raise UserError("run.env.executor: the profile says what kind of cluster it is", "name another profile")
    origins = {key: origin for key, origin in origins.items() if key in typed or key not in own} | {
        key: origin for key, origin in loaded.origins.items() if key not in typed
    }
    values = recipe | own | typed
    known = [*type(loaded.profile).model_fields, EXTENDS]
    for key in (*recipe, *typed):
        if key not in known:
            near = did_you_mean(key, known, f"there are: {', '.join(known)}")
            raise UserError(f"{origins.get(key, 'run.env')}: run.env has no key '{key}'", near)
    profile = _make_profile(loaded.file, loaded.name, values, origins)
    return replace(loaded, profile=profile, origins=origins)
