"""Train with TRL's GRPOTrainer."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import sqrt
from pathlib import Path
from statistics import fmean, variance
from typing import Any

from datasets import Dataset

from nemotron_data.chat.prompt import Prompt
from nemotron_data.gym.catalogue import TURNS_AGENT
from nemotron_data.gym.episodes import Asked, Environments, Loop
from nemotron_engines.lora.adapt import mamba_out_allowed
from nemotron_engines.transformers.trainer import callbacks, train_to_end, trainer_settings
from nemotron_shared.artifacts.manifest import REPLAYABLE
from nemotron_shared.config.training import MOST_BATCHES
from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.metrics import Metric
from nemotron_shared.tracking.run import Run
from stages.rl.engines.trl.batches import Batches
from stages.rl.engines.trl.completions import Likeness, Silence, steadier
from stages.rl.engines.trl.distill import load_teacher
from stages.rl.engines.trl.episodes import EpisodeTrainer, read_episodes
from stages.rl.engines.trl.library import GRPOConfig
from stages.rl.engines.trl.prompts import WholeRows, read_prompts
from stages.rl.engines.trl.rehearsing import require_same_head
from stages.rl.engines.trl.reward import Scorer
from stages.rl.engines.trl.routes import unmeasured
from stages.rl.engines.trl.scheduled import ScheduledGRPOTrainer
from stages.rl.engines.trl.starting import load_beginning
from stages.rl.rewards import ENVIRONMENT, Judge
from stages.rl.schema import RLConfig, TRLEngine


def train(task: Task[RLConfig[TRLEngine]]) -> Outcome:
    """Sample groups of completions, reward them, and reinforce those that beat their group."""
    settings = task.config.engine.environments
    if settings is None:
        return train_with(task, None)
    with Environments(settings, task.run.directory / "environments") as environments:
        return train_with(task, environments)


def train_with(task: Task[RLConfig[TRLEngine]], environments: Environments | None) -> Outcome:
    """Train with running environments, if the config has any."""
    config, run, grpo = task.config, task.run, task.config.grpo
    judges = {reward.name: Judge(reward.name, reward.path).load() for reward in config.rewards}  # before the model
    begun, data, asked = load_beginning(task), task.input("data").path, dict[str, Asked]()
    prompter, tokenizer, whole = begun.prompter, begun.tokenizer, WholeRows()
    by_text = [judge for name, judge in judges.items() if name != ENVIRONMENT]
    wanted = {name for judge in by_text for name in judge.asks_for}

    def read(file: Path) -> tuple[Dataset, dict[str, Prompt]]:
        if environments is None:
            kept = whole if "row" in wanted else None
            return read_prompts(file, prompter, grpo, run, answers="expected" in wanted, whole=kept)
        rows, prompts, beginnings = read_episodes(file, prompter, environments, grpo, run, answers="expected" in wanted)
        asked.update(beginnings)
        return rows, prompts

    rows, prompts = read(data / "train.jsonl")
    valid = None
    if (data / "val.jsonl").is_file():
        valid, others = read(data / "val.jsonl")
        valid, prompts = valid.select(range(min(len(valid), config.train.eval_rows))), prompts | others
    with mamba_out_allowed():
        trainer = (EpisodeTrainer if environments else ScheduledGRPOTrainer)(
            model=begun.model,
            args=GRPOConfig(**trainer_settings(config, run, validate=valid is not None), **grpo_settings(config)),
            reward_funcs=[named(reward.name) for reward in config.rewards],
            train_dataset=rows,
            eval_dataset=valid,
            processing_class=tokenizer,
            peft_config=begun.adapters,
            callbacks=callbacks(config, run, None),
        )
    sizes = grpo.num_prompts_per_step, grpo.num_generations_per_prompt, grpo.updates_per_step
    trainer.batches, trainer.seed = Batches(len(rows), *sizes, config.run.seed), config.run.seed
    trainer.say, trainer.prompts, trainer.judges, trainer.whole_rows = run.say, prompts, judges, whole
    trainer.weights = [reward.weight for reward in config.rewards]
    trainer.most_kept, trainer.log_of_completions = config.logger.completions, run.completions
    trainer.silence = Silence(
        [judges[reward.name] for reward in config.rewards if reward.weight], run.say, run.directory.name
    )
    trainer.likeness = Likeness(run.say, has_penalty=bool(grpo.reference_policy_kl_penalty))
    trainer.leave_one_out = grpo.use_leave_one_out_baseline
    trainer.overlong = grpo.max_new_tokens, grpo.overlong_buffer_length, grpo.overlong_buffer_penalty
    if grpo.use_dynamic_sampling and config.distillation is None:
        trainer.most_batches = grpo.dynamic_sampling_max_gen_batches or MOST_BATCHES
    trainer.skips_rows = config.engine.strategy == "ddp"
    trainer.mismatch_limit = grpo.sampling_mismatch_limit
    trainer.largest_weight = grpo.truncated_importance_sampling_ratio
    if environments is not None and isinstance(trainer, EpisodeTrainer):
        trainer.asked = asked
        trainer.loop = Loop(environments, prompter, tokenizer, trainer.eos_token_ids, grpo.max_new_tokens)
        for line in (*environments.told(), *environments.doubts()):
            run.say(line)
    for line in begin_to_sample(trainer, config, begun.model):
        run.say(line)
    if config.run.reward_model is not None:
        trainer.scorer = Scorer(task, begun.model, tokenizer)
    if config.distillation is not None:
        trainer.learn_from(load_teacher(task, begun.model, tokenizer), config.distillation.kl_type)
    elif penalty := grpo.reference_policy_kl_penalty:
        trainer.compare_with(begun.reference(task), penalty)
    with generating(trainer, config, run):
        names: dict[Metric, str] = {"reward": "final_reward", "valid_reward": "valid_reward"}
        made = noting_generator(trainer, train_to_end(trainer, config, run, begun.folder, names))
    for line in conclusions(trainer, config):
        run.say(line)
    return made


def noting_generator(trainer: ScheduledGRPOTrainer, made: Outcome) -> Outcome:
    """A result that says what drew its completions, if that need not draw the same again."""
    if trainer.generator is None:
        return made
    return replace(made, metadata={**made.metadata, "generator": trainer.generator.name, REPLAYABLE: False})


@contextmanager
def generating(trainer: ScheduledGRPOTrainer, config: RLConfig[TRLEngine], run: Run) -> Generator[None]:
    """Let vLLM draw the completions inside this block, if the config wants it to."""
    if not config.engine.wants_vllm:
        yield
        return
    from stages.rl.engines.trl.generators import added_by_vllm, vllm_for

    model = trainer.accelerator.unwrap_model(trainer.model)
    longest = longest_text(trainer, config, getattr(model.config.get_text_config(), "max_position_embeddings", None))
    if config.engine.peft is not None:
        is_ours = config.engine.vllm.address is None
        added = is_ours and added_by_vllm(model)
        run.say(f"adapters: {'added by vLLM' if added else 'merged into the weights for vLLM'}")
    with vllm_for(config, model, longest, trainer.eos_token_ids, run.directory / "vllm.log") as trainer.generator:
        yield


def longest_text(trainer: ScheduledGRPOTrainer, config: RLConfig[TRLEngine], context: int | None) -> int:
    """Tokens of a prompt with its completion or episode, at most.

    An environment that speaks first makes its prompts longer; as much as an episode is left for that, or as much as the
    model's context has.
    """
    environments, prompt = config.engine.environments, max(len(one.ids) for one in trainer.prompts.values())
    if environments is None:
        return prompt + config.grpo.max_new_tokens
    whole = prompt + environments.max_episode_tokens
    asked = trainer.asked.values() if isinstance(trainer, EpisodeTrainer) else ()
    if all(one.agent.kind != TURNS_AGENT for one in asked):
        return whole
    room = whole + environments.max_episode_tokens
    return max(whole, min(room, context or room))


def begin_to_sample(trainer: ScheduledGRPOTrainer, config: RLConfig[TRLEngine], model: Any) -> Iterator[str]:
    """Choose how completions are sampled; yields what a person should know about it.

    Raises:
        UserError: the config wants exact sampling, which is impossible; in a rehearsal: what is sampled is not what
            TRL would train.
    """
    if config.distillation is None:
        require_same_head(trainer.model, config.grpo.temperature)
    dropout = config.engine.peft.dropout if config.engine.peft else 0.0
    if dropout:
        yield f"engine.peft.dropout={dropout:g}: completions are drawn without it and learnt with it"
    if config.engine.wants_exact:
        reason = "adapters drop values in training" if dropout else trainer.sample_exactly()
        if reason and config.engine.generation == "exact":
            remedy = "change that, or set engine.generation=transformers"
            raise UserError(f"engine.generation=exact: sampling is not bit-identical to training: {reason}", remedy)
        yield f"sampling: transformers' generate ({reason})" if reason else "sampling: bit-identical to training"
    if kind := unmeasured(model):
        yield f"router_flips are not measured: {kind} of this transformers does not say which experts it chose"


def conclusions(trainer: ScheduledGRPOTrainer, config: RLConfig[TRLEngine]) -> Iterator[str]:
    """What a person should know at the end of a training."""
    has_penalty = bool(config.grpo.reference_policy_kl_penalty)
    by_rewards_alone = trainer.learns_from_rewards and not has_penalty
    if by_rewards_alone and (alike := trainer.steps_with[False]) and not trainer.steps_with[True]:
        yield f"WARNING: {alike:,} of {alike:,} steps taught nothing: all completions of a question had one reward"
    if isinstance(trainer, EpisodeTrainer) and trainer.seconds:
        yield f"time of the steps: {trainer.split()}"
    if trainer.learns_from_rewards:
        yield from fallen(trainer.stage_run, has_penalty=has_penalty)


LEAST_STEPS, SURE, FAR = 12, 4, 0.1
"""When a reward has fallen: after so many steps, by so many standard errors, and by such a share of its height.

