"""Rows in the forms of public data sets, and what a model must learn of them, worked out without any code of ours.

    forms = chat_forms(folder)      # files in the forms of UltraChat, SlimOrca, OpenHermes, Dolly, ...
    forms["slimorca"].path, forms["slimorca"].learnt      # rows.jsonl, Counter({"Paris.<|im_end|>\\n": 1, ...})

Fields and their order are those of the sets; all texts are made here. An answer is learnt with its thought, its calls
and the mark that ends it, as `TEMPLATE` writes them.
"""

import csv
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 20
TEMPLATE = (
    "{% for t in tools or [] %}<tool>{{ t | tojson }}</tool>{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
END = "<|im_end|>\n"
Row = dict[str, Any]


@dataclass
class Form:
    """A file, and what must come of it: texts that are learnt, and the number of rows that count."""

    path: Path
    learnt: Counter[str] = field(default_factory=Counter)
    kept: int = ROWS


def q(form: str, i: int, turn: int = 0) -> str:
    return f"{form} asks {i}.{turn}: what is {i}+{turn}?"


def a(form: str, i: int, turn: int = 0) -> str:
    return f"{form} answers {i}.{turn}: «{i + turn}»"


def openai_turns(form: str, i: int, **beside: Any) -> tuple[list[Row], list[str]]:
    """One to three questions with their answers."""
    turns, learnt = [], []
    for turn in range(1 + i % 3):
        turns += [
            {"role": "user", "content": q(form, i, turn)},
            {"role": "assistant", "content": a(form, i, turn), **beside},
        ]
        learnt.append(a(form, i, turn))
    return turns, learnt


def sharegpt(turns: list[Row], human: str = "human", gpt: str = "gpt") -> list[Row]:
    names = {"user": human, "assistant": gpt, "system": "system"}
    return [{"from": names[turn["role"]], "value": turn["content"]} for turn in turns]


TEXT = {"type": "string"}
PARAMETERS = {"type": "object", "properties": {"city": TEXT, "day": TEXT}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "Weather of a day.", "parameters": PARAMETERS}


def ultrachat(i: int) -> tuple[Row, list[str]]:
    turns, learnt = openai_turns("ultrachat", i)
    return {"prompt": turns[0]["content"], "prompt_id": f"{i:064x}", "messages": turns}, learnt


def slimorca(i: int) -> tuple[Row, list[str]]:
    first, second = (a("slimorca", i, turn) for turn in range(2))
    turns = [
        {"from": "system", "value": "You are an assistant.", "weight": None},
        {"from": "human", "value": q("slimorca", i), "weight": 0.0},
        {"from": "gpt", "value": first, "weight": 1.0 if i % 2 else 0.0},
        {"from": "human", "value": q("slimorca", i, 1), "weight": 0.0},
        {"from": "gpt", "value": second, "weight": 1.0},
    ]
    return {"conversations": turns}, [first, second] if i % 2 else [second]


def openhermes(i: int) -> tuple[Row, list[str]]:
    turns, learnt = openai_turns("openhermes", i)
    nothing = dict.fromkeys(("topic", "model_name", "views", "language", "idx", "hash", "system_prompt"))
    beside = {**nothing, "skip_prompt_formatting": bool(i % 2), "category": "orca", "source": "made"}
    return {**beside, "conversations": sharegpt(turns)}, learnt


def alpaca(i: int) -> tuple[Row, list[str]]:
    row = {"instruction": q("alpaca", i), "input": f"number {i}" if i % 2 else "", "output": a("alpaca", i)}
    return {**row, "text": f"### Instruction:\n{row['instruction']}\n### Response:\n{row['output']}"}, [row["output"]]


def dolly(i: int) -> tuple[Row, list[str]]:
    row = {"instruction": q("dolly", i), "context": "" if i % 2 else f"Context {i}.", "response": a("dolly", i)}
    return {**row, "category": "closed_qa"}, [row["response"]]


def openorca(i: int) -> tuple[Row, list[str]]:
    system = "" if i % 2 else "Think step by step."
    row = {"id": f"flan.{i}", "system_prompt": system, "question": q("openorca", i), "response": a("openorca", i)}
    return row, [row["response"]]


def tulu(i: int) -> tuple[Row, list[str]]:
    turns, learnt = openai_turns("tulu", i)
    return {"id": f"tulu_{i}", "messages": turns, "source": "made/tulu"}, learnt


def nemotron(i: int) -> tuple[Row, list[str]]:
    said, thought = a("nemotron", i), f"thought {i}"
    turns = [{"role": "system", "content": ""}, {"role": "user", "content": q("nemotron", i)},
             {"role": "assistant", "content": said, "reasoning_content": thought if i % 2 else ""}]  # fmt: skip
    row = {"uuid": f"{i:032x}", "license": "cc-by-4.0", "generator": "made", "version": "v1", "category": "chat",
           "reasoning": "on" if i % 2 else "off", "messages": turns, "metadata": json.dumps({"n": i})}  # fmt: skip
    return row, [f"<think>{thought}</think>{said}" if i % 2 else said]


def step35(i: int) -> tuple[Row, list[str]]:
    bad, good = a("step35 bad", i), a("step35", i, 1)
    common = {"meta": {}, "name": ""}
    turns = [
        {**common, "loss_mask": 1, "content": q("step35", i), "role": "user"},
        {**common, "loss_mask": 0, "content": bad, "role": "assistant"},
        {**common, "loss_mask": 1, "content": q("step35", i, 1), "role": "user"},
        {**common, "loss_mask": 1, "content": good, "role": "assistant", "reasoning_content": f"so {i}"},
    ]
    return {"conversations": turns}, [f"<think>so {i}</think>{good}"]


def agentrefine(i: int) -> tuple[Row, list[str]]:
    wrong, right = a("agentrefine wrong", i), a("agentrefine", i, 1)
    turns = [
        {"from": "human", "loss": None, "value": q("agentrefine", i)},
        {"from": "gpt", "loss": i % 4 == 0, "value": wrong},
        {"from": "human", "loss": None, "value": "Observation: error"},
        {"from": "gpt", "loss": True, "value": right},
    ]
    return {"id": str(i), "conversations": turns}, [wrong, right] if i % 4 == 0 else [right]


def llamafactory(i: int) -> tuple[Row, list[str]]:
    turns = [turn for k in range(2) for turn in ({"from": "human", "value": q("llamafactory", i, k)},
                                                 {"from": "gpt", "value": a("llamafactory", i, k)})]  # fmt: skip
    masks = ([1, 0, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1])[i % 3]
    learnt = [a("llamafactory", i, k) for k in range(2) if masks[2 * k + 1]]
    return {"conversations": turns, "loss_mask": masks, "system": "", "tools": ""}, learnt


MARKS_OF_TRAINERS: list[tuple[str, Any, Any]] = [
    ("trainable", False, True), ("step_loss_mask", 0, 1), ("training", False, True), ("train_on_turn", False, True),
    ("loss_scale", 0.0, 1.0), ("weight", 0, 1), ("loss_weight", 0, 1.0), ("masked", True, False), ("train", 0, 1),
]  # fmt: skip


def trainers(i: int) -> tuple[Row, list[str]]:
    name, no, yes = MARKS_OF_TRAINERS[i % len(MARKS_OF_TRAINERS)]
    bad, good = a("trainers bad", i), a("trainers", i, 1)
    asked = [{"role": "user", "content": q("trainers", i, turn)} for turn in range(2)]
    said = [{"role": "assistant", "content": bad, name: no}, {"role": "assistant", "content": good, name: yes}]
    return {"messages": [asked[0], said[0], asked[1], said[1]]}, [good]


def kto(i: int) -> tuple[Row, list[str]]:
    row = {"prompt": q("kto", i), "completion": a("kto", i), "label": i % 2 == 0}
    return row, [row["completion"]] if row["label"] else []


def finetuning_api(i: int) -> tuple[Row, list[str]]:
    call = {"name": "get_weather", "arguments": json.dumps({"city": f"City {i}"})}
    said = a("api", i)
    turns = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": q("api", i)},
             {"role": "assistant", "content": None, "function_call": call, "weight": i % 2},
             {"role": "function", "name": "get_weather", "content": "rain"},
             {"role": "assistant", "content": said, "weight": 1}]  # fmt: skip
    called = f'<tool_call>get_weather {{"city": "City {i}"}}</tool_call>'
    return {"messages": turns, "functions": [WEATHER]}, [called, said] if i % 2 else [said]


