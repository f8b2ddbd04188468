"""The doors of the matrix: the command of each, and the values of it that a program without our code gives as well.

    DOORS["sft"](bench, Cell("qwen3", "sft", "float32", 2))     # a Verdict: right, refused or wrong, and why

A door runs its command as a user would, reads the figures that it published, and compares them with `reference.py`.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from faults.steps import Command
from matrix import running
from matrix.running import REWARD, Made, Plant
from zoo import MATRIX, questions, write_kind

from nemotron_serving.gguf_file import require_converter

RATE = 1e-3
DTYPES = ("float32", "bfloat16")
LENGTH = 8
"""Tokens of an answer."""
TOLERANCES = {
    "float32": {"loss": 2e-4, "terms": 2e-4, "grad_norm": 2e-3, "logps": 1e-3, "advantages": 1e-4, "exact": 1e-6},
    "bfloat16": {"loss": 3e-2, "terms": 6e-2, "grad_norm": 1e-1, "logps": 1e-1, "advantages": 1e-4, "exact": 1e-6},
}
"""The most that a value may be off: of losses and norms as a share, of the others as they are."""
FLIPPED = 0.05
"""The share of tokens that may be further off in bfloat16: where two experts are nearly even, rounding chooses."""
LIBRARY = re.compile(
    r"\b(transformers|TRL|trl|peft|PEFT|torch|lm-eval|vLLM|llama\.cpp|tokenizers|datasets)\b[^.]*\d+\.\d+"
)
"""A sentence that names a library and its version."""


@dataclass(frozen=True)
class Cell:
    """A model through a door, with a type of numbers and on so many processes."""

    model: str
    door: str
    dtype: str
    processes: int

    @property
    def is_first(self) -> bool:
        """Whether it is the first of its door: its training is rehearsed as that of a new user, the others' are not."""
        return (self.dtype, self.processes) == (DTYPES[0], 1)

    def __str__(self) -> str:
        return f"{self.model}/{self.door}/{self.dtype}/{self.processes}"


@dataclass
class Verdict:
    """The result of a cell.

    Attributes:
        state: right, refused, wrong or "not run".
        said: the reason, for all but right.
        off: how far each value was from the reference's, as a share of what it may be off.
    """

    state: str
    said: str = ""
    off: dict[str, float] = field(default_factory=dict)


class Unequal(Exception):
    """A command failed, or something that is no number is not the reference's."""


class Failed(Exception):
    """A command did not end well."""

    def __init__(self, command: Command, made: Made) -> None:
        super().__init__(made.error)
        self.command, self.made = command, made


class NotRun(Exception):
    """Something is not installed here."""


