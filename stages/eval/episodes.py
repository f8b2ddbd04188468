"""Tasks in which a model plays episodes with an environment, and the reward is its score.

    {"question": "What is the key of 55?", "key": "2000000/55", "row": {"responses_create_params": {...}, ...}}
->  {"id": 0, "question": ..., "output": "find(...) -> ... white", "score": 1.0, "figures": {"turns": 3.0, ...},
     "turns": [{"by": "model", "tokens": 41, "text": ...}, {"by": "environment", ...}, ...]}

The rows are NeMo-Gym's, as in reinforcement, and so is the loop. The shipped tasks are `drawers` and `drawers_text`; a
package brings others as in tasks.py, with the kind "episode".
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch

from nemotron_data.chat.prompt import Prompter
from nemotron_data.formats.eval_tasks import EvalTask, read_task_rows
from nemotron_data.formats.rl_rows import RLRow
from nemotron_data.gym.episodes import Environments, Episode, Loop, Sampled, as_turns, told
from nemotron_engines.modeling.generation import embeddings_of, ends_of
from nemotron_shared.engine.spec import Task
from nemotron_shared.system.errors import UserError
from stages.eval.schema import EvalConfig

Made = list[dict[str, Any]]


def play_episodes(task: Task[EvalConfig], model: Any, tokenizer: Any, about: EvalTask, device: str) -> Made:
    """Samples of a task, one for each row, in the order of its file.

    Raises:
        UserError: an environment does not start or fails, or a row has another agent.
    """
    settings, section = task.config.evaluation, task.config.evaluation.environments
    assert section is not None, "checked by task_problems"
    ends, prompter = ends_of(model, tokenizer), Prompter(tokenizer, embeddings=embeddings_of(model))
    rows = list(islice(read_task_rows(about.file, about.kind), settings.limit))
    with Environments(section, task.run.directory / "environments") as environments:
        loop = Loop(environments, prompter, tokenizer, ends, settings.max_new_tokens)

        def sample(live: Sequence[Episode], turn: int) -> list[Sampled]:
            task.run.stop_if_requested()
            found: list[Sampled] = []
            for first in range(0, len(live), settings.batch_size):
                prompts = [one.prompt + one.ids for one in live[first : first + settings.batch_size]]
                found += map(Sampled, answers(model, tokenizer, prompts, ends, task.config, device))
            return found

        asked = []
        for number, row in enumerate(rows, start=1):
            try:
                asked.append(environments.ask(RLRow.of(row["row"], f"{about.file}:{number}"), prompter))
            except UserError as error:
                raise UserError(f"{about.file}:{number}: {error.message}", error.remedy) from error
        return list(as_samples(rows, loop.play(asked, sample), tokenizer))


def answers(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], ends: set[int], config: EvalConfig, device: str
) -> list[list[int]]:
    """One turn behind each prompt, up to its end token."""
    settings = config.evaluation
    filled = tokenizer.pad({"input_ids": list(prompts)}, padding_side="left", return_tensors="pt").to(device)
    drawn = {"do_sample": True, "temperature": settings.temperature, "top_k": 0, "top_p": 1.0}
    manner = drawn if settings.temperature else {"do_sample": False}
    with torch.inference_mode():
        made = model.generate(**filled, max_new_tokens=settings.max_new_tokens, eos_token_id=sorted(ends),
                              pad_token_id=tokenizer.pad_token_id, **manner)  # fmt: skip
    found = []
    for row in made[:, filled["input_ids"].shape[1] :].tolist():
        end = next((number for number, token in enumerate(row, start=1) if token in ends), len(row))
        found.append(row[:end])
    return found


def as_samples(rows: Sequence[dict[str, Any]], played: Sequence[Episode], tokenizer: Any) -> Iterator[dict[str, Any]]:
    """What is kept of each episode."""
    for number, (row, episode) in enumerate(zip(rows, played, strict=True)):
        yield {
            "id": number,
            "question": row["question"],
            "expected": str(row["row"].get("expected_answer", "")),
            "output": " ".join(told(episode)),
            "score": episode.reward,
            "cut": float(episode.ended in ("cut", "tokens", "turns")),
            "figures": {
                "turns": float(episode.turns),
                "calls": float(episode.counts["calls"]),
                "refused_calls": float(episode.counts["refused_calls"]),
                **episode.figures,
            },
            "turns": as_turns(episode, tokenizer),
        }
