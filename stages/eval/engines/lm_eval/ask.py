"""Evaluate one model with EleutherAI's lm-eval, in this process, offline."""

import logging
import math
import os
from collections import defaultdict, deque
from collections.abc import Mapping
from functools import cache, cached_property
from itertools import islice
from statistics import fmean
from typing import Any

# Set before lm-eval reads them; tasks and models are local files.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

import datasets.config
import huggingface_hub.constants
import torch
from huggingface_hub.constants import ENV_VARS_TRUE_VALUES
from lm_eval import evaluate, utils
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nemotron_data.chat.answers import Call
from nemotron_data.chat.prompt import Prompt, Prompter, asked_messages
from nemotron_data.chat.rows import to_json
from nemotron_data.chat.thought import after_thought, whole_answer
from nemotron_data.formats.eval_tasks import EvalTask, read_task_rows
from nemotron_data.verifier import is_as_taught
from nemotron_data.verifier.calls import MARK, calls_of, same_calls, tools_by_name
from nemotron_engines.decoding.direct import Direct, why_not
from nemotron_engines.decoding.greedy import likeliest
from nemotron_engines.modeling.build import set_threads
from nemotron_engines.modeling.generation import embeddings_of, ends_of
from nemotron_shared.artifacts import Artifact
from nemotron_shared.engine.spec import Task
from nemotron_shared.system.console import doing
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.run import Run
from stages.eval.benchmarks import BENCHMARKS, overruled, read_benchmark
from stages.eval.benchmarks import definitions as definitions_of
from stages.eval.episodes import play_episodes
from stages.eval.harness_tasks import Answer, Samples, generation, read_sample, task_definition, written
from stages.eval.models import model_to_ask
from stages.eval.schema import EvalConfig, EvaluationSection, LMEvalEngine

logging.getLogger("lm_eval").setLevel(logging.ERROR)
# lm-eval compiles a task's templates for every question, which takes a third of the time with a small model.
utils.env.from_string = cache(utils.env.from_string)  # ty: ignore[invalid-assignment]
# These modules may already be imported, and read the environment only once.
huggingface_hub.constants.HF_HUB_OFFLINE = os.environ["HF_HUB_OFFLINE"].upper() in ENV_VARS_TRUE_VALUES
datasets.config.HF_HUB_OFFLINE = os.environ["HF_DATASETS_OFFLINE"].upper() in ENV_VARS_TRUE_VALUES


LEAST_ROOM = 16
"""Tokens that every answer to a row may have."""


