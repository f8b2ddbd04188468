"""Find the data that a training command's settings describe, if it gives any settings of data.

    nemotron super3 sft -c tiny data_prep.source=mine.jsonl

trains on data prepared from mine.jsonl with the settings of tiny. Without such an artifact, the data is prepared first,
or the error names the command that prepares it; the newest artifact of other data is never used instead.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nemotron_shared.artifacts import Artifact, Store
from nemotron_shared.config.compose import Composed, shared_groups
from nemotron_shared.config.overrides import COMMAND_LINE
from nemotron_shared.config.schema import RunSection, Section
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.attempts import is_recorded
from nemotron_shared.runtime.remedies import SECTION

if TYPE_CHECKING:
    from nemotron_shared.runtime.arguments import Arguments
    from nemotron_shared.runtime.step import Step


@dataclass(frozen=True)
class DataChoice:
    """The data settings given by the user, such as `data_prep.source`, and the artifact they describe."""

    given: list[str]
    artifact: Artifact | None


def data_by_settings(
    step: "Step", run: RunSection, store: Store, arguments: "Arguments", composed: Composed
) -> DataChoice | None:
    """Find the data described by the user's settings; None without such settings, when `run.data` alone decides.

    Raises:
        UserError: the data cannot be prepared with these settings (no such file, say), or `run.data` is given too and
            names data that was prepared differently.
    """
    shipped = [folder.resolve() for folder in (step.directory / "config", *shared_groups())]
    others = [file for file in composed.files if not any(map(file.resolve().is_relative_to, shipped))]
    own = {file.name for file in others if not is_recorded(file)}
    origins = composed.origins.items()
    by_hand = {key for key, origin in origins if origin == COMMAND_LINE or origin.rpartition(":")[0] in own}
    schema = step.schema.model_fields[SECTION].annotation
    # settings that change the data, not those that change only how it is prepared
    how = schema.how_keys() if isinstance(schema, type) and issubclass(schema, Section) else frozenset()
    given = sorted(key for key in by_hand if key.startswith(f"{SECTION}.") and key.split(".")[1] not in how)
    if step.prepare is None or run.data is None or not given:
        return None
    # here: these modules import this one
    from nemotron_shared.runtime.engine import refuse
    from nemotron_shared.runtime.plan import identify
    from nemotron_shared.runtime.preflight import preflight

    checked = preflight(step.prepare, arguments)  # not a full plan, which would import a tokenizer
    refuse(checked.problems + checked.lacking)
    if not checked.is_decided:  # its tokenizer is not imported yet, so nothing was prepared with it
        return DataChoice(given, None)
    plan = identify(step.prepare, checked)
    made = (store.load(plan.name, version) for version in reversed(store.versions(plan.name)))
    found = next((one for one in made if one.manifest.producer.config_digest == plan.identity.result), None)
    if "run.data" in by_hand:
        named = store.resolve(run.data, family=run.family, expect=step.prepare.artifact_type)
        if found is None or named.manifest.producer.config_digest != plan.identity.result:
            raise UserError(
                f"run.data: {named.reference} was not prepared with {', '.join(given)} as given here",
                "leave run.data out to use the data of these settings, or leave these settings out to use run.data",
            )
        found = named
    return DataChoice(given, found)