class Reference:
    """The program in `reference.py`, asked over pipes."""

    def __init__(self) -> None:
        program = [sys.executable, str(Path(__file__).with_name("reference.py"))]
        self._process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, name: str, **request: Any) -> Any:
        """The answer to a request.

        Raises:
            Unequal: it has none.
        """
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None and answers is not None
        asked.write(json.dumps({"name": name, **request}) + "\n")
        asked.flush()
        found = json.loads(answers.readline())
        if "error" in found:
            raise Unequal(f"the reference: {found['error']}")
        return found["answer"]

    def end(self) -> None:
        """End the program."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


ASKED = list(questions())[:8]
CHATS = [[{"role": "user", "content": asked}, {"role": "assistant", "content": said}] for asked, said in ASKED]
PAIRS = [
    {"prompt": [chat[0]], "chosen": [chat[1]], "rejected": [{"role": "assistant", "content": f"Not known to {n}."}]}
    for n, chat in enumerate(CHATS)
]
TEXTS = [f"{asked} {said}" for asked, said in questions()]


class Bench:
    """Where one model goes through the doors: its folders, files and store.

    Attributes:
        plant: a fault to put into each training, to see that a cell turns wrong.
    """

    def __init__(self, place: Path, model: str, reference: Reference, plant: Plant | None = None) -> None:
        self.place, self.model, self.reference, self.plant = place, model, reference, plant
        self.home = place / "home"
        place.mkdir(parents=True, exist_ok=True)
        for dtype in DTYPES:
            kind = {"dtype": getattr(torch, dtype)}
            if not (place / dtype).exists():
                write_kind(MATRIX[model], place / dtype, **kind)
                write_kind(MATRIX[model], place / f"teacher-{dtype}", seed=1, **kind)
        self.write("chats", [{"messages": chat} for chat in CHATS])
        self.write("texts", [{"text": text} for text in TEXTS])
        self.write("pairs", PAIRS)
        self.write("asked", [{"question": asked, "expected_answer": said} for asked, said in ASKED])

    def write(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """A file of rows, beside the model."""
        (self.place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(self, module: str, *words: str, processes: int = 1) -> Made:
        """Run a command in the store of this model.

        Raises:
            Failed: it did not end well.
        """
        command = Command(module, words)
        made = running.run(command, self.home, processes, self.plant)
        if made.code:
            raise Failed(command, made)
        return made

    def ask(self, cell: Cell, name: str, *, model: str | None = None, **request: Any) -> Any:
        """What the reference finds for the model of a cell, or for another."""
        folder = model or str(self.place / cell.dtype)
        return self.reference(name, model=folder, autocast=cell.dtype == "bfloat16", **request)

    def newest(self, name: str) -> Path:
        """The folder of the newest version of an artifact."""
        return max((self.home / "artifacts" / name).glob("v*"), key=lambda one: int(one.name[1:]))


# Comparisons

Compared = Iterator[tuple[str, str, Any, Any]]
"""What is compared, its tolerance, our value and the reference's."""


@dataclass(frozen=True)
class Rounded:
    """The reference's values with several kinds of rounding: with autocast, in float32, and with weights in bfloat16.

    Where two experts are nearly even, rounding chooses, and a computation that rounds elsewhere chooses otherwise. How
    much that matters for a value, the reference shows by itself: what lies between its own is as good as any of them.
    """

    several: tuple[Any, ...]

    def nearest(self, ours: Any) -> np.ndarray:
        """Values between the reference's, as near to ours as there are."""
        ends = np.stack([np.asarray(one, dtype=np.float64).ravel() for one in self.several])
        value = np.asarray(ours, dtype=np.float64).ravel()
        return np.clip(value, ends.min(0), ends.max(0)) if len(value) == ends.shape[1] else ends[0]


