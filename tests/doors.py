"""One conversation through every door to a model: the ids that fine-tuning, RL, evaluation, chat, generate and serve
make of it have to be the same.

Rows are made of a seed: turns and texts as in `template_conversations`, and arguments and contents of calls in every
form that files have them in.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
from door_templates import TEMPLATES
from template_conversations import conversation
from tokenizers import Tokenizer

from nemotron_data.chat.prompt import Prompt, Prompter
from nemotron_data.chat.template import ChatTemplate
from nemotron_data.encoders.masks import ControlTokens, mask_by_offsets
from nemotron_data.sources.reading import Row, json_row
from nemotron_data.tokenizers.tiny import CHAT_TEMPLATE, build_tokenizer
from nemotron_serving.api import Api
from nemotron_serving.batch import Full
from nemotron_serving.chat import Talk
from nemotron_serving.generate import _row
from nemotron_serving.model import Model
from nemotron_serving.server import Refusal
from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import resolve
from nemotron_shared.system.errors import UserError
from stages.rl.engines.trl.prompts import read_prompts
from stages.sft.encode import Renderer
from stages.sft.schema import SFTConfig, SFTData

STAGE = Path(__file__).parents[1] / "stages" / "sft" / "config"
CONTEXT = 1 << 16
ENDS: tuple[dict[str, str], ...] = (
    {"content": "Zanswerz"},
    {"content": "Zanswerz", "reasoning_content": "Zreasonz"},
)
"""An answer for fine-tuning: behind some prompts only one that thinks, or does not, is what was asked for."""
WAYS = ("object", "text", "compact", "escaped", "digits", "empty", "null", "none")


def row(seed: int) -> dict[str, Any]:
    """A conversation that ends with a question or a tool's answer, and its tools."""
    choose = random.Random(seed)
    messages, tools = conversation(seed)
    while messages[-1]["role"] not in ("user", "tool"):
        messages = messages[:-1]
    asked = [message for message in messages if message["role"] == "user"]
    if not any(message["content"].strip() for message in asked):
        asked[0]["content"] = "Hm?"  # no row of RL asks nothing
    for message in messages:
        for call in message.get("tool_calls", ()):
            _write_arguments(call["function"], choose)
        if message.get("tool_calls") and not message["content"] and choose.random() < 0.3:
            message.pop("content")
    if tools:
        tools = [_shuffled(tool, choose) for tool in tools]
    return {"messages": messages} | ({"tools": tools} if tools else {})


def _write_arguments(function: dict[str, Any], choose: random.Random) -> None:
    way, values = choose.choice(WAYS), function["arguments"]
    if way == "none":
        del function["arguments"]
        return
    function["arguments"] = {
        "object": values,
        "text": json.dumps(values, ensure_ascii=False),
        "compact": json.dumps(values, ensure_ascii=False, separators=(",", ":")),
        "escaped": json.dumps(values),
        "digits": '{"sum": 1.50, "all": [1e3, 2E-2, -0.0], "n": 12345678901234567890}',
        "empty": "",
        "null": None,
    }[way]


def _shuffled(tool: dict[str, Any], choose: random.Random) -> dict[str, Any]:
    """Its keys in another order, perhaps without what may be missing."""
    function = list(tool["function"].items())
    choose.shuffle(function)
    kept = {key: value for key, value in function if key == "name" or choose.random() < 0.8}
    return {"type": "function", "function": kept} if choose.random() < 0.5 else {"function": kept, "type": "function"}


