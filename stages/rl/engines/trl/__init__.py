"""TRL's GRPOTrainer, DPOTrainer and RewardTrainer, in this process."""

from collections.abc import Iterator
from dataclasses import replace

from nemotron_data.formats.json_lines import read_lines
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_engines.checks import local_needs, own_packages
from nemotron_engines.estimate.training import with_micro_batch, within_budget
from nemotron_engines.lora.kinds import is_chosen
from nemotron_engines.modeling.architecture import NEMOTRON_H
from nemotron_engines.rules import TRAINING
from nemotron_shared.engine.engine import Engine, Inputs
from nemotron_shared.engine.needs import Needs
from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.machine.machine import Machine
from nemotron_shared.models.folder import config_of, context_of, left_out
from nemotron_shared.system.errors import Finding, note, problem
from stages.rl.agents import agent_problems
from stages.rl.engines.trl.vllm_needs import unused_problems, vllm_lacking, vllm_notes, vllm_problems
from stages.rl.prompts import FILES
from stages.rl.rewards import ENVIRONMENT, MODEL
from stages.rl.schema import RLConfig, TRLEngine
from stages.rl.vocabulary import vocabulary_problems


class TRL(Engine[RLConfig[TRLEngine]]):
    """TRL's GRPOTrainer, in this process."""

    settings = TRLEngine
    libraries = "stages.rl.engines.trl.train"
    begins_with = ("transformers.trainer", "peft", "datasets", "stages.rl.engines.trl.library")
    rules = TRAINING
    unneeded = ("boto3", "scipy", "vllm")  # ours is imported later, and TRL's own way to it is not taken
    small_models = "nemotron_engines.modeling.cut"
    rehearsing = "stages.rl.engines.trl.rehearsing:rewards_apart"

    def check(self, config: RLConfig[TRLEngine], inputs: Inputs, machine: Machine) -> Iterator[Finding]:
        """Refuse what TRL's trainer, or ours on top of it, cannot do."""
        yield from self._environment_problems(config)
        if machine.sees_files:
            yield from agent_problems(config, inputs)
            yield from vocabulary_problems(inputs)
            yield from self._template_problems(inputs)
        yield from self._generator_problems(config, inputs, machine)
        if config.other_method is not None and config.engine.strategy == "fsdp2":
            yield problem(f"{config.other_method} trains whole models", "set engine.strategy=ddp", "engine.strategy")
        if (config.distillation is None) != (config.run.teacher is None):
            missing = "run.teacher=NAME:vN, or a folder" if config.distillation else "a section distillation"
            yield problem("distillation and run.teacher belong together", f"add {missing}", "run.teacher")
        yield from self._reward_model_problems(config)
        yield from self._adapted_head_problems(config, inputs, machine)
        if config.on_pairs is not None:
            return
        if config.distillation is not None:
            if config.grpo.updates_per_step > 1:
                what = f"distillation takes 1 update per step, not {config.grpo.updates_per_step}"
                yield problem(what, "set grpo.updates_per_step=1", "grpo.updates_per_step")
            return
        grpo, processes = config.grpo, machine.processes
        if grpo.updates_per_step > 1 and config.engine.strategy == "fsdp2":  # they need whole gradients
            what = f"a sharded model takes 1 update per step, not {grpo.updates_per_step}"
            yield problem(what, "set engine.strategy=ddp, or grpo.updates_per_step=1", "grpo.updates_per_step")
        if (kind := grpo.reference_policy_kl_type) is not None:
            what = f"engine trl estimates the distance to the starting model by k3, not {kind}"
            key = "grpo.reference_policy_kl_type"
            yield problem(what, f"set {key}=null, or engine=nemo_rl, which has k1 and k2", key)
        if grpo.loss_type == "cispo" and grpo.ratio_clip_min < 1:
            what = f"CISPO of engine trl has no lower bound, but grpo.ratio_clip_min is {grpo.ratio_clip_min:g}"
            remedy = "set grpo.ratio_clip_min=1 (no bound), or engine=nemo_rl, which has one"
            yield problem(what, remedy, "grpo.ratio_clip_min")
        if grpo.use_dynamic_sampling and processes > 1:
            what = f"dynamic sampling of engine trl runs in one process, not {processes}"
            yield problem(what, "start one process, or set engine=nemo_rl", "grpo.use_dynamic_sampling")

    def _generator_problems(self, config: RLConfig[TRLEngine], inputs: Inputs, machine: Machine) -> Iterator[Finding]:
        """What keeps the generator that the config names from drawing the completions, if it is known here."""
        engine, model, key = config.engine, inputs.get("model"), "engine.generation"
        if not engine.wants_vllm:
            yield from unused_problems(config)
        if config.on_pairs is not None and engine.generation is not None:
            yield problem(f"{config.other_method} draws no completions", f"set {key}=null", key)
            return
        if engine.generation_dtype is not None and not engine.wants_vllm:
            what, remedy = "only vLLM draws in another type than engine.dtype", "set engine.generation_dtype=null, or"
            yield problem(what, f"{remedy} {key}=vllm", "engine.generation_dtype")
        if engine.wants_vllm:
            yield from vllm_problems(config, inputs, machine)
        elif config.grpo.max_staleness and config.other_method is None:
            what = "only vLLM draws by weights of an earlier step: other generators draw by those that learn"
            yield problem(what, f"set grpo.max_staleness=0, or {key}=vllm", "grpo.max_staleness")
        if engine.generation != "exact":
            return
        kind = config_of(model.path).get("model_type") if model else NEMOTRON_H
        reasons = {
            f"a model of type {kind} is not a NemotronH": machine.sees_files and kind != NEMOTRON_H,
            f"engine.dtype is {engine.dtype}, not float32": engine.dtype != "float32",
            "run.threads is not 1": config.run.threads != 1,
            "the model would be on a GPU": bool(machine.gpus) and engine.device != "cpu",
            "adapters drop values in training": bool(engine.peft and engine.peft.dropout),
            "activations are recomputed": engine.gradient_checkpointing,
            "its weights are sharded": engine.strategy == "fsdp2",
        }
        if reason := next((text for text, is_so in reasons.items() if is_so), None):
            what = f"sampling is not bit-identical to training: {reason}"
            yield problem(what, f"change that, or set {key}=transformers", key)

    def _template_problems(self, inputs: Inputs) -> Iterator[Finding]:
        """Refuse a model without a chat template, by which every method here shows prompts and answers.

        Raises:
            UserError: it has several, and none to take.
        """
        model = inputs.get("model")
        if model is not None and TokenizerFolder(model.path).own_template() is None:
            what = f"{model.reference} has no chat template, by which prompts are shown to it"
            remedy = (
                "put a chat_template.jinja into its folder, or fine-tune it first with data_prep.chat_template=plain"
            )
            yield problem(what, f"{remedy}, which publishes a model that has one", "run.model")

    def _reward_model_problems(self, config: RLConfig[TRLEngine]) -> Iterator[Finding]:
        """Refuse a reward model without its use, and adapters in one that is made."""
        wanted = MODEL in [reward.name for reward in config.rewards]
        if wanted != (config.run.reward_model is not None):
            missing = "run.reward_model=NAME:vN, or a folder" if wanted else "rewards=[{name: model, weight: 1.0}]"
            yield problem(
                "the reward 'model' and run.reward_model belong together", f"add {missing}", "run.reward_model"
            )
        if wanted and config.engine.environments is not None:
            remedy = "leave it out of rewards, and run.reward_model too"
            yield problem("the reward 'model' scores answers of one turn", remedy, "rewards")
        if config.reward_modeling is not None and config.engine.peft is not None:
            yield problem("reward models are trained whole, without adapters", "set engine=trl", "engine.peft")

    def _adapted_head_problems(
        self, config: RLConfig[TRLEngine], inputs: Inputs, machine: Machine
    ) -> Iterator[Finding]:
        """Refuse adapters of the head where TRL multiplies by its weight alone (TRL 1.16, `add_fused_lm_head`)."""
        engine, section, model = config.engine, config.engine.peft, inputs.get("model")
        if section is None or config.distillation or not is_chosen("lm_head", section.layers or (), section):
            return
        ours = model is None or config_of(model.path).get("model_type") == NEMOTRON_H
        on_gpu = bool(machine.gpus) and engine.device != "cpu"
        exact = engine.wants_exact and engine.dtype == "float32" and config.run.threads == 1 and not on_gpu
        exact = exact and not section.dropout
        if config.dpo is not None or not (ours and exact):
            method = "dpo" if config.dpo is not None else "grpo without exact sampling"
            what = f"engine.peft adapts lm_head, whose adapter has no effect in {method}: TRL reads the weight alone"
            remedy = "leave lm_head out of engine.peft.target_modules, or set engine.peft=null"
            yield problem(what, remedy, "engine.peft.target_modules")

    def _environment_problems(self, config: RLConfig[TRLEngine]) -> Iterator[Finding]:
        """Refuse what episodes of several turns cannot do."""
        environments, names, grpo = config.engine.environments, [reward.name for reward in config.rewards], config.grpo
        if environments is None:
            if ENVIRONMENT in names:
                yield problem("the reward 'environment' comes from environments", "give engine.environments", "rewards")
            return
        if ENVIRONMENT not in names:
            remedy = "rewards=[{name: environment, weight: 1.0}]; other rewards judge the last answer"
            yield problem("the environments' reward is not among the rewards", remedy, "rewards")
        if fault := environments.lacks_room(grpo.max_new_tokens):
            key = "engine.environments.max_episode_tokens"
            yield problem(fault, f"set {key} to more, or grpo.max_new_tokens to fewer", key)
        if config.engine.strategy == "fsdp2":
            what = "processes have different numbers of turns, and shards of a model take the same"
            yield problem(what, "set engine.strategy=ddp", "engine.environments")
        if config.other_method is not None:
            what = f"{config.other_method} trains on answers of one turn"
            yield problem(what, "set engine.environments=null", "engine.environments")
        if grpo.use_dynamic_sampling:
            what = "dynamic sampling would play further episodes than the step's own"
            yield problem(what, "set grpo.use_dynamic_sampling=false", "grpo.use_dynamic_sampling")
        if grpo.overlong_buffer_length:
            what = "the length penalty is for answers of one turn"
            yield problem(what, "set grpo.overlong_buffer_length=0", "grpo.overlong_buffer_length")

    def notes(self, config: RLConfig[TRLEngine], inputs: Inputs) -> Iterator[Finding]:
        """What the model's folder has that does not count, chat templates and generation settings; and few pairs."""
        model, grpo = inputs.get("model"), config.grpo
        if model is not None and (told := TokenizerFolder(model.path).templates_left_out()):
            yield note(f"{model.reference}: {told}")
        if config.on_pairs is not None:
            yield from _notes_on_pairs(config, inputs)
            return
        if config.engine.wants_vllm:
            yield from vllm_notes(config)
        if model is None:
            return
        if asked := left_out(model.path, temperature=grpo.temperature, top_p=grpo.top_p):
            what = f"{model.reference}: its generation_config.json asks for {asked}"
            yield note(f"{what}: left out, grpo.temperature and grpo.top_p alone decide what is sampled")
        context = context_of(model.path)
        if context is not None and config.engine.environments is None and grpo.max_new_tokens >= context:
            yield note(
                f"WARNING: grpo.max_new_tokens={grpo.max_new_tokens:,} leaves no room for a prompt in the model's "
                f"context of {context:,} tokens: longer answers are beyond what it has learnt; set it to fewer"
            )

    def needs(self, config: RLConfig[TRLEngine], inputs: Inputs, machine: Machine) -> Needs:
        """Packages, memory and disk."""
        needs = within_budget(
            local_needs(config, inputs, machine, own_packages("nemotron-rl")), config, inputs, machine
        )
        if not config.engine.wants_vllm:
            return needs
        return replace(needs, others=(*needs.others, *vllm_lacking(config, machine)))

    def run(self, task: Task[RLConfig[TRLEngine]]) -> Outcome:
        """Train; imports the libraries."""
        task = with_micro_batch(task)
        if task.config.reward_modeling is not None:
            from stages.rl.engines.trl.reward import make_reward_model

            return make_reward_model(task)
        if task.config.dpo is not None:
            from stages.rl.engines.trl.dpo import train_on_pairs

            return train_on_pairs(task)
        from stages.rl.engines.trl.train import train

        return train(task)


def _notes_on_pairs(config: RLConfig[TRLEngine], inputs: Inputs) -> Iterator[Finding]:
    """Fewer pairs than a step takes, and none for validation, once they are prepared."""
    data, step = inputs.get("data"), config.rows_per_step
    if data is None or not (file := data.path / FILES["train"]).is_file():
        return
    pairs = sum(1 for _ in zip(range(step), read_lines(file), strict=False))
    if pairs < step:
        yield note(f"{pairs:,} training pairs: a step takes {step:,}, so it takes some more than once")
    if not (data.path / FILES["valid"]).is_file():
        yield note("no validation pairs: nothing shows whether other pairs are ranked correctly")
