"""What TRL's trainer prompts with: the rows' conversations, rendered as fine-tuning and the servers do."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datasets import Dataset

from nemotron_data.chat.prompt import Prompter
from nemotron_data.chat.responses import conversation_of
from nemotron_data.chat.shown import told
from nemotron_data.formats.rl_rows import PARAMETERS, read_rl_rows, validate_prompt
from nemotron_shared.errors import UserError

ASKED = "asked"
"""In the first message of a prompt, all that it asks with as JSON. In columns of their own, Arrow would give each call
the arguments of all calls."""
REMEDY = "train on such rows with engine=nemo_rl engine.environment=nemo_gym"


def prompt_ids(prompter: Prompter, prompts: list[Any]) -> list[list[int]]:
    """What each of some prompts of `read_prompts` is to the model."""
    return [prompter.chat(*conversation_in(prompt)).ids for prompt in prompts]


def conversation_in(prompt: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], Any]:
    """Messages and tools of a prompt of `read_prompts`."""
    return conversation_of(json.loads(prompt[0][ASKED]))


def read_prompts(file: Path) -> Dataset:
    """Rows of a prepared file as TRL reads them: a conversational prompt and the expected answer.

    Raises:
        UserError: naming the file and the line: a damaged line, or a row that TRL could not prompt with or reward.
    """
    return Dataset.from_list(list(_prompts(file)))


def _prompts(file: Path) -> Iterator[dict[str, Any]]:
    for row in read_rl_rows(file, check=validate_prompt):
        if row.expected_answer is None:
            raise UserError(f"{row.place}: no expected_answer, which the rewards of engine trl compare with", REMEDY)
        try:
            messages, _ = conversation_of(row.value[PARAMETERS])
        except UserError as error:
            raise UserError(f"{row.place}: {error.message}", REMEDY) from error
        prompt = [{"role": one["role"], "content": one.get("content") or "", ASKED: ""} for one in messages]
        prompt[0][ASKED] = json.dumps(row.value[PARAMETERS])
        yield {"prompt": prompt, "expected": row.expected_answer}


def hidden_in(prompter: Prompter, *several: Dataset | None) -> Iterator[str]:
    """A line for what the model does not see of the prompts."""
    prompts = [prompt for rows in several if rows is not None for prompt in rows["prompt"]]
    for kinds, count in Counter(prompter.hidden(*conversation_in(prompt)) for prompt in prompts).items():
        if kinds:
            yield f"{told(kinds)}: {count:,} of {len(prompts):,} prompts lose theirs"