def hermes_calls(i: int) -> tuple[Row, list[str]]:
    call = f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "City {i}"}}}}\n</tool_call>'
    said = a("hermes", i)
    turns = [{"from": "system", "value": "You may call get_weather."}, {"from": "human", "value": q("hermes", i)},
             {"from": "gpt", "value": call}, {"from": "tool", "value": "<tool_response>\nrain\n</tool_response>"},
             {"from": "gpt", "value": said}]  # fmt: skip
    tools = json.dumps([{"type": "function", "function": WEATHER}])
    return {"id": str(i), "conversations": turns, "tools": tools, "category": "made", "task": "t"}, [call, said]


def apigen(i: int) -> tuple[Row, list[str]]:
    call, said = {"name": "get_weather", "arguments": {"city": f"City {i}", "day": "2"}}, a("apigen", i)
    turns = [{"from": "human", "value": q("apigen", i)}, {"from": "function_call", "value": json.dumps(call)},
             {"from": "observation", "value": json.dumps({"sky": "rain"})}, {"from": "gpt", "value": said}]  # fmt: skip
    called = f"<tool_call>get_weather {json.dumps(call['arguments'])}</tool_call>"
    return {"conversations": turns, "tools": json.dumps([WEATHER]), "system": "Help."}, [called, said]