class QuietLM(HFLM):
    """An HFLM without progress bars (a per-call option there) that checks for a stop before each batch.

    `Prompter` builds the prompts. lm-eval passes them around as text, so their ids are looked up again here.
    """

    run: Run
    about = "evaluating"
    """What is shown while it works."""
    asked = answered = 0
    """Answers of the current task, and those that are there."""
    rolling = False
    """Whether whole texts are measured, which lm-eval begins with BOS (or the end) itself."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.ids: dict[str, list[int]] = {}
        tokenizer: Any = self.tokenizer
        ends = ends_of(self.model, tokenizer)
        self.ends: list[str] = [tokenizer.decode([token]) for token in sorted(ends)]
        self.cut = CutAnswers(ends)
        self.cache_hook: Any = self.cut

    @cached_property
    def prompter(self) -> Prompter:
        """Created on first use, because a base model has no template."""
        return Prompter(self.tokenizer, embeddings=embeddings_of(self.model))

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Text of a prompt. A prompt that ends inside an answer is left to lm-eval."""
        if not add_generation_prompt:
            return super().apply_chat_template(chat_history, add_generation_prompt)
        prompt = self.prompter.chat(asked_messages(chat_history))
        self.ids[prompt.text] = prompt.ids
        return prompt.text

    def tok_encode(self, string: str, *args: Any, left_truncate_len: int | None = None, **options: Any) -> list[int]:
        """Ids of a prompt, or of any other text."""
        if self.rolling:
            options["add_special_tokens"] = False
        if (ids := self.ids.get(string)) is None:
            return super().tok_encode(string, *args, left_truncate_len=left_truncate_len, **options)
        return ids[-left_truncate_len:] if left_truncate_len else ids

    def tok_batch_encode(
        self,
        strings: list[str],
        padding_side: str = "left",
        left_truncate_len: int | None = None,
        truncation: bool = False,
    ) -> tuple[Any, Any]:
        """Padded ids and attention mask of several texts."""
        rows = [self.ids[string] for string in strings if string in self.ids]
        if len(rows) < len(strings):
            return super().tok_batch_encode(strings, padding_side, left_truncate_len, truncation)
        tokenizer: Any = self.tokenizer
        filled = tokenizer.pad({"input_ids": rows}, padding_side=padding_side, return_tensors="pt")
        left = slice(-left_truncate_len if left_truncate_len else None, None)
        return filled["input_ids"][:, left], filled["attention_mask"][:, left]

    def _model_call(self, *args: Any, **options: Any) -> Any:
        self.run.stop_if_requested()
        return super()._model_call(*args, **options)

    def _model_generate(self, context: Any, max_length: int, stop: list[str], **options: Any) -> Any:
        self.run.stop_if_requested()
        self._show_answers(max_length - context.shape[1])
        most, mask = max_length - context.shape[1], options.get("attention_mask")
        if self._directly is not None and mask is not None and options.get("do_sample") is False:
            made = self._likeliest(self._directly, context, mask, most, stop)
        else:
            made = super()._model_generate(context, max_length, stop, **options)
        self.answered += len(made)
        for row in made[:, context.shape[1] :].tolist():
            text = self.tok_decode(row, skip_special_tokens=False)
            self.cut.note(row, max_length - context.shape[1], ended=any(word in text for word in stop))
        return made

    @cached_property
    def _directly(self) -> Direct | None:
        """The model's direct step, if it has one; lm-eval asks transformers otherwise."""
        return None if why_not(self.model) else Direct(self.model)

    def _likeliest(self, direct: Direct, context: Tensor, mask: Tensor, most: int, stop: list[str]) -> Tensor:
        """What `model.generate` returns for a greedy answer: prompts and answers, padded at the end."""
        tokenizer: Any = self.tokenizer
        eos = self.model.generation_config.eos_token_id
        ends = {*(eos if isinstance(eos, list) else [] if eos is None else [eos])}
        ends |= {token for token, word in zip(sorted(self.cut.ends), self.ends, strict=True) if word in stop}
        words = [word for word in stop if word not in self.ends]
        tail = max(map(len, words), default=0) + 1

        def ended(ids: list[int]) -> bool:
            text = tokenizer.decode(ids[-tail:], skip_special_tokens=False) if words else ""
            return ids[-1] in ends or any(word in text for word in words)

        prompts = [ids[seen.bool()].tolist() for ids, seen in zip(context, mask, strict=True)]
        found = [torch.tensor(ids) for ids in likeliest(self.model, direct, prompts, most, ended)]
        return torch.cat([context, pad_sequence(found, True, padding_value=tokenizer.pad_token_id)], 1)

    def generate_until(self, requests: list[Any], disable_tqdm: bool = True) -> list[str]:
        """Whole answers, in the order of the requests, including a thought that the prompt opened.

        A benchmark's stop words must not end a thought, so only the model's own stop tokens end generation in a
        conversation.
        """
        self._require_room(requests)
        self.asked, self.answered = len(requests), 0
        asked = [
            Instance("generate_until", request.doc, (prompt, manner | {"until": self.ends}), request.idx)
            if (prompt := request.args[0]) in self.ids
            else request
            for request in requests
            for manner in [request.args[1]]
        ]
        texts = super().generate_until(asked, disable_tqdm=disable_tqdm)
        return [self._answer(*request.args, text) for request, text in zip(requests, texts, strict=True)]

    def _show_answers(self, most: int) -> None:
        """A model that never ends its answers takes long, and this shows why."""
        doing(f"{self.about}: {self.answered:,} of {self.asked:,} answered, with up to {most:,} tokens each")

    def _answer(self, prompt: str, manner: Mapping[str, Any], text: str) -> Answer:
        cut = self.cut.of(prompt)
        whole = whole_answer(prompt, text) if prompt in self.ids else text
        said = after_thought(whole)
        places = [said.find(word) for word in manner["until"] if word in said] if said else []
        if not said or not places:
            return Answer.of(whole, cut=cut)
        return Answer.of(whole[: len(whole) - len(said) + min(places)], cut=False)

    def _require_room(self, requests: list[Any]) -> None:
        """Warn about prompts that are too long for the model: lm-eval cuts off their beginnings.

        Raises:
            UserError: the answers alone are too long.
        """
        if not requests:
            return
        longest = requests[0].args[1]["max_gen_toks"]
        if (room := self.max_length - longest) <= 0:
            what = f"evaluation.max_new_tokens is {longest:,}, but the model's context is {self.max_length:,} tokens"
            raise UserError(f"{what}, including the prompt", "lower evaluation.max_new_tokens")
        prompts = {request.args[0] for request in requests}
        if long := sum(len(self.tok_encode(prompt)) > room for prompt in prompts):
            what = (
                f"{long:,} of {len(prompts):,} prompts are longer than the model's context ({self.max_length:,} tokens)"
            )
            self.run.say(f"WARNING: {what} minus evaluation.max_new_tokens ({longest:,}); their beginnings are cut off")

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation, and whether it is the greedy one."""
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm)

    def _loglikelihood_tokens(self, *args: Any, **options: Any) -> list[Any]:
        return super()._loglikelihood_tokens(*args, **options | {"disable_tqdm": True})

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = True) -> list[float]:
        """Log-likelihood of each whole text, behind one BOS: lm-eval 0.4 puts one before texts to which the tokenizer
        has added one, and counts the second as a token of the text (`HFLM.loglikelihood_rolling`).
        """
        self.rolling = True
        try:
            return super().loglikelihood_rolling(requests, disable_tqdm=disable_tqdm)
        finally:
            self.rolling = False


class CutAnswers:
    """Records which answers were cut at the token limit.

    It takes the place of lm-eval's cache hook, the only code that learns which request an answer belongs to: batches
    are sorted by length, not in request order.

    Args:
        ends: stop token ids.
    """

    def __init__(self, ends: set[int]) -> None:
        self.ends = ends
        self._next: deque[bool] = deque()
        self._of: dict[str, deque[bool]] = defaultdict(deque)

    def note(self, ids: list[int], most: int, *, ended: bool) -> None:
        """Record the next generated answer; `ended` if a stop word ended it."""
        self._next.append(len(ids) >= most and not ended and self.ends.isdisjoint(ids))

    def add_partial(self, kind: str, request: tuple[Any, ...], answer: Any) -> None:
        """See lm-eval's CacheHook; answers arrive in the order of generation."""
        if kind == "generate_until":
            self._of[request[0]].append(self._next.popleft())

    def of(self, prompt: str) -> bool:
        """Whether the next answer to a prompt was cut; call once per answer, in order."""
        return self._of[prompt].popleft()


