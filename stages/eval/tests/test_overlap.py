"""Training data of every form is looked through, and what is found of a task is summed up with examples."""

import json
from pathlib import Path

from nemotron_data.formats.eval_tasks import write_tasks
from nemotron_data.formats.rl_rows import RLRow
from nemotron_data.held_out import Search, episode_of, items_of
from nemotron_data.synthetic.episodes import HELD_OUT, beginnings, demonstrations
from nemotron_shared.artifacts import Artifact, Source, Store
from nemotron_shared.artifacts.lineage import inputs
from nemotron_shared.artifacts.manifest import ArtifactType, Producer
from stages.eval.overlap import READERS, Seen, as_lines, summary_of, unknown_origin

PRODUCER = Producer("sft", "train", "0", "0", "", "", None, "", {})

AGENT = {"type": "responses_api_agents", "name": "my_agent"}


def test_text_prompts_parts_and_function_calls_are_searched(tmp_path: Path) -> None:
    call = {"type": "function_call", "name": "add", "arguments": "{}", "call_id": "1"}
    prompts = ["What is 2+2?", [{"role": "user", "content": "What is 3+3?"}, call],
               [{"role": "user", "content": [{"type": "input_text", "text": "What is 4+4?"}]}]]  # fmt: skip
    rows = [{"responses_create_params": {"input": prompt}, "agent_ref": AGENT} for prompt in prompts]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = list(READERS["SplitJsonlDataArtifact"](tmp_path))
    assert [text for text in texts if text.startswith("What")] == ["What is 2+2?", "What is 3+3?", "What is 4+4?"]
    assert any("add" in text for text in texts)


def test_both_answers_of_a_pair_are_searched(tmp_path: Path) -> None:
    turns = [
        [{"role": role, "content": said}] for role, said in (("user", "2+2?"), ("assistant", "4"), ("assistant", "5"))
    ]
    (tmp_path / "train.jsonl").write_text(json.dumps(dict(zip(("prompt", "chosen", "rejected"), turns, strict=True))))
    texts = list(READERS["SplitJsonlDataArtifact"](tmp_path))
    assert [text for text in texts if not text.startswith("row ")] == ["2+2?", "4", "5"]


def episodes(folder: Path, rows: list[dict], *trained: str) -> dict:
    """What is found of a task with these rows, without its examples."""
    (task,) = write_tasks(folder, {"played": ("episode", [episode_of(RLRow.of(row)) for row in rows])}).values()
    search, seen = Search(items_of(task)), Seen()
    for text in trained:
        seen.look(search, text, "data:v1")
    found = summary_of(task, search, seen)
    return {name: found[name] for name in ("of", "found", "exact", "asked") if name in found}


def row(question: str, **fields: int) -> dict:
    asked = {"input": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]}
    return {"responses_create_params": asked, **fields, "agent_ref": AGENT}


def test_an_episode_is_found_by_its_question(tmp_path: Path) -> None:
    rows = [row(f"Book train {number}.", seat=number) for number in range(4)]
    assert episodes(tmp_path, rows, "user: book train 2. assistant: 2") == {"of": 4, "found": 1, "exact": 1}
    assert episodes(tmp_path, rows, *RLRow.of(rows[3]).searched()) == {"of": 4, "found": 1, "exact": 1}
    assert episodes(tmp_path, rows, "Book train 12.", "row 2", "row 3") == {"of": 4, "found": 0, "exact": 0}


def test_episodes_that_share_a_question_are_found_by_their_other_fields(tmp_path: Path) -> None:
    rows = [row("Guess my number.", number=number) for number in range(4)]
    nothing = {"of": 4, "found": 0, "exact": 0, "asked": 0}
    assert episodes(tmp_path, rows, "Hello.") == nothing
    assert episodes(tmp_path, rows, "Guess my number. Is it 3?") == nothing | {"asked": 4}
    assert episodes(tmp_path, rows, *RLRow.of(row("Guess my number.", number=9)).searched()) == nothing | {"asked": 4}
    trained = row("Guess my number.", number=3)
    trained["responses_create_params"] = {"input": "Guess my number.", "tools": [{"name": "guess"}]}
    found = {"of": 4, "found": 1, "exact": 1, "asked": 4}
    assert episodes(tmp_path, rows, *RLRow.of(trained | {"agent_ref": None}).searched()) == found


