"""Prepared rows as prompts: rendered by the model's chat template, with what a row asks for beside its turns.

    {"responses_create_params": {"instructions": "Be brief.", "input": [{"role": "user", "content": "3+4?"}],
                                 "temperature": 0.5}, "expected_answer": "7"}
->  {"prompt": "<|im_start|>system\\nBe brief.<|im_end|>\\n<|im_start|>user\\n3+4?...", "expected": "7"}
    and a line that says: temperature (1 row; grpo.temperature=1.0 counts)

Nothing of a row is left out without a word: it reaches the template, or is counted in that line, or the row is refused.
"""

from pathlib import Path
from typing import Any

from datasets import Dataset

from nemotron_data.chat.rows import ChatFields, from_messages
from nemotron_data.chat.template import REFUSALS
from nemotron_data.formats.rl_rows import RLRow, read_rl_rows, validate_prompt
from nemotron_shared.config.training import GRPOSection
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.run import Run
from stages.rl.parameters import WHOLE_ROWS, Unused, parameter_fault

SHOWN = ("role", "content", "reasoning_content")


def read_prompts(file: Path, tokenizer: Any, grpo: GRPOSection, run: Run) -> Dataset:
    """Rows of a prepared file as TRL reads them: the rendered prompt and the expected answer.

    Raises:
        UserError: naming the file and the line: a damaged line, or a row that cannot be asked or rewarded here.
    """
    rows, unused = [], Unused(grpo)
    for row in read_rl_rows(file, check=validate_prompt):
        if fault := row_fault(row):
            raise UserError(f"{row.place}: {fault}", WHOLE_ROWS)
        rows.append({"prompt": rendered(row, tokenizer), "expected": row.expected_answer})
        unused.count(row, "instructions")
    if said := str(unused):
        run.say(f"{file.name}: rows ask for what engine trl does not give them: {said}")
    return Dataset.from_list(rows)


def row_fault(row: RLRow) -> str | None:
    """What keeps a row from being asked here, or its answer from being rewarded."""
    if other := next((turn for turn in row.prompt if not turn.is_message), None):
        return f"the prompt holds a '{other.role}', which a chat template cannot show"
    if fault := parameter_fault(row):
        return fault
    if row.expected_answer is None:
        return "no expected_answer, which the rewards of engine trl compare with"
    return None


def rendered(row: RLRow, tokenizer: Any) -> str:
    """The prompt as the model reads it; roles and contents are read as fine-tuning reads them.

    Raises:
        UserError: a content is no text, or the template cannot show the conversation.
    """
    try:
        read = from_messages({"messages": row.items}, ChatFields())
    except UserError as error:
        raise UserError(f"{row.place}: {error.message}", error.remedy or WHOLE_ROWS) from error
    messages = [{name: turn[name] for name in SHOWN if name in turn} for turn in read]
    if instructions := row.asked.get("instructions"):
        own = messages[0]["content"] if messages[0]["role"] == "system" else None
        said = f"{instructions}\n\n{own}" if own else str(instructions)
        messages = [{"role": "system", "content": said}, *(messages if own is None else messages[1:])]
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except REFUSALS as error:
        said = (str(error) or type(error).__name__).splitlines()[0]
        what = f"{row.place}: the model's chat template cannot show this prompt: {said}"
        raise UserError(what, "correct the row, or start from a model whose template can") from error
