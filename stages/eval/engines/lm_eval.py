"""Ask one model with EleutherAI's lm-eval, in this process, offline."""

import logging
import math
import os
from pathlib import Path
from typing import Any

import torch

# Set before lm-eval reads them: tasks and models are local files.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

from lm_eval import evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from nemotron_shared.artifacts import Artifact
from nemotron_shared.data.tokenizer_folder import provide_tokenizer
from nemotron_shared.modeling.build import load_model, load_tokenizer, random_like, random_model
from nemotron_shared.runtime.step import Task
from nemotron_shared.training.threads import set_threads

# What stands after the thinking; the whole text where there is none.
FINAL_ANSWER = r"(?s)^(?:.*</think>)?\s*(.*?)\s*$"

Samples = dict[str, list[dict[str, Any]]]


logging.getLogger("lm_eval").setLevel(logging.ERROR)


class QuietLM(HFLM):
    """An HFLM without progress bars; it takes the switch per call only."""

    def generate_until(self, requests: list[Any], disable_tqdm: bool = True) -> list[str]:
        """Answers, in the order of the requests."""
        return super().generate_until(requests, disable_tqdm=disable_tqdm)

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation, and whether it is the greedy one."""
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm)

    def _loglikelihood_tokens(self, *args: Any, **options: Any) -> list[Any]:
        return super()._loglikelihood_tokens(*args, **options | {"disable_tqdm": True})

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = True) -> list[float]:
        """Log-likelihood of each whole text."""
        return super().loglikelihood_rolling(requests, disable_tqdm=disable_tqdm)


def evaluate_model(task: Task, model: Artifact | None, tasks: dict[str, dict[str, Any]]) -> Samples:
    """Samples of each task, in the order of the task's file."""
    set_threads(task.config.run.threads)
    lm = _language_model(task, model)
    samples: Samples = {}
    for name, about in tasks.items():
        task.run.stop_if_requested()
        definition = task_definition(name, about, task.config.evaluation, lm.tokenizer)
        # not simple_evaluate: it inspects the whole environment on every call, and answers on local rank 0 only
        results = evaluate(
            lm=lm,
            task_dict=TaskManager(include_defaults=False).load([definition]),
            limit=task.config.evaluation.limit,
            bootstrap_iters=0,
            log_samples=True,
            apply_chat_template=about["kind"] == "generate",
            verbosity="ERROR",
        )
        found = sorted(results["samples"][name], key=lambda sample: sample["doc_id"])
        samples[name] = [READERS[about["kind"]](sample) for sample in found]
    return samples


def _language_model(task: Task, artifact: Artifact | None) -> HFLM:
    config = task.config
    if artifact is not None:
        model, tokenizer = load_model(artifact.path, config.engine), load_tokenizer(artifact.path)
    else:
        model, tokenizer = _random_weights(task)
    on_gpu = config.engine.device == "auto" and torch.cuda.is_available()
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if on_gpu else "cpu"
    return QuietLM(
        pretrained=model.to(device).eval(), tokenizer=tokenizer, batch_size=config.evaluation.batch_size, device=device
    )


def _random_weights(task: Task) -> tuple[Any, Any]:
    """The architecture of the model in question, or of the config, with weights that learned nothing."""
    like = task.inputs["model"]
    if like is not None:
        return random_like(like.path, task.config.run.seed, task.config.engine), load_tokenizer(like.path)
    folder = task.run.directory / "tokenizer"
    provide_tokenizer(task.config.model.tokenizer, folder)
    tokenizer = load_tokenizer(folder)
    return random_model(task.config.model, tokenizer, task.config.run.seed, task.config.engine), tokenizer


def task_definition(name: str, about: dict[str, Any], settings: Any, tokenizer: Any) -> dict[str, Any]:
    """A task in lm-eval's terms."""
    common = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(Path(about["file"]).resolve())}},
        "test_split": "test",
        "num_fewshot": 0,
        "metadata": {"version": 1.0},
    }
    if about["kind"] == "choice":
        return common | {
            "output_type": "multiple_choice",
            "doc_to_text": "{{stem if stem else question}}",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "{{answer}}",
            "metric_list": [{"metric": "acc"}],
        }
    if about["kind"] == "text":
        return common | {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": "bits_per_byte"}],
        }
    pattern = settings.answer_pattern or FINAL_ANSWER
    return common | {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{expected}}",
        "generation_kwargs": {
            "until": [tokenizer.eos_token],
            "do_sample": False,
            "max_gen_toks": settings.max_new_tokens,
        },
        "filter_list": [
            {
                "name": "final",
                "filter": [{"function": "regex", "regex_pattern": pattern}, {"function": "take_first"}],
            }
        ],
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }


def _generated(sample: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": sample["doc_id"],
        "question": sample["doc"]["question"],
        "expected": sample["doc"]["expected"],
        "output": sample["resps"][0][0],
        "score": float(sample["exact_match"]),
    }


def _chosen(sample: dict[str, Any]) -> dict[str, Any]:
    doc = sample["doc"]
    likelihoods = [response[0] for response in sample["filtered_resps"]]
    return {
        "id": sample["doc_id"],
        "question": doc["question"],
        "expected": doc["choices"][doc["answer"]],
        "output": doc["choices"][max(range(len(likelihoods)), key=likelihoods.__getitem__)],
        "score": float(sample["acc"]),
    }


def _read(sample: dict[str, Any]) -> dict[str, Any]:
    nats, num_bytes = sample["bits_per_byte"]
    return {"id": sample["doc_id"], "bits": -nats / math.log(2), "bytes": num_bytes}


READERS = {"generate": _generated, "choice": _chosen, "text": _read}
