"""Chat templates without marks give transformers' text and the masks of templates that are marked by hand."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from public_styles import STYLES
from template_conversations import conversation
from template_matrix import CONVERSATIONS, PAGE, Outcome, Twin, compare, page, styles_matrix, transformers_spans

from nemotron_data.chat.rows import validate_messages
from nemotron_data.chat.spans import Span
from nemotron_data.chat.template import ChatTemplate


def check(matrix: dict[str, Outcome]) -> None:
    """Nothing differs, and at most 2 % is refused."""
    different = {name: outcome.examples[:3] for name, outcome in matrix.items() if outcome.different}
    assert not different
    refused, tried = (sum(getattr(outcome, what) for outcome in matrix.values()) for what in ("refused", "tried"))
    refusals = {name: outcome.examples[:3] for name, outcome in matrix.items() if outcome.refused}
    assert refused <= 0.02 * tried, refusals
    assert all(outcome.same for outcome in matrix.values()), "a template that is never tried"


def test_the_conversations_are_those_that_data_preparation_takes() -> None:
    made = [conversation(seed) for seed in range(CONVERSATIONS)]
    assert not [reason for messages, _ in made if (reason := validate_messages(messages))]
    messages = [message for conversation, _ in made for message in conversation]
    assert sum("tool_calls" in message for message in messages) > 50
    assert sum("reasoning_content" in message for message in messages) > 50
    assert any(message["content"] == "" for message in messages if message["role"] == "user")
    assert all(ChatTemplate(style.marked).has_generation_marks for style in STYLES.values())
    assert not any(ChatTemplate(style.unmarked).has_generation_marks for style in STYLES.values())


def test_a_few_conversations_with_each_style() -> None:
    assert len(STYLES) >= 60
    check(styles_matrix(10))


@pytest.mark.slow
def test_the_whole_matrix_and_its_page() -> None:
    matrix = styles_matrix(CONVERSATIONS)
    text = page(matrix)
    print(text)
    check(matrix)
    assert all(outcome.unfit == 0 for outcome in matrix.values())
    assert PAGE.read_text(encoding="utf-8") == text, "run: python shared/data/tests/template_matrix.py"


# TRL's twins count as generated what these templates' prompts end with.
HEADERS = {
    "deepseek_r1_distill": ["<｜Assistant｜>", "<｜tool▁outputs▁end｜>"],
    "deepseekv3": ["<｜Assistant｜>", "<｜tool▁outputs▁end｜>"],
    "gptoss": ["<|start|>assistant"],
    "muse_glimmer": ["<|start|>assistant"],
    "qwen2_5": ["\n"],
}
# Here the twin leaves out the mark with which the model hands over to a tool, at the end of a conversation.
HAND_OVERS = {"diffusion_gemma": "<|tool_response>"}
# The next turn's beginning counts in this twin, since nothing else ends an answer; the original does not end with it.
OTHER_TEXT = {"glm4moe"}
# These want contents to be lists of parts, not text.
PICTURES = {"idefics3", "llava_next", "smolvlm"}


def published() -> dict[str, Path]:
    """The public templates that TRL carries and that have no marks of their own."""
    spec = find_spec("trl")
    if spec is None or not spec.submodule_search_locations:
        return {}
    files = sorted((Path(spec.submodule_search_locations[0]) / "chat_templates").glob("*.jinja"))
    unmarked = {path.stem: path for path in files if "endgeneration" not in path.read_text(encoding="utf-8")}
    return {name: path for name, path in unmarked.items() if name not in PICTURES}


def adjusted(marked: str, headers: list[str], hand_over: str) -> Twin:
    """A twin's spans, each without the header that it begins with, and with the mark that the text ends with."""
    spans_of = transformers_spans(marked)

    def twin(messages: list[dict], tools: Any) -> tuple[str, list[Span]]:
        try:
            text, found = spans_of(messages, tools)
        except Exception:
            return "", []  # it takes less than the original
        known = [next((len(header) for header in headers if text.startswith(header, start)), 0) for start, _ in found]
        spans = [(start + header, end) for header, (start, end) in zip(known, found, strict=True)]
        at_end = bool(hand_over) and text.endswith(hand_over)
        return text, [*spans, (len(text) - len(hand_over), len(text))] if at_end else spans

    return twin


def published_matrix(files: dict[str, Path], count: int) -> dict[str, Outcome]:
    """Against TRL's twins; a mask that differs by a header alone is the same."""
    matrix = {}
    for name, path in files.items():
        marked = path.with_stem(f"{name}_training")
        twin = None
        if marked.exists() and name not in OTHER_TEXT:
            source = marked.read_text(encoding="utf-8")
            twin = adjusted(source, HEADERS.get(name, []), HAND_OVERS.get(name, ""))
        matrix[name] = compare(path.read_text(encoding="utf-8"), twin, count, twin_may_differ=True)
    return matrix


@pytest.mark.skipif(not published(), reason="needs trl")
@pytest.mark.slow
def test_the_published_templates_and_their_twins() -> None:
    matrix = published_matrix(published(), CONVERSATIONS)
    for name, outcome in matrix.items():
        print(f"{name:24} {outcome.same} same, {outcome.refused} refused, {outcome.different} different")
    assert len(matrix) >= 30
    check(matrix)


@pytest.mark.skipif(not published(), reason="needs trl")
def test_a_few_conversations_with_published_templates() -> None:
    names = ["nemotron_3_super", "nemotron_3_nano", "nemotron_3_ultra", "qwen3", "phi3_5", "gptoss", "llama3_1"]
    matrix = published_matrix({name: published()[name] for name in names}, 30)
    check(matrix)
    assert not any(outcome.refused for outcome in matrix.values())
