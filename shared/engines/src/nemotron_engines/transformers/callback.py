"""Write a training loop's metrics to metrics.jsonl and the console, and mark its checkpoints."""

import math
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import TensorBoardCallback, rewrite_logs

from nemotron_engines.transformers.balance import ExpertLoad
from nemotron_engines.transformers.checkpoints import LAYOUT
from nemotron_shared.config.training import CheckpointSection
from nemotron_shared.engine import checkpoints
from nemotron_shared.engine.checkpoints import Validation, best_of, validation_of, validations
from nemotron_shared.models.folder import IDS
from nemotron_shared.system import distributed
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.completions import CompletionsLog, as_markdown
from nemotron_shared.tracking.metrics import Metric, is_known
from nemotron_shared.tracking.progress import Progress
from nemotron_shared.tracking.run import Run

# Metrics of the Trainer and of TRL that we keep, with their names in metrics.jsonl.
KEPT: dict[str, Metric] = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "lr",
    "eval_loss": "valid_loss",
    "reward": "reward",
    "reward_std": "reward_std",
    "frac_reward_zero_std": "zero_advantage_fraction",
    "distinct_completions": "distinct_completions",
    "entropy": "entropy",
    "kl": "kl",
    "clipped_fraction": "clipped_fraction",
    "completions/mean_length": "completion_length",
    "completions/clipped_ratio": "truncated_fraction",
    "eval_reward": "valid_reward",
    "token_mult_prob_error": "token_mult_prob_error",
    "differing_tokens": "differing_tokens",
    "logprob_difference": "logprob_difference",
    "sequence_ratio": "sequence_ratio",
    "router_flips": "router_flips",
    "bounded_weights": "bounded_weights",
    "stale_steps": "stale_steps",
    "handover_seconds": "handover_seconds",
    "generation_seconds": "generation_seconds",
    "rewards/accuracies": "pair_accuracy",
    "rewards/margins": "reward_margin",
    "eval_rewards/accuracies": "valid_pair_accuracy",
    "accuracy": "pair_accuracy",
    "margin": "reward_margin",
    "eval_accuracy": "valid_pair_accuracy",
    "dynamic_sampling_num_gen_batches": "dynamic_sampling_num_gen_batches",
    "load_balancing_loss": "load_balancing_loss",
}


