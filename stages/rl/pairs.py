"""Convert rows with a better and a worse answer to one form, in the spellings that data sets have.

    {"prompt": "2+2?", "chosen": "4", "rejected": "5"}                                       TRL, and most others
    {"chosen": [{"role": "user", ...}, {"role": "assistant", ...}], "rejected": [...]}       whole conversations
    {"conversations": [{"from": "human", ...}], "chosen": {"from": "gpt", ...}, "rejected": {...}}   LLaMA-Factory
    {"context": [...], "completions": [{"rank": 0, "completion": [...]}, {"rank": 1, "completion": [...]}]}  NeMo-RL
->  {"prompt": [{"role": "user", "content": "2+2?"}], "chosen": [{"role": "assistant", "content": "4"}],
     "rejected": [{"role": "assistant", "content": "5"}]}

A prompt may be a text, or messages of OpenAI's or ShareGPT's form; so may an answer, which may also be the whole
conversation that ends with it. Tools are kept in `tools`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nemotron_data.chat.loss_marks import WITHOUT_MEDIA, media_of
from nemotron_data.chat.rows import (
    TOOL_FIELDS,
    Message,
    from_messages,
    from_sharegpt,
    listed,
    tools_of,
    validate_messages,
)
from nemotron_data.formats.json_lines import is_missing, is_number, read_lines, spoken, text_of, with_numbers_as_written
from nemotron_data.rejects import Refused
from nemotron_shared.system.errors import UserError

CHOSEN, REJECTED = "chosen", "rejected"
PROMPTS = ("prompt", "question", "instruction", "conversations", "messages", "context")
"""Fields that may hold the prompt, besides `data_prep.question_field`."""
FIELDS = (*PROMPTS, CHOSEN, REJECTED, "input", "completions", "system", *TOOL_FIELDS)


class Pair(NamedTuple):
    """A prompt with two answers, as messages for a chat template."""

    prompt: list[Message]
    chosen: list[Message]
    rejected: list[Message]
    tools: list[dict[str, Any]] | None = None

    @property
    def question(self) -> str:
        """Text of the last user turn, which decides the split."""
        return next((str(one["content"]) for one in reversed(self.prompt) if one["role"] == "user"), "")

    @property
    def row(self) -> dict[str, Any]:
        """The row of a prepared file."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def pair_of(
    row: dict[str, Any],
    question_field: str = PROMPTS[0],
    system_prompt: str | None = None,
    written: bytes | None = None,
) -> Pair:
    """Read a row.

    Args:
        written: the row's JSON text, if any, so that numbers keep their exact digits.

    Raises:
        Refused: a part is missing or is not what a chat template could show, or the answers are equal.
    """
    if media := media_of(row, (question_field,)):
        raise Refused(*media.split(": ", 1), WITHOUT_MEDIA)
    try:
        found = _read(with_numbers_as_written(row, written), question_field)
        tools = tools_of(row)
    except UserError as error:
        raise Refused(error.message, remedy=error.remedy) from error
    prompt, chosen, rejected = found
    if system_prompt is not None and prompt[0].get("role") != "system":
        prompt = [{"role": "system", "content": system_prompt}, *prompt]
    for name, answer in ((CHOSEN, chosen), (REJECTED, rejected)):
        if reason := validate_messages([*prompt, *answer]):
            raise Refused(f"{name}: {reason}")
        if not answer or answer[0]["role"] != "assistant":
            raise Refused(f"{name}: the answer does not begin with a turn of the assistant")
    if prompt[-1]["role"] not in ("user", "tool"):
        raise Refused("the prompt does not end with a turn of the user", f"but of the {prompt[-1]['role']}")
    if chosen == rejected:
        raise Refused("both answers are alike", "nothing is to be learnt from them")
    return Pair(prompt, chosen, rejected, tools)


def _read(row: Mapping[str, Any], question_field: str) -> tuple[list[Message], list[Message], list[Message]]:
    answers = [_turns(answer, "assistant") for answer in _answers(row)]
    name = next((name for name in (question_field, *PROMPTS) if row.get(name) is not None), None)
    if name is not None:
        asked = row[name]
        if isinstance(asked, str) and isinstance(below := row.get("input"), str) and below.strip():
            asked = f"{asked}\n\n{below}"
        prompt = _turns(asked, "user")
        if isinstance(said := row.get("system"), str) and said.strip():
            prompt = [{"role": "system", "content": said}, *prompt]
        # whole conversations repeat the prompt
        answers = [answer[len(prompt) :] if answer[: len(prompt)] == prompt else answer for answer in answers]
    else:
        same = 0
        for one, other in zip(*answers, strict=False):
            if one != other or (one.get("role") == "assistant" and same + 1 >= min(map(len, answers))):
                break
            same += 1
        prompt, answers = answers[0][:same], [answer[same:] for answer in answers]
    if not prompt:
        remedy = f"give a text or messages in one of {', '.join(PROMPTS)}, or conversations that begin alike"
        raise Refused("no prompt", f"fields here: {', '.join(row)}", remedy)
    return prompt, answers[0], answers[1]


def _answers(row: Mapping[str, Any]) -> list[Any]:
    """The better answer and the worse one."""
    if isinstance(ranked := row.get("completions"), list) and CHOSEN not in row:
        if len(ranked) != 2 or not all(isinstance(one, dict) and isinstance(one.get("rank"), int) for one in ranked):
            raise Refused("completions are not two answers with a rank", f"{len(ranked)} of them")
        if ranked[0]["rank"] == ranked[1]["rank"]:
            raise Refused("completions have the same rank", str(ranked[0]["rank"]))
        return [one.get("completion") for one in sorted(ranked, key=lambda one: one["rank"])]
    for name in (CHOSEN, REJECTED):
        remedy = "a row needs a better answer in 'chosen' and a worse one in 'rejected'"
        if name not in row:
            raise Refused(f"no field '{name}'", f"fields here: {', '.join(row)}", remedy)
        if row[name] is None or is_missing(row[name]):
            raise Refused(f"no answer: '{name}' is {'null' if row[name] is None else row[name]}", remedy=remedy)
    return [row[CHOSEN], row[REJECTED]]


def _turns(said: Any, role: str) -> list[Message]:
    """Messages of a text, a number, one turn, or a list of turns."""
    said = spoken(said)
    said = text_of(said) if is_number(said) and not is_missing(said) else listed(said)
    turns = [{"role": role, "content": said}] if isinstance(said, str) else [said] if isinstance(said, dict) else said
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise Refused("a prompt or an answer is neither a text nor messages", type(said).__name__)
    convert = from_sharegpt if any("from" in turn for turn in turns) else from_messages
    return convert({"turns": turns}, "turns")


def read_pairs(file: Path) -> Iterator[tuple[str, Pair]]:
    """Stream a prepared file: the place of each row, `train.jsonl:17`, and its pair.

    Raises:
        UserError: naming file and line: a damaged row.
    """
    for line in read_lines(file):
        try:
            yield line.place, pair_of(line.value("damaged row"))
        except Refused as refused:
            remedy = "prepare the data again with data_prep.pairs=true"
            raise UserError(f"{line.place}: not a pair of answers ({refused})", remedy) from refused
