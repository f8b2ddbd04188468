"""metrics.jsonl: one JSON object per line, in the order of steps.

{"step": 10, "loss": 3.91, "lr": 0.003, "tokens": 20480, "tokens_per_second": 21010.4, "seconds": 0.97}
"""

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from nemotron_shared.system.atomic import named, open_regular, write_text
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.redaction import redact

FILE = "metrics.jsonl"
Metric = Literal[
    "loss", "grad_norm", "lr", "valid_loss", "tokens", "tokens_per_second", "seconds", "step_seconds", "reward",
    "reward_std", "zero_advantage_fraction", "distinct_completions", "entropy", "kl", "clipped_fraction",
    "completion_length", "truncated_fraction", "valid_reward", "token_mult_prob_error", "differing_tokens",
    "logprob_difference", "sequence_ratio", "router_flips", "memory_gb", "load_balancing_loss",
    "dynamic_sampling_num_gen_batches", "pair_accuracy", "valid_pair_accuracy", "reward_margin",
    "bounded_weights", "stale_steps", "handover_seconds", "generation_seconds",
]  # fmt: skip
METRICS: dict[Metric, str] = {
    "loss": "Mean loss of the step, without the parts that have figures of their own: mtp_loss, load_balancing_loss.",
    "grad_norm": "Norm of the gradient, before it is clipped; of a step's last update, where RL makes several.",
    "lr": "Learning rate of the step.",
    "valid_loss": "Mean loss on the valid split.",
    "tokens": "Tokens read so far, without padding, and with those that are not learnt, such as prompts.",
    "tokens_per_second": "Speed since this attempt began.",
    "seconds": "Time since this attempt began.",
    "step_seconds": "Time that the step took.",
    "reward": "Mean reward of the step's completions, before a penalty for their length.",
    "reward_std": "Mean deviation of these rewards within a group.",
    "zero_advantage_fraction": "Share of groups whose completions have equal rewards, with penalties: no advantage.",
    "distinct_completions": "Different texts among the step's completions, as a share of them.",
    "entropy": "Mean entropy of what the learnt tokens were drawn from, before top_p.",
    "kl": "Distance to the starting model, mean over the learnt tokens; with distillation, to the teacher.",
    "clipped_fraction": "Share of the learnt tokens whose probability ratio was clipped; with several updates a step.",
    "completion_length": "Mean tokens of a completion, also of those that were cut and left out of the loss.",
    "truncated_fraction": "Share of completions that were cut at max_new_tokens.",
    "valid_reward": "Mean reward on the valid split.",
    "token_mult_prob_error": "Distance between the probabilities of generation and training; 1 means none.",
    "differing_tokens": "Share of learnt tokens whose log-probability in training is not the number of sampling.",
    "logprob_difference": "Largest difference between the two, in nats.",
    "sequence_ratio": "Mean probability in training over that in sampling, of the completions that are learnt from.",
    "router_flips": "Share of learnt tokens that training sends to other experts than sampling did.",
    "bounded_weights": "Share of learnt tokens whose importance weight was bounded by "
    "truncated_importance_sampling_ratio.",
    "stale_steps": "Steps by which vLLM's weights were older than those of training; 0 without max_staleness.",
    "handover_seconds": "Time that the step took to hand its weights to vLLM.",
    "generation_seconds": "Time that vLLM took for the step's completions.",
    "dynamic_sampling_num_gen_batches": "Batches that the step sampled; with dynamic sampling.",
    "pair_accuracy": "Share of pairs whose better answer has more reward, or with DPO gained more in probability.",
    "valid_pair_accuracy": "The same on the valid split.",
    "reward_margin": "Mean difference of the two rewards; with DPO, of what they gained, in nats times its penalty: "
    "sums over an answer's tokens, or means, as its loss has them.",
    "load_balancing_loss": "Sequence auxiliary loss without its weight, mean over the layers of experts; 1 is even.",
    "memory_gb": "Memory that the first process holds: of its GPU the most so far, without one its main memory.",
}
"""Metric names in metrics.jsonl, common to all engines. Each engine maps its library's names to these."""
Figures = Mapping[Metric, float] | Mapping[str, float]
"""Metrics of a step by name; the second form if names of rewards or layers are among them."""
REWARD_METRIC, EXPERT_METRIC, PREDICTION_METRIC = "rewards/{name}/mean", "expert_load/{layer}", "mtp_loss/{depth}"
ENVIRONMENT_METRIC = "environment/{name}"
MORE_METRICS = {
    REWARD_METRIC: "Mean of one reward of the config.",
    ENVIRONMENT_METRIC: "Of episodes with environments: turns and the like, means over the step's episodes.",
    PREDICTION_METRIC: "Mean loss of multi-token prediction at one depth: 1 is the token after the next.",
    EXPERT_METRIC: "Tokens of a layer's busiest expert, as a multiple of an even share: 1 is perfectly even.",
}
"""Patterns of names for each reward, each expert layer, and each depth of multi-token prediction."""
REPEATED = {"step", "seconds", "tokens", "tokens_per_second", "memory_gb"}
"""Keys in both a step's line and that of the validation after it."""
RESULT_METRICS: dict[Metric, str] = {"loss": "final_loss", "valid_loss": "valid_loss", "tokens": "tokens"}
"""Metrics whose last value goes into a manifest if the run is judged by its loss, with their names there."""


