"""The sections of a training, and the configurations that the training stages derive theirs from.

    TrainingConfig                    run, engine, model, train, optimizer, scheduler, checkpoint, logger
      SupervisedConfig                batches of rows: pretrain and sft
      GRPOConfig                      groups of completions: rl
    TrackerSection                    in eval too

An engine that several stages share is written against these, with its own section as the parameter:

    def translate(config: SupervisedConfig[AutomodelEngine], ...) -> ...
"""

import re
from typing import ClassVar, Generic, Literal, get_args

from pydantic import Field, field_validator, model_validator

from nemotron_shared.config.schema import (
    MOST_TOKENS,
    EngineT,
    Extra,
    How,
    LocalEngine,
    ModelSection,
    RandomModelSection,
    RunSection,
    Section,
    StageConfig,
)


class TrainBase(Section):
    """How long to train, and how often to validate."""

    train_iters: int = Field(ge=1, le=10**9)
    """Optimizer steps."""
    micro_batch_size: How[int | None] = Field(ge=1)
    """Rows (in rl: completions) per forward pass and process; the rest is gradient accumulation. `null`: all in one
    pass; a single one where an engine takes packed rows one by one (`megatron_bridge` in sft). With the engines
    `transformers` and `trl`, `null` takes no more rows than fit into `run.memory`, and on a CPU no more than make a
    step faster."""
    eval_interval: How[int] = Field(ge=1)
    """Steps between validations; the last step is always validated."""
    eval_rows: How[int] = Field(ge=1)
    """Rows per validation; in rl prompts, one completion each, or pairs."""


class TrainSection(TrainBase):
    """How much to train."""

    global_batch_size: int = Field(ge=1)
    """Rows per optimizer step, over all processes. A multiple of the micro batch times the processes."""

    @model_validator(mode="after")
    def divisible(self) -> "TrainSection":
        """The global batch must be made of whole micro batches."""
        if self.micro_batch_size and self.global_batch_size % self.micro_batch_size:
            raise ValueError(
                f"train.global_batch_size {self.global_batch_size} is not a multiple of "
                f"train.micro_batch_size {self.micro_batch_size}; change one of them"
            )
        return self


class PretrainTrain(TrainSection):
    """How much to train, and on rows of what length."""

    seq_length: int = Field(ge=8, le=MOST_TOKENS)
    """Tokens per row."""


class RLTrain(TrainBase):
    """How much to train. A step's batch is num_prompts_per_step x num_generations_per_prompt completions."""


SAMPLING = frozenset(
    f"grpo.{name}"
    for name in (
        "num_prompts_per_step", "num_generations_per_prompt", "max_new_tokens", "temperature", "top_p",
        "overlong_filtering", "updates_per_step",
    )
)  # fmt: skip
"""Settings of the section `grpo` that matter to every method that samples."""
MOST_BATCHES = 10
"""Batches that dynamic sampling takes at most where the config sets no limit, as in NeMo-RL's configs."""


