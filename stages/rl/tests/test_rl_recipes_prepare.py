"""The data of each recipe is prepared from the hub: blends, rows that point elsewhere, rows held out."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_stand_in import Hub, serving
from lanes import slow

ROOT = Path(__file__).parents[3]
SUPER, NANO = "nvidia/Nemotron-RL-Super-Training-Blends", "nvidia/Nemotron-3-Nano-RL-Training-Blend"
LIGHTNING = "nvidia/Nemotron-RL-Lightning-Training-Blend"
DAPO, SKYWORK = "BytedTsinghua-SIA/DAPO-Math-17k", "Skywork/Skywork-OR1-RL-Data"
ROWS = 1200
AGENT = {"type": "responses_api_agents", "name": "math_with_judge_simple_agent"}
PARTS = ("rlvr1", "rlvr2", "rlvr3", "swe1", "swe2", "rlhf")
# recipe: file of the blend that it reads, all of them for `super3`; rows held out
RECIPES = {
    "super3": (PARTS, 100), "super3_rlvr": (("rlvr1",), 100), "super3_swe1": (("swe1",), 100),
    "super3_swe2": (("swe2",), 100), "super3_rlhf": (("rlhf",), 100), "nano3": (("train",), 1000),
    "lightning35": (("rlvr",), 1000),
}  # fmt: skip


def row(number: int, part: str) -> dict[str, Any]:
    """Every third row points into DAPO, every fifth of the rest into Skywork, the others are whole."""
    if part == "rlvr" and (number % 3 == 0 or number % 5 == 0):
        dapo, text = (
            number % 3 == 0,
            {"mode": "canonical", "lead": f"{part} {number}{': ' if number % 3 == 0 else ' '}"},
        )
        where = {"dataset": DAPO, "split": "train"} if dapo else {"dataset": SKYWORK, "split": "math"}
        marker = {**where, "row": number % (7 if dapo else 4), **text}
        return {"dataset": "rlvr", "agent_ref": AGENT, "_hf_question_placeholder": marker}
    family = "nano_v3_sft_profiled" if part == "train" else "super_v3_lcsft_step1000"
    if number % 3 == 0:
        marker = {"row": number % 7, "question_template": {"prefix": f"{part} {number}: ", "suffix": ""}}
        return {"dataset": f"{family}_dapo17k", "agent_ref": AGENT, "_hf_placeholder": marker}
    if number % 5 == 0:
        marker = {"row": number % 4, "question_template": f"{part} {number} {{question}}"}
        name = f"{family}_skywork_no_omni" if part == "train" else f"{family}_skyworks"
        return {"dataset": name, "agent_ref": AGENT, "_hf_placeholder": marker}
    text = f"{part} {number}?"
    return {
        "dataset": "own", "agent_ref": AGENT, "question": text, "expected_answer": str(number),
        "responses_create_params": {"input": [{"role": "user", "content": text}]},
    }  # fmt: skip


def parquet(name: str, rows: int) -> bytes:
    table = pa.Table.from_pylist(
        [
            {"prompt": [{"role": "user", "content": f"Solve.\n\n{name} {n}\n\nThink."}],
             "reward_model": {"ground_truth": f'["{n}"]'}}
            for n in range(rows)
        ]
    )  # fmt: skip
    with io.BytesIO() as file:
        pq.write_table(table, file)
        return file.getvalue()


@pytest.fixture(scope="module")
def hub() -> Any:
    def lines(part: str) -> bytes:
        return b"".join(json.dumps(row(number, part)).encode() + b"\n" for number in range(ROWS))

    repositories = {
        SUPER: {f"{part}.jsonl": lines(part) for part in PARTS},
        NANO: {"train.jsonl": lines("train")},
        LIGHTNING: {"rlvr.jsonl": lines("rlvr")},
        DAPO: {"data/train-00000-of-00001.parquet": parquet("dapo", 7)},
        SKYWORK: {
            "README.md": b"---\nconfigs:\n- config_name: default\n  data_files:\n"
            b"  - {split: math, path: data/math-*}\n  - {split: code, path: data/code-*}\n---\n",
            "data/math-00000-of-00001.parquet": parquet("skywork", 4),
            "data/code-00000-of-00001.parquet": parquet("code", 4),
        },
    }
    with serving(Hub(repositories)) as served:
        yield served


@pytest.mark.parametrize("recipe", ["super3_swe1", *slow(*(name for name in RECIPES if name != "super3_swe1"))])
def test_a_recipe_prepares_its_blend_of_the_hub(hub: Hub, recipe: str, tmp_path: Path) -> None:
    parts, held_out = RECIPES[recipe]
    words = [sys.executable, "-m", "stages.rl.data_prep", "-c", recipe, f"run.home={tmp_path / 'home'}", "--json"]
    done = subprocess.run(
        words, cwd=ROOT, env=hub.environment(tmp_path / "cache"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    made = Path(json.loads(done.stdout.splitlines()[-1])["path"])
    train, valid = (
        [json.loads(line) for line in (made / f"{name}.jsonl").read_text().splitlines()] for name in ("train", "val")
    )
    total = ROWS * len(parts)
    assert (len(train), len(valid)) == (total - held_out, held_out)
    rows = [row(number, part) for part in parts for number in range(ROWS)]
    resolved = sum("_hf_placeholder" in one or "_hf_question_placeholder" in one for one in rows)
    assert json.loads((made / "stats.json").read_text())["counts"]["placeholders resolved"] == resolved
    prompts = [one["responses_create_params"]["input"][0]["content"] for one in [*train, *valid]]
    for part in parts:
        for number, (said, answer) in {1: (f"{part} 1?", "1"), 3: (f"{part} 3: dapo 3", "3")}.items():
            index = prompts.index(said)
            assert [*train, *valid][index]["expected_answer"] == answer, number
        assert f"{part} 5 Solve.\n\nskywork 1\n\nThink." in prompts
    assert prompts[-1].startswith(sorted(parts)[-1] + f" {ROWS - 1}")  # the last rows of the input validate


def test_more_rows_held_out_than_there_are_is_refused(hub: Hub, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "stages.rl.data_prep", "-c", "nano3", f"run.home={tmp_path / 'home'}"]
    done = subprocess.run(
        [*words, "data_prep.sample=500"], cwd=ROOT, env=hub.environment(tmp_path / "cache"), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "data_prep.holdout.rows=1000 leaves none of the 500 rows to train on" in done.stderr
