"""Train on episodes: completions hold turns of the model and its environments, and the environments reward them.

Only this file uses TRL's `rollout_func`, which gets the prompts of a step and returns completions of several turns
with a mask of the model's tokens. An environment's tokens never count: not in the loss or its denominator, nor in
lengths, entropies, ratios and differences.

The random numbers of each turn depend on seed, step, row and turn alone, not on the other episodes. So an episode
follows from its row, the weights and its environment, and a killed run continues with the same bytes if its
environments are deterministic.
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
from nemotron_data.formats.rl_rows import read_rl_rows, validate_prompt
from nemotron_data.gym.catalogue import TOOLS_AGENT
from nemotron_data.gym.episodes import Asked, Ended, Environments, Episode, Loop, Sampled
from nemotron_data.gym.replay import differing
from nemotron_shared.config.training import GRPOSection
from nemotron_shared.system import distributed
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.run import Run
from stages.rl.engines.trl.completions import Answer
from stages.rl.engines.trl.prompts import USED, row_fault
from stages.rl.engines.trl.sampling import SamplingTrainer
from stages.rl.engines.trl.scheduled import ScheduledGRPOTrainer
from stages.rl.rewards import ENVIRONMENT
from stages.rl.rows import WHOLE_ROWS, Unused

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # it warns of `rollout_func` at every start
ECHO_SECONDS = 0.2


def read_episodes(
    file: Path, prompter: Prompter, environments: Environments, grpo: GRPOSection, run: Run, *, answers: bool = False
) -> tuple[Dataset, dict[str, Prompt], dict[str, Asked]]:
    """Read a prepared file: rows for TRL (names and expected answers), and prompts and episodes to start by name.

    Args:
        answers: every row needs an expected answer.

    Raises:
        UserError: a damaged line or a row that no environment plays, with file and line.
    """
    rows, asked, unused = [], dict[str, Asked](), Unused(grpo)
    for row in read_rl_rows(file, check=validate_prompt):
        if fault := row_fault(row, answers=answers):
            raise UserError(f"{row.place}: {fault}", WHOLE_ROWS)
        try:
            asked[row.place] = environments.ask(row, prompter)
        except UserError as error:
            raise UserError(f"{row.place}: {error.message}", error.remedy) from error
        unused.count(row, *USED)
        rows.append({"prompt": row.place, "expected": row.expected_answer})
    if said := str(unused):
        run.say(f"{file.name}: rows ask for what engine trl does not give them: {said}")
    with_tools = sum(bool(row.tools) for row in asked.values())
    if bare := sum(not row.tools for row in asked.values() if row.agent.kind == TOOLS_AGENT):
        run.say(f"WARNING: {file.name}: {bare:,} of {len(asked):,} rows have no tools, so a model can call none")
    if with_tools and not environments.settings.show_tools:
        run.say(f"{file.name}: {with_tools:,} rows have tools that their prompts do not show (show_tools=false)")
    return Dataset.from_list(rows), {name: one.prompt for name, one in asked.items()}, asked


class EpisodeTrainer(ScheduledGRPOTrainer):
    """A GRPOTrainer whose completions have several turns."""

    asked: Mapping[str, Asked]
    """Episodes to start, by the names in the rows."""
    loop: Loop
    seconds: Counter[str]
    """Time of this attempt's steps so far: sampling, waiting for environments, training."""
    _played: Sequence[Episode] = ()
    _episodes_took: Mapping[str, float] = {}
    """The same for the current step's episodes."""
    _lengths: Mapping[str, float] = {}
    """Figures of the tokens of the current step's episodes, under TRL's names."""
    _began = 0.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, rollout_func=self._rollouts, **kwargs)
        self.seconds = Counter()
        self._not_replayable: set[str] = set()

    def _sampled(self) -> list[dict[str, Any]]:
        """Completions of a step, by pass; the step begins here."""
        self._began = time.monotonic()
        made = super()._sampled()
        self._note("train", **self._lengths)
        return made

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log with the time of the step outside its episodes: rewards, gradients and the update."""
        if "loss" in logs:
            training = time.monotonic() - self._began - sum(self._episodes_took.values())
            self.seconds.update({**self._episodes_took, "training": training})
            self._note("train", **{"environment/training_seconds": training})
        super().log(logs, start_time)

    def split(self) -> str:
        """Shares of the time of this attempt's steps, for people."""
        whole = sum(self.seconds.values()) or 1.0
        return ", ".join(f"{name} {value / whole:.0%}" for name, value in self.seconds.items())

    def _rollouts(self, names: list[str], trainer: Any) -> dict[str, list[Any]]:
        """Completions for TRL; a masked episode has no trained tokens."""
        began, waited = time.monotonic(), self.loop.environments.seconds
        played = self._play(names)
        self._note_episodes(played, time.monotonic() - began, self.loop.environments.seconds - waited)
        for one in played:
            if not one.ids:  # failed before the first turn, but TRL needs a token
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
        """Play the episodes of `self.rows`; a signal interrupts them, also while waiting for an environment."""
        rows = self.rows

        def sample(live: Sequence[Episode], turn: int) -> list[Sampled]:
            self.rows, self.turn = [rows[one.number] for one in live], (turn,)
            # bypass the trainer's interruptible generation, because processes take different numbers of turns
            ids, logps = SamplingTrainer._generate_single_turn(
                self, [one.prompt + one.ids for one in live], None, {}, 1
            )
            experts = [codes.tolist() for codes in self._sampled_experts] or [[] for _ in live]
            return [Sampled(*found) for found in zip(ids, logps, experts, strict=True)]

        try:
            with self.stage_run.interruptible(apart=True):
                self._played = self.loop.play([self.asked[name] for name in names], sample)
        except UserError:
            # A signal to the process group also ends the environments; report the stop, not their end.
            with self.stage_run.interruptible(apart=True):
                time.sleep(ECHO_SECONDS)
            raise
        finally:
            self.rows, self.turn = rows, ()
        for name, (one, other) in differing(self._played, self.processing_class).items():
            if name not in self._not_replayable:
                self._not_replayable.add(name)
                self.say(f"environment '{name}': not replayable, a resumed run gives other weights: "
                         f"the same turns of a row were answered with '{one}' and '{other}'")  # fmt: skip
        return self._played

    def _note_episodes(self, played: Sequence[Episode], seconds: float, waited: float) -> None:
        """Add figures of a step's episodes to metrics.jsonl: means over all processes."""
        ends: dict[Ended, str] = {"cut": "cut_turns", "tokens": "out_of_tokens", "turns": "out_of_turns",
                                  "failed": "failed"}  # fmt: skip
        counts = Counter(one.ended for one in played)
        sums = {f"environment/{name}": float(counts[end]) for end, name in ends.items()}
        sums["environment/turns"] = float(sum(one.turns for one in played))
        sums["environment/tokens"] = float(sum(len(one.own) - sum(one.own) for one in played))
        for kind in ("calls", "refused_calls"):
            sums[f"environment/{kind}"] = float(sum(one.counts[kind] for one in played))
        ended = [one for one in played if one.ended != "failed"]
        tokens = sum(sum(one.own) for one in ended)
        cut = sum(one.ids[-1] not in self.eos_token_ids for one in ended)
        whole = torch.tensor([len(played), len(ended), tokens, cut, *sums.values()], dtype=torch.float64)
        if distributed.world_size() > 1:
            torch.distributed.all_reduce(whole)
        episodes, judged, tokens, cut, *values = whole.tolist()
        totals = {"completions/mean_length": tokens, "completions/clipped_ratio": cut} if judged else {}
        self._lengths = {name: total / judged for name, total in totals.items()}
        figures = {name: value / episodes for name, value in zip(sums, values, strict=True)}
        named = {name for one in played for name in one.figures}
        if distributed.world_size() == 1:  # processes may have different names
            given = {name: [one.figures.get(name, 0.0) for one in played if one.ended != "failed"] for name in named}
            figures |= {f"environment/given/{name}": fmean(values) for name, values in given.items() if values}
        self._episodes_took = {"sampling": seconds - waited, "environments": waited}
        times = {"environment/seconds": waited, "environment/sampling_seconds": seconds - waited}
        self._note("train", **figures, **times)

    def _answer(self, place: int, sampled: tuple[str, str, str | None, Any]) -> Answer:
        """The episode: its prompt, last answer, tokens of the model, and end."""
        episode, (_, _, expected, _) = self._played[place], sampled
        assert episode.ended is not None
        return Answer(self._prompt_of(episode), episode.answer, expected, sum(episode.own), episode.ended, episode)

    def _prompt_of(self, episode: Episode) -> str:
        tokenizer: Any = self.processing_class
        return str(tokenizer.decode(episode.prompt, skip_special_tokens=False))

    def _judged(self, prompts: list[str], completions: list[str], expected: list[Any], ids: list[Any]) -> np.ndarray:
        """The environment's reward, and other rewards of the last answer; NaN if the environment failed."""
        found = []
        for episode, right in zip(self._played, expected, strict=True):
            prompt = self._prompt_of(episode)
            given = [
                episode.reward
                if name == ENVIRONMENT
                else self._rewarded(name, episode.answer, right, prompt, episode.asked.row)
                for name in self.reward_func_names
            ]
            found.append([math.nan] * len(given) if episode.ended == "failed" else given)
        return np.array(found)

    def _answered(self, rows: list[dict[str, Any]], numbers: list[int]) -> np.ndarray:
        """Rewards of one episode per row."""
        self.rows = numbers
        self._play([row["prompt"] for row in rows])
        return self._judged([], [], [row["expected"] for row in rows], [])