def off_by(kind: str, ours: Any, theirs: Any, left_out: float = 0.0) -> float:
    """How far numbers are apart: as a share for losses and norms, else the root of the mean square.

    Args:
        left_out: share of the values, those that are furthest apart, that does not count.
    """
    one, other = np.asarray(ours, dtype=np.float64).ravel(), np.asarray(theirs, dtype=np.float64).ravel()
    if one.shape != other.shape:
        raise Unequal(f"{one.size} values, and the reference has {other.size}")
    squares = np.sort((one - other) ** 2)[: ceil((1 - left_out) * one.size)]
    apart = float(np.sqrt(squares.mean())) if one.size else 0.0
    if kind in ("loss", "grad_norm"):
        return apart / max(1e-3, float(np.abs(other).mean()))
    return apart


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """The logged steps of a training."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "loss" in line]


def first_losses(folder: Path, expected: Mapping[str, float]) -> Compared:
    """Loss and norm of the first step, and the loss of the second where the reference made it, too.

    The loss of GRPO is a mean of advantages of both signs, which nearly cancel: it is compared as a share of the mean
    size of its terms, because an error of a term is in proportion to the term, and not to what is left of all.
    """
    first, *later = metrics_of(folder)
    if "terms" in expected:
        yield "first loss", "terms", first["loss"] / expected["terms"], expected["loss"] / expected["terms"]
    else:
        yield "first loss", "loss", first["loss"], expected["loss"]
    yield "gradient norm", "grad_norm", first["grad_norm"], expected["grad_norm"]
    if "second_loss" in expected:
        yield "loss after a step", "loss", later[0]["loss"], expected["second_loss"]


# Trainings

NOTHING_HELD_OUT = "data_prep.split={train: 1.0, valid: 0.0, test: 0.0}"
SHORT = (
    "run.threads=1", "run.missing_data=prepare", "train.train_iters=2", "checkpoint.save_interval=2",
    "logger.tensorboard=false", "scheduler.lr_decay_style=constant", "scheduler.lr_warmup_iters=0",
    f"optimizer.lr={RATE}", f"optimizer.min_lr={RATE}", "optimizer.weight_decay=0", "optimizer.clip_grad=1.0",
    "train.micro_batch_size=2", "engine.device=cpu", NOTHING_HELD_OUT,
)  # fmt: skip
NONE_HELD_OUT = "data_prep.holdout={rows: null, fraction: null}"
LORA = {"engine.peft.dim": 4, "engine.peft.alpha": 16}


def train(bench: Bench, cell: Cell, stage: str, *words: str) -> Made:
    """Train two steps of the model of a cell."""
    chosen = ["-c", "local", *words, *SHORT, f"engine.dtype={cell.dtype}", "--force"]
    chosen += [] if any(word.startswith("run.model=") for word in words) else [f"run.model=./{cell.dtype}"]
    chosen += [] if cell.is_first else ["--rehearsed"]
    return bench.run(f"stages.{stage}.train", *chosen, processes=cell.processes)


def adapters_of(bench: Bench, lora: bool) -> dict[str, Any]:
    """For the reference: the first values of adapters, and their scale."""
    file = bench.place / "records-0.first"
    scale = LORA["engine.peft.alpha"] / LORA["engine.peft.dim"]
    return {"adapters": str(file), "scale": scale} if lora else {}


ROW = 40
"""Tokens of a row of pretraining, the last of which only ends it."""


def pretrain(bench: Bench, cell: Cell) -> Compared:
    """Rows that are cut from the texts, one after the other with ends between them, and their losses."""
    made = train(
        bench, cell, "pretrain", "data_prep.source=texts.jsonl", f"data_prep.tokenizer.model=./{cell.dtype}",
        f"train.seq_length={ROW}", "train.global_batch_size=8",
    )  # fmt: skip
    documents = [documents_of([one for one in made.records if one["step"] == step]) for step in (0, 1)]
    known = {tuple(ids) for ids in bench.ask(cell, "texts", texts=TEXTS)}
    end = next(iter(known))[-1]
    rows = (one["ids"] if one["wanted"][-1] else one["ids"][:-1] for one in documents[0])  # without a repeated last one
    whole = [piece for row in rows for piece in between(row, end)]
    yield "documents that are texts", "exact", sum(piece in known for piece in whole), len(whole)
    yield "tokens of the first step", "exact", sum(sum(one["wanted"]) for one in documents[0]), 8 * (ROW - 1)
    expected = bench.ask(cell, "supervised", steps=documents, rate=RATE)
    yield from first_losses(bench.newest("super3-pretrain-model"), expected)


def documents_of(records: Sequence[dict[str, Any]]) -> list[dict[str, list[int]]]:
    """Rows of inputs and of labels that are shifted already, as documents with one token more."""
    found = []
    for record in records:
        for ids, labels in zip(record["rows"], record["labels"], strict=True):
            last = labels[-1] if labels[-1] >= 0 else ids[-1]
            found.append({"ids": [*ids, last], "wanted": [0, *(int(one >= 0) for one in labels)]})
    return found


def between(ids: Sequence[int], end: int) -> Iterator[tuple[int, ...]]:
    """What lies between two ends in a row, with the second of them: whole documents."""
    ends = [place for place, one in enumerate(ids) if one == end]
    for first, last in pairwise(ends):
        yield tuple(ids[first + 1 : last + 1])


def sft(bench: Bench, cell: Cell) -> Compared:
    """The answers of chats, as the model's own template shows them; all of them in each step."""
    return _sft(bench, cell, lora=False)


def lora(bench: Bench, cell: Cell) -> Compared:
    """The same with adapters."""
    return _sft(bench, cell, lora=True)


