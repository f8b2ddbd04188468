"""Check before a model is loaded that environments start, and have the agents and tools that rows name."""

from collections.abc import Iterator, Mapping
from itertools import islice

from nemotron_data.formats.rl_rows import RLRow, read_rl_rows
from nemotron_data.gym.catalogue import Agent, agent_for, agent_named, agents_of, find_environments
from nemotron_data.gym.server import tools_of
from nemotron_data.prep.sampling import look_ahead
from nemotron_data.sources.datasets import Part
from nemotron_data.sources.reading import Row
from nemotron_shared.artifacts import Artifact
from nemotron_shared.engine.engine import Inputs
from nemotron_shared.system.errors import Finding, UserError, of_level, problem
from stages.rl import data_prep
from stages.rl.rows import gym_row
from stages.rl.schema import RLConfig, RLData

SERVERS = "engine.environments.servers"
FIRST_ROWS = 100
"""Rows of prepared data whose tools are looked at here; a training looks at all, once its model is loaded."""


def agent_problems(config: RLConfig, inputs: Inputs) -> Iterator[Finding]:
    """Agents and tools of the prepared data, or of the first rows of data still to be prepared, that no environment
    has; and environments that do not start.
    """
    section, data, settings = getattr(config.engine, "environments", None), inputs.get("data"), config.data_prep
    if section is None or config.on_pairs is not None:
        return
    environments = find_environments(section.servers)
    agents, tools = agents_of(environments), tools_of(environments)
    if data is not None:
        yield from _of_prepared(data, agents, tools)
        return

    def name_one(row: Row, part: Part[RLData]) -> None:
        agent_for(RLRow.of(gym_row(row.value, part.settings, row.written)), agents, tools.get)

    if config.run.data is not None and config.run.missing_data == "prepare" and settings.source is not None:
        parts = data_prep.ROWS.parts(settings)
        yield from of_level("problem", look_ahead(parts, lambda part: lambda row: name_one(row, part)))


def _of_prepared(
    data: Artifact, agents: Mapping[str, Agent], tools: Mapping[str, frozenset[str] | None]
) -> Iterator[Finding]:
    """All agents that are missing, and the first of the first rows with a tool that is missing."""
    for name, place in data.manifest.metadata.get(data_prep.AGENTS, {}).items():
        try:
            agent_named(agents, name)
        except UserError as error:
            yield problem(f"{data.reference}: the row {place}: {error.message}", error.remedy, SERVERS)
    file = data.path / data_prep.FILES["train"]
    for row in islice(read_rl_rows(file), FIRST_ROWS) if file.is_file() else ():
        try:
            if row.agent in agents:
                agent_for(row, agents, tools.get)
        except UserError as error:
            yield problem(f"{row.place}: {error.message}", error.remedy)
            return
