"""RL rows in NeMo-Gym's format: one JSON object per line.

    {"responses_create_params": {"input": [{"role": "user", "content": "What is 3+14-5?"}]},
     "question": "What is 3+14-5?", "expected_answer": "12",
     "agent_ref": {"type": "responses_api_agents", "name": "math_with_judge_simple_agent"}}

`input` has the form of the Responses API: a text, which is one user turn, or a list of messages and of other items such
as function calls, identified by their `type`. The answer is sent, with the whole row, to the agent named in
`agent_ref`; the agent's server verifies it with the row's other fields, and without those every reward is 0 or an
error.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemotron_data.chat.rows import to_json, tools_of
from nemotron_data.formats import fast_json
from nemotron_data.formats.json_lines import REBUILD, read_lines
from nemotron_data.rejects import Refused
from nemotron_shared.system.errors import UserError

PARAMETERS = "responses_create_params"
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
"""Fields that an agent's server needs for verification, and their types. To support a new agent, add an entry."""
NEVER_EMPTY = ("question", "expected_answer", "options", "prompt", "schema_str")
OWN_PATHS = {"verify", "seed_session", "close_session", "aggregate_metrics"}
"""What an environment's server answers besides tools: a tool of such a name would let the model ask for its reward."""
TOOL_NAME = re.compile(r"[\w.-]+", re.ASCII)
CORRECT_ROW = "correct that line"
"""Remedy for a file of the user's own; prepared data is prepared again."""
MOST_SAID = 300
TYPE_NAMES: dict[type, str] = {str: "text", int: "a number", list: "a list", dict: "an object"}


Check = Callable[[Mapping[str, Any]], None]
"""Raises `Refused` for a bad row."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One item of a prompt.

    Attributes:
        text: text for people.
        is_message: False for function calls and the like, whose `role` is their type.
    """

    role: str
    text: str
    is_message: bool = True


@dataclass(frozen=True, slots=True)
class RLRow:
    """One row: the prompt as turns, and what is needed to verify the answer.

    Attributes:
        prompt: turns in order; may be empty in rows that `validate` would refuse.
        expected_answer: as text; None without one, because agents with their own verifiers do not need it.
        agent: name of the agent that verifies, or None.
        value: the whole row, which is sent to the agent's server.
        place: `train.jsonl:17` if the row was read from a file.
    """

    prompt: tuple[Turn, ...]
    expected_answer: str | None
    agent: str | None
    value: Mapping[str, Any]
    place: str = ""

    @classmethod
    def of(cls, value: Mapping[str, Any], place: str = "") -> "RLRow":
        """Read as much as possible of an object, so that bad rows can be shown, too; use `validate` to detect them."""
        agent, answer = value.get("agent_ref"), value.get("expected_answer")
        turns = [item for item in _items(value) if isinstance(item, Mapping)]
        name = agent.get("name") if isinstance(agent, Mapping) else None
        return cls(
            prompt=tuple(map(_turn, turns)),
            expected_answer=None if answer is None else str(answer),
            agent=None if name is None else str(name),
            value=value,
            place=place,
        )

    @property
    def items(self) -> list[Any]:
        """Turns and other items of the prompt, unchanged; a text is one user turn."""
        return _items(self.value)

    @property
    def asked(self) -> dict[str, Any]:
        """Other request parameters of the row: instructions, tools, a temperature, as present."""
        parameters = self.value.get(PARAMETERS)
        beside = parameters.items() if isinstance(parameters, Mapping) else ()
        return {name: value for name, value in beside if name != "input" and value not in (None, "", [], {})}

    @property
    def tools(self) -> list[str]:
        """Names of the tools, if they can be read."""
        try:
            functions = [tool.get("function") for tool in _functions(self.asked)]
        except Refused:
            return []
        return [str(one["name"]) for one in functions if isinstance(one, Mapping) and "name" in one]

    @property
    def question(self) -> str:
        """Text of the last user turn; empty without one."""
        asked = (turn.text for turn in reversed(self.prompt) if turn.is_message and turn.role == "user")
        return next(asked, "")

    @property
    def identity(self) -> str:
        """`row`, and a digest of its turns and other fields: many rows of an environment may share one prompt.

        The system prompt, tools, other parameters and the agent may differ.
        """
        turns = [(turn.role, turn.text) for turn in self.prompt if turn.role not in ("system", "developer")]
        fields = {name: value for name, value in self.value.items() if name not in (PARAMETERS, "agent_ref")}
        whole = json.dumps([turns, fields], sort_keys=True, default=str)
        return f"row {hashlib.sha256(whole.encode()).hexdigest()[:32]}"

    def searched(self) -> Iterator[str]:
        """The texts in which rows of an evaluation are searched for: each turn, and then the whole row."""
        yield from (turn.text for turn in self.prompt)
        yield f"{self.identity}: {self.question}"

    @property
    def text(self) -> str:
        """The whole prompt for people, one paragraph for each turn."""
        return "\n\n".join(f"{turn.role}: {turn.text}" for turn in self.prompt)


