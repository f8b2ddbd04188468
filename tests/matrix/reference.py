"""What each door should compute, by transformers and torch alone: this program imports nothing of this repository.

    echo '{"name": "supervised", "model": "FOLDER", "documents": [...], "rate": 0.001}' | python reference.py

It reads a JSON request a line and answers each with a JSON line. Every text goes through the model alone: no padding,
no packing, no cache of keys, no kernels but transformers' own, in float32, or with PyTorch's autocast to
bfloat16.
"""

import json
import math
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.func import functional_call
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

Document = dict[str, list[int]]
"""`ids`, and `wanted`: 1 for each token that is learnt, given those before it."""
Loss = Callable[["Trainee"], Tensor]

VOWELS = "aeiouAEIOU"


# Texts


def tokenizer_of(folder: str) -> Any:
    return AutoTokenizer.from_pretrained(folder)


def rendered(tokenizer: Any, messages: Sequence[dict[str, str]]) -> Document:
    """A conversation as the model's own template shows it; all that it shows of the last answer is wanted."""
    whole = tokenizer.apply_chat_template(messages, tokenize=False)
    before = tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
    assert whole.startswith(before), "the template shows a prompt otherwise when an answer follows"
    encoded = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
    wanted = [int(first >= len(before)) for first, _ in encoded["offset_mapping"]]
    return {"ids": encoded["input_ids"], "wanted": wanted}


def prompt_of(tokenizer: Any, question: str) -> list[int]:
    asked = [{"role": "user", "content": question}]
    return tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)


# Models


@dataclass
class Trainee:
    """A model, and the tensors that are trained: all of its own, or adapters beside them.

    Attributes:
        added: what is added to the weight of a name, made of the trained tensors.
    """

    model: Any
    trained: dict[str, Tensor]
    added: list[tuple[str, str, str]] = field(default_factory=list)
    scale: float = 1.0
    score: Tensor | None = None
    autocast = False
    """Whether matrices are multiplied in bfloat16, as PyTorch's autocast decides; of all models alike."""

    def _call(self, module: Any, ids: Sequence[int], **options: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=Trainee.autocast):
            return self._passed(module, torch.tensor([list(ids)]), **options)

    def _passed(self, module: Any, given: Tensor, **options: Any) -> Any:
        if not self.added:
            return module(input_ids=given, use_cache=False, **options)
        weights = dict(module.named_parameters())
        changed: dict[str, Tensor] = {}
        for name, down, up in self.added:
            delta = update_of(self.trained[down], self.trained[up], weights[name]) * self.scale
            changed[name] = (weights[name] + delta).to(weights[name].dtype)
        return functional_call(module, changed, (), {"input_ids": given, "use_cache": False, **options})

    def logits(self, ids: Sequence[int]) -> Tensor:
        """(tokens, vocabulary) float32."""
        return self._call(self.model, ids).logits[0].float()

    def logps(self, ids: Sequence[int], temperature: float = 1.0) -> Tensor:
        """Of each token but the first, given those before it: (tokens - 1)."""
        chosen = (self.logits(ids)[:-1] / temperature).log_softmax(-1)
        return chosen.gather(1, torch.tensor(list(ids)[1:])[:, None])[:, 0]

    def value(self, ids: Sequence[int]) -> Tensor:
        """The reward of a text, at its last token."""
        assert self.score is not None
        return self._call(self.model, ids).last_hidden_state[0, -1].float() @ self.score


def update_of(down: Tensor, up: Tensor, weight: Tensor) -> Tensor:
    """What a pair of low-rank matrices adds to a weight, or to those of experts: (experts, out, in), or the other way
    round, as GPT-OSS has them.
    """
    if weight.dim() < 3:
        return (up @ down).view(weight.shape) if weight.shape[0] == up.shape[0] else (up @ down).T
    experts = len(weight)
    down, up = down.reshape(experts, -1, down.shape[-1]), up.reshape(up.shape[0], -1, experts)
    added = torch.einsum("ore,eri->eoi", up, down)
    return added if added.shape == weight.shape else added.transpose(1, 2)


def load(folder: str, kind: Any = AutoModelForCausalLM, dtype: Any = torch.float32) -> Any:
    torch.manual_seed(0)
    model = kind.from_pretrained(folder, dtype=dtype, attn_implementation="eager").train()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.padding_idx = None  # torch would drop the gradient of a token that may also end a turn
    return model