class GRPOSection(Section):
    """Group relative policy optimisation."""

    num_prompts_per_step: int = Field(ge=1)
    """Prompts per step."""
    num_generations_per_prompt: int = Field(ge=2)
    """Completions of each prompt, compared with each other. Times the prompts: the step's batch."""
    max_new_tokens: int = Field(ge=1)
    """Longest completion, in tokens."""
    temperature: float = Field(gt=0)
    """Sampling temperature."""
    top_p: float = Field(gt=0, le=1)
    """Sample from the smallest set of tokens with this much probability."""
    reference_policy_kl_penalty: float = Field(ge=0)
    """Weight of the distance to the starting model. 0 keeps no reference model in memory."""
    reference_policy_kl_type: Extra[Literal["k1", "k2", "k3"] | None]
    """Estimator of that distance. `null`: `k3`; `k1` and `k2` are for engine `nemo_rl`."""
    loss_type: Extra[Literal["dapo", "grpo", "dr_grpo", "bnpo", "cispo", "sapo"] | None]
    """How the tokens make a loss; see [Losses](#losses). `null`: `dapo`, a mean over all tokens. Engine `nemo_rl` has
    `dapo`, `grpo` and `cispo`."""
    sequence_level_importance_ratios: Extra[bool]
    """One probability ratio for a whole completion, the geometric mean of its tokens' (GSPO). Needs
    `grpo.loss_type=grpo`."""
    updates_per_step: int = Field(ge=1)
    """Optimizer updates that a step's batch is shared out to. With 1 the model that learns is the one that sampled, and
    the clipping below never acts."""
    ratio_clip_min: float = Field(gt=0)
    """How far the probability ratio may fall below 1 before it is clipped."""
    ratio_clip_max: float = Field(gt=0)
    """How far it may rise above 1."""
    use_leave_one_out_baseline: bool
    """Compare a completion with the others of its group; `false`: with the whole group, itself included."""
    normalize_rewards: bool
    """Divide advantages by the standard deviation of the rewards that they are compared with."""
    overlong_filtering: bool
    """Leave completions that were cut at `grpo.max_new_tokens` out of the loss."""
    overlong_buffer_length: Extra[int] = Field(ge=0)
    """The last tokens before `grpo.max_new_tokens`, within which a completion's reward falls with its length, by up to
    `grpo.overlong_buffer_penalty` (DAPO's overlong shaping). 0: no penalty."""
    overlong_buffer_penalty: Extra[float] = Field(ge=0)
    """What a completion of `grpo.max_new_tokens` loses. Logged rewards are those before it."""
    use_dynamic_sampling: Extra[bool]
    """Learn only from prompts whose completions differ in reward: sample further batches until a step has enough of
    them."""
    dynamic_sampling_max_gen_batches: Extra[int | None] = Field(ge=1)
    """Batches that a step may sample for it; then it ends with an error. `null`: 10."""
    truncated_importance_sampling_ratio: float | None = Field(gt=0)
    """Where sampling and training do not compute alike, the loss of a token is multiplied by its probability in
    training over that with which it was drawn, and by this at most. `null` leaves it out; with NeMo-RL it leaves what
    `engine.base` says."""
    max_staleness: Extra[int] = Field(ge=0)
    """Steps that the weights which completions are drawn by may be older than those that learn. 0: none. With n, vLLM
    gets new weights at every (n+1)-th step; `stale_steps` counts. Needs
    `grpo.truncated_importance_sampling_ratio`, and engine `trl` with [vLLM](#generators)."""
    sampling_mismatch_limit: How[float | None] = Field(ge=1)
    """Stop when a step's `token_mult_prob_error` is above this: probabilities of sampling and of training that are too
    far apart. 1 would be none; `null` never stops."""

    @field_validator("loss_type", "reference_policy_kl_type", mode="before")
    @classmethod
    def by_name(cls, value: object) -> object:
        """Take the names of the defaults as well: with them, results keep the name that they have without."""
        if value == "gspo":
            raise ValueError("GSPO is grpo.loss_type=grpo with grpo.sequence_level_importance_ratios=true")
        return None if value in ("dapo", "k3") else value

    @model_validator(mode="after")
    def possible(self) -> "GRPOSection":
        """Refuse settings that mean nothing together."""
        if self.sequence_level_importance_ratios and self.loss_type != "grpo":
            raise ValueError(
                "grpo.sequence_level_importance_ratios gives a completion one ratio, so its loss is a mean over "
                "completions: set grpo.loss_type=grpo"
            )
        if self.max_staleness and self.truncated_importance_sampling_ratio is None:
            raise ValueError(
                f"grpo.max_staleness={self.max_staleness} draws by weights that are not those that learn: set "
                "grpo.truncated_importance_sampling_ratio=2, which corrects for it, or grpo.max_staleness=0"
            )
        if bool(self.overlong_buffer_length) != bool(self.overlong_buffer_penalty):
            raise ValueError("set grpo.overlong_buffer_length and grpo.overlong_buffer_penalty together, or both to 0")
        if self.overlong_buffer_length > self.max_new_tokens:
            raise ValueError(
                f"grpo.overlong_buffer_length {self.overlong_buffer_length} is above grpo.max_new_tokens "
                f"{self.max_new_tokens}, of which it is the end"
            )
        return self


