"""Render prepared rows as prompts, the same way as fine-tuning and the servers, with each row's other parameters.

    {"responses_create_params": {"instructions": "Be brief.", "input": [{"role": "user", "content": "3+4?"}],
                                 "temperature": 0.5}, "expected_answer": "7"}
->  "<|im_start|>system\\nBe brief.<|im_end|>\\n<|im_start|>user\\n3+4?...", its ids, and the expected answer "7"
    and the notice: temperature (1 row; grpo.temperature=1.0 counts)

No part of a row is dropped silently: it reaches the template, is counted in a notice, or the row is refused.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset

from nemotron_data.chat.prompt import Prompt, Prompter, conversation_of
from nemotron_data.chat.shown import told
from nemotron_data.formats.rl_rows import PARAMETERS, RLRow, read_rl_rows, validate_prompt
from nemotron_shared.config.training import GRPOSection
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.run import Run
from stages.rl.rows import WHOLE_ROWS, Unused, parameter_fault

USED = ("instructions", "tools")
"""Parameters that reach the chat template, besides the turns."""


WholeRows = dict[str, Mapping[str, Any]]
"""Prepared rows by the name of their prompts."""


def read_prompts(
    file: Path,
    prompter: Prompter,
    grpo: GRPOSection,
    run: Run,
    *,
    answers: bool = True,
    whole: WholeRows | None = None,
) -> tuple[Dataset, dict[str, Prompt]]:
    """Rows of a prepared file for TRL, each with a prompt's name and the expected answer; and the prompts by name.

    TRL gets names because it passes on nothing else of a row: neither ids, nor which control tokens in a text were
    written by a user.

    Args:
        answers: every row needs an expected answer.
        whole: gets the rows themselves, if a reward asks for them.

    Raises:
        UserError: a damaged line, or a row that this engine cannot use; the message gives file and line.
    """
    rows, prompts = [], dict[str, Prompt]()
    unused, hidden = Unused(grpo), Counter[tuple[str, ...]]()
    for row in read_rl_rows(file, check=validate_prompt):
        if fault := row_fault(row, answers=answers):
            raise UserError(f"{row.place}: {fault}", WHOLE_ROWS)
        try:
            messages, tools = conversation_of(row.value[PARAMETERS])
        except UserError as error:
            raise UserError(f"{row.place}: {error.message}", WHOLE_ROWS) from error
        try:
            prompts[row.place] = prompter.chat(messages, tools)
        except UserError as error:
            raise UserError(f"{row.place}: {error.message}", error.remedy) from error
        rows.append({"prompt": row.place, "expected": row.expected_answer})
        if whole is not None:
            whole[row.place] = row.value
        unused.count(row, *USED)
        hidden[prompter.hidden(messages, tools)] += 1
    if said := str(unused):
        run.say(f"{file.name}: row parameters that engine trl ignores: {said}")
    for kinds, count in hidden.items():
        if kinds:
            run.say(f"WARNING: {file.name}: {told(kinds)}: {count:,} of {len(rows):,} prompts lose theirs")
    return Dataset.from_list(rows), prompts


def row_fault(row: RLRow, *, answers: bool = True) -> str | None:
    """Why this engine cannot use a row; None if it can. `answers`: it needs an expected answer."""
    if fault := parameter_fault(row, *USED):
        return fault
    if answers and row.expected_answer is None:
        return "no expected_answer, which the rewards need"
    return None