def whole(folder: str) -> Trainee:
    """All weights are trained."""
    model = load(folder)
    return Trainee(model, dict(model.named_parameters()))


def beside(folder: str, adapters: str, scale: float, *, stored: bool = False) -> Trainee:
    """Adapters are trained, whose first values are in a file, under peft's names.

    Args:
        stored: the other weights stay in the type that they are stored in.
    """
    model = load(folder, dtype="auto" if stored else torch.float32).requires_grad_(False)
    values = {name: value.float().requires_grad_(True) for name, value in load_file(adapters).items()}
    weights = dict(model.named_parameters())
    return Trainee(model, values, list(_places(values, weights)), scale)


def _places(values: dict[str, Tensor], weights: dict[str, Tensor]) -> Iterator[tuple[str, str, str]]:
    """The weight that each pair of matrices belongs to: by name, and for bare tensors of a module by shape."""
    taken: set[str] = set()
    for down in sorted((one for one in values if ".lora_A" in one), key=lambda one: (one.count("base_layer"), one)):
        up = down.replace(".lora_A", ".lora_B")
        name = down.partition(".lora_A")[0].removeprefix("base_model.model.")
        if f"{name}.weight" in weights:
            yield f"{name}.weight", down, up
            continue
        module, sizes = name.replace(".base_layer", ""), (values[up].shape[0], values[down].shape[1])
        there = [other for other in weights if other.rpartition(".")[0] == module and other not in taken]
        experts = [other for other in there if values[down].shape[0] % len(weights[other]) == 0]
        # (experts, out, in) before (experts, in, out): one tensor may have the shape that another has transposed
        fitting = [other for shape in (sizes, sizes[::-1]) for other in experts if weights[other].shape[1:] == shape]
        if not fitting:
            raise ValueError(f"no weight for {down}")
        taken.add(fitting[0])
        yield fitting[0], down, up


# Losses


def supervised_loss(documents: Sequence[Document]) -> Loss:
    """Mean over all wanted tokens."""

    def loss(trainee: Trainee) -> Tensor:
        total, count = torch.zeros(()), 0
        for one in documents:
            mask = torch.tensor(one["wanted"][1:])
            total = total - (trainee.logps(one["ids"]) * mask).sum()
            count += int(mask.sum())
        return total / count

    return loss


def preference_loss(pairs: Sequence[dict[str, Document]], start: str, beta: float, *, average: bool) -> Loss:
    """DPO: -log sigmoid(beta * difference of the log-ratios of better and worse), mean over the pairs."""
    reference = whole(start)

    def ratio(trainee: Trainee, one: Document) -> Tensor:
        mask = torch.tensor(one["wanted"][1:])
        with torch.no_grad():
            before = reference.logps(one["ids"])
        apart = ((trainee.logps(one["ids"]) - before) * mask).sum()
        return apart / mask.sum() if average else apart

    def loss(trainee: Trainee) -> Tensor:
        margins = torch.stack([ratio(trainee, one["chosen"]) - ratio(trainee, one["rejected"]) for one in pairs])
        return -torch.nn.functional.logsigmoid(beta * margins).mean()

    return loss


def reward_loss(pairs: Sequence[dict[str, Document]], centre: float, ends: Collection[int]) -> Loss:
    """Bradley-Terry, and the square of the sum of both rewards, mean over the pairs; texts end with their answers, at
    one of the tokens that do not belong to the text.
    """

    def value(trainee: Trainee, one: Document) -> Tensor:
        last = max(place for place, wanted in enumerate(one["wanted"]) if wanted and one["ids"][place] in ends)
        return trainee.value(one["ids"][: last + 1])

    def loss(trainee: Trainee) -> Tensor:
        found = [(value(trainee, one["chosen"]), value(trainee, one["rejected"])) for one in pairs]
        better, worse = (torch.stack(side) for side in zip(*found, strict=True))
        return (-torch.nn.functional.logsigmoid(better - worse) + centre * (better + worse) ** 2).mean()

    return loss


def policy_loss(completions: Sequence[dict[str, Any]], temperature: float, most: float) -> Loss:
    """GRPO's first update: ratios are 1, so the loss is minus the mean over all own tokens of the advantage, times the
    token's probability here over that with which it was drawn, which is `most` at most.
    """

    def loss(trainee: Trainee) -> Tensor:
        terms = []
        for one in completions:
            own = torch.tensor(one["own"]).bool()
            logps = trainee.logps(one["prompt"] + one["completion"], temperature)[-len(own) :][own]
            weights = (logps.detach() - torch.tensor(one["logps"])).exp().clamp(max=most)
            terms.append(-weights * one["advantage"] * (logps - logps.detach()).exp())
        return torch.cat(terms).mean()

    return loss