def _sft(bench: Bench, cell: Cell, *, lora: bool) -> Compared:
    engine = ("engine=transformers_lora", *(f"{key}={value}" for key, value in LORA.items())) if lora else ()
    documents = bench.ask(cell, "conversations", chats=CHATS)
    room = 2 * max(len(one["ids"]) for one in documents)  # two chats in each packed row
    data = ("data_prep.source=chats.jsonl", f"data_prep.tokenizer.model=./{cell.dtype}", f"data_prep.pack_size={room}")
    made = train(bench, cell, "sft", *engine, *data, "train.global_batch_size=4")
    steps = [documents, documents]
    expected = bench.ask(cell, "supervised", steps=steps, rate=RATE, **adapters_of(bench, lora))
    seen = sum(label >= 0 for one in made.records if one["step"] == 0 for row in one["labels"] for label in row)
    yield "tokens of the first step", "exact", seen, sum(sum(one["wanted"]) for one in documents)
    folder = bench.newest("super3-sft-model")
    yield from first_losses(folder, expected)
    published = bench.ask(cell, "loss_of", model=str(folder), documents=documents)
    yield "loss of the published model", "loss", published, expected["third_loss"]


def dpo(bench: Bench, cell: Cell) -> Compared:
    """All pairs in each step."""
    section = "dpo={global_batch_size: 8, reference_policy_kl_penalty: 0.1, preference_average_log_probs: false}"
    train(bench, cell, "rl", *PAIRED, section)
    expected = bench.ask(cell, "preferences", pairs=PAIRS, beta=0.1, rate=RATE)
    yield from first_losses(bench.newest("super3-rl-model"), expected)


PAIRED = ("data_prep.source=pairs.jsonl", "data_prep.pairs=true", NONE_HELD_OUT)


def reward(bench: Bench, cell: Cell) -> Compared:
    """All pairs in each step; the random score is as recorded."""
    from safetensors.torch import load_file

    section = "reward_modeling={global_batch_size: 8, center_rewards_coefficient: 0.01}"
    train(bench, cell, "rl", *PAIRED, section)
    score = load_file(bench.place / "records-0.first")["score.weight"][0].tolist()
    expected = bench.ask(cell, "rewarding", pairs=PAIRS, centre=0.01, score=score, rate=RATE)
    yield from first_losses(bench.newest("super3-reward-model"), expected)


SAMPLED = (
    "data_prep.source=asked.jsonl", NONE_HELD_OUT, "grpo.num_prompts_per_step=4", "grpo.num_generations_per_prompt=4",
    f"grpo.max_new_tokens={LENGTH}", "grpo.overlong_filtering=false", "grpo.temperature=0.8",
    f"rewards=[{{name: {REWARD}, weight: 1.0}}]",
)  # fmt: skip
TEMPERATURE = 0.8
LARGEST_WEIGHT = 2.0
"""`grpo.truncated_importance_sampling_ratio` of config `local`."""


def grpo(bench: Bench, cell: Cell) -> Compared:
    """Sampled by transformers' generate."""
    return _grpo(bench, cell, "engine.exact_sampling=false")


def grpo_exact(bench: Bench, cell: Cell) -> Compared:
    """Sampled by the computation of the training, where the model and the type of numbers allow it."""
    return _grpo(bench, cell, "engine.exact_sampling=true")


def grpo_lora(bench: Bench, cell: Cell) -> Compared:
    """GRPO of adapters."""
    engine = ("engine=trl_lora", *(f"{key}={value}" for key, value in LORA.items()))
    return _grpo(bench, cell, *engine, lora=True)


def distillation(bench: Bench, cell: Cell) -> Compared:
    """Towards a teacher of the same kind."""
    words = (f"run.teacher=./teacher-{cell.dtype}", "distillation={kl_type: reverse}")
    return _grpo(bench, cell, *words, teacher=str(bench.place / f"teacher-{cell.dtype}"))