def wildchat(i: int) -> tuple[Row, list[str]]:
    turns, learnt = openai_turns("wildchat", i, language="English", toxic=False, redacted=False)
    beside = {
        "conversation_hash": f"{i:032x}",
        "model": "made",
        "turn": len(turns) // 2,
        "toxic": False,
        "redacted": False,
    }
    return {**beside, "conversation": turns}, learnt


def gsm8k(i: int) -> tuple[Row, list[str]]:
    said = f"{i} and 1 are {i + 1}.\n#### {i + 1}"
    return {"question": q("gsm8k", i), "answer": said}, [said]


def write_lines(path: Path, rows: list[Row]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def write_list(path: Path, rows: list[Row]) -> None:
    path.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def write_csv(path: Path, rows: list[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)


def write_table(path: Path, rows: list[Row]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)


Writer = Callable[[Path, list[Row]], None]
CHATS: dict[str, tuple[Callable[[int], tuple[Row, list[str]]], Writer, str]] = {
    "ultrachat": (ultrachat, write_table, "parquet"),
    "slimorca": (slimorca, write_lines, "jsonl"),
    "openhermes": (openhermes, write_list, "json"),
    "alpaca": (alpaca, write_table, "parquet"),
    "dolly": (dolly, write_lines, "jsonl"),
    "openorca": (openorca, write_csv, "csv"),
    "tulu": (tulu, write_table, "parquet"),
    "nemotron": (nemotron, write_lines, "jsonl"),
    "step35": (step35, write_list, "json"),
    "agentrefine": (agentrefine, write_table, "parquet"),
    "llamafactory": (llamafactory, write_list, "json"),
    "trainers": (trainers, write_lines, "jsonl"),
    "kto": (kto, write_table, "parquet"),
    "finetuning_api": (finetuning_api, write_lines, "jsonl"),
    "hermes_calls": (hermes_calls, write_list, "json"),
    "apigen": (apigen, write_table, "parquet"),
    "wildchat": (wildchat, write_table, "parquet"),
    "gsm8k": (gsm8k, write_lines, "jsonl"),
}


def chat_forms(folder: Path) -> dict[str, Form]:
    """Twenty rows in each of twenty forms of chats."""
    forms = {}
    for name, (make, write, ending) in CHATS.items():
        made = [make(i) for i in range(ROWS)]
        forms[name] = Form(folder / f"{name}.{ending}", Counter(text + END for _, texts in made for text in texts))
        forms[name].kept = sum(bool(texts) for _, texts in made)
        write(forms[name].path, [row for row, _ in made])
    return forms | {"mixed_json": mixed_json(folder), "spark_maps": spark_maps(folder)}


def mixed_json(folder: Path) -> Form:
    """Contents that are text, digits, an object, a list or parts, as the `datasets` library writes such a column."""
    import datasets

    said = [a("mixed", i) if i % 5 else ("7", "1.50", "007", '{"a": [1, null]}')[i // 5] for i in range(ROWS)]
    contents = [[{"type": "text", "text": one}] if i % 5 == 2 else one for i, one in enumerate(said)]
    turns = [
        [{"role": "user", "content": q("mixed", i)}, {"role": "assistant", "content": one}]
        for i, one in enumerate(contents)
    ]
    part = {"role": datasets.Value("string"), "content": datasets.Json()}
    features = datasets.Features({"messages": datasets.List(part)})
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"messages": turns}, features=features).to_parquet(folder / "mixed.parquet")
    return Form(folder / "mixed.parquet", Counter(one + END for one in said))


def spark_maps(folder: Path) -> Form:
    """Arguments of calls in a map, as Spark writes objects whose keys differ from row to row."""
    text = pa.string()
    function = pa.struct([("name", text), ("arguments", pa.map_(text, text))])
    turn = pa.struct([("role", text), ("content", text), ("tool_calls", pa.list_(pa.struct([("function", function)])))])
    arguments = [{"city": f"City {i}"} | ({"day": str(i)} if i % 2 else {}) for i in range(ROWS)]
    rows = [
        [{"role": "user", "content": q("spark", i)},
         {"role": "assistant", "tool_calls": [{"function": {"name": "get_weather", "arguments": list(one.items())}}]}]
        for i, one in enumerate(arguments)
    ]  # fmt: skip
    tools = [json.dumps([{"type": "function", "function": WEATHER}])] * ROWS
    pq.write_table(pa.table({"messages": pa.array(rows, pa.list_(turn)), "tools": tools}), folder / "spark.parquet")
    learnt = (f"<tool_call>get_weather {json.dumps(one)}</tool_call>{END}" for one in arguments)
    return Form(folder / "spark.parquet", Counter(learnt))


def problem_forms(folder: Path) -> dict[Path, list[tuple[str, str]]]:
    """Questions with answers as (question, answer), in three forms; the fourth has images, which no text shows."""
    numina = [(q("numina", i), f"{i + 1}") for i in range(ROWS)]
    write_table(folder / "numina.parquet", [{"source": "made", "problem": asked, "solution": "So.", "answer": answer,
                                             "is_valid": None} for asked, answer in numina])  # fmt: skip
    scaler = [(q("scaler", i), (f"\\frac{{1}}{{{i + 2}}}", f"{i}.50")[i % 2]) for i in range(ROWS)]
    write_list(
        folder / "scaler.json", [{"problem": asked, "answer": answer, "solution": ""} for asked, answer in scaler]
    )
    mixed = [(q("numbers", i), ("1.50", "007", "4", "x+1")[i % 4]) for i in range(ROWS)]
    texts = [json.dumps(answer) if answer == "x+1" else answer for _, answer in mixed]
    columns = {"problem": [asked for asked, _ in mixed], "answer": pa.array(texts, pa.json_())}
    pq.write_table(pa.table(columns), folder / "numbers.parquet")
    return {folder / "numina.parquet": numina, folder / "scaler.json": scaler, folder / "numbers.parquet": mixed}


def pair_forms(folder: Path) -> dict[Path, list[tuple[list[Row], str, str]]]:
    """Pairs of answers as (prompt, better, worse), in two forms."""
    asked = [[{"role": "user", "content": q("pairs", i)}] for i in range(2 * ROWS)]
    better, worse = ([a(name, i) for i in range(2 * ROWS)] for name in ("better", "worse"))
    scores = {"score_chosen": 8.5, "score_rejected": 3.0}
    sides = ("chosen", better), ("rejected", worse)
    feedback = [
        {"prompt": asked[i][0]["content"], "prompt_id": str(i), **scores}
        | {name: [*asked[i], {"role": "assistant", "content": said[i]}] for name, said in sides}
        for i in range(ROWS)
    ]
    write_table(folder / "ultrafeedback.parquet", feedback)
    ranked = [
        {"context": asked[i], "completions": [
            {"rank": rank, "completion": [{"role": "assistant", "content": said[i]}]}
            for rank, said in ((1, worse), (0, better))
        ]} for i in range(ROWS, 2 * ROWS)
    ]  # fmt: skip
    write_lines(folder / "ranked.jsonl", ranked)
    pairs = list(zip(asked, better, worse, strict=True))
    return {folder / "ultrafeedback.parquet": pairs[:ROWS], folder / "ranked.jsonl": pairs[ROWS:]}