class DPOSection(Section):
    """Direct preference optimisation: a model learns from pairs of a better and a worse answer."""

    global_batch_size: int = Field(ge=1)
    """Pairs per step, over all processes. A multiple of the micro batch, of pairs as well, times the processes."""
    reference_policy_kl_penalty: float = Field(gt=0)
    """How strongly the model is held to the one that training starts from: beta of DPO."""
    preference_average_log_probs: bool
    """Compare the mean log-probability of an answer's tokens and not their sum, so that length counts less."""


class RewardModelingSection(Section):
    """Reward modelling: a model learns a number for an answer from pairs of a better and a worse one."""

    global_batch_size: int = Field(ge=1)
    """Pairs per step, over all processes. A multiple of the micro batch, of pairs as well, times the processes."""
    center_rewards_coefficient: float = Field(ge=0)
    """Weight of the squared sum of a pair's two rewards, which keeps rewards around 0. 0: they may lie anywhere."""


class DistillationSection(Section):
    """On-policy distillation: a model learns a teacher's distribution of each token of its own completions."""

    kl_type: Literal["forward", "reverse"]
    """Distance to the teacher: `forward` KL covers all that the teacher may say, `reverse` keeps to what it would."""


OtherMethod = Literal["dpo", "reward_modeling", "distillation"]
OTHER_METHODS: tuple[OtherMethod, ...] = get_args(OtherMethod)
"""Methods of the stage rl besides GRPO, each with a section of that name."""


MEMORY = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s?(?P<unit>%|[KMGT]i?B)")
UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


class TrainingRun(RunSection):
    """What this run reads, where it writes, and how it starts."""

    memory: Extra[How[str | None]]
    """Memory that the training may take, of this machine or, where it trains on GPUs, of each: `2GB`, or `80%` of all
    of it. It bounds the rows of a pass where `train.micro_batch_size` is `null`, and a training that does not fit
    is refused. `null`: all of it. Engines `transformers` and `trl`."""

    @field_validator("memory", mode="before")
    @classmethod
    def is_a_size(cls, value: object) -> object:
        """Require a number with a unit."""
        found = MEMORY.fullmatch(str(value))
        if value is not None and (found is None or not float(found["number"])):
            raise ValueError("run.memory is an amount such as 2GB, 512MiB or 80%")
        return value

    def budget(self, there: float) -> float:
        """Bytes that the training may take, of those that are there."""
        if self.memory is None:
            return there
        found = MEMORY.fullmatch(self.memory)
        assert found is not None, "validated"
        number = float(found["number"])
        return number / 100 * there if found["unit"] == "%" else number * UNITS[found["unit"]]


class RLRun(TrainingRun):
    """What this run reads, where it writes, and how it starts."""

    teacher: How[str | None]
    """Model to learn from with `distillation`, of the same vocabulary: an artifact, or a folder as in `run.model`."""
    reward_model: How[str | None]
    """Reward model for the reward `model`, of the same vocabulary: an artifact, or a folder as in `run.model`."""


class OptimizerSection(Section):
    """AdamW."""

    lr: float = Field(gt=0)
    """Peak learning rate of AdamW."""
    min_lr: float = Field(ge=0)
    """Learning rate at the end of the decay."""
    weight_decay: float = Field(ge=0)
    """Weight decay of AdamW; [which weights](../../docs/models.md#weight-decay) it reaches is the engine's."""
    adam_beta1: float = Field(ge=0, lt=1)
    """Decay of the first moment."""
    adam_beta2: float = Field(ge=0, lt=1)
    """Decay of the second moment."""
    adam_eps: float = Field(gt=0)
    """Added to the denominator."""
    clip_grad: float = Field(gt=0)
    """Largest gradient norm; a longer gradient is scaled down to it."""