def evaluate_model(
    task: Task[EvalConfig[LMEvalEngine]], model: Artifact | None, tasks: Mapping[str, EvalTask]
) -> Samples:
    """Samples of each task, in the order of the task's file."""
    set_threads(task.config.run.threads)
    loaded, tokenizer, device = model_to_ask(task, model)
    lm = QuietLM(pretrained=loaded, tokenizer=tokenizer, batch_size=task.config.evaluation.batch_size, device=device)
    lm.run = task.run
    samples: Samples = {}
    for name, about in tasks.items():
        task.run.stop_if_requested()
        lm.about = f"evaluating {model.reference if model else 'random weights'}: {name}"
        doing(lm.about)
        torch.manual_seed(task.config.run.seed)  # for sampled answers
        if about.kind == "episode":
            samples[name] = play_episodes(task, loaded, tokenizer, about, device)
            continue
        if about.kind == "answer":
            samples[name] = _answers(lm, about, task.config.evaluation)
            continue
        if about.kind == "call":
            samples[name] = _calls(lm, about, task.config.evaluation)
            continue
        if name in BENCHMARKS:
            samples[name] = _benchmark(task, lm, about)
            continue
        definition = task_definition(about, task.config.evaluation, lm.ends)
        # not simple_evaluate: it inspects the whole environment on every call, and answers on local rank 0 only
        results = evaluate(
            lm=lm,
            task_dict=tasks_of([definition], task.config.run.seed),
            limit=task.config.evaluation.limit,
            bootstrap_iters=0,
            log_samples=True,
            apply_chat_template=about.kind == "generate",
            verbosity="ERROR",
        )
        found = sorted(results["samples"][name], key=lambda sample: sample["doc_id"])
        samples[name] = [read_sample(about.kind, sample) for sample in found]
    return samples


