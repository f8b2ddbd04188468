"""How a question with an answer becomes a row of reinforcement data, and what a ready row still lacks.

    {"question": "What is 3+14-5?", "expected_answer": "12"}
->  {"responses_create_params": {"input": [{"role": "user", "content": "What is 3+14-5?"}]},
     "question": "What is 3+14-5?", "expected_answer": "12",
     "agent_ref": {"type": "responses_api_agents", "name": "math_with_judge_simple_agent"}}

What a row must be is told in `nemotron_data.formats.rl_rows`.
"""

from typing import Any

from nemotron_data.formats.rl_rows import AGENT_TYPE, PARAMETERS, validate
from nemotron_data.sources.datasets import read_question
from stages.rl.schema import RLData


def gym_row(row: dict[str, Any], settings: RLData, written: bytes | None = None) -> dict[str, Any]:
    """The NeMo-Gym form of a row: the very same object where nothing had to be changed.

    A row with `responses_create_params` is only checked, and given what `agent_ref` lacks; any other is taken for a
    question with an answer.

    Args:
        written: the JSON of the row, where there is one, whose numbers become answers as they stand there.

    Raises:
        Refused: something the model or the verifier needs is missing or of a wrong type, or the answer does not match
            `answer_pattern`.
    """
    made, agent = row, row.get("agent_ref")
    if PARAMETERS not in row:
        fields = settings.question_field, settings.answer_field, settings.answer_pattern
        question, expected = read_question(row, *fields, written)
        system = [{"role": "system", "content": settings.system_prompt}] if settings.system_prompt else []
        made = {
            PARAMETERS: {"input": [*system, {"role": "user", "content": question}]},
            "question": question,
            "expected_answer": expected,
            "agent_ref": {"type": AGENT_TYPE, "name": settings.agent},
        }
    elif agent is None:
        made = {**row, "agent_ref": {"type": AGENT_TYPE, "name": settings.agent}}
    elif isinstance(agent, dict) and agent.get("type") is None:
        made = {**row, "agent_ref": {**agent, "type": AGENT_TYPE}}
    validate(made)
    return made