class SchedulerSection(Section):
    """Learning rate over time."""

    lr_decay_style: Literal["constant", "linear", "cosine", "WSD"]
    """`constant`, `linear`, `cosine` or `WSD` (warmup, stable, decay)."""
    lr_warmup_iters: int = Field(ge=0)
    """Steps of warmup; in a shorter training, all but the last step."""
    lr_wsd_decay_iters: int = Field(ge=0)
    """Steps of decay at the end of `WSD`, at most those that the warmup leaves; other styles ignore it."""

    def fitted(self, train_iters: int) -> "SchedulerSection":
        """The same for a training of so many steps: the warmup ends by the last step, which then has the peak, and the
        decay begins after it."""
        warmup = min(self.lr_warmup_iters, train_iters - 1)
        decay = min(self.lr_wsd_decay_iters, train_iters - warmup)
        return self.model_copy(update={"lr_warmup_iters": warmup, "lr_wsd_decay_iters": decay})


PublishBest = Literal["always", "when_learnt"] | None


class CheckpointSection(Section):
    """What survives a kill."""

    save_interval: How[int] = Field(ge=1)
    """Steps between checkpoints. One is also written at the end, on SIGTERM and on Ctrl-C."""
    most_recent_k: How[int] = Field(ge=1)
    """Newest checkpoints to keep."""
    keep_best: How[bool]
    """Keep the checkpoint with the best validation as well, however old (engines `transformers`, `trl` and
    `automodel`)."""
    publish_best: Extra[PublishBest]
    """Publish the checkpoint with the best validation, where the last step validated worse: `always`, or `when_learnt`,
    if the loss of training was below 0.1 by then, so that the model knew its rows. Needs `keep_best`; a checkpoint is
    written after each validation that is the best so far. `null`: the last step. Engines `transformers` and `trl`."""
    keep_last_state: How[bool]
    """Keep the last checkpoint of a finished training, so that a longer training can continue from it."""
    checkpoint_dir: How[str | None]
    """Path of a link to the checkpoints of the run, and to the result once it has ended. It may replace an empty folder
    or an earlier link. `null`: they are in the run's folder, below `run.home`."""

    @model_validator(mode="after")
    def kept(self) -> "CheckpointSection":
        """What is to be published must be kept."""
        if self.publish_best is not None and not self.keep_best:
            raise ValueError(
                f"checkpoint.publish_best={self.publish_best} needs checkpoint.keep_best=true; or set it to null"
            )
        return self


EXPERIMENT = "nemotron"
"""MLflow's experiment where the config names none."""


class TrackerSection(Section):
    """The experiment trackers that get results and figures as well."""

    wandb_project: How[str | None]
    """Weights & Biases project. `null`: W&B is not used."""
    wandb_entity: How[str | None]
    """Weights & Biases entity."""
    wandb_name: How[str | None]
    """Name of the run at Weights & Biases. `null`: that of the run's folder."""
    mlflow_tracking_uri: How[str | None]
    """MLflow server, `http://host:5000`, or database, `sqlite:///mlflow.db`. `null`: MLflow is not used."""
    mlflow_experiment: How[str | None]
    """MLflow experiment. `null`: `nemotron`."""


class LoggerSection(TrackerSection):
    """Where metrics go besides the console and metrics.jsonl."""

    log_interval: How[int] = Field(ge=1)
    """Steps between console lines. `metrics.jsonl` gets every step."""
    tensorboard: How[bool]
    """Write TensorBoard files to the run folder."""
    log_dir: How[str | None]
    """Path of a link to the run's folder, with its metrics and TensorBoard files; in a folder that holds files already,
    a link of the run's name. `null`: no link."""


MOST_COMPLETIONS = 64


