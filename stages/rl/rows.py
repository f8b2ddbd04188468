"""What a row of reinforcement data must be, and how a question with an answer becomes one.

    {"responses_create_params": {"input": [{"role": "user", "content": "What is 3+14-5?"}]},
     "agent_ref": {"type": "responses_api_agents", "name": "math_with_judge_simple_agent"},
     "question": "What is 3+14-5?", "expected_answer": "12"}

NeMo-Gym sends `responses_create_params` to the model and the answer, with the whole row, to the agent that `agent_ref`
names. The agent's resource server verifies with the fields beside them; without those every reward is 0 or an error.
"""

import re
from typing import Any

from stages.rl.schema import RLData

AGENT_TYPE = "responses_api_agents"
ROLES = ("user", "assistant", "system", "developer")

ANY = (str, int, float, bool, list, dict)
VERIFIER_FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    "math_with_judge_simple_agent": {"question": (str,), "expected_answer": (str,)},
    "code_gen_simple_agent": {"verifier_metadata": (dict,), "verifier_metadata.unit_tests": ANY},
    "workplace_assistant_simple_agent": {
        "id": (str, int),
        "ground_truth": (list, str),
        "category": (str,),
        "environment_name": (str,),
    },
    "mcqa_simple_agent": {"options": (list,), "expected_answer": (str,)},
    "instruction_following_simple_agent": {
        "id": (str, int),
        "instruction_id_list": (list,),
        "prompt": (str,),
        "kwargs": (list,),
    },
    "structured_outputs_simple_agent": {"schema_str": (str,), "schema_type": (str,)},
}
"""By agent, the fields that its server cannot verify without, and their types. A new agent is a new entry."""
TYPE_NAMES: dict[type, str] = {str: "text", int: "a number", list: "a list", dict: "an object"}


class Refused(Exception):
    """A row that cannot be used. `reason` is a fixed phrase, rows are counted by it; `detail` is about this row."""

    def __init__(self, reason: str, detail: str = "", remedy: str | None = None) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
        self.remedy = remedy


def gym_row(row: dict[str, Any], settings: RLData) -> dict[str, Any]:
    """The NeMo-Gym form of a row: the very same object where nothing had to be changed.

    A row with `responses_create_params` is only checked, and given what `agent_ref` lacks; any other is taken for a
    question with an answer.

    Raises:
        Refused: something the model or the verifier needs is missing or of a wrong type.
    """
    made = with_agent(row, settings.agent) if "responses_create_params" in row else question_row(row, settings)
    check_row(made)
    return made


def question_row(row: dict[str, Any], settings: RLData) -> dict[str, Any]:
    """A prompt of a question, with what verifies the answer beside it.

    Raises:
        Refused: the question or the answer is missing, or the answer does not match `answer_pattern`.
    """
    question = _text(row, settings.question_field)
    system = [{"role": "system", "content": settings.system_prompt}] if settings.system_prompt else []
    return {
        "responses_create_params": {"input": [*system, {"role": "user", "content": question}]},
        "question": question,
        "expected_answer": expected_answer(row, settings),
        "agent_ref": {"type": AGENT_TYPE, "name": settings.agent},
    }


def expected_answer(row: dict[str, Any], settings: RLData) -> str:
    """The answer that a completion is compared with."""
    text = _text(row, settings.answer_field)
    if settings.answer_pattern is None:
        return text
    found = re.search(settings.answer_pattern, text)
    if found is None:
        raise Refused("no answer in the field", f"'{text[:80]}'", "correct data_prep.answer_pattern")
    return (found[1] if found.groups() else found[0]).strip()


def with_agent(row: dict[str, Any], agent: str) -> dict[str, Any]:
    """The row with a whole `agent_ref`: a missing one names `agent`, a missing type is filled in."""
    reference = row.get("agent_ref")
    if reference is None:
        return {**row, "agent_ref": {"type": AGENT_TYPE, "name": agent}}
    if isinstance(reference, dict) and reference.get("type") is None:
        return {**row, "agent_ref": {**reference, "type": AGENT_TYPE}}
    return row


def check_row(row: dict[str, Any]) -> None:
    """Refuse a row that the runner or its verifier would stumble over; raises `Refused`."""
    _check_prompt(row)
    reference = row["agent_ref"]
    if not isinstance(reference, dict) or not isinstance(reference.get("name"), str) or not reference["name"]:
        raise Refused("agent_ref without a name", 'it is {"type": "responses_api_agents", "name": ...}')
    if reference["type"] != AGENT_TYPE:
        raise Refused(f"agent_ref.type is not '{AGENT_TYPE}'", str(reference["type"]))
    for field, types in VERIFIER_FIELDS.get(reference["name"], {}).items():
        _check_field(row, field, types, reference["name"])


def _check_prompt(row: dict[str, Any]) -> None:
    parameters = row["responses_create_params"]
    if not isinstance(parameters, dict):
        raise Refused("responses_create_params is not an object", type(parameters).__name__)
    turns = parameters.get("input")
    if isinstance(turns, str):
        turns = [{"role": "user", "content": turns}]
    if not isinstance(turns, list):
        raise Refused("responses_create_params.input is no list of turns", type(turns).__name__)
    for number, turn in enumerate(turns, start=1):
        _check_turn(turn, number)
    if not any(_is_users(turn) for turn in turns):
        raise Refused("no user turn", "responses_create_params.input needs one")


def _check_turn(turn: Any, number: int) -> None:
    """A message; or another item of the Responses API, such as a function call, which its `type` names."""
    if not isinstance(turn, dict):
        raise Refused("a turn is not an object", f"turn {number}: {type(turn).__name__}")
    if not _is_message(turn):
        return
    if turn.get("role") not in ROLES:
        raise Refused("a turn's role is unknown", f"turn {number}: {turn.get('role')}; known are {', '.join(ROLES)}")
    content = turn.get("content")
    parts = content if isinstance(content, list) else [None]
    if not isinstance(content, str) and not all(isinstance(part, dict) for part in parts):
        raise Refused("a turn's content is not text", f"turn {number}: {type(content).__name__}")


def _is_message(turn: dict[str, Any]) -> bool:
    return turn.get("type") in (None, "message")


def _is_users(turn: dict[str, Any]) -> bool:
    return _is_message(turn) and turn.get("role") == "user"


def _check_field(row: dict[str, Any], field: str, types: tuple[type, ...], agent: str) -> None:
    value: Any = row
    for key in field.split("."):
        value = value.get(key)
    if value is None:
        raise Refused(f"no verifier field '{field}'", f"the server of {agent} needs it")
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        wanted = " or ".join(TYPE_NAMES[kind] for kind in types)
        raise Refused(f"verifier field '{field}' is not {wanted}", f"it is {type(value).__name__} ({agent})")


def question_of(row: dict[str, Any]) -> str:
    """The text of the last user turn of a checked row."""
    turns = row["responses_create_params"]["input"]
    if isinstance(turns, str):
        return turns
    content = next(turn["content"] for turn in reversed(turns) if _is_users(turn))
    return content if isinstance(content, str) else "\n".join(str(part.get("text", part)) for part in content)


def _text(row: dict[str, Any], field: str) -> str:
    value = row.get(field)
    if value is None:
        raise Refused(f"no field '{field}'", f"fields here: {', '.join(row)}", "name the field that holds it")
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise Refused(f"field '{field}' is not text", type(value).__name__)
    return str(value)