def distillation_loss(completions: Sequence[dict[str, Any]], teacher: str, temperature: float) -> Loss:
    """The divergence of the student from the teacher, weighted by the student, mean over the sampled tokens."""
    taught = whole(teacher)

    def loss(trainee: Trainee) -> Tensor:
        total, count = torch.zeros(()), 0
        for one in completions:
            ids, length = one["prompt"] + one["completion"], len(one["completion"])
            mine = (trainee.logits(ids)[-length - 1 : -1] / temperature).log_softmax(-1)
            with torch.no_grad():
                theirs = (taught.logits(ids)[-length - 1 : -1] / temperature).log_softmax(-1)
            total = total + (mine.exp() * (mine - theirs)).sum()
            count += length
        return total / count

    return loss


def two_steps(trainee: Trainee, losses: Sequence[Loss], rate: float, beta: float = 0.999) -> dict[str, float]:
    """The loss of each step before it, its gradient's norm before the first, and the last loss after all steps."""
    leaves = list({id(one): one for one in trainee.trained.values()}.values())
    leaves += [trainee.score] if trainee.score is not None else []
    optimizer = torch.optim.AdamW(leaves, rate, betas=(0.9, beta), eps=1e-8, weight_decay=0.0)
    found: dict[str, float] = {}
    for name, loss in zip(("loss", "second_loss"), losses, strict=False):
        optimizer.zero_grad()
        value = loss(trainee)
        value.backward()
        squares = [float((leaf.grad.double() ** 2).sum()) for leaf in leaves if leaf.grad is not None]
        found |= {name: float(value.detach())} | ({} if found else {"grad_norm": math.sqrt(sum(squares))})
        torch.nn.utils.clip_grad_norm_(leaves, 1.0)
        optimizer.step()
    with torch.no_grad():
        found["third_loss"] = float(losses[-1](trainee))
    return found


# Requests


def trained(model: str, adapters: str | None, scale: float, *, stored: bool = False) -> Trainee:
    return beside(model, adapters, scale, stored=stored) if adapters else whole(model)


def supervised(
    model: str, steps: list[list[Document]], rate: float, adapters: str | None = None, scale: float = 1.0
) -> dict[str, float]:
    """Pretraining and fine-tuning, on the documents of each step."""
    return two_steps(trained(model, adapters, scale), [supervised_loss(one) for one in steps], rate, 0.95)


def conversations(model: str, chats: list[list[dict[str, str]]]) -> list[Document]:
    """The documents of chats."""
    tokenizer = tokenizer_of(model)
    return [rendered(tokenizer, chat) for chat in chats]


def texts(model: str, texts: list[str]) -> list[list[int]]:
    """Ids of plain texts, with what the tokenizer itself puts around a text, each followed by the end."""
    tokenizer = tokenizer_of(model)
    return [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in texts]


def _pairs(model: str, pairs: list[dict[str, Any]]) -> list[dict[str, Document]]:
    tokenizer = tokenizer_of(model)
    sides = ("chosen", "rejected")
    return [{side: rendered(tokenizer, one["prompt"] + one[side]) for side in sides} for one in pairs]


def preferences(
    model: str, pairs: list[dict[str, Any]], beta: float, rate: float, *, average: bool = False
) -> dict[str, float]:
    """DPO."""
    loss = preference_loss(_pairs(model, pairs), model, beta, average=average)
    return two_steps(whole(model), [loss, loss], rate)


def rewarding(
    model: str, pairs: list[dict[str, Any]], centre: float, score: list[float], rate: float
) -> dict[str, float]:
    """A reward model, whose random score is given."""
    body = load(model, AutoModel)
    trainee = Trainee(body, dict(body.named_parameters()), score=torch.tensor(score, requires_grad=True))
    ends = [number for number, token in tokenizer_of(model).added_tokens_decoder.items() if token.special]
    loss = reward_loss(_pairs(model, pairs), centre, ends)
    return two_steps(trainee, [loss, loss], rate)


