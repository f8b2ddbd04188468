"""Training on episodes: completions are what a model and its environments say in turns, and environments reward them.

This file alone uses TRL's `rollout_func`, which is called with the prompts of a step and gives completions of several
turns, with a mask of the tokens that the model wrote itself. An environment's tokens count nowhere: not in the loss and
what it is divided by, not in lengths, entropies, ratios and differences.

Each turn has draws of its own, by seed, step, number of the row and number of the turn, whoever else is still playing.
So an episode depends on its row, the weights and its environment alone, and a run that was killed goes on with the same
bytes if its environments answer the same to the same.
"""

import math
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from datasets import Dataset

from nemotron_data.chat.prompt import Prompt, Prompter
from nemotron_data.formats.rl_rows import PARAMETERS, read_rl_rows, validate_prompt
from nemotron_data.gym.episodes import Asked, Ended, Environments, Episode, Loop, Sampled
from nemotron_shared.config.training import GRPOSection
from nemotron_shared.errors import UserError
from nemotron_shared.runtime import distributed
from nemotron_shared.runtime.run import Run
from stages.rl.engines.trl.prompts import USED
from stages.rl.engines.trl.sampling import SamplingTrainer
from stages.rl.engines.trl.scheduled import ScheduledGRPOTrainer
from stages.rl.rewards import ENVIRONMENT, rewarded
from stages.rl.rows import WHOLE_ROWS, Unused, parameter_fault

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # it warns of `rollout_func` at every start
ECHO_SECONDS = 0.2


def read_episodes(
    file: Path, prompter: Prompter, environments: Environments, grpo: GRPOSection, run: Run
) -> tuple[Dataset, dict[str, Prompt], dict[str, Asked]]:
    """Rows of a prepared file as TRL reads them, names and expected answers; prompts and beginnings by name.

    Raises:
        UserError: naming the file and the line: a damaged line, or a row that none of the environments plays.
    """
    rows, asked, unused = [], dict[str, Asked](), Unused(grpo)
    for row in read_rl_rows(file, check=validate_prompt):
        if fault := parameter_fault(row, *USED):
            raise UserError(f"{row.place}: {fault}", WHOLE_ROWS)
        try:
            asked[row.place] = environments.ask(row, prompter)
        except UserError as error:
            raise UserError(f"{row.place}: {error.message}", error.remedy) from error
        unused.count(row, *USED)
        rows.append({"prompt": row.place, "expected": row.expected_answer})
    if said := str(unused):
        run.say(f"{file.name}: rows ask for what engine trl does not give them: {said}")
    with_tools = sum(bool(row.row[PARAMETERS].get("tools")) for row in asked.values())
    if with_tools and not environments.settings.show_tools:
        run.say(f"{file.name}: {with_tools:,} rows have tools that their prompts do not show (show_tools=false)")
    return Dataset.from_list(rows), {name: one.prompt for name, one in asked.items()}, asked


class EpisodeTrainer(ScheduledGRPOTrainer):
    """A GRPOTrainer whose completions have several turns."""

    asked: Mapping[str, Asked]
    """By the names that stand in the rows."""
    loop: Loop
    _played: Sequence[Episode] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, rollout_func=self._rollouts, **kwargs)

    def _rollouts(self, names: list[str], trainer: Any) -> dict[str, list[Any]]:
        """Completions for TRL; of a masked episode no token is the model's."""
        began, waited = time.monotonic(), self.loop.environments.seconds
        played = self._play(names)
        self._note_episodes(played, time.monotonic() - began, self.loop.environments.seconds - waited)
        for one in played:
            if not one.ids:  # its environment failed before its first turn; TRL needs a token
                one.add_environment(Prompt(list(self.eos_token_ids)[:1]))
        if self._sampled_experts:
            self._sampled_experts = [torch.tensor(one.experts) for one in played]
        return {
            "prompt_ids": [one.prompt for one in played],
            "completion_ids": [one.ids for one in played],
            "logprobs": [one.logps for one in played],
            "env_mask": [[0] * len(one.own) if one.ended == "failed" else one.own for one in played],
        }

    def _play(self, names: Sequence[str]) -> Sequence[Episode]:
        """The episodes of `self.rows`; a signal interrupts them, in a wait for an environment as well."""
        rows = self.rows

        def sample(live: Sequence[Episode], turn: int) -> list[Sampled]:
            self.rows, self.turn = [rows[one.number] for one in live], (turn,)
            # past the trainer's own way to be interrupted: processes have different numbers of turns
            ids, logps = SamplingTrainer._generate_single_turn(
                self, [one.prompt + one.ids for one in live], None, {}, 1
            )
            experts = [codes.tolist() for codes in self._sampled_experts] or [[] for _ in live]
            return [Sampled(*found) for found in zip(ids, logps, experts, strict=True)]

        try:
            with self.stage_run.interruptible(apart=True):
                self._played = self.loop.play([self.asked[name] for name in names], sample)
        except UserError:
            # A signal to a whole group ends an environment as well; that we were asked to stop is then the reason.
            with self.stage_run.interruptible(apart=True):
                time.sleep(ECHO_SECONDS)
            raise
        finally:
            self.rows, self.turn = rows, ()
        return self._played

    def _note_episodes(self, played: Sequence[Episode], seconds: float, waited: float) -> None:
        """What metrics.jsonl says of a step's episodes; means over those of all processes."""
        ends: dict[Ended, str] = {"cut": "cut_turns", "tokens": "out_of_tokens", "turns": "out_of_turns",
                                  "failed": "failed"}  # fmt: skip
        counts = Counter(one.ended for one in played)
        sums = {f"environment/{name}": float(counts[end]) for end, name in ends.items()}
        sums["environment/turns"] = float(sum(one.turns for one in played))
        sums["environment/tokens"] = float(sum(len(one.own) - sum(one.own) for one in played))
        for kind in ("calls", "refused_calls"):
            sums[f"environment/{kind}"] = float(sum(one.counts[kind] for one in played))
        whole = torch.tensor([len(played), *sums.values()], dtype=torch.float64)
        if distributed.world_size() > 1:
            torch.distributed.all_reduce(whole)
        episodes, *values = whole.tolist()
        figures = {name: value / episodes for name, value in zip(sums, values, strict=True)}
        named = {name for one in played for name in one.figures}
        if distributed.world_size() == 1:  # processes may have seen different ones
            given = {name: [one.figures.get(name, 0.0) for one in played if one.ended != "failed"] for name in named}
            figures |= {f"environment/given/{name}": fmean(values) for name, values in given.items() if values}
        times = {"environment/seconds": waited, "environment/sampling_seconds": seconds - waited}
        self._note("train", **figures, **times)

    def _judged(self, prompts: list[str], completions: list[str], expected: list[str]) -> np.ndarray:
        """The environment's reward, and the others of the last answer; no numbers where the environment failed."""
        found = []
        for episode, right in zip(self._played, expected, strict=True):
            given = [
                episode.reward if name == ENVIRONMENT else rewarded(name, "", episode.answer, str(right))
                for name in self.reward_func_names
            ]
            found.append([math.nan] * len(given) if episode.ended == "failed" else given)
        return np.array(found)

    def _answered(self, rows: list[dict[str, Any]], numbers: list[int]) -> np.ndarray:
        """The rewards of one episode of each row."""
        self.rows = numbers
        self._play([row["prompt"] for row in rows])
        return self._judged([], [], [row["expected"] for row in rows])
