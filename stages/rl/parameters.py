"""What a row in NeMo-Gym's form asks for beside its prompt, for engines that do not send whole rows to NeMo-Gym.

    {"responses_create_params": {"input": [...], "temperature": 0.5, "metadata": {...}}}
->  temperature (1 row; grpo.temperature=1.0 counts), metadata (1 row)

Nothing of it is left out without a word: an engine uses it, counts it in such a line, or refuses the row.
"""

from collections import Counter

from nemotron_data.formats.rl_rows import RLRow
from nemotron_shared.config.training import GRPOSection

WHOLE_ROWS = "train on such rows with engine=nemo_rl engine.environment=nemo_gym"
"""What uses all of a row."""
REFUSED = {
    "tools": "nobody would answer its calls",
    "previous_response_id": "the conversation before it is not there",
    "conversation": "the conversation before it is not there",
    "prompt": "the template that it names is not there",
}
"""What changes what a row means, and is not there to be used."""
SETTINGS = {"temperature": "temperature", "top_p": "top_p", "max_output_tokens": "max_new_tokens"}
"""What the config says for all rows, and its setting in the section `grpo`."""


def parameter_fault(row: RLRow, *used: str) -> str | None:
    """What of a row can neither be used nor left out by an engine that uses `used`."""
    name = next((name for name in REFUSED if name in row.asked and name not in used), None)
    return f"the row has '{name}', and {REFUSED[name]}" if name else None


class Unused:
    """Counts what rows ask for and do not get."""

    def __init__(self, grpo: GRPOSection) -> None:
        self._grpo = grpo
        self._rows = Counter[str]()

    def count(self, row: RLRow, *used: str) -> None:
        """Note a row, of whose parameters the engine uses `used`."""
        for name, value in row.asked.items():
            setting = SETTINGS.get(name)
            if name not in used and (setting is None or value != getattr(self._grpo, setting)):
                self._rows[name] += 1

    def __str__(self) -> str:
        return ", ".join(self._shown(name, count) for name, count in sorted(self._rows.items()))

    def _shown(self, name: str, count: int) -> str:
        rows = f"{count} row{'s' if count > 1 else ''}"
        setting = SETTINGS.get(name)
        return f"{name} ({rows}{f'; grpo.{setting}={getattr(self._grpo, setting)} counts' if setting else ''})"