OBSERVED = "And once more?"
LOGIC = f'''"""Two turns; the reward of each is a tenth of its vowels."""


class Episode:
    def __init__(self, row):
        self.turns = 0

    def reset(self):
        return None

    def step(self, text):
        self.turns += 1
        reward = sum(one in "aeiouAEIOU" for one in text) / 10
        return {{"reward": reward, "terminated": self.turns == 2, "observation": "{OBSERVED}"}}
'''
AGENT = "twice_gymnasium_agent"
AGENTS = f"""twice:
  resources_servers:
    twice: {{entrypoint: app.py, domain: agent, verified: false, description: Two turns, value: Dialogue}}
{AGENT}:
  responses_api_agents:
    gymnasium_agent:
      entrypoint: app.py
      max_steps: 2
      resources_server: {{type: resources_servers, name: twice}}
      model_server: {{type: responses_api_models, name: policy_model}}
"""


def environment(bench: Bench, cell: Cell) -> Compared:
    """An environment of two turns, with a model that often ends one."""
    folder = bench.place / "environments" / "twice"
    (folder / "configs").mkdir(parents=True, exist_ok=True)
    (folder / "twice.py").write_text(LOGIC)
    (folder / "configs" / "twice.yaml").write_text(AGENTS)
    agent = {"type": "responses_api_agents", "name": AGENT}
    asked = [{"responses_create_params": {"input": [chat[0]]}, "question": chat[0]["content"],
              "expected_answer": chat[1]["content"], "agent_ref": agent} for chat in CHATS]  # fmt: skip
    bench.write("episodes", asked)
    model = bench.place / f"ending-{cell.dtype}"
    if not model.exists():
        prone_to_end(bench.place / cell.dtype, model)
    section = (
        "{servers: [twice], max_turns: 2, max_episode_tokens: 120, show_tools: false, timeout_seconds: 60.0, "
        "connections: 8, on_failure: stop}"
    )
    words = ("data_prep.source=episodes.jsonl", f"engine.environments={section}",
             "rewards=[{name: environment, weight: 1.0}]", f"run.model=./ending-{cell.dtype}")  # fmt: skip
    return _grpo(bench, cell, *words, model=str(model), observed=OBSERVED)


