"""Every row that the RL stage accepts can be looked through for held-out questions."""

import json
from pathlib import Path

from stages.eval.overlap import READERS

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
