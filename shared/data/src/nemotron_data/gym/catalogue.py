"""Environments by name, in NeMo-Gym's layout, and the agents that their configs name.

    drawers/
    ├── drawers.py              the logic: a class Episode, and TOOLS if a model calls tools
    ├── app.py                  the same as a resources server of NeMo-Gym
    ├── configs/drawers.yaml    the resources server, and the agents that rows name in `agent_ref`
    └── data/example.jsonl      first rows

A name is that of a shipped environment, of a folder in ./environments, or of a resources server in NeMo-Gym's wheel;
anything with a slash is a folder. Environments with such logic are served by `small_server`, which needs only this
package; the others, and any as `nemo_gym:NAME`, by NeMo-Gym in its separate Python environment.
"""

import keyword
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import yaml

from nemotron_data.formats.rl_rows import RLRow
from nemotron_shared.machine.environments import environment_of, how_to_get
from nemotron_shared.system.atomic import write_text
from nemotron_shared.system.digest import file_digest, tree_files
from nemotron_shared.system.errors import UserError, did_you_mean

SHIPPED = Path(__file__).resolve().parent / "environments"
OWN = Path("environments")
TEMPLATE = Path(__file__).resolve().parent / "template" / "number_game"
NEMO_GYM = "nemo_gym"
"""The engine environment with NeMo-Gym's wheel; also the prefix of a name that NeMo-Gym is to serve."""
TOOLS_AGENT, TURNS_AGENT = "simple_agent", "gymnasium_agent"
"""The agents whose loops are implemented here: tools (/seed_session, /TOOL, /verify), and turns (/reset, /step)."""
REPLAYABLE = ("example_session_state_mgmt",)
"""Servers in NeMo-Gym's wheel whose answers are known to follow from the row and the model's turns."""
OTHER_ENGINE = "train on such rows with engine=nemo_rl engine.environment=nemo_gym"


@dataclass(frozen=True)
class Agent:
    """An agent that a row's `agent_ref` names: its loop, its server, and its maximum number of turns."""

    name: str
    kind: str
    environment: str
    max_steps: int | None = None


@dataclass(frozen=True)
class Environment:
    """An environment on the disk.

    Attributes:
        by_nemo_gym: NeMo-Gym serves it; else `small_server` does.
        server: its config section: `entrypoint`, and settings of the environment itself.
        config: the file with this section.
        agents: by name.
    """

    name: str
    folder: Path
    by_nemo_gym: bool
    config: Path = Path()
    server: Mapping[str, Any] = field(default_factory=dict)
    agents: Mapping[str, Agent] = field(default_factory=dict)

    @property
    def known_replayable(self) -> bool:
        """Whether its answers are known to follow from the row and the model's turns: it was read, and is tested."""
        return self.folder.parent == SHIPPED or self.folder in map(in_wheel().get, REPLAYABLE)

    @property
    def logic(self) -> Path:
        """The module with the class Episode, if it is one of ours."""
        return self.folder / f"{self.folder.name}.py"

    @property
    def examples(self) -> Path:
        """Its first rows."""
        return self.folder / "data" / "example.jsonl"


def find_environment(name: str) -> Environment:
    """The environment of a name or in a folder, with what its configs say.

    Raises:
        UserError: no environment or two have this name, a config is damaged, or it needs a model, such as a judge.
    """
    asked = name
    forced, name = name.startswith(f"{NEMO_GYM}:"), name.removeprefix(f"{NEMO_GYM}:")
    if "/" in name:
        found = [Path(name).expanduser().resolve()]
        if not found[0].is_dir():
            raise UserError(f"environment '{asked}': no such folder", "name a folder, or see: nemotron env list")
    else:
        here = {folder.name: folder for folder in _folders(SHIPPED)}
        own = {folder.name: folder.resolve() for folder in _folders(OWN)}
        found = [known[name] for known in (here, own) if name in known]
        found = found or [wheel[name] for wheel in [in_wheel()] if name in wheel]
        if not found:
            wheel = in_wheel()
            otherwise = "see: nemotron env list" if wheel else f"for those of NeMo-Gym, {how_to_get(NEMO_GYM)}"
            remedy = did_you_mean(name, [*here, *own, *wheel], otherwise)
            raise UserError(f"no environment named '{asked}'", remedy)
    if len(found) > 1:
        raise UserError(f"two environments are named '{name}': {found[0]} and {found[1]}", "rename the one of yours")
    folder = found[0]
    environment = Environment(folder.name, folder, forced or not (folder / f"{folder.name}.py").is_file())
    entry = folder / "app.py"
    if environment.by_nemo_gym and not entry.is_file():
        what = f"{folder} is not an environment: it has neither {folder.name}.py nor app.py"
        raise UserError(what, "make one with: nemotron new environment NAME")
    return _with_configs(environment)