class RLLogger(LoggerSection):
    """Where metrics go, and how much of what is sampled is kept."""

    completions: How[int] = Field(ge=0, le=MOST_COMPLETIONS)
    """Completions of each step that are kept in `completions.jsonl` in the run's folder, and go to TensorBoard and the
    trackers, with prompt, rewards and advantage: the best, the worst, one in the middle, then others
    ([docs](../../docs/report.md#completions-of-rl)). 0: none. Engine `nemo_rl` keeps all completions."""


class TrainingConfig(StageConfig[EngineT], Generic[EngineT]):
    """Settings of every training."""

    rows_are_packed: ClassVar[bool] = False
    """Whether a row holds several sequences, which must not see each other."""
    least_adapter_rate: ClassVar[float] = 5e-5
    """Adapters with a lower learning rate are noticed at the start; four times as much is usual."""

    run: TrainingRun
    model: ModelSection
    train: TrainBase
    optimizer: OptimizerSection
    scheduler: SchedulerSection
    checkpoint: CheckpointSection
    logger: LoggerSection

    @property
    def schedule(self) -> SchedulerSection:
        """What every engine follows: the scheduler, as it fits the length of the training."""
        return self.scheduler.fitted(self.train.train_iters)

    @property
    def notes(self) -> list[str]:
        """What of the scheduler does not fit into the training, and what is done instead."""
        asked, done, changed = self.scheduler, self.schedule, []
        if done.lr_warmup_iters < asked.lr_warmup_iters:
            changed.append(
                f"a warmup of {done.lr_warmup_iters}, not {asked.lr_warmup_iters} (scheduler.lr_warmup_iters)"
            )
        if asked.lr_decay_style == "WSD" and done.lr_wsd_decay_iters < asked.lr_wsd_decay_iters:
            told = (
                f"a decay of {done.lr_wsd_decay_iters}, not {asked.lr_wsd_decay_iters} (scheduler.lr_wsd_decay_iters)"
            )
            changed.append(told)
        steps = self.train.train_iters
        fitted = [f"{steps} steps (train.train_iters) have {' and '.join(changed)}"] if changed else []
        return [*super().notes, *fitted, *self._slow_adapters()]

    def _slow_adapters(self) -> list[str]:
        """A rate that suits all weights, where adapters are trained."""
        engine, rate = self.engine, self.optimizer.lr
        if not isinstance(engine, LocalEngine) or engine.peft is None or rate >= self.least_adapter_rate:
            return []
        usual = f"these usually take 10 to 20 times as much: try optimizer.lr={4 * self.least_adapter_rate:g}"
        return [f"optimizer.lr={rate:g} is a rate for all weights, and adapters (engine.peft) are trained: {usual}"]

    @model_validator(mode="after")
    def falling(self) -> "TrainingConfig[EngineT]":
        """A decay must not raise the learning rate."""
        peak, least = self.optimizer.lr, self.optimizer.min_lr
        if least > peak and self.scheduler.lr_decay_style != "constant":
            raise ValueError(
                f"optimizer.min_lr {least:g} is above optimizer.lr {peak:g}: the learning rate would rise in its "
                f"decay; set optimizer.min_lr={peak / 10:g}"
            )
        return self

    @property
    def rows_per_step(self) -> int:
        """The global batch."""
        raise NotImplementedError

    @property
    def rows_per_update(self) -> int:
        """What one update of the optimizer learns from."""
        return self.rows_per_step

    def micro_rows(self, readers: int) -> int:
        """Rows of one forward pass, where `readers` processes or groups of them read different rows.

        This alone says what `train.micro_batch_size=null` means; `nemotron_engines.estimate.micro_batch` lowers it.
        """
        one_by_one = self.rows_are_packed and self.engine.packed_rows_one_by_one
        whole = 1 if one_by_one else max(1, self.rows_per_update // max(1, readers))
        return self.train.micro_batch_size or whole


class SupervisedConfig(TrainingConfig[EngineT], Generic[EngineT]):
    """Training on batches of prepared rows."""

    train: TrainSection

    @property
    def rows_per_step(self) -> int:
        """The global batch."""
        return self.train.global_batch_size


class GRPOConfig(TrainingConfig[EngineT], Generic[EngineT]):
    """Reinforcement by groups of completions."""

    least_adapter_rate = 1e-5

    run: RLRun
    model: RandomModelSection
    train: RLTrain
    grpo: GRPOSection
    logger: RLLogger
    dpo: Extra[DPOSection | None]
    """Learn from pairs of answers instead of by GRPO; `null`: GRPO. The configs `dpo` and `dpo_tiny` have such a
    section."""
    reward_modeling: Extra[RewardModelingSection | None]
    """Make a reward model of pairs of answers, instead of a better language model; `null`: do not. The configs `reward`
    and `reward_tiny` have such a section."""
    distillation: Extra[DistillationSection | None]
    """Learn from the model in `run.teacher` instead of from rewards; `null`: do not. The config `distill_tiny` has such
    a section."""

    @property
    def rows_per_step(self) -> int:
        """Completions of a step, or pairs of answers."""
        if self.on_pairs is not None:
            return self.on_pairs.global_batch_size
        return self.grpo.num_prompts_per_step * self.grpo.num_generations_per_prompt

    @property
    def rows_per_update(self) -> int:
        """What one update learns from, of a step."""
        return self.rows_per_step if self.on_pairs else self.rows_per_step // self.grpo.updates_per_step

    @property
    def on_pairs(self) -> DPOSection | RewardModelingSection | None:
        """The section of a method that learns from pairs of answers; None for one that samples its own."""
        return self.dpo or self.reward_modeling

    @property
    def other_method(self) -> OtherMethod | None:
        """The method, if it is not GRPO."""
        return next((name for name in OTHER_METHODS if getattr(self, name) is not None), None)

    @property
    def further_models(self) -> int:
        """How many other models stay in memory: the one that training starts from or a teacher, and a reward model."""
        if self.reward_modeling is not None:
            return 0
        compared = self.other_method is not None or self.grpo.reference_policy_kl_penalty > 0
        return compared + (self.run.reward_model is not None)

    @property
    def unused(self) -> dict[str, str]:
        """With another method, the settings of GRPO that it does without as well."""
        keys = [f"grpo.{name}" for name in GRPOSection.model_fields]
        if self.on_pairs is not None:
            why = f"with {self.other_method}, which samples nothing"
            return super().unused | dict.fromkeys((*keys, "rewards", "logger.completions"), why)
        if self.distillation is not None:
            why = "with distillation, which learns from a teacher and not from rewards"
            return super().unused | dict.fromkeys((key for key in keys if key not in SAMPLING), why)
        return super().unused

    @model_validator(mode="after")
    def one_method(self) -> "GRPOConfig[EngineT]":
        """Take one method."""
        if len(chosen := [name for name in OTHER_METHODS if getattr(self, name) is not None]) > 1:
            raise ValueError(f"{' and '.join(chosen)} are {len(chosen)} methods: set all but one of them to null")
        return self

    @model_validator(mode="after")
    def divisible(self) -> "GRPOConfig[EngineT]":
        """A step's completions must be made of whole updates, and those of whole micro batches."""
        step, updates, micro = self.rows_per_step, self.grpo.updates_per_step, self.train.micro_batch_size
        if self.on_pairs is not None:
            if micro and step % micro:
                what = (
                    f"{self.other_method}.global_batch_size {step} is not a multiple of train.micro_batch_size {micro}"
                )
                raise ValueError(f"{what}; change one of them")
            return self
        whole = f"{step} completions per step (num_prompts_per_step x num_generations_per_prompt)"
        if step % updates:
            raise ValueError(f"{whole} are not a multiple of grpo.updates_per_step {updates}; change one of them")
        if micro and self.rows_per_update % micro:
            shared = f", {self.rows_per_update} in each of {updates} updates," if updates > 1 else ""
            raise ValueError(
                f"{whole}{shared} are not a multiple of train.micro_batch_size {micro}; change one of them"
            )
        return self