def _items(value: Mapping[str, Any]) -> list[Any]:
    parameters = value.get(PARAMETERS)
    # the prompt of a pair of answers is a list of messages
    items = parameters.get("input") if isinstance(parameters, Mapping) else value.get("prompt")
    if isinstance(parameters, Mapping) and isinstance(items, str):
        return [{"role": "user", "content": items}]
    return items if isinstance(items, list) else []


def _turn(item: Mapping[str, Any]) -> Turn:
    if not _is_message(item):
        shown = {key: value for key, value in item.items() if key != "type"}
        return Turn(str(item.get("type")), fast_json.dumps(shown, default=str).decode(), is_message=False)
    content = item.get("content")
    if isinstance(content, list):  # parts: {"type": "input_text", "text": "2+2?"}; images and files are shown as JSON
        content = "\n".join(str(part.get("text", part)) if isinstance(part, Mapping) else str(part) for part in content)
    return Turn(str(item.get("role", "?")), "" if content is None else str(content))


def read_rl_rows(
    file: Path, check: Check | None = None, fault: str = "damaged row", remedy: str = REBUILD
) -> Iterator[RLRow]:
    """Stream the rows of a prepared file, in constant memory.

    Args:
        check: `validate`, or the part of it that the caller needs; None accepts any row.
        fault: name for an invalid row, in the error.
        remedy: remedy for the error, unless the check has its own.

    Raises:
        UserError: naming file and line: a damaged line, or a row that is not of this form.
    """
    for line in read_lines(file):
        value = line.value(fault, remedy)
        if check is not None:
            try:
                check(value)
            except Refused as refused:
                raise UserError(
                    f"{line.place}: {fault} ({str(refused)[:MOST_SAID]})", refused.finding.remedy or remedy
                ) from refused
        yield RLRow.of(value, line.place)