def items_of(messages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The same conversation as the Responses API, and so a row of RL, has it."""
    for message in messages:
        if message["role"] == "tool":
            yield {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
            continue
        if message.get("reasoning_content"):
            yield {"type": "reasoning", "summary": [{"type": "summary_text", "text": message["reasoning_content"]}]}
        if message.get("content") is not None:
            yield {"role": message["role"], "content": message["content"]}
        for call in message.get("tool_calls", ()):
            function = call["function"]
            yield {"type": "function_call", "call_id": call["id"], "name": function["name"]} | (
                {"arguments": function["arguments"]} if "arguments" in function else {}
            )


class Encoded:
    """The tokenizer as transformers would give it, without importing that."""

    chat_template = CHAT_TEMPLATE
    bos_token, eos_token, pad_token, unk_token = "<s>", "<|im_end|>", "<pad>", "<unk>"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.added_tokens_decoder = tokenizer.get_added_tokens_decoder()
        self.all_special_ids = [number for number, token in self.added_tokens_decoder.items() if token.special]

    def __call__(self, text: str, add_special_tokens: bool) -> SimpleNamespace:
        return SimpleNamespace(input_ids=self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    def get_vocab(self) -> dict[str, int]:
        return self._tokenizer.get_vocab()

    def convert_ids_to_tokens(self, number: int) -> str | None:
        return self._tokenizer.id_to_token(number)

    def decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids)


class Once(Encoded):
    """A tokenizer that encodes equal texts once: what is compared are the texts and how they are cut."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self._ids = lru_cache(1 << 12)(lambda text: tokenizer.encode(text, add_special_tokens=False).ids)

    def __call__(self, text: str, add_special_tokens: bool) -> SimpleNamespace:
        assert not add_special_tokens
        return SimpleNamespace(input_ids=list(self._ids(text)))


class Doors:
    """Every way to a model that has this template."""

    def __init__(self, source: str) -> None:
        self.tokenizer = build_tokenizer()
        encoded = Once(self.tokenizer)
        encoded.chat_template = source
        self.prompter, self.asked = Prompter(encoded, CONTEXT), list[list[int]]()
        self.counts: Counter[str] = Counter()
        names = {role: getattr(encoded, role) for role in ("bos_token", "eos_token", "pad_token", "unk_token")}
        self._renderer = Renderer(settings(), ChatTemplate(source, **names), ControlTokens.of(self.tokenizer))

        def begin(ids: list[int], *_: Any) -> str:
            self.asked.append(ids)
            raise Full("seen")

        self._model: Any = SimpleNamespace(
            tokenizer=encoded, prompter=self.prompter, context=CONTEXT, chats=True,
            batch=SimpleNamespace(generate=begin, score=begin),
        )  # fmt: skip
        self._model.room = lambda *words: Model.room(self._model, *words)
        self._api = Api(self._model, ("m",), 16)
        self._endpoint = Api(self._model, ("m",), 16, whole_answers=True)

    def sft(self, line: str, prompt: Prompt) -> list[list[int]]:
        """What stands before each of the answers `ENDS`, where that is what the model is prompted with."""
        found = []
        for end in ENDS:
            value = json.loads(line)
            value["messages"].append({"role": "assistant", **end})
            read = json_row("rows.jsonl", 1, json.dumps(value).encode())
            assert isinstance(read, Row)
            given = self._renderer.guarded(self._renderer.read(read))
            text, spans, cuts = self._renderer.texts_of(given)[-1]
            ids, _ = mask_by_offsets(self.tokenizer, text, spans, cuts)
            if text.startswith(prompt.text):
                found.append(ids[: len(prompt.ids)])
        return found

    def rl(self, lines: list[str], folder: Path) -> list[list[int]]:
        """By a prepared file, as TRL's trainer is given it."""
        grpo: Any = SimpleNamespace(temperature=1.0, top_p=1.0, max_new_tokens=20)
        file = folder / "rows.jsonl"
        with file.open("w") as written:
            for value in map(json.loads, lines):
                asked = {"input": list(items_of(value["messages"])), "tools": value.get("tools")}
                made = {"responses_create_params": asked, "expected_answer": "x", "agent_ref": {"name": "a"}}
                written.write(json.dumps(made) + "\n")
        rows, prompts = read_prompts(file, self.prompter, grpo, SimpleNamespace(say=print))
        return [prompts[name].ids for name in rows["prompt"]]

    def evaluation(self, line: str) -> list[int] | None:
        """By the server that NeMo Evaluator asks."""
        return self._requested(self._endpoint, line)

    def chat(self, line: str) -> list[int] | None:
        """In a terminal, which knows no tools."""
        value = json.loads(line)
        if "tools" in value or any(message["role"] == "tool" for message in value["messages"]):
            return None
        talk = Talk(self._model, None, "hide", None, turns=value["messages"])  # ty: ignore[invalid-argument-type]
        return talk._prompt().ids

    def generate(self, line: str) -> Prompt:
        """Of a line of a file."""
        read = _row("rows.jsonl:1", 1, line, True, False, None)
        assert read.messages is not None
        return self.prompter.chat(read.messages, read.tools)

    def serve(self, line: str) -> list[int] | None:
        """By a request."""
        return self._requested(self._api, line)

    def _requested(self, api: Api, line: str) -> list[int] | None:
        """None where it is refused because the template would not show all of it."""
        try:
            return self._asked(lambda: asyncio.run(api.chat(None, orjson.loads(line))))  # ty: ignore[invalid-argument-type]
        except Refusal as refusal:
            assert "the chat template shows no" in json.dumps(refusal.content)
            return None

    def _asked(self, ask: Any) -> list[int]:
        before = len(self.asked)
        with suppress(Full):
            ask()
        (ids,) = self.asked[before:]
        return ids

    def differing(self, seeds: Iterable[int], folder: Path) -> list[str]:
        """The doors whose ids are not those of `generate`, with the seeds of these rows."""
        expected: dict[int, Prompt] = {}
        lines = {seed: json.dumps(row(seed), ensure_ascii=False) for seed in seeds}
        found: list[str] = []
        for seed, line in lines.items():
            try:
                expected[seed] = self.generate(line)
            except UserError:
                self.counts["refused"] += 1
                found += [f"{seed}: {name} takes it" for name in self._that_take_it(line)]
        of_rl = dict(zip(expected, self.rl([lines[seed] for seed in expected], folder), strict=True))
        for seed, prompt in expected.items():
            ways: dict[str, list[list[int] | None]] = {
                "sft": list(self.sft(lines[seed], prompt)),
                "rl": [of_rl[seed]],
                "evaluation": [self.evaluation(lines[seed])],
                "chat": [self.chat(lines[seed])],
                "serve": [self.serve(lines[seed])],
            }
            seen = [(name, ids) for name, several in ways.items() for ids in several if ids is not None]
            self.counts.update({name for name, _ in seen})
            found += [f"{seed}: {name}" for name, ids in seen if ids != prompt.ids]
        return found

    def _that_take_it(self, line: str) -> list[str]:
        """What one door refuses, each has to refuse."""
        taken = []
        for name in ("evaluation", "serve"):
            try:
                getattr(self, name)(line)
                taken.append(name)
            except (UserError, Refusal):
                pass
        return taken


@cache
def settings() -> SFTData:
    """Of fine-tuning, one sequence for a conversation."""
    tree = compose(STAGE, "tiny", ["data_prep.split_turns=never"]).tree
    return SFTConfig.model_validate(resolve(tree, lambda role, field: None)).data_prep


def through_all(rows: int, folder: Path, names: list[str] | None = None) -> tuple[dict[str, list[str]], Counter[str]]:
    """Conversations through every door of every template: what differs, and how often each door was used."""
    differing: dict[str, list[str]] = {}
    used: Counter[str] = Counter()
    for name in names or list(TEMPLATES):
        doors = Doors(TEMPLATES[name])
        if found := doors.differing(range(rows), folder):
            differing[name] = found
        used += doors.counts
        used["conversations"] += rows
    return differing, used
