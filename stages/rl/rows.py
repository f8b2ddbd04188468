"""How a question with an answer becomes a row of reinforcement data, and what a ready row still lacks.

    {"question": "What is 3+14-5?", "expected_answer": "12"}
->  {"responses_create_params": {"input": [{"role": "user", "content": "What is 3+14-5?"}]},
     "question": "What is 3+14-5?", "expected_answer": "12",
     "agent_ref": {"type": "responses_api_agents", "name": "math_with_judge_simple_agent"}}

What a row must be is told in `nemotron_data.formats.rl_rows`.
"""

from typing import Any

from nemotron_data.formats.questions import QuestionFields, read_question
from nemotron_data.formats.rl_rows import AGENT_TYPE, PARAMETERS, validate
from stages.rl.schema import RLData


def gym_row(row: dict[str, Any], settings: RLData) -> dict[str, Any]:
    """The NeMo-Gym form of a row: the very same object where nothing had to be changed.

    A row with `responses_create_params` is only checked, and given what `agent_ref` lacks; any other is taken for a
    question with an answer.

    Raises:
        Refused: something the model or the verifier needs is missing or of a wrong type.
    """
    reference = row.get("agent_ref")
    if PARAMETERS not in row:
        made = question_row(row, settings)
    elif reference is None:
        made = {**row, "agent_ref": {"type": AGENT_TYPE, "name": settings.agent}}
    elif isinstance(reference, dict) and reference.get("type") is None:
        made = {**row, "agent_ref": {**reference, "type": AGENT_TYPE}}
    else:
        made = row
    validate(made)
    return made


def question_row(row: dict[str, Any], settings: RLData) -> dict[str, Any]:
    """A prompt of a question, with what verifies the answer beside it.

    Raises:
        Refused: the question or the answer is missing, or the answer does not match `answer_pattern`.
    """
    fields = QuestionFields(settings.question_field, settings.answer_field, settings.answer_pattern)
    question = read_question(row, fields)
    system = [{"role": "system", "content": settings.system_prompt}] if settings.system_prompt else []
    return {
        PARAMETERS: {"input": [*system, {"role": "user", "content": question.text}]},
        "question": question.text,
        "expected_answer": question.expected,
        "agent_ref": {"type": AGENT_TYPE, "name": settings.agent},
    }