def prone_to_end(folder: Path, into: Path) -> None:
    """Copy a model, whose output then often takes the token that ends an answer: a random one nearly never does."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    said = CHATS[0][1]["content"]
    behind = tokenizer.apply_chat_template(CHATS[0], tokenize=False).rpartition(said)[2]
    end = tokenizer(behind, add_special_tokens=False)["input_ids"][0]
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    prompts = [
        tokenizer.apply_chat_template([chat[0]], add_generation_prompt=True, return_dict=False) for chat in CHATS
    ]
    head, seen = model.get_output_embeddings(), list[torch.Tensor]()
    hook = head.register_forward_hook(lambda module, given, result: seen.append(given[0][0].float()))
    with torch.no_grad():
        logits = [model(input_ids=torch.tensor([ids])).logits[0].float() for ids in prompts]
        hook.remove()
        middle, least = torch.cat(seen).mean(0), torch.cat(logits).logsumexp(-1).mean()
        head.weight[end] = (least * middle / (middle**2).sum()).to(head.weight.dtype)
    model.generation_config.eos_token_id = sorted({end, tokenizer.eos_token_id})
    model.save_pretrained(into)
    tokenizer.save_pretrained(into)


def _grpo(
    bench: Bench, cell: Cell, *words: str, lora: bool = False, teacher: str | None = None, model: str | None = None,
    observed: str | None = None,
) -> Compared:  # fmt: skip
    given = {word.partition("=")[0] for word in words}
    made = train(bench, cell, "rl", *(word for word in SAMPLED if word.partition("=")[0] not in given), *words)
    completions = [one for one in made.records if "completion" in one]
    asked = [question for question, _ in ASKED]
    request = {"completions": completions, "questions": asked, "temperature": TEMPERATURE, "teacher": teacher,
               "observed": observed, "most": LARGEST_WEIGHT, **adapters_of(bench, lora)}  # fmt: skip
    expected = bench.ask(cell, "sampled", model=model, **request)
    expected["logps"] = flat(expected["logps"])
    if cell.dtype == "bfloat16":
        folder = model or str(bench.place / cell.dtype)
        others = [bench.reference("sampled", model=folder, autocast=False, **request)]
        if lora:  # what is not trained is held in the type that it is stored in
            others.append(bench.reference("sampled", model=folder, autocast=True, stored=True, **request))
        expected["logps"] = Rounded((expected["logps"], *(flat(one["logps"]) for one in others)))
        expected["grad_norm"] = Rounded((expected["grad_norm"], *(one["grad_norm"] for one in others)))
    yield "completions", "exact", len(completions), 16
    if observed is not None:
        said, turns = expected["observed"]
        yield "turns of the environment", "exact", said, turns
        if not turns:
            raise Unequal("no episode had a second turn")
    yield "prompts as the template shows them", "exact", 1.0, expected["prompts"]
    yield "sampled log-probabilities", "logps", flat([one["logps"] for one in completions]), expected["logps"]
    folder = bench.newest("super3-rl-model")
    if teacher is None:
        yield "rewards of the texts", "exact", metrics_of(folder)[0]["reward"], expected["reward"]
        yield "advantages", "advantages", [one["advantage"] for one in completions], expected["advantages"]
    yield from first_losses(folder, expected)


def flat(rows: Sequence[Sequence[float]]) -> list[float]:
    """All values of rows of different lengths."""
    return [one for row in rows for one in row]


# Evaluation


def evaluated(bench: Bench, cell: Cell) -> Path:
    """The folder of samples of the model of a cell: both doors of evaluation read it."""
    done = bench.place / f"evaluated-{cell.dtype}"
    if bench.plant is not None or not done.is_file():
        bench.run(
            "stages.eval.train", "-c", "local", "data_prep.source=synthetic", "data_prep.synthetic_problems=6",
            "data_prep.synthetic_choices=6", "data_prep.synthetic_texts=4", "run.missing_data=prepare",
            f"evaluation.max_new_tokens={LENGTH}", "evaluation.check_overlap=false", f"run.model=./{cell.dtype}",
            "run.base=null", "run.sft=null", "run.threads=1", "--force",
        )  # fmt: skip
        done.write_text(str(next((bench.newest("super3-eval-results") / "samples").iterdir())))
    return Path(done.read_text())


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def generation(bench: Bench, cell: Cell) -> Compared:
    """Greedy answers to questions, as texts."""
    samples = lines_of(evaluated(bench, cell) / "sums.jsonl")
    said = bench.reference("said", model=str(bench.place / cell.dtype), questions=[one["question"] for one in samples],
                           length=LENGTH)  # fmt: skip
    same = sum(one["output"].strip() == other.strip() for one, other in zip(samples, said, strict=True))
    yield "answers that are the reference's", "exact", same, len(samples)


def choices(bench: Bench, cell: Cell) -> Compared:
    """Log-likelihoods of choices, and bits of whole texts."""
    folder, data = evaluated(bench, cell), bench.newest("super3-eval-data")
    rows, model = lines_of(data / "facts.jsonl"), str(bench.place / cell.dtype)
    questions, several = [one["stem"] or one["question"] for one in rows], [one["choices"] for one in rows]
    expected = bench.reference("likelihoods", model=model, questions=questions, choices=several)
    samples = lines_of(folder / "facts.jsonl")
    yield "log-likelihoods of choices", "loss", flat([one["log_likelihoods"] for one in samples]), flat(expected)
    right = [float(max(range(len(found)), key=found.__getitem__) == row["answer"])
             for found, row in zip(expected, rows, strict=True)]  # fmt: skip
    yield "scores", "exact", [one["score"] for one in samples], right
    texts = [one["text"] for one in lines_of(data / "prose.jsonl")]
    bits = bench.reference("bits_of_texts", model=model, texts=texts)
    yield "bits of texts", "loss", [one["bits"] for one in lines_of(folder / "prose.jsonl")], bits


# Commands that are no stage's


def command(bench: Bench, *words: str) -> Any:
    """The JSON that `nemotron WORDS --json` prints."""
    said = bench.run("nemotron_app.main", *words, "--json").said
    begin = re.search(r"^[\[{]$", said, re.MULTILINE)
    return json.loads(said[begin.start() :]) if begin else json.loads(said.splitlines()[-1])


def finetune(bench: Bench, cell: Cell) -> Compared:
    """Fine-tuning with its own choices: bits of all answers before and after, and the answers themselves."""
    made = command(
        bench, "finetune", f"./{cell.dtype}", "chats.jsonl", "--again", "train.train_iters=4", "run.threads=1",
        "logger.tensorboard=false", f"engine.dtype={cell.dtype}",
    )  # fmt: skip
    results = f"{cell.dtype}-eval-results"  # named after the model's folder
    made["results"] = f"{results}:{bench.newest(results).name}"
    bench.place.joinpath("finetuned.json").write_text(json.dumps(made))
    by_question = {chat[0]["content"]: chat for chat in CHATS}
    shown = [(one, next(chat for asked, chat in by_question.items() if asked in one["question"]))
             for one in made["answers"]]  # fmt: skip
    size = sum(len(one["expected"].encode()) for one, _ in shown)
    folders = {"before": str(bench.place / cell.dtype), "after": made["path"]}
    values = [one["value"] for one in made["scores"] if one["metric"] == "bits_per_byte"]
    for (when, folder), value in zip(folders.items(), values, strict=True):
        bits = bench.reference("bits_of_answers", model=folder, chats=[chat for _, chat in shown])
        yield f"bits per byte {when}", "loss", value, bits / size
        said = bench.reference("said", model=folder, questions=[chat[0]["content"] for _, chat in shown], length=LENGTH)
        same = sum(one[when].lstrip("\n").startswith(other.rstrip("\ufffd").strip("\n"))
                   for (one, _), other in zip(shown, said, strict=True))  # fmt: skip
        yield f"answers {when} that begin as the reference's", "exact", same, len(shown)


def plan(bench: Bench, cell: Cell) -> Compared:
    """A plan of fine-tuning, which counts the model's tensors."""
    found = command(bench, "plan", "sft/local", "1xH100", f"run.model=./{cell.dtype}", "train.global_batch_size=2")
    estimate = found[0]["estimate"]
    if estimate is None:
        raise Unequal("a plan without an estimate")
    yield "parameters", "exact", estimate["parameters"], bench.ask(cell, "parameters")


