"""Row requirements of NeMo-RL's environments. `nemotron_data.formats.rl_rows` describes rows in general."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemotron_data.formats.rl_rows import RLRow, Turn, read_rl_rows, validate
from nemotron_data.rejects import Refused
from nemotron_shared.config.training import GRPOSection
from nemotron_shared.system.errors import UserError
from stages.rl.rows import Unused, parameter_fault


def require_rows(files: list[Path], environment: str, grpo: GRPOSection) -> str:
    """Refuse rows that NeMo-RL would truncate, or fail on hours later; returns counts of the parameters it ignores.

    Raises:
        UserError: a bad row; the message gives file and line.
    """
    unused = Unused(grpo)
    for file in files:
        for row in read_rl_rows(file, remedy="correct that line, or prepare the data again"):
            if wrong := row_fault(row.value, environment):
                remedy = "engine.environment=nemo_gym sends whole rows to NeMo-Gym's servers"
                raise UserError(f"{row.place}: {wrong}", remedy if environment == "math" else None)
            if environment == "math":
                unused.count(row)
    return str(unused)


def row_fault(value: Mapping[str, Any], environment: str) -> str | None:
    """Why an environment cannot use a row; None if it can."""
    if environment == "nemo_gym":
        try:
            validate(value)
        except Refused as refused:
            return str(refused)
        return None
    question, answer = value.get("question"), value.get("expected_answer")
    if not isinstance(question, str) or not isinstance(answer, str):
        return "no question or no expected_answer, which the math environment needs"
    row = RLRow.of(value)
    if row.prompt and row.prompt != (Turn("user", question),):
        return "the prompt has more turns than the question, and the math environment would drop them"
    if "instructions" in row.asked:
        return "the row has 'instructions', and the math environment would drop them"
    return parameter_fault(row)