Of independent normal rewards without a trend, 0.7% of the trainings with 12 steps are called fallen, fewer with more.
"""


def fallen(run: Run, *, has_penalty: bool = False) -> Iterator[str]:
    """Says if the reward ended far below its former height: means of a third of the steps each, of all attempts.

    Args:
        has_penalty: whether a KL penalty holds the model already, and need not be advised.
    """
    rewards = [entry["reward"] for entry in run.metrics.read() if "reward" in entry]
    if len(rewards) < LEAST_STEPS:
        return
    third = len(rewards) // 3
    parts = rewards[:third], rewards[third:-third], rewards[-third:]
    best, last = max(parts[:2], key=lambda part: fmean(part)), parts[2]
    error = sqrt(variance(best) / len(best) + variance(last) / len(last))
    if fmean(best) - fmean(last) > max(SURE * error, FAR * abs(fmean(best))):
        when = "first" if best is parts[0] else "middle"
        yield (
            f"WARNING: the reward fell from {fmean(best):.3g} to {fmean(last):.3g}, its means in the {when} and the "
            f"last third of the steps; {steadier(has_penalty)}"
        )


def grpo_settings(config: RLConfig) -> dict[str, Any]:
    """Translate our settings to TRL's."""
    grpo = config.grpo
    return {
        "num_generations": grpo.num_generations_per_prompt,
        "max_completion_length": grpo.max_new_tokens,
        "temperature": grpo.temperature,
        "top_p": grpo.top_p,
        "beta": 0.0,  # see `compare_with`
        "use_bias_correction_kl": False,  # as in NeMo-RL's configs
        "router_aux_loss_coef": 0.0,  # TRL would take the one in the model's config
        # with more than 1, TRL records log-probabilities before the first update; `StepTrainer` makes several updates
        "num_iterations": grpo.updates_per_step,
        "loss_type": grpo.loss_type or "dapo",
        "importance_sampling_level": "sequence" if grpo.sequence_level_importance_ratios else "token",
        "epsilon": grpo.ratio_clip_min,
        # for CISPO, TRL wants the bound itself
        "epsilon_high": grpo.ratio_clip_max + (1 if grpo.loss_type == "cispo" else 0),
        "scale_rewards": "group" if grpo.normalize_rewards else "none",
        "mask_truncated_completions": grpo.overlong_filtering,
        "reward_weights": [reward.weight for reward in config.rewards],
        "num_generations_eval": 1,
        "shuffle_dataset": False,
    }


def named(name: str) -> Any:
    """A placeholder that gives TRL the reward's name; `JudgedTrainer` computes the rewards."""

    def reward(**_: Any) -> list[float]:
        raise AssertionError("JudgedTrainer computes the rewards itself")

    reward.__name__ = name
    return reward