_redacted = cache(redact)  # names repeat at every step


def _tell_nobody(step: int, values: dict[str, Any]) -> None:
    """A line without experiment trackers."""


class MetricsLog:
    """An append-only log that a resumed run cuts back to its checkpoint, so no step appears twice."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mirror: Callable[[int, dict[str, Any]], None] = _tell_nobody

    def append(self, step: int, **values: float) -> None:
        """Write one line at once, so a kill loses no earlier line, and pass it to `mirror`.

        Raises:
            UserError: a value is not finite, which JSON cannot express.
        """
        if wrong := [f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)]:
            raise UserError(f"step {step}: {', '.join(wrong)}", "lower optimizer.lr, or look at the data")
        line = {"step": step, **{_redacted(name): value for name, value in values.items()}}
        with named(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self.mirror(step, values)

    def cut_after(self, step: int) -> None:
        """Remove everything logged after `step`."""
        self._keep(lambda entry: entry["step"] <= step)

    def forget_validation(self, step: int) -> None:
        """Remove the metrics of a validation that will be repeated."""
        self._keep(lambda entry: entry["step"] != step or not any(name.startswith("valid") for name in entry))

    def _keep(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        write_text(self.path, "".join(json.dumps(entry) + "\n" for entry in self.read() if wanted(entry)))

    def read(self) -> list[dict[str, Any]]:
        """All entries, without a last line that a kill cut short."""
        return list(read_metrics(self.path))


def is_known(name: str) -> bool:
    """Whether a name is one of ours, including those of a reward, a layer or a depth."""
    before, _, after = REWARD_METRIC.partition("{name}")
    is_reward = name.startswith(before) and name.endswith(after)
    others = tuple(one.partition("{")[0] for one in (EXPERT_METRIC, PREDICTION_METRIC, ENVIRONMENT_METRIC))
    return name in METRICS or is_reward or name.startswith(others)


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Entries of a metrics file, for resuming its run.

    Raises:
        UserError: a line is damaged, other than an unfinished last one.
    """
    anew = "delete the run folder and run again"
    try:
        for number, entry in _entries(path):
            if isinstance(entry, str):
                raise UserError(f"{path}:{number}: {entry}", anew)
            yield entry
    except IsADirectoryError as error:
        raise UserError(f"{path}: a folder, where the log of a training should be", anew) from error


def metrics_with_damage(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Valid entries of a metrics file, and its problems, for inspection."""
    entries, damage = list[dict[str, Any]](), list[str]()
    try:
        for entry, wrong in _judged(path):
            entries += [entry] if entry else []
            damage += [wrong] if wrong else []
    except OSError as error:
        damage.append(f"it cannot be read: {error.strerror}")
    except UserError:
        damage.append("it cannot be read: not a regular file")
    return entries, damage


def _judged(path: Path) -> Iterator[tuple[dict[str, Any] | None, str | None]]:
    """Each line's entry, and its problem, alone or in relation to earlier lines."""
    last, seen = 0, set[str]()
    for number, entry in _entries(path):
        if isinstance(entry, str):
            yield None, f"line {number} is {entry}"
            continue
        step, wrong = entry["step"], None
        seen = seen if step == last else set()
        if step < last:
            wrong = f"line {number} has step {step} after step {last}"
        elif (entry.keys() - REPEATED) & seen:
            wrong = f"line {number} repeats step {step}"
        last, seen = step, seen | entry.keys()
        yield entry, wrong


def _entries(path: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Number of each complete line, with its entry or its problem. Empty without a file."""
    if not path.exists():
        return
    with open_regular(path) as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                yield number, _entry(line)


def _entry(line: bytes) -> dict[str, Any] | str:
    try:
        entry = json.loads(line.decode())
    except (ValueError, RecursionError):  # also invalid UTF-8 and numbers of thousands of digits
        return "not valid JSON"
    if not isinstance(entry, dict):
        return "not a JSON object"
    step = entry.get("step")
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < sys.maxsize:
        return "without the number of a step"
    wrong = (name for name, value in entry.items() if is_known(name) and not _is_number(value))
    name = next(wrong, None)
    return f"not a number in '{name}'" if name else entry


def _is_number(value: object) -> bool:
    """Whether it can be computed with: any float, or an integer that fits a float."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and float(value) is not None
    except OverflowError:
        return False


def last_values(log: MetricsLog, names: Mapping[Metric, str], until: int | None = None) -> dict[str, float]:
    """The last logged value of each metric, under its name in manifests.

    Args:
        until: the step that is published; None: the last one.
    """
    found: dict[str, float] = {}
    for entry in log.read():
        if until is None or entry["step"] <= until:
            found |= {target: entry[name] for name, target in names.items() if name in entry}
    return found
