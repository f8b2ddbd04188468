"""Prepared rows as prompts: rendered as fine-tuning and the servers do, with what a row asks for beside its turns.

    {"responses_create_params": {"instructions": "Be brief.", "input": [{"role": "user", "content": "3+4?"}],
                                 "temperature": 0.5}, "expected_answer": "7"}
->  "<|im_start|>system\\nBe brief.<|im_end|>\\n<|im_start|>user\\n3+4?...", its ids, and what is expected: "7"
    and a line that says: temperature (1 row; grpo.temperature=1.0 counts)

Nothing of a row is left out without a word: it reaches the template, or is counted in a line, or the row is refused.
"""

from collections import Counter
from pathlib import Path

from datasets import Dataset

from nemotron_data.chat.prompt import Prompt, Prompter, conversation_of
from nemotron_data.chat.shown import told
from nemotron_data.formats.rl_rows import PARAMETERS, RLRow, read_rl_rows, validate_prompt
from nemotron_shared.config.training import GRPOSection
from nemotron_shared.errors import UserError
from nemotron_shared.runtime.run import Run
from stages.rl.rows import WHOLE_ROWS, Unused, parameter_fault

USED = ("instructions", "tools")
"""What reaches the chat template beside the turns."""


def read_prompts(file: Path, prompter: Prompter, grpo: GRPOSection, run: Run) -> tuple[Dataset, dict[str, Prompt]]:
    """Rows of a prepared file as TRL reads them: the name of a prompt, and the expected answer; and prompts by name.

    TRL gets names because it hands on nothing else of a row: neither ids, nor where in a text a user has only written
    the name of a control token.

    Raises:
        UserError: naming the file and the line: a damaged line, or a row that cannot be asked or rewarded here.
    """
    rows, prompts = [], dict[str, Prompt]()
    unused, hidden = Unused(grpo), Counter[tuple[str, ...]]()
    for row in read_rl_rows(file, check=validate_prompt):
        if fault := row_fault(row):
            raise UserError(f"{row.place}: {fault}", WHOLE_ROWS)
        try:
            messages, tools = conversation_of(row.value[PARAMETERS])
            prompts[row.place] = prompter.chat(messages, tools)
        except UserError as error:
            raise UserError(f"{row.place}: {error.message}", WHOLE_ROWS) from error
        rows.append({"prompt": row.place, "expected": row.expected_answer})
        unused.count(row, *USED)
        hidden[prompter.hidden(messages, tools)] += 1
    if said := str(unused):
        run.say(f"{file.name}: rows ask for what engine trl does not give them: {said}")
    for kinds, count in hidden.items():
        if kinds:
            run.say(f"WARNING: {file.name}: {told(kinds)}: {count:,} of {len(rows):,} prompts lose theirs")
    return Dataset.from_list(rows), prompts


def row_fault(row: RLRow) -> str | None:
    """What keeps a row from being asked here, or its answer from being rewarded."""
    if fault := parameter_fault(row, *USED):
        return fault
    if row.expected_answer is None:
        return "no expected_answer, which the rewards of engine trl compare with"
    return None