def test_worlds_of_the_drawers_are_held_out_and_their_questions_are_not(tmp_path: Path) -> None:
    held_out = list(beginnings("drawers", 0, 100, HELD_OUT))
    chats = [turn["content"] for chat in demonstrations("drawers", 0, 1000) for turn in chat["messages"]]
    prompts = [text for row in beginnings("drawers", 0, 400) for text in RLRow.of(row).searched()]
    found = episodes(tmp_path, held_out, *chats, *prompts)
    assert (found["of"], found["found"]) == (100, 0)
    assert found["asked"] > 50


def test_a_model_from_outside_is_named(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))

    def publish(name: str, kind: ArtifactType, parents: list[Artifact], sources: list[Source]) -> Artifact:
        (tmp_path / "made").mkdir()
        (tmp_path / "made" / "file").write_text(name)
        as_parents = [parent.as_parent("data") for parent in parents]
        return store.publish(
            tmp_path / "made", name=name, type=kind, fingerprint=name, producer=PRODUCER, parents=as_parents,
            sources=sources,
        )  # fmt: skip

    data = publish("super3-sft-data", "SFTDataArtifact", [], [])
    alone = publish("super3-pretrain-model", "ModelArtifact", [], [])
    made = publish("super3-sft-model", "ModelArtifact", [data], [Source("/models/llama", "1"), Source("a.yaml", "2")])
    assert unknown_origin(inputs(store, alone), alone) == {"super3-pretrain-model:v1"}
    assert unknown_origin(inputs(store, made), made) == {"/models/llama"}


QUESTIONS = [{"question": f"How many birds sit on {n} poles of {n} wires each?", "expected": "1", "key": f"birds {n}"}
             for n in range(3)]  # fmt: skip
FACT = {"question": "Where does Mira live?", "stem": "Mira lives in", "choices": ["Oster", "Kelby"], "answer": 0,
        "key": "town of Mira"}  # fmt: skip
TEXT = {"text": "Mira lives in Oster. The pet of Tova is a goat."}


def test_what_is_found_is_summed_up_by_task(tmp_path: Path) -> None:
    tasks = write_tasks(
        tmp_path,
        {"birds": ("generate", QUESTIONS), "facts": ("choice", [FACT]), "prose": ("text", [TEXT])},
        recall={"facts"},
    )
    search, seen = Search([item for task in tasks.values() for item in items_of(task)]), Seen()
    seen.look(search, "how many birds sit on 1 poles of 1 wires each, he asked", "sft-data:v1")
    seen.look(search, "Then: how many birds sit on 1 poles of 1 wires each?", "rl-data:v1")
    seen.look(search, "Mira lives in Oster.", "pretrain-data:v1")
    known = {"checked_against": ["sft-data:v1", "rl-data:v1", "pretrain-data:v1"], "unknown": []}
    found = {name: known | summary_of(task, search, seen) for name, task in tasks.items()}
    birds = found["birds"]
    assert [birds[key] for key in ("of", "found", "exact", "run", "near", "comparable")] == [3, 1, 1, 0, 0, 3]
    assert [(one["id"], one["how"], one["in"]) for one in birds["examples"]] == [(1, "exact", "rl-data:v1")]
    assert (found["facts"]["found"], found["facts"]["stated"]) == (0, 1)
    assert (found["prose"]["found"], found["prose"]["sentences"]) == (0, {"of": 2, "found": 1})
    seen.look(search, "The pet of Tova is a goat.", "pretrain-data:v1")
    assert summary_of(tasks["prose"], search, seen)["exact"] == 1, "both of its sentences, though apart"
    lines = list(as_lines(found))
    assert lines[0] == "birds: 1 of 3 exact, 0 near"
    assert lines[1].startswith("  exact, row 1, in rl-data:v1: then: how many birds")
    assert lines[-1] == "prose: 0 of 1 exact, 0 near; 1 of 2 sentences"

    part = {"birds": found["birds"] | {"checked_against": ["sft-data:v1"], "unknown": ["/models/llama"]}}
    assert next(as_lines(part)) == (
        "birds: 1 of 3 exact, 0 near; "
        "checked against sft-data:v1 only: the other training data of /models/llama is unknown"
    )
    nothing = {"birds": found["birds"] | {"checked_against": [], "unknown": ["sft-model:v1"], "examples": []}}
    assert list(as_lines(nothing)) == ["birds: not checked: the training data of sft-model:v1 is unknown"]