def find_environments(names: Sequence[str]) -> list[Environment]:
    """The environments of a config, in its order.

    Raises:
        UserError: one cannot be found, or is named twice.
    """
    found = [find_environment(name) for name in names]
    if len({one.name for one in found}) < len(found):
        raise UserError(f"environments: {', '.join(names)}: one is named twice", "name each once")
    return found


def agents_of(environments: Iterable[Environment]) -> dict[str, Agent]:
    """The agents of these environments, by name."""
    return {agent.name: agent for one in environments for agent in one.agents.values()}


def agent_named(agents: Mapping[str, Agent], name: str | None) -> Agent:
    """The agent that a row names.

    Raises:
        UserError: it is not among them, or has a loop that is not implemented here.
    """
    agent = agents.get(name or "")
    if agent is None:
        what = f"its agent '{name}' is not among those of the environments ({', '.join(sorted(agents))})"
        raise UserError(what, f"name its environment in `servers`, or {OTHER_ENGINE}")
    if agent.kind not in (TOOLS_AGENT, TURNS_AGENT):
        what = f"its agent '{name}' is a {agent.kind}, and the loops here are {TOOLS_AGENT} and {TURNS_AGENT}"
        raise UserError(what, OTHER_ENGINE)
    return agent


def agent_for(row: RLRow, agents: Mapping[str, Agent], tools: Callable[[str], frozenset[str] | None]) -> Agent:
    """The agent that plays a row.

    Args:
        tools: those of the environment of a name; None if they are not known.

    Raises:
        UserError: as for `agent_named`; or the row has a tool that its environment has not, so a call of it would fail.
    """
    agent = agent_named(agents, row.agent)
    names = row.tools if agent.kind == TOOLS_AGENT else []
    if not names or (known := tools(agent.environment)) is None:
        return agent
    for name in names:
        if name not in known:
            remedy = did_you_mean(name, sorted(known), f"it has: {', '.join(sorted(known))}")
            raise UserError(f"environment '{agent.environment}' has no tool '{name}'", remedy)
    return agent


class Named(Protocol):
    """A section of a config that names environments."""

    servers: list[str]


def contents_of(key: str, section: Named | None) -> dict[str, Any]:
    """The files of the environments that the section `key` of a config names, on which a `Step`'s result depends."""
    if section is None or not section.servers:
        return {}
    folders = [find_environment(name).folder for name in section.servers]
    files = {
        folder.name: [path for path in tree_files(folder) if "__pycache__" not in path.parts] for folder in folders
    }
    return {key: {name: {path.name: file_digest(path) for path in paths} for name, paths in files.items()}}


def config_for_runner(environment: Environment, into: Path) -> str:
    """The config by which NeMo-Gym's own runner starts an environment: a path in its wheel, or a file in `into`.

    The runner looks for servers in its wheel and in its working directory, unless the key that names one is a path.
    """
    name = environment.name
    if environment.folder == in_wheel().get(name):
        return f"resources_servers/{name}/configs/{environment.config.name}"
    sections = yaml.safe_load(environment.config.read_text(encoding="utf-8"))
    for section in filter(lambda one: "resources_servers" in one, sections.values()):
        section["resources_servers"] = {str(environment.folder): one for one in section["resources_servers"].values()}
    write_text(into / f"{name}.yaml", yaml.safe_dump(sections, sort_keys=False))
    return str(into / f"{name}.yaml")