def _answers(lm: QuietLM, about: EvalTask, settings: EvaluationSection) -> list[dict[str, Any]]:
    """Log-likelihood of the rows' answers after the exact prompt ids of training, and the model's own answers to
    the first ones, each right, wrong, or an open one (`right` is None)."""
    rows = list(islice(read_task_rows(about.file, about.kind), settings.limit))
    asked = [(("", ""), row["prompt_ids"], row["answer_ids"]) for row in rows]  # the texts only matter to a cache
    likelihoods = lm._loglikelihood_tokens(asked)
    shown = rows[: settings.sample_answers]
    lm.ids |= {row["question"]: row["prompt_ids"] for row in shown}
    # an answer that is twice as long as all of the rows' is not one of them
    longest = max(LEAST_ROOM, 2 * max((len(row["answer_ids"]) for row in shown), default=0))
    manner = generation(settings.model_copy(update={"max_new_tokens": min(settings.max_new_tokens, longest)}), lm.ends)
    outputs = lm.generate_until([Instance("generate_until", row, (row["question"], manner), 0) for row in shown])
    found = [
        {
            "id": number,
            "question": row["question"],
            "expected": row["expected"],
            "bits": -nats / math.log(2),
            "bytes": len(row["expected"].encode()),
        }
        for number, (row, (nats, _)) in enumerate(zip(rows, likelihoods, strict=True))
    ]
    for sample, row, output in zip(found, shown, outputs, strict=False):  # only the first ones
        taught = whole_answer(row["question"], row["expected"])
        sample |= written([output]) | {"right": is_as_taught(output, taught)}
    return found


def _calls(lm: QuietLM, about: EvalTask, settings: EvaluationSection) -> list[dict[str, Any]]:
    """The model's turns where the rows call a tool, or answer after its result; each is right or wrong. The score of a
    row is the share of its turns that are right."""
    rows = list(islice(read_task_rows(about.file, about.kind), settings.limit))
    prompts = [
        Prompt(row["prompt_ids"], text=row["question"]) if "prompt_ids" in row
        else lm.prompter.chat(asked_messages(row["messages"]), row["tools"] or None)
        for row in rows
    ]  # fmt: skip
    lm.ids |= {prompt.text: prompt.ids for prompt in prompts}
    tokenizer: Any = lm.tokenizer
    manner = generation(settings, lm.ends)
    several = settings.num_samples
    asked = [
        Instance("generate_until", row, (prompt.text, manner), number)
        for row, prompt in zip(rows, prompts, strict=True)
        for number in range(several)
    ]
    found = lm.generate_until(asked)
    outputs = [found[first : first + several] for first in range(0, len(found), several)]
    # where the mark is a control token, lm-eval has taken it out of the answer
    unmarked = MARK in tokenizer.all_special_tokens
    return [
        {"id": number, "question": row["question"], "expected": row["expected"], **written(answers),
         "score": fmean(is_right(row, prompt.text, one, bare=unmarked or MARK not in prompt.text) for one in answers)}
        for number, (row, prompt, answers) in enumerate(zip(rows, prompts, outputs, strict=True))
    ]  # fmt: skip


def is_right(row: Mapping[str, Any], prompt: str, output: str, *, bare: bool) -> bool:
    """Whether an answer makes the calls of a row, by meaning; of a row without, whether it says the same."""
    tools = tools_by_name(row["tools"])
    said = calls_of(output, tools, bare=bare)
    if row["calls"]:
        return same_calls(said, [Call(one["name"], to_json(one["arguments"])) for one in row["calls"]], tools)
    return not said and bool(is_as_taught(output, whole_answer(prompt, row["expected"])))


def tasks_of(definitions: list[Any], seed: int) -> Any:
    """Load tasks from definitions. The seed picks the few-shot examples: the same for every model and run."""
    found = TaskManager(include_defaults=False).load(definitions)
    for one in found["tasks"].values():
        one.set_fewshot_seed(seed)
    return found


def _benchmark(task: Task[EvalConfig[LMEvalEngine]], lm: QuietLM, about: EvalTask) -> list[dict[str, Any]]:
    """Samples of a public benchmark by lm-eval's own definition; generated answers use the chat template, as ours."""
    folder = task.run.directory / "benchmarks" / about.name
    definitions = [str(path) for path in definitions_of(about, folder, task.config.evaluation)]
    if line := overruled(about.name, task.config.evaluation):
        task.run.say(line)
    chat = about.kind in ("generate", "instructions")
    results = evaluate(
        lm=lm,
        task_dict=tasks_of(definitions, task.config.run.seed),
        bootstrap_iters=0,
        log_samples=True,
        apply_chat_template=chat,
        fewshot_as_multiturn=chat,
        verbosity="ERROR",
    )
    return read_benchmark(about, (sample for found in results["samples"].values() for sample in found))