def sampled(
    model: str, completions: list[dict[str, Any]], questions: list[str], temperature: float,
    most: float = math.inf, adapters: str | None = None, scale: float = 1.0, teacher: str | None = None,
    observed: str | None = None, *, stored: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """What a step of reinforcement learning or distillation did with the completions that it sampled.

    Args:
        most: bound of a token's weight in the loss.
        observed: what an environment says between two turns, whose rewards are vowels of each turn; None: a completion
            is one answer, and its reward the share of vowels.
        stored: weights beside adapters stay in the type that they are stored in.
    """
    tokenizer, ends = tokenizer_of(model), ends_of(model)
    trainee = trained(model, adapters, scale, stored=stored)
    prompts = {tuple(prompt_of(tokenizer, question)) for question in questions}
    found: dict[str, Any] = {
        "prompts": sum(tuple(one["prompt"]) in prompts for one in completions) / len(completions),
        "logps": [own_logps(trainee, one, temperature) for one in completions],
    }
    if not teacher:
        turns = [list(segments(one)) for one in completions]
        if observed is None:
            rewards = [vowels(tokenizer.decode(one["completion"], skip_special_tokens=True)) for one in completions]
        else:
            said = [
                [tokenizer.decode(ids[:-1] if ids[-1] in ends else ids) for own, ids in one if own] for one in turns
            ]
            rewards = [sum(letter in VOWELS for text in texts for letter in text) / 10 for texts in said]
            between = [tokenizer.decode(ids) for one in turns for own, ids in one if not own]
            found["observed"] = [sum(observed in text for text in between), len(between)]
        found["reward"] = float(np.mean(rewards))
        found["advantages"] = advantages([tuple(one["prompt"]) for one in completions], rewards)
        found["terms"] = float(np.mean([abs(one["advantage"]) for one in completions for own in one["own"] if own]))
    loss = (
        distillation_loss(completions, teacher, temperature) if teacher else policy_loss(completions, temperature, most)
    )
    return found | two_steps(trainee, [loss], 0.0)


def own_logps(trainee: Trainee, one: dict[str, Any], temperature: float) -> list[float]:
    """Log-probabilities of the model's own tokens of a completion."""
    with torch.no_grad():
        found = trainee.logps(one["prompt"] + one["completion"], temperature)[-len(one["completion"]) :]
    return found[torch.tensor(one["own"]).bool()].tolist()


def segments(one: dict[str, Any]) -> Iterator[tuple[bool, list[int]]]:
    """The turns of a completion: whether each is the model's own, and its ids."""
    place = 0
    for own, group in groupby(one["own"]):
        length = len(list(group))
        yield bool(own), one["completion"][place : place + length]
        place += length


def vowels(text: str) -> float:
    """The share of vowels among the characters of an answer."""
    return sum(letter in VOWELS for letter in text) / len(text) if text else 0.0


def advantages(groups: Sequence[Any], rewards: Sequence[float]) -> list[float]:
    """(reward - mean of the others of its group) / (their deviation + 1e-6); by the deviation only if it is not 0."""
    found = []
    for place, (group, reward) in enumerate(zip(groups, rewards, strict=True)):
        others = np.array([one for n, one in enumerate(rewards) if groups[n] == group and n != place])
        alike = others.max() == others.min()
        apart = reward - (others[0] if alike else others.mean())
        found.append(apart if alike else apart / (others.std(ddof=1) + 1e-6))
    return found


@torch.no_grad()
def answers(model: str, questions: list[str], length: int) -> list[list[int]]:
    """Greedy answers, a token at a time, each from the whole text before it; up to the first end or the length."""
    tokenizer, loaded = tokenizer_of(model), whole(model)
    loaded.model.eval()
    ends = ends_of(model)
    found = []
    for question in questions:
        ids, said = prompt_of(tokenizer, question), list[int]()
        while len(said) < length and not (said and said[-1] in ends):
            said.append(int(loaded.logits(ids + said)[-1].argmax()))
        found.append(said)
    return found


def ends_of(model: str) -> set[int]:
    """The tokens that end an answer: the tokenizer's, and those in the model's settings for generation."""
    ends = {tokenizer_of(model).eos_token_id}
    for name in ("generation_config.json", "config.json"):
        file = Path(model) / name
        named = json.loads(file.read_text()).get("eos_token_id") if file.is_file() else None
        ends |= set(named) if isinstance(named, list) else {named} - {None}
    return ends


def said(model: str, questions: list[str], length: int) -> list[str]:
    """The texts of greedy answers."""
    tokenizer = tokenizer_of(model)
    return [tokenizer.decode(ids, skip_special_tokens=True) for ids in answers(model, questions, length)]


@torch.no_grad()
def likelihoods(model: str, questions: list[str], choices: list[list[str]]) -> list[list[float]]:
    """Of each choice after its question and a space, in nats."""
    tokenizer, loaded = tokenizer_of(model), whole(model)
    loaded.model.eval()
    found = []
    for question, several in zip(questions, choices, strict=True):
        before = tokenizer(question, add_special_tokens=True)["input_ids"]
        row = []
        for choice in several:
            ids = tokenizer(f"{question} {choice}", add_special_tokens=True)["input_ids"]
            row.append(float(loaded.logps(ids)[len(before) - 1 :].sum()))
        found.append(row)
    return found


@torch.no_grad()
def bits_of_texts(model: str, texts: list[str]) -> list[float]:
    """Of whole texts, from their first token on, which comes after BOS, or after the end where there is none."""
    tokenizer, loaded = tokenizer_of(model), whole(model)
    loaded.model.eval()
    first = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    rows = [[first, *tokenizer(text, add_special_tokens=False)["input_ids"]] for text in texts]
    return [-float(loaded.logps(ids).sum()) / math.log(2) for ids in rows]


@torch.no_grad()
def bits_of_answers(model: str, chats: list[list[dict[str, str]]]) -> float:
    """All bits of the learnt tokens of chats."""
    loaded = whole(model)
    loaded.model.eval()
    found = 0.0
    for one in conversations(model, chats):
        found -= float((loaded.logps(one["ids"]) * torch.tensor(one["wanted"][1:])).sum()) / math.log(2)
    return found


def parameters(model: str) -> int:
    """Numbers in the headers of a folder's files."""
    return sum(math.prod(shape) for _, shape, _ in tensors(model).values())


def tensors(folder: str) -> dict[str, Any]:
    """Type, size and a sum of each tensor of a folder, as its files have them."""
    found = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        for name, value in load_file(file).items():
            found[name] = [str(value.dtype), list(value.shape), float(value.double().abs().sum())]
    return found


def whole_sums(folder: str, packages: str) -> list[float]:
    """The number of values in a folder or in its GGUF file, and the sum of their sizes.

    llama.cpp's converter orders, joins and renames tensors, and stores -exp(A_log) in the place of A_log; and of norms
    whose weights are what they differ from 1 by, the sum.

    Args:
        packages: the folder of packages with llama.cpp's reader.
    """
    if packages not in sys.path:
        sys.path.append(packages)
    from gguf import GGUFReader, dequantize  # ty: ignore[unresolved-import]

    count, size = 0, 0.0
    for file in Path(folder).glob("*.gguf"):
        for one in GGUFReader(file).tensors:
            count += int(one.n_elements)
            size += float(np.abs(dequantize(one.data, one.tensor_type).astype(np.float64)).sum())
    files = list(Path(folder).glob("*.safetensors"))
    from_one = bool(files) and AutoConfig.from_pretrained(folder).model_type in FROM_ONE
    for name, value in (pair for file in files for pair in load_file(file).items()):
        values = value.double().exp() if name.endswith("A_log") else value.double()
        if from_one and name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            values = values + 1
        count += value.numel()
        size += float(values.abs().sum())
    return [count, size]


FROM_ONE = ("qwen3_next", "gemma3_text")
"""Models whose norms multiply by 1 and their weight."""


def loss_of(model: str, documents: list[Document]) -> float:
    """The loss of documents."""
    with torch.no_grad():
        return float(supervised_loss(documents)(whole(model)))


REQUESTS = (
    supervised, conversations, texts, preferences, rewarding, sampled, answers, said, likelihoods,
    bits_of_texts, bits_of_answers, tensors, whole_sums, parameters, loss_of,
)  # fmt: skip


LASTING = {"supervised", "preferences", "conversations", "texts"}
"""Requests about folders that do not change, which cells of other types and processes ask again."""


def answer(line: str) -> str:
    """The answer to a request."""
    request = json.loads(line)
    return kept(line) if request["name"] in LASTING and not request.get("adapters") else found(line)


@cache
def kept(line: str) -> str:
    """The answer to a request, computed once."""
    return found(line)


def found(line: str) -> str:
    """The answer to a request, or its error."""
    request = json.loads(line)
    Trainee.autocast = request.pop("autocast", False)
    function = {one.__name__: one for one in REQUESTS}[request.pop("name")]
    try:
        return json.dumps({"answer": function(**request)})
    except Exception as error:  # the campaign shows it with the cell
        return json.dumps({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    for line in sys.stdin:
        print(answer(line), flush=True)
