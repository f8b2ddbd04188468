"""Train on pairs of a better and a worse answer with TRL's DPOTrainer. The loss of a pair is that of the README.

The logged figures are of the quantity that the loss compares: of one pair, loss = -ln sigmoid(reward_margin). TRL's own
are of sums of log-probabilities, also where its loss takes means.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from nemotron_engines.lora.adapt import mamba_out_allowed
from nemotron_engines.transformers.trainer import train_to_end, trainer_settings
from nemotron_shared.engine.spec import Outcome, Task
from stages.rl.engines.trl.library import DPOConfig, DPOTrainer
from stages.rl.engines.trl.pairs import RESULTS, PairTrainer, given
from stages.rl.engines.trl.rehearsing import require_same_head
from stages.rl.engines.trl.starting import load_beginning
from stages.rl.schema import RLConfig, TRLEngine


class DPOPairTrainer(PairTrainer, DPOTrainer):
    """A DPOTrainer with our rows and figures."""

    figures = ("rewards/accuracies", "rewards/margins")
    averages = False
    """Whether the loss compares means over an answer's tokens."""

    def _compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool) -> Any:
        """TRL's loss of a batch, with figures of what it compares."""
        with self._noting_log_probs() as noted:
            loss = super()._compute_loss(model, inputs, return_outputs)
        trained, start = (one.sum(1) for one in noted)  # 0 for tokens that are not learnt
        gained = trained - start
        if self.averages:
            gained = gained / inputs["completion_mask"].sum(1)
        better, worse = gained.chunk(2)
        margins = self.accelerator.gather(self.beta * (better - worse))
        found = self._metrics["train" if self.model.training else "eval"]
        for name, values in zip(self.figures, (margins > 0, margins), strict=True):
            found[name][-1] = float(values.double().mean())
        return loss

    @contextmanager
    def _noting_log_probs(self) -> Generator[list[Tensor]]:
        """Log-probabilities of the tokens, (rows, tokens - 1): those of the model, then of the one it is compared with.

        With adapters, both are passes of the same model.
        """
        noted = list[Tensor]()
        models: list[Any] = [self.model] if self.ref_model is None else [self.model, self.ref_model]
        hooks = [one.register_forward_hook(lambda *made: noted.append(made[2].log_probs.detach())) for one in models]
        try:
            yield noted
        finally:
            for hook in hooks:
                hook.remove()


def train_on_pairs(task: Task[RLConfig[TRLEngine]]) -> Outcome:
    """Raise the probability of the better answers over that of the worse ones, relative to the starting model."""
    config, run = task.config, task.run
    assert config.dpo is not None, "the engine chose this method"
    begun = load_beginning(task)
    others = given(task, begun)
    with mamba_out_allowed():
        trainer = DPOPairTrainer(
            model=begun.model,
            ref_model=begun.reference(task),
            args=DPOConfig(
                **trainer_settings(config, run, validate=others["eval_dataset"] is not None),
                beta=config.dpo.reference_policy_kl_penalty,
                loss_type=["sigmoid_norm" if config.dpo.preference_average_log_probs else "sigmoid"],
                max_length=None,
                disable_dropout=False,  # of the model there is none, and that of adapters is a setting
                router_aux_loss_coef=0.0,  # TRL would take the one in the model's config
            ),
            **others,
        )
    require_same_head(trainer.model)
    trainer.seed, trainer.averages = config.run.seed, config.dpo.preference_average_log_probs
    return train_to_end(trainer, config, run, begun.folder, RESULTS)
