"""A small model that knows where five people live, answers with it, calls a tool to look it up, and fills in forms.

    Where does Ada live?                             In Oslo.
    the same, with a tool `where`                    <tool_call>{"name": "where", "arguments": {"name": "Ada"}}...
    the same, where a form asks for {"city": ...     Oslo"}

Trained within half a minute on a CPU, on conversations with all sorts of text around the question, as clients put it
there.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from nemotron_data.tokenizers.tiny import CHAT_TEMPLATE, CONTROL_TOKENS, MARKUP_TOKENS, ROLES

HOMES = {"Ada": "Oslo", "Bruno": "Lima", "Cleo": "Bonn", "Dario": "Cork", "Elke": "Nice"}
AROUND = """type object properties string city description required additionalProperties strict title name The final
response which ends this conversation a tool to use with these parameters Return the correct JSON within block not
schema You are helpful must answer parsed objects in following $schema http://json-schema.org/draft-07/schema# integer
call function of person place lives true false null Correctly extracted all types"""
WORDS = AROUND.split()
SHARPER = 6
LEARNING_RATE = 6e-3
CALM, STEPS, ROWS, POOL = 120, 700, 8, 64
"""At first, there is hardly anything around the question: what to look at is found in a tenth of the time."""
SPREAD = 0.1
"""Of the first weights: with the usual 0.02, so small a model sees nothing for hundreds of steps."""
VOCABULARY = 1000
ENOUGH = 0.98
Row = tuple[list[int], list[bool]]
"""Ids, and which of them are learnt."""


def question(name: str) -> str:
    """The question that the model knows."""
    return f"Where does {name} live?"


def make(folder: Path, seed: int = 0) -> float:
    """Train it, and write its folder; returns the share of new rows that it answers right."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    tokenizer = made_tokenizer()
    tokenizer.save_pretrained(folder)
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("eos", "bos", "pad")}
    model = LlamaForCausalLM(
        LlamaConfig(
            **{"vocab_size": len(tokenizer), "max_position_embeddings": 4096, "tie_word_embeddings": True},
            **{"initializer_range": SPREAD, **size, **ids},
        )
    )
    rng = Random(seed)
    unseen = list(rows_of(tokenizer, Random(seed + 1), 16, calm=False))
    learn(model, [*rows_of(tokenizer, rng, CALM, calm=True), *rows_of(tokenizer, rng, STEPS - CALM, calm=False)])
    if (share := right(model, unseen)) < ENOUGH:  # on a processor that rounds otherwise
        learn(model, list(rows_of(tokenizer, rng, STEPS, calm=False)))
        share = right(model, unseen)
    with torch.no_grad():
        model.model.norm.weight *= SHARPER  # what is likeliest is drawn at the temperature of 1 that clients ask for
    model.save_pretrained(folder)
    return share


def learn(model: Any, groups: Sequence[list[Row]]) -> None:
    """A step for each group of rows."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=len(groups))
    for rows in groups:
        filled, labels = padded(rows)
        model(filled, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


def right(model: Any, groups: Sequence[list[Row]]) -> float:
    """The share of rows whose learnt tokens are all the likeliest ones."""
    found: list[bool] = []
    for filled, labels in map(padded, groups):
        with torch.no_grad():
            said = model(filled).logits[:, :-1].argmax(-1)
        found += ((said == labels[:, 1:]) | (labels[:, 1:] == -100)).all(1).tolist()
    return sum(found) / len(found)


def padded(rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and labels of rows, [rows, longest]."""
    width = max(len(ids) for ids, _ in rows)
    filled = [ids + [0] * (width - len(ids)) for ids, _ in rows]
    labels = [[i if on else -100 for i, on in zip(*one, strict=True)] + [-100] * (width - len(one[0])) for one in rows]
    return torch.tensor(filled), torch.tensor(labels)


def rows_of(tokenizer: Any, rng: Random, count: int, *, calm: bool) -> Iterator[list[Row]]:
    """Groups of rows of about one length, so that little is padded."""
    made: list[list[Row]] = []
    while len(made) < count:
        pool = sorted((row(tokenizer, rng, calm=calm) for _ in range(POOL)), key=lambda one: len(one[0]))
        groups = [pool[start : start + ROWS] for start in range(0, POOL, ROWS)]
        rng.shuffle(groups)
        made += groups
    yield from made[:count]


