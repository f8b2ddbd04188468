"""A fault for each door, put into the process that computes: its cell must turn wrong.

attempt(Bench(place, "llama", reference, plant=FAULTS["dpo"]), Cell("llama", "dpo", "float32", 1)).state    # wrong
"""

import dataclasses
import importlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matrix.running import Plant


def around(module: str, name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Plant:
    """Replace a function of a module, or a method `Class.name`, by one made of it."""

    def plant() -> None:
        owner: Any = importlib.import_module(module)
        *outer, last = name.split(".")
        for one in outer:
            owner = getattr(owner, one)
        setattr(owner, last, change(getattr(owner, last)))

    return plant


def with_settings(**changes: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A call with other keyword arguments; a function makes a value of the old one."""

    def change(original: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*args: Any, **given: Any) -> Any:
            return original(*args, **given | {name: value(given.get(name)) for name, value in changes.items()})

        return changed

    return change


def _shifted(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, aligned: original(self, aligned.roll(1, -1))


def _without_last(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self: Any, requests: Any, *args: Any, **options: Any) -> Any:
        shorter = [(texts, context, continuation[:-1] or continuation) for texts, context, continuation in requests]
        return original(self, shorter, *args, **options)

    return changed


def _prompt_cut(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(*args: Any, **options: Any) -> Any:
        prompt = original(*args, **options)
        return dataclasses.replace(prompt, ids=prompt.ids[:-1])

    return changed


def _one_document(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda starts, length: original([[0]] * len(starts), length)


def _flipped(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(artifact: Any) -> Any:
        files = original(artifact)
        for name, path in files.items():
            if name.endswith(".safetensors"):
                values = bytearray(path.read_bytes())
                values[-2] ^= 0x40  # in the exponent of the last number
                other = Path(tempfile.mkdtemp()) / name
                other.write_bytes(bytes(values))
                files[name] = other
        return files

    return changed


def _all_own(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(*args: Any) -> Any:
        made = original(*args)
        return made | {"env_mask": [[1] * len(ids) for ids in made["completion_ids"]]}

    return changed


def _twice_as_large(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(*args: Any) -> Any:
        fields, parameters = original(*args)
        return fields, dataclasses.replace(parameters, total=2 * parameters.total)

    return changed


def _other_scores(original: Callable[..., Any]) -> Callable[..., Any]:
    def changed(*args: Any, **options: Any) -> Any:
        collected = original(*args, **options)
        collected.results["scores"][0]["value"] += 1.0
        return collected

    return changed


def _doubled(value: float) -> float:
    return 2 * value


TRL = "stages.rl.engines.trl"
ASK = "stages.eval.engines.lm_eval.ask"
SUPERVISED = "nemotron_engines.transformers.supervised"
FAULTS: dict[str, Plant] = {
    # labels of the token before
    "pretrain": around(SUPERVISED, "ScheduledTrainer._labels", _shifted),
    # the documents of a packed row see each other
    "sft": around("nemotron_engines.rows", "packed_inputs", _one_document),
    "lora": around("nemotron_engines.lora.adapt", "LoraConfig", with_settings(lora_alpha=_doubled)),
    "dpo": around(f"{TRL}.dpo", "DPOConfig", with_settings(beta=_doubled)),
    "reward": around(f"{TRL}.reward", "RewardConfig", with_settings(center_rewards_coefficient=lambda _: 1.0)),
    "grpo": around(f"{TRL}.train", "GRPOConfig", with_settings(temperature=lambda _: 1.0)),
    "grpo_lora": around("nemotron_engines.lora.adapt", "LoraConfig", with_settings(lora_alpha=_doubled)),
    # the computation that is shared with training has another temperature
    "grpo_exact": around(f"{TRL}.train", "GRPOConfig", with_settings(temperature=lambda _: 1.0)),
    # the environment's tokens are learnt
    "environment": around(f"{TRL}.episodes", "EpisodeTrainer._rollouts", _all_own),
    "distillation": around(
        f"{TRL}.distill", "divergence", lambda original: lambda one, other, kind: original(one, other, "forward")
    ),
    # the last token of each prompt is missing
    "generation": around(ASK, "Prompter.chat", _prompt_cut),
    # the last token of each choice or answer does not count
    "choices": around(ASK, "QuietLM._loglikelihood_tokens", _without_last),
    "finetune": around(ASK, "QuietLM._loglikelihood_tokens", _without_last),
    "plan": around("nemotron_engines.estimate.training", "_described", _twice_as_large),
    "report": around("nemotron_app.report.command", "collect", _other_scores),
    "export": around("nemotron_app.export", "_model_files", _flipped),
    "export_vllm": around("nemotron_app.export", "_model_files", _flipped),
}  # fmt: skip