def new_environment(name: str, parent: Path = OWN) -> Path:
    """Write a working environment to start from: logic, server, rows, configs and a test. Returns its folder.

    Raises:
        UserError: the name is not a module name, or is taken.
    """
    folder = parent / name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        remedy = "begin with a lower-case letter, and take lower-case letters, digits and '_'"
        raise UserError(f"'{name}' cannot name an environment", remedy)
    if keyword.iskeyword(name) or name in sys.stdlib_module_names:
        taken = "a word of the Python language" if keyword.iskeyword(name) else "the name of a module of Python"
        raise UserError(f"'{name}' cannot name an environment: it is {taken}", f"take another name, such as my_{name}")
    if folder.exists() or name in {one.name for one in _folders(SHIPPED)}:
        raise UserError(f"there is an environment '{name}' already", "give another name")
    for source in tree_files(TEMPLATE):
        if "__pycache__" not in source.parts:
            place = folder / str(source.relative_to(TEMPLATE)).replace(TEMPLATE.name, name)
            write_text(place, source.read_text(encoding="utf-8").replace(TEMPLATE.name, name))
    write_text(folder / "app.py", (SHIPPED / "drawers" / "app.py").read_text(encoding="utf-8"))
    return folder


def available() -> dict[str, list[str]]:
    """Names by place: shipped, in ./environments, in NeMo-Gym's wheel."""
    names = {"shipped": _folders(SHIPPED), str(OWN): _folders(OWN), "nemo-gym": in_wheel().values()}
    return {place: sorted(folder.name for folder in folders) for place, folders in names.items()}


def in_wheel() -> dict[str, Path]:
    """Folders of the resources servers in NeMo-Gym's wheel; empty if it is not installed."""
    known = environment_of(NEMO_GYM)
    folder = known.folder if known is not None and known.programs is not None else None
    sites = folder.glob("lib/python3.*/site-packages/resources_servers") if folder else ()
    return {one.name: one for site in sites for one in _folders(site)}


def _folders(parent: Path) -> Iterator[Path]:
    """Environments in a folder."""
    for folder in sorted(parent.iterdir()) if parent.is_dir() else ():
        if (folder / "app.py").is_file() or (folder / f"{folder.name}.py").is_file():
            yield folder


def _with_configs(environment: Environment) -> Environment:
    """The server's section and the agents of all configs; those of the config with its name come first."""
    files = sorted(
        (environment.folder / "configs").glob("*.yaml"), key=lambda file: (file.stem != environment.name, file)
    )
    config, server = Path(), None
    agents: dict[str, Agent] = {}
    for file in files:
        try:
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(f"{file}: not YAML: {error}", "correct the file") from error
        sections = {name: one for name, one in (content or {}).items() if isinstance(one, dict)}
        names = {name for name, one in sections.items() if "resources_servers" in one}
        if server is None and names:
            config = file
            server = next(iter(sections[min(names)]["resources_servers"].values()), {})
        for name, one in sections.items():
            for kind, told in (one.get("responses_api_agents") or {}).items():
                if (told.get("resources_server") or {}).get("name") in names and name not in agents:
                    agents[name] = Agent(name, kind, environment.name, told.get("max_steps"))
    if not agents:
        what = f"{environment.folder / 'configs'}: no config names an agent for '{environment.name}'"
        theirs = environment.folder == in_wheel().get(environment.name)
        raise UserError(what, OTHER_ENGINE if theirs else "give it one, as in docs/environments.md")
    if environment.by_nemo_gym and (judge := _asks_a_model(server or {})):
        what = f"environment '{environment.name}' needs another model ({judge}), and none is served here"
        raise UserError(what, OTHER_ENGINE)
    return replace(environment, config=config, server=server or {}, agents=agents)


def _asks_a_model(server: Mapping[str, Any]) -> str | None:
    """The setting in which a resources server names a model, such as a judge."""
    for name, value in server.items():
        if isinstance(value, Mapping) and (value.get("type") == "responses_api_models" or _asks_a_model(value)):
            return name
    return None
