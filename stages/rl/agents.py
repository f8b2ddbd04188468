"""Check that the environments of a config have the agents that rows name, before a model is loaded."""

from collections.abc import Iterator

from nemotron_data.formats.rl_rows import RLRow
from nemotron_data.gym.catalogue import agent_named, agents_of, find_environment
from nemotron_data.prep.sampling import look_ahead
from nemotron_data.sources.datasets import Part
from nemotron_data.sources.reading import Row
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.engine import Inputs
from nemotron_shared.runtime.needs import Problem
from stages.rl import data_prep
from stages.rl.rows import gym_row
from stages.rl.schema import RLConfig, RLData


def agent_problems(config: RLConfig, inputs: Inputs) -> Iterator[Problem]:
    """Agents of the prepared data, or of the first rows of data still to be prepared, that no environment has."""
    section, data, settings = getattr(config.engine, "environments", None), inputs.get("data"), config.data_prep
    if section is None or config.on_pairs is not None:
        return
    agents = agents_of(map(find_environment, section.servers))
    if data is not None:
        for name, place in data.manifest.metadata.get(data_prep.AGENTS, {}).items():
            try:
                agent_named(agents, name)
            except UserError as error:
                what = f"{data.reference}: the row {place}: {error.message}"
                yield Problem(what, error.remedy, "engine.environments.servers")
        return

    def name_one(row: Row, part: Part[RLData]) -> None:
        agent_named(agents, RLRow.of(gym_row(row.value, part.settings, row.written)).agent)

    if config.run.data is not None and config.run.missing_data == "prepare" and settings.source is not None:
        parts = data_prep.ROWS.parts(settings)
        for error in look_ahead(parts, lambda part: lambda row: name_one(row, part)).problems:
            yield Problem(error.message, error.remedy)