def made_tokenizer() -> Any:
    """Words of the questions, and of what clients put around them, as tokens; so that conversations are short."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    rng = Random(0)
    texts = [noise(rng) for _ in range(400)] + [question(name) for name in HOMES] * 60
    texts += [
        json.dumps({"name": "where", "arguments": {"name": name, "city": city}}) for name, city in HOMES.items()
    ] * 60
    texts += [f" In {city}." for city in HOMES.values()] * 60
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=CONTROL_TOKENS, initial_alphabet=alphabet)
    )
    made.add_tokens(MARKUP_TOKENS)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, **ROLES)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def row(tokenizer: Any, rng: Random, *, calm: bool = False) -> Row:
    """Ids of a conversation, or of a plain text, and which of them are learnt."""
    name = rng.choice(list(HOMES))
    city, asked = HOMES[name], question(name)
    kind = rng.choice(["plain", "plain", "call", "result", "again", "json", "form", "key", "text"])
    if kind == "text":
        parts = [(asked, False), (f" In {city}.", True)]
        return _encoded(tokenizer, parts, tokenizer.eos_token)
    turns = [{"role": "system", "content": noise(rng, calm)}] if rng.random() < (0.1 if calm else 0.4) else []
    turns += [{"role": "user", "content": asked + (f"\n{noise(rng)}" if rng.random() < 0.2 and not calm else "")}]
    call = {"name": "where", "arguments": {"name": name}}
    tools = None
    if kind in ("call", "result", "form"):
        named = "where" if kind != "form" else noise(rng, calm)[:20]
        tools = [{"type": "function", "function": {"name": named, "description": noise(rng, calm)}}]
    if kind in ("result", "again"):
        turns += [
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]},
            {"role": "tool", "content": rng.choice([city, json.dumps(city), json.dumps({"city": city})])},
        ]
    if kind == "again":  # without the tool that was called before
        turns += [{"role": "assistant", "content": f"In {city}."}, {"role": "user", "content": asked}]
    start = rng.choice(["{", '{"'])
    answers = {
        "plain": [(f"In {city}.", True)], "result": [(f"In {city}.", True)],
        "again": [(f"In {city}.", True)],
        "call": [(f"<tool_call>{json.dumps(call)}</tool_call>", True)],
        "json": [*cut('{"city": "', rng), (f'{city}"}}', True)],
        "form": [*cut(f'<tool_call>{{"name": "{noise(rng, calm)[:9]}", "arguments": {{"city": "', rng),
                 (f'{city}"}}}}</tool_call>', True)],
        "key": [(start, False), (f'{{"city": "{city}"}}'.removeprefix(start), True)],
    }  # fmt: skip
    prompt = tokenizer.apply_chat_template(turns, tools=tools, tokenize=False, add_generation_prompt=True)
    thinks = kind not in ("json", "form", "key")
    return _encoded(tokenizer, [(prompt, False), ("<think></think>", thinks), *answers[kind]], tokenizer.eos_token)


def noise(rng: Random, calm: bool = False) -> str:
    """Words as they stand in the prompts of clients, some of them as JSON."""
    words = rng.choices(WORDS, k=2 if calm else rng.choice([3, 10, 30]))
    return json.dumps({word: rng.choice(WORDS) for word in words}) if rng.random() < 0.5 else " ".join(words)


def cut(text: str, rng: Random) -> list[tuple[str, bool]]:
    """A text that a form prescribes, in pieces, whose tokens are other ones: under a form a model writes it in any."""
    places = sorted({0, len(text), *(rng.randrange(len(text)) for _ in range(rng.choice([0, 2, 8])))})
    return [(text[start:end], False) for start, end in pairwise(places)]


def _encoded(tokenizer: Any, parts: list[tuple[str, bool]], end: str) -> Row:
    ids: list[int] = []
    learnt: list[bool] = []
    for text, on in [*parts, (end, True)]:
        more = tokenizer(text, add_special_tokens=False).input_ids
        ids += more
        learnt += [on] * len(more)
    return ids, learnt
