"""From rows to NeMo-Gym prompts."""

from pathlib import Path

import pytest

from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import resolve
from nemotron_shared.errors import UserError
from stages.rl.data_prep import prompt_of, question_of
from stages.rl.schema import RLConfig, RLData

CONFIG = Path(__file__).parent.parent / "config"


def settings(*overrides: str) -> RLData:
    values = resolve(compose(CONFIG, "tiny", overrides).tree, lambda role, field: None)
    return RLConfig.model_validate(values).data_prep


def test_a_row_becomes_a_prompt_with_an_agent() -> None:
    row = {"question": "2+2?", "expected_answer": 4, "key": "2+2"}
    assert prompt_of(row, settings("data_prep.system_prompt='Be brief.'")) == {
        "responses_create_params": {
            "input": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
        },
        "question": "2+2?",
        "expected_answer": "4",
        "agent_ref": {"type": "responses_api_agents", "name": "math_with_judge_simple_agent"},
    }


def test_an_answer_can_be_taken_from_a_longer_text() -> None:
    row = {"question": "2+2?", "expected_answer": "2 + 2 = 4\n#### 4 "}
    assert prompt_of(row, settings("data_prep.answer_pattern='#### (.+)'"))["expected_answer"] == "4"


def test_a_finished_prompt_passes_unchanged() -> None:
    row = {
        "responses_create_params": {"input": [{"role": "user", "content": "2+2?"}], "temperature": 0.5},
        "agent_ref": {"type": "responses_api_agents", "name": "mcqa_simple_agent"},
        "options": [{"A": "4"}],
        "expected_answer": "A",
    }
    assert prompt_of(row, settings()) == row
    assert question_of(row) == "2+2?"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"expected_answer": "4"}, "no field 'question'"),
        ({"question": "2+2?", "expected_answer": None}, "no field 'expected_answer'"),
        ({"question": ["2+2?"], "expected_answer": "4"}, "is not text"),
        ({"responses_create_params": {"input": []}}, "no user turn"),
    ],
)
def test_a_bad_row_says_why(row: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        prompt_of(row, settings())