class RunCallback(TrainerCallback):
    """Connects a Trainer to the run's folder.

    Args:
        keep: which checkpoints are kept.
        tokens_at: tokens trained on after a given step; None if unknown.
    """

    def __init__(
        self, run: Run, log_interval: int, keep: CheckpointSection, tokens_at: Callable[[int], int] | None
    ) -> None:
        self.run = run
        self.keep = keep
        self.tokens_at = tokens_at
        self._validation: Validation | None = None
        self._progress = Progress(run, log_interval)
        self._experts = ExpertLoad()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Truncate the log to the resumed step; use the intervals of this attempt, not of the checkpoint."""
        state.compute_steps(args, state.max_steps)
        self._experts.watch(kwargs["model"])
        self._progress.start(state.global_step, state.max_steps, self._tokens(state))
        self._validation = next(reversed(validations(self.run.metrics)), None)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Keep each step's metrics.

        Raises:
            UserError: a metric is not finite. A step is logged before its checkpoint, so broken weights are never
                saved.
        """
        self._stop_unless_finite(state.global_step, logs or {})
        metrics: dict[str, float] = {
            name: float(logs[key]) for key, name in KEPT.items() if logs and logs.get(key) is not None
        }
        metrics |= {name: float(value) for name, value in (logs or {}).items() if "/" in name and is_known(name)}
        if "loss" in metrics:
            metrics |= self._experts.take()
        if metrics:
            self._validation = validation_of(state.global_step, metrics) or self._validation
            self._progress.log(state.global_step, metrics, self._tokens(state))

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Save a checkpoint of the step that validated best so far, where it may be published."""
        if self.keep.publish_best is not None:
            is_best = distributed.on_rank_zero(lambda: self._is_best(state.global_step))
            control.should_save = control.should_save or is_best

    def _is_best(self, step: int) -> bool:
        best = best_of(validations(self.run.metrics))
        return best is not None and best.step == step

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Mark the checkpoint complete once every rank has written its part, then delete older ones."""
        distributed.barrier()
        directory = Path(str(args.output_dir))

        def mark_and_prune() -> None:
            checkpoint = directory / f"checkpoint-{state.global_step}"
            processes = distributed.world_size()
            checkpoints.mark_complete(checkpoint, LAYOUT, world_size=processes, validation=self._validation)
            kept, keep_best = self.keep.most_recent_k, self.keep.keep_best
            checkpoints.prune(directory, LAYOUT, keep=kept, keep_best=keep_best)

        distributed.on_rank_zero(mark_and_prune)

    def _stop_unless_finite(self, step: int, logs: Mapping[str, Any]) -> None:
        wrong = {
            key: f"{name} is {float(logs[key])}"
            for key, name in KEPT.items()
            if not math.isfinite(logs.get(key) or 0.0)
        }
        if not wrong:
            return
        if distributed.rank() != 0:
            raise SystemExit(2)  # every rank sees the same metrics; one prints the error
        last = checkpoints.latest(self.run.checkpoints, LAYOUT)
        kept = f"the last good checkpoint is {last}" if last else "no earlier checkpoint exists"
        remedy = "lower optimizer.lr, or check the data"
        if step == 1 and "loss" in wrong:  # computed before any weight was changed
            remedy = "no rate is to blame: check the numbers in the model's config.json, its weights, and the data"
        raise UserError(f"step {step}: {', '.join(wrong.values())}; {kept}", remedy)

    def _tokens(self, state: TrainerState) -> int | None:
        return self.tokens_at(state.global_step) if self.tokens_at else None


class OwnTokens(TrainerCallback):
    """Keeps the special tokens that the files of a language model name, which are published with it.

    At the start, transformers' Trainer puts those of the tokenizer into both configs (5.23, `align_special_tokens`). A
    changed generation_config.json is then refused at every save if it has settings such as `min_p` without `do_sample`.
    """

    def __init__(self, model: Any) -> None:
        configs = (model.config.get_text_config(), model.generation_config) if model.can_generate() else ()
        self._named = [(one, {name: getattr(one, name, None) for name in IDS}) for one in configs]

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Undo the change."""
        for config, ids in self._named:
            for name, number in ids.items():
                setattr(config, name, number)


class TensorBoardMetrics(TensorBoardCallback):
    """The library's TensorBoard callback, but flushed to disk only at the steps of `log_interval`.

    Skips metrics that TRL leaves empty, which would each cause a warning. Completions that the run keeps are written as
    texts.
    """

    def __init__(self, writer: Any, log_interval: int, completions: CompletionsLog) -> None:
        super().__init__(writer)
        self._log_interval = log_interval
        self._completions = completions
        _let_main_thread_report()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Log the metrics that have values."""
        if not state.is_world_process_zero or self.tb_writer is None:
            return
        for name, value in rewrite_logs(logs or {}).items():
            if isinstance(value, int | float):
                self.tb_writer.add_scalar(name, value, state.global_step)
        step, completions = self._completions.take_newest()
        for one in completions:
            self.tb_writer.add_text(f"completions/{one.which}", as_markdown(one), step)
        if state.global_step % self._log_interval == 0:
            self.tb_writer.flush()


def _let_main_thread_report() -> None:
    """Silence the traceback of TensorBoard's writing thread on a full disk, say.

    The thread keeps its error for the next write from the main thread, which raises it again (tensorboard 2.21,
    `_AsyncWriter.write`); then one message is enough.
    """
    before = threading.excepthook

    def report(failed: threading.ExceptHookArgs) -> None:
        its_own = type(failed.thread).__module__.partition(".")[0] == "tensorboard"
        if not (its_own and isinstance(failed.exc_value, OSError)):
            before(failed)

    threading.excepthook = report