def report(bench: Bench, cell: Cell) -> Compared:
    """The report of a fine-tuning has its scores."""
    if not (bench.place / "finetuned.json").is_file():
        yield from finetune(bench, cell)
    made = json.loads((bench.place / "finetuned.json").read_text())
    found = command(bench, "report", made["results"], "--out", "report.html")
    yield "scores", "exact", [one["value"] for one in found["scores"]], [one["value"] for one in made["scores"]]
    page = (bench.place / "report.html").read_text()
    shown = sum(f"{one['value']:.3f}" in page for one in made["scores"])
    yield "scores on the page", "exact", shown, len(made["scores"])


def export(bench: Bench, cell: Cell) -> Compared:
    """For transformers."""
    return _export(bench, cell, "transformers")


def export_vllm(bench: Bench, cell: Cell) -> Compared:
    """For vLLM: the folder alone, where vLLM is not installed."""
    return _export(bench, cell, "vllm")


def export_llama_cpp(bench: Bench, cell: Cell) -> Compared:
    """For llama.cpp, with its own tools."""
    return _export(bench, cell, "llama.cpp")


def _export(bench: Bench, cell: Cell, runtime: str) -> Compared:
    folder = bench.place / f"exported-{runtime}-{cell.dtype}"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        made = command(bench, "export", f"./{cell.dtype}", str(folder), "--for", runtime)
    except Failed as failed:
        if "is not installed" in failed.made.error:
            raise NotRun(failed.made.error.removeprefix("error: ")) from failed
        raise
    parts = {part["title"]: part for part in made["verified"]["parts"]}
    if not made["verified"]["same"]:
        raise Unequal("; ".join(str(line) for part in parts.values() for line in part["findings"]))
    if runtime == "llama.cpp":  # whose answers the export itself has compared
        packages = str(require_converter())
        there, start = (bench.reference("whole_sums", folder=str(one), packages=packages)
                        for one in (folder, bench.place / cell.dtype))  # fmt: skip
        yield "values", "exact", there[0], start[0]
        yield "sum of their sizes", "exact", there[1] / start[1], 1.0
        return
    start, there = (bench.reference("tensors", folder=str(one)) for one in (bench.place / cell.dtype, folder))
    yield "tensors", "exact", len(there), len(start)
    yield "their sums", "exact", [there[name][2] for name in start], [one[2] for one in start.values()]
    asked = [question for question, _ in ASKED[:2]]
    said, others = (bench.reference("answers", model=str(one), questions=asked, length=LENGTH)
                    for one in (folder, bench.place / cell.dtype))  # fmt: skip
    yield "greedy tokens", "exact", flat(said), flat(others)


