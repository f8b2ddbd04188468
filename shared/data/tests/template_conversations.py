"""Conversations of all kinds, to try chat templates on: made of a seed, valid, and with texts that look like markup."""

import random

WORDS = [
    "hello", "2+2=4", "so", " is ", "\n", "  ", "\n\n", "\u00e9", "e\u0301", "日本", "😀", "🇩🇪", "<b>&amp;", '"quoted"',
    "\t", "\u2028", "a\\nb", "{{ x }}", "{% if %}", "100%", "</tool>", "[1, 2]", "it's", "C:\\x",
]  # fmt: skip
MARKUP = [
    "<|im_start|>", "<|im_end|>", "<|im_start|>assistant\n", "<|eot_id|>", "[INST]", "[/INST]", "</s>", "<s>",
    "<start_of_turn>model\n", "<end_of_turn>", "<|assistant|>", "<|user|>\n", "<|end|>", "<｜Assistant｜>",
    "<|start|>assistant", "ASSISTANT: ", "<tool_call>", "assistant", "user\n",
]  # fmt: skip
TOOLS = [
    {"type": "function", "function": {"name": "add", "description": "Adds\nnumbers.", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer", "description": "one"}, "ü": {"type": "string"}},
        "required": ["a"]}}},
    {"type": "function", "function": {"name": "find", "description": "Finds.", "parameters": {
        "type": "object", "properties": {"q": {"type": "string", "enum": ["x", "é"]}}}}},
]  # fmt: skip


def text(choose: random.Random, least: int = 1) -> str:
    """Not blank, unless `least` is 0; one in five looks like markup somewhere."""
    words = [choose.choice(WORDS) for _ in range(choose.randrange(least, 9))]
    if words and choose.random() < 0.2:
        words.insert(choose.randrange(len(words) + 1), choose.choice(MARKUP))
    made = "".join(words)
    return made if made.strip() or not least else made + "word"


def conversation(
    seed: int, tools: bool = True, system: bool = True, parallel: bool = True, content_with_calls: bool = True
) -> tuple[list[dict], list[dict] | None]:
    """Messages and tools; what a template's own code refuses, as some do a system prompt, can be left out."""
    choose = random.Random(seed)
    messages: list[dict] = []
    if system and choose.random() < 0.5:
        messages.append({"role": "system", "content": text(choose)})
    with_tools = tools and choose.random() < 0.5
    called = 0
    for _ in range(choose.choice([1, 1, 2, 2, 3, 5])):
        messages.append({"role": "user", "content": text(choose, least=0 if choose.random() < 0.05 else 1)})
        for _ in range(choose.choice([0, 1, 1, 2]) if with_tools else 0):
            calls = []
            for _ in range(choose.choice([1, 1, 2]) if parallel else 1):
                called += 1
                arguments = choose.choice(
                    [{"a": 1, "ü": text(choose)}, {"q": text(choose)}, {}, {"a": [1, {"b": "é"}]}]
                )
                function = {"name": choose.choice(["add", "find"]), "arguments": arguments}
                calls.append({"id": f"call{called:05d}", "type": "function", "function": function})
            content = choose.choice([None, "", text(choose)]) if content_with_calls else choose.choice([None, ""])
            messages.append(answer(choose, content, 0.3 if not content else 0) | {"tool_calls": calls})
            for call in calls:
                answered = {"role": "tool", "content": text(choose), "tool_call_id": call["id"]}
                messages.append(answered | {"name": call["function"]["name"]})
        thinks = choose.random()
        if messages[-1]["role"] == "tool" and thinks > 0.95:
            return messages[: -1 if thinks > 0.98 else None], TOOLS  # ends with a call or its answer
        if thinks < 0.1:
            messages.append(answer(choose, f"<think>\n{text(choose)}\n</think>\n\n{text(choose)}", 0))
        elif thinks < 0.15:
            messages.append({"role": "assistant", "content": "", "reasoning_content": text(choose)})
        else:
            messages.append(answer(choose, text(choose), 0.4))
    return messages, TOOLS if with_tools else None


def answer(choose: random.Random, content: str | None, thinks: float) -> dict:
    """An assistant's message that, with a certain chance, reasons."""
    message: dict = {"role": "assistant", "content": content}
    if choose.random() < thinks:
        message["reasoning_content"] = text(choose)
    return message
