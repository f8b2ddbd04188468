"""Reinforce with TRL's GRPOTrainer."""

from typing import Any

from nemotron_data.chat.prompt import Prompter
from nemotron_data.tokenizers.folder import provide_tokenizer
from nemotron_engines.lora.adapt import lora_config, mamba_out_allowed
from nemotron_engines.modeling.build import load_tokenizer
from nemotron_engines.modeling.start import starting_weights
from nemotron_engines.modeling.threads import set_threads
from nemotron_engines.transformers.trainer import StageTrainer, callbacks, train_to_end, trainer_settings
from nemotron_shared.runtime import distributed
from nemotron_shared.runtime.task import Outcome, Task
from stages.rl.engines.trl.library import GRPOConfig
from stages.rl.engines.trl.prompting import hidden_in, prompt_ids, read_prompts
from stages.rl.engines.trl.sampling import SamplingTrainer
from stages.rl.rewards import REWARDS
from stages.rl.schema import RLConfig, TRLEngine


class ScheduledGRPOTrainer(StageTrainer, SamplingTrainer):
    """A GRPOTrainer with our schedule, our prompts and our way to resume and to stop."""

    prompter: Prompter

    def _tokenize_prompts(self, prompts: list[Any]) -> tuple[list[list[int]], None, dict[str, Any]]:
        """Ids of each prompt, and nothing of what a model that sees images is given."""
        return prompt_ids(self.prompter, prompts), None, {}

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        """Generation is the long part of a step, and no rank waits for another in it, unless for shards of weights."""
        with self.stage_run.interruptible(apart=self.stage_config.engine.strategy == "ddp"):
            return super()._generate_single_turn(*args, **kwargs)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """None: a manifest says what a model was made from, and TRL's card asks the trackers that it imports."""


def train(task: Task[RLConfig[TRLEngine]]) -> Outcome:
    """Sample groups of completions, reward them, and follow what did better than its group."""
    config, run = task.config, task.run
    set_threads(config.run.threads)
    base = task.inputs["model"]
    folder = base.path if base is not None else run.directory / "tokenizer"
    if base is None:  # random weights, where the config allows it
        distributed.on_rank_zero(lambda: provide_tokenizer(config.model.tokenizer, folder))
    model = starting_weights(task, folder)
    # TRL adds the adapters itself: the reference model is then the one without them
    adapters = lora_config(model, config.engine.peft) if config.engine.peft else None
    data = task.input("data").path
    rows = read_prompts(data / "train.jsonl")
    valid = read_prompts(data / "val.jsonl") if (data / "val.jsonl").is_file() else None
    tokenizer = load_tokenizer(folder)
    prompter = Prompter(tokenizer)
    for line in hidden_in(prompter, rows, valid):
        run.say(f"WARNING: {line}")
    with mamba_out_allowed():
        trainer = ScheduledGRPOTrainer(
            model=model,
            args=GRPOConfig(**trainer_settings(config, run, validate=valid is not None), **grpo_settings(config)),
            reward_funcs=[reward_function(reward.name) for reward in config.rewards],
            train_dataset=rows,
            eval_dataset=valid.select(range(min(len(valid), config.train.eval_rows))) if valid else None,
            processing_class=tokenizer,
            peft_config=adapters,
            callbacks=callbacks(config, run, None),
        )
    trainer.prompter = prompter
    trainer.skips_rows = config.engine.strategy == "ddp"
    trainer.mismatch_limit = config.grpo.sampling_mismatch_limit
    trainer.largest_weight = config.grpo.truncated_importance_sampling_ratio
    if config.engine.exact_sampling:
        reason = trainer.sample_exactly(config.run.seed)
        run.say(f"sampling: transformers' generate ({reason})" if reason else "sampling: the bits of training")
    return train_to_end(trainer, config, run, folder, {"reward": "final_reward", "valid_reward": "valid_reward"})


def grpo_settings(config: RLConfig) -> dict[str, Any]:
    """Our names to TRL's."""
    grpo = config.grpo
    return {
        "num_generations": grpo.num_generations_per_prompt,
        "max_completion_length": grpo.max_new_tokens,
        "temperature": grpo.temperature,
        "top_p": grpo.top_p,
        "beta": grpo.reference_policy_kl_penalty,
        "epsilon": grpo.ratio_clip_min,
        "epsilon_high": grpo.ratio_clip_max,
        "scale_rewards": "group" if grpo.normalize_rewards else "none",
        "mask_truncated_completions": grpo.overlong_filtering,
        "reward_weights": [reward.weight for reward in config.rewards],
        "num_generations_eval": 1,
    }


def reward_function(name: str) -> Any:
    """A reward of the table in the form that TRL calls."""
    score = REWARDS.load(name)

    def reward(completions: list[Any], expected: list[str], **_: Any) -> list[float]:
        texts = [completion[-1]["content"] for completion in completions]
        return [score(text, answer) for text, answer in zip(texts, expected, strict=True)]

    reward.__name__ = name
    return reward
