"""Convert questions with answers to NeMo-Gym's row format, and handle the other parameters of a row.

    {"question": "What is 3+14-5?", "expected_answer": "12"}
->  {"responses_create_params": {"input": [{"role": "user", "content": "What is 3+14-5?"}]},
     "question": "What is 3+14-5?", "expected_answer": "12",
     "agent_ref": {"type": "responses_api_agents", "name": "math_with_judge_simple_agent"}}

    {"responses_create_params": {"input": [...], "temperature": 0.5, "metadata": {...}}}
->  temperature (1 row; grpo.temperature=1.0 counts), metadata (1 row)

`nemotron_data.formats.rl_rows` describes the format. No parameter is dropped silently: an engine uses it, counts it in
a notice as above, or refuses the row.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from nemotron_data.chat.called import as_items, decided_turns, is_conversation
from nemotron_data.formats.rl_rows import AGENT_TYPE, PARAMETERS, RLRow, validate, validate_prompt
from nemotron_data.rejects import Refused
from nemotron_data.sources.datasets import no_field, read_question
from nemotron_shared.config.training import GRPOSection
from stages.rl.schema import RLData


def gym_row(row: dict[str, Any], settings: RLData, written: bytes | None = None) -> dict[str, Any]:
    """The NeMo-Gym form of a row; the same object if nothing had to be changed.

    A row with `responses_create_params` is only checked, and its `agent_ref` completed; any other row is read as a
    question with an answer.

    Args:
        written: the row's JSON text, if any, so that numeric answers keep their exact digits.

    Raises:
        Refused: something the model or the verifier needs is missing or has a wrong type, or the answer does not match
            `answer_pattern`.
    """
    made, agent = row, row.get("agent_ref")
    if PARAMETERS not in row:
        fields = settings.question_field, settings.answer_field, settings.answer_pattern
        question, expected = read_question(row, *fields, written)
        system = [{"role": "system", "content": settings.system_prompt}] if settings.system_prompt else []
        made = {
            **kept_fields(row, settings.keep_fields),
            PARAMETERS: {"input": [*system, {"role": "user", "content": question}]},
            "question": question,
        }
        if settings.answer_field is None:  # no agent verifies it
            validate_prompt(made)
            return made
        made |= {"expected_answer": expected, "agent_ref": {"type": AGENT_TYPE, "name": settings.agent}}
    elif agent is None:
        made = {**row, "agent_ref": {"type": AGENT_TYPE, "name": settings.agent}}
        try:
            validate(made)
        except Refused as refused:
            if not refused.reason.startswith("no verifier field"):
                raise
            told = f"{refused.reason} for {settings.agent}, which data_prep.agent takes for rows that name none"
            raise Refused("no agent_ref", f"{told}; name the agent of the row's environment") from refused
    elif isinstance(agent, dict) and agent.get("type") is None:
        made = {**row, "agent_ref": {**agent, "type": AGENT_TYPE}}
    validate(made)
    return made


def gym_rows(row: dict[str, Any], settings: RLData, written: bytes | None = None) -> list[dict[str, Any]]:
    """The NeMo-Gym forms of a row: a conversation with tool calls gives one for each turn that can be judged.

    Raises:
        Refused: as `gym_row`, or a conversation calls nothing.
    """
    if PARAMETERS in row or not is_conversation(row, settings.question_field):
        return [gym_row(row, settings, written)]
    kept = kept_fields(row, settings.keep_fields)
    return [
        {
            **kept,
            PARAMETERS: {"input": as_items(turn.before), **({"tools": turn.tools} if turn.tools else {})},
            "question": turn.question,
            "expected_answer": turn.expected,
        }
        for turn in decided_turns(row)
    ]


def agent_name(row: Mapping[str, Any], settings: RLData) -> Any:
    """Name of the agent that verifies a row's answers, before the row is checked."""
    agent = row.get("agent_ref")
    return agent.get("name") if isinstance(agent, dict) else settings.agent


def kept_fields(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The fields of a row that `data_prep.keep_fields` names; raises `Refused` if it lacks one."""
    if missing := next((name for name in names if name not in row), None):
        raise no_field(row, missing, "data_prep.keep_fields")
    return {name: row[name] for name in names}


WHOLE_ROWS = "leave such rows out, or train on them on GPUs with engine=nemo_rl engine.environment=nemo_gym"
"""Remedy: another engine uses all of a row."""
REFUSED = {
    "tools": "nothing would answer the calls",
    "previous_response_id": "the conversation before it is not there",
    "conversation": "the conversation before it is not there",
    "prompt": "the template that it names is not there",
}
"""Parameters that change the meaning of a row but cannot be honoured here, with the reason."""
SETTINGS = {"temperature": "temperature", "top_p": "top_p", "max_output_tokens": "max_new_tokens"}
"""Parameters that the config sets for all rows, with their setting in the section `grpo`."""


def parameter_fault(row: RLRow, *used: str) -> str | None:
    """A parameter that an engine which uses `used` can neither honour nor ignore; None if the row has none."""
    name = next((name for name in REFUSED if name in row.asked and name not in used), None)
    return f"the row has '{name}', but {REFUSED[name]}" if name else None


class Unused:
    """Counts the row parameters that an engine ignores."""

    def __init__(self, grpo: GRPOSection) -> None:
        self._grpo = grpo
        self._rows = Counter[str]()

    def count(self, row: RLRow, *used: str) -> None:
        """Count a row; the engine honours the parameters in `used`."""
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