def encode_row(
    value: Mapping[str, Any], source: Mapping[str, Any] | None = None, written: bytes | None = None
) -> bytes:
    """Encode a row as its line. Integers of any size keep their digits.

    Args:
        source: the row that it was made from.
        written: the JSON of `source`: numbers copied from it keep their spelling, 1.10 and not 1.1.

    Raises:
        Refused: a value that JSON cannot express, such as a date or NaN from a Parquet file.
    """
    before = source or {}
    taken = [name for name in value if name in before and value[name] is before[name] and type(value[name]) is not str]
    try:
        if taken and written is not None:
            exact = json.loads(written, parse_int=fast_json.Fragment, parse_float=fast_json.Fragment)
            return fast_json.dumps({**value, **{name: exact[name] for name in taken}}) + b"\n"
        # not orjson, which refuses integers beyond 64 bits
        return to_json(value, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise Refused("a value that JSON has no form for", str(error)) from error
    except RecursionError as error:
        raise Refused("nested too deeply") from error


def validate(row: Mapping[str, Any]) -> None:
    """Refuse a row that the runner or its verifier would fail on; raises `Refused`."""
    validate_prompt(row)
    reference = row.get("agent_ref")
    if (
        not isinstance(reference, Mapping)
        or not isinstance(reference.get("name"), str)
        or not reference["name"].strip()
    ):
        raise Refused("agent_ref without a name", 'it is {"type": "responses_api_agents", "name": ...}')
    if reference.get("type") != AGENT_TYPE:
        raise Refused(f"agent_ref.type is not '{AGENT_TYPE}'", str(reference.get("type")))
    agent = reference["name"]
    for field, types in VERIFIER_FIELDS.get(agent, {}).items():
        value: Any = row
        for key in field.split("."):
            value = value.get(key)  # the fields of VERIFIER_FIELDS come after the object that contains them
        if value is None:
            raise Refused(f"no verifier field '{field}'", f"the server of {agent} needs it")
        if field in NEVER_EMPTY and not (value.strip() if isinstance(value, str) else value):
            raise Refused(f"verifier field '{field}' is empty", f"the server of {agent} needs it")
        # bool is an int in Python, but not a number here
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            wanted = " or ".join(TYPE_NAMES[kind] for kind in types)
            raise Refused(f"verifier field '{field}' is not {wanted}", f"it is {type(value).__name__} ({agent})")


def validate_prompt(row: Mapping[str, Any]) -> None:
    """The part of `validate` that concerns the prompt, for callers that do not send rows to an agent."""
    parameters = row.get(PARAMETERS)
    if not isinstance(parameters, Mapping):
        raise Refused(f"{PARAMETERS} is not an object", type(parameters).__name__)
    validate_tools(_functions(parameters))
    items = parameters.get("input")
    if isinstance(items, str):
        if not items.strip():
            raise Refused(f"{PARAMETERS}.input is empty", "it should hold the prompt")
        return
    if not isinstance(items, list):
        raise Refused(f"{PARAMETERS}.input is not a list of turns", type(items).__name__)
    for number, item in enumerate(items, start=1):
        if not isinstance(item, Mapping):
            raise Refused("a turn is not an object", f"turn {number}: {type(item).__name__}")
        if not _is_message(item):
            continue
        if item.get("role") not in ROLES:
            known = ", ".join(ROLES)
            raise Refused("a turn's role is unknown", f"turn {number}: {item.get('role')}; known are {known}")
        content = item.get("content")
        parts = content if isinstance(content, list) else [None]
        if not isinstance(content, str) and not all(isinstance(part, Mapping) for part in parts):
            raise Refused("a turn's content is not text", f"turn {number}: {type(content).__name__}")
    asked = [item["content"] for item in items if _is_message(item) and item.get("role") == "user"]
    if not asked:
        raise Refused("no user turn", f"{PARAMETERS}.input needs one")
    if not any(said.strip() if isinstance(said, str) else said for said in asked):
        raise Refused("every user turn is empty", f"{PARAMETERS}.input should hold the prompt")


def _functions(parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tools that an environment answers; those of other types run elsewhere."""
    try:
        tools = tools_of({"tools": parameters.get("tools")}) or []
    except (UserError, ValueError) as error:
        raise Refused("its tools cannot be read", str(error)) from error
    return [tool for tool in tools if tool.get("type") in (None, "function")]


def validate_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a tool without a name, with that of another one, or whose name leads to another path of the server."""
    names = set[str]()
    for tool in tools:
        function = tool.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str):
            raise Refused("a tool has no name", str(tool)[:100], 'give it one: {"type": "function", "name": ...}')
        if name in OWN_PATHS or name.strip(".") == "" or not TOOL_NAME.fullmatch(name):
            what = "the server itself has that path" if name in OWN_PATHS else "it cannot be part of a path"
            remedy = "rename it in the environment and its rows"
            raise Refused("a tool cannot have this name", f"{name!r}: {what}", remedy)
        if name in names:
            raise Refused("two tools have the same name", name, "remove or rename one of them")
        names.add(name)


def _is_message(item: Mapping[str, Any]) -> bool:
    """In the Responses API, `type` is optional for messages."""
    return item.get("type") in (None, "message")
