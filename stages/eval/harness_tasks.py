"""Convert tasks to lm-eval's format and its samples to ours, both for lm-eval and for NeMo Evaluator's fork of it.

    task_definition(EvalTask("sums", "generate", 400, Path("sums.jsonl")), settings, ["<|im_end|>"])
    read_sample("generate", {"doc_id": 0, "doc": {...}, "resps": [["8"]], "exact_match": 1.0})

Answers are scored here, by the same verifier as rewards; the harness's own metric is kept next to our score.

This module imports no library: an engine whose harness runs in another environment needs neither lm-eval nor torch.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from nemotron_data.formats.eval_tasks import EvalTask, Kind
from nemotron_data.verifier import judge
from stages.eval.schema import EvaluationSection

# The text after the thinking, as in `after_thought`; empty if the thinking was never closed.
FINAL_ANSWER = {
    "function": "regex",
    "regex_pattern": r"(?s)^(?:.*</think>)?((?:(?!<think>).)*)$",
    "fallback": "",
}

Samples = dict[str, list[dict[str, Any]]]


class Answer(str):
    """A model's answer; `cut` if it reached the token limit before its end."""

    __slots__ = ("cut",)
    cut: bool

    @classmethod
    def of(cls, text: str, *, cut: bool) -> "Answer":
        """An answer with its `cut` flag."""
        made = cls(text)
        made.cut = cut
        return made


def generation(settings: EvaluationSection, ends: Sequence[str]) -> dict[str, Any]:
    """Generation settings in lm-eval's terms; sampling depends on the temperature alone."""
    drawn = {"do_sample": True, "temperature": settings.temperature, "top_p": 1.0, "top_k": 0}
    manner = drawn if settings.temperature else {"do_sample": False}
    return {"until": list(ends), "max_gen_toks": settings.max_new_tokens, **manner}


def task_definition(about: EvalTask, settings: EvaluationSection, ends: Sequence[str]) -> dict[str, Any]:
    """A task definition in lm-eval's format.

    Args:
        settings: the config's evaluation section. ends: the tokens that end the model's answers.
    """
    common: dict[str, Any] = {
        "task": about.name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(about.file.resolve())}},
        "test_split": "test",
        "num_fewshot": 0,
        "metadata": {"version": 1.0},
    }
    if about.kind == "choice":
        return common | {
            "output_type": "multiple_choice",
            "doc_to_text": "{{stem if stem else question}}",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "{{answer}}",
            "metric_list": [{"metric": "acc"}],
        }
    if about.kind == "text":
        return common | {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": "bits_per_byte"}],
        }
    return common | {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{expected}}",
        "generation_kwargs": generation(settings, ends),
        "repeats": settings.num_samples,
        "filter_list": [{"name": "final", "filter": [FINAL_ANSWER, {"function": "take_first"}]}],
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }


def read_sample(kind: Kind, sample: Mapping[str, Any]) -> dict[str, Any]:
    """Convert an lm-eval sample, from memory or from its file, where the numbers in responses are text."""
    if kind == "text":
        nats, num_bytes = sample["bits_per_byte"]
        return {"id": sample["doc_id"], "bits": -nats / math.log(2), "bytes": num_bytes}
    asked = {"id": sample["doc_id"], "question": sample["doc"]["question"]}
    if kind == "generate":
        return asked | judged(sample) | {"exact_match": float(sample["exact_match"])}
    return asked | chosen(sample)


def judged(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A written answer and our verifier's scores for it."""
    outputs, expected = sample["resps"][0], sample["doc"]["expected"]
    verdicts = [judge(output, str(expected)) for output in outputs]
    scores = {name: fmean(getattr(verdict, name) for verdict in verdicts) for name in ("strict", "lenient")}
    return {"expected": expected, **written(outputs), **scores}


def written(outputs: Sequence[str]) -> dict[str, Any]:
    """The first answer to a question, all of them if there are several, and the share that was cut, if known."""
    cut = [output.cut for output in outputs if isinstance(output, Answer)]
    several = {"outputs": list(outputs)} if len(outputs) > 1 else {}
    return {"output": outputs[0], **several, **({"cut": fmean(cut)} if cut else {})}


def chosen(sample: Mapping[str, Any]) -> dict[str, Any]:
    """The most likely of several choices, and whether it is the right one."""
    choices, right = sample["doc"]["choices"], sample["doc"]["answer"]
    likelihoods = [float(response[0]) for response in sample["filtered_resps"]]
    likeliest = max(range(len(likelihoods)), key=likelihoods.__getitem__)
    answer = {"expected": choices[right], "output": choices[likeliest]}
    return answer | {"score": float(likeliest == right), "log_likelihoods": likelihoods}