Door = Callable[[Bench, Cell], Compared]
TRAININGS: dict[str, Door] = {
    "pretrain": pretrain, "sft": sft, "lora": lora, "dpo": dpo, "reward": reward, "grpo": grpo,
    "grpo_exact": grpo_exact, "grpo_lora": grpo_lora, "environment": environment, "distillation": distillation,
}  # fmt: skip
OTHERS: dict[str, Door] = {
    "generation": generation, "choices": choices, "finetune": finetune, "plan": plan, "report": report,
    "export": export, "export_vllm": export_vllm, "export_llama_cpp": export_llama_cpp,
}  # fmt: skip
DOORS = TRAININGS | OTHERS
OF_ONE_TYPE = ("plan", "report")
"""Doors at which it does not matter how numbers are stored."""


def cells_of(model: str) -> Iterator[Cell]:
    """All cells of a model; sampling by the computation of the training exists for NemotronH in float32 alone."""
    for door in DOORS:
        for dtype in DTYPES:
            for processes in (1, 2) if door in TRAININGS else (1,):
                exact = door != "grpo_exact" or (model.startswith("nemotron_h") and dtype == "float32")
                if exact and not (door in OF_ONE_TYPE and dtype != DTYPES[0]):
                    yield Cell(model, door, dtype, processes)


def attempt(bench: Bench, cell: Cell) -> Verdict:
    """Take a model through a door."""
    off: dict[str, float] = {}
    try:
        for what, kind, ours, theirs in DOORS[cell.door](bench, cell):
            limit = TOLERANCES[cell.dtype][kind]
            theirs = theirs.nearest(ours) if isinstance(theirs, Rounded) else theirs
            flipped = FLIPPED if (kind, cell.dtype) == ("logps", "bfloat16") else 0.0
            off[what] = off_by(kind, ours, theirs, flipped) / limit
            if not off[what] <= 1:
                return Verdict("wrong", f"{what}: {shown(ours)}, and the reference has {shown(theirs)}", off)
    except Unequal as unequal:
        return Verdict("wrong", str(unequal)[:MOST_SAID], off)
    except NotRun as missing:
        return Verdict("not run", str(missing), off)
    except Failed as failed:
        return refused(bench, failed)
    return Verdict("right", "", off)


MOST_SAID = 300
REFUSES = (1, 2)
"""How a dry run of a stage ends that finds a problem, and one of another command."""


def refused(bench: Bench, failed: Failed) -> Verdict:
    """Whether a dry run refuses in a sentence that names a library and its version what a start refused."""
    command, error = failed.command, failed.made.error.removeprefix("error: ")[:MOST_SAID]
    words = [word for word in command.words if word != "--rehearsed"]
    made = running.run(Command(command.module, (*words, "--dry-run")), bench.home)
    lines = [line.strip() for line in made.said.splitlines()]
    reason = next((line for line in lines if LIBRARY.search(line) and error.split(": ")[-1][:40] in line), "")
    if made.code in REFUSES and reason:
        return Verdict("refused", error)
    how = f"a dry run ends with {made.code}"
    how = "a dry run refuses, without a library's version" if made.code in REFUSES else how
    return Verdict("wrong", f"{error} ({how})")


def shown(value: Any) -> str:
    """A number, or the first of many."""
    values = np.asarray(value, dtype=np.float64).ravel()
    return f"{values[0]:.6g}" if values.size == 1 else f"[{', '.join(f'{one:.4g}' for one in values[:4])}, ...]"
