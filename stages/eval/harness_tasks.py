"""Tasks in lm-eval's terms, and its samples in ours; the same for lm-eval here and for its fork elsewhere.

    task_definition(EvalTask("sums", "generate", 400, Path("sums.jsonl")), settings, ["<|im_end|>"])
    read_sample("generate", {"doc_id": 0, "doc": {...}, "resps": [["8"]], "exact_match": 1.0})

What an answer is worth is judged here, by the verifier that rewards use; the harness's own metric stays beside it.

No library is imported: an engine whose harness lives in another environment needs neither lm-eval nor torch.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from nemotron_data.formats.eval_tasks import EvalTask, Kind
from nemotron_data.verifier import judge
from stages.eval.schema import EvaluationSection

# What stands after the thinking, as `after_thought` finds it; nothing where the thinking was never closed.
FINAL_ANSWER = {
    "function": "regex",
    "regex_pattern": r"(?s)^(?:.*</think>)?((?:(?!<think>).)*)$",
    "fallback": "",
}

Samples = dict[str, list[dict[str, Any]]]


class Answer(str):
    """What a model wrote; `cut` where it was not done when it had as many tokens as it may."""

    __slots__ = ("cut",)
    cut: bool

    @classmethod
    def of(cls, text: str, *, cut: bool) -> "Answer":
        """A text with what is known of it."""
        made = cls(text)
        made.cut = cut
        return made


def generation(settings: EvaluationSection, ends: Sequence[str]) -> dict[str, Any]:
    """How answers are written, in lm-eval's terms: with a temperature they are drawn, by nothing but that."""
    drawn = {"do_sample": True, "temperature": settings.temperature, "top_p": 1.0, "top_k": 0}
    manner = drawn if settings.temperature else {"do_sample": False}
    return {"until": list(ends), "max_gen_toks": settings.max_new_tokens, **manner}


def task_definition(about: EvalTask, settings: EvaluationSection, ends: Sequence[str]) -> dict[str, Any]:
    """A task in lm-eval's terms.

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
    """One of lm-eval's samples, from memory or from its file, in which numbers of responses are text."""
    if kind == "text":
        nats, num_bytes = sample["bits_per_byte"]
        return {"id": sample["doc_id"], "bits": -nats / math.log(2), "bytes": num_bytes}
    asked = {"id": sample["doc_id"], "question": sample["doc"]["question"]}
    if kind == "generate":
        return asked | judged(sample) | {"exact_match": float(sample["exact_match"])}
    return asked | chosen(sample)


def judged(sample: Mapping[str, Any]) -> dict[str, Any]:
    """An answer in words, and what our verifier says of it."""
    outputs, expected = sample["resps"][0], sample["doc"]["expected"]
    verdicts = [judge(output, str(expected)) for output in outputs]
    scores = {name: fmean(getattr(verdict, name) for verdict in verdicts) for name in ("strict", "lenient")}
    return {"expected": expected, **written(outputs), **scores}


def written(outputs: Sequence[str]) -> dict[str, Any]:
    """The first answer to a question; where there are more, all of them; the share that was cut, where it is known."""
    cut = [output.cut for output in outputs if isinstance(output, Answer)]
    several = {"outputs": list(outputs)} if len(outputs) > 1 else {}
    return {"output": outputs[0], **several, **({"cut": fmean(cut)} if cut else {})}


def chosen(sample: Mapping[str, Any]) -> dict[str, Any]:
    """The likeliest of several answers, and whether it is the right one."""
    choices, right = sample["doc"]["choices"], sample["doc"]["answer"]
    likelihoods = [float(response[0]) for response in sample["filtered_resps"]]
    likeliest = max(range(len(likelihoods)), key=likelihoods.__getitem__)
    answer = {"expected": choices[right], "output": choices[likeliest]}
    return answer | {"score": float(likeliest == right), "log_likelihoods": likelihoods}
