"""Train on pairs of a better and a worse answer with TRL's DPOTrainer. The loss of a pair is that of the README."""

from nemotron_engines.lora.adapt import mamba_out_allowed
from nemotron_engines.transformers.trainer import train_to_end, trainer_settings
from nemotron_shared.runtime.spec import Outcome, Task
from stages.rl.engines.trl.library import DPOConfig, DPOTrainer
from stages.rl.engines.trl.pairs import RESULTS, PairTrainer, given
from stages.rl.engines.trl.starting import load_beginning
from stages.rl.schema import RLConfig, TRLEngine


class DPOPairTrainer(PairTrainer, DPOTrainer):
    """A DPOTrainer with our rows."""

    figures = ("rewards/accuracies", "rewards/margins")


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
                router_aux_loss_coef=0.0,  # TRL would take the one in the model's config
            ),
            **others,
        )
    trainer.seed = config.run.seed
    return train_to_end(trainer, config, run, begun.folder, RESULTS)
