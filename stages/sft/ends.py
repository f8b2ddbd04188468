"""What ends an answer travels from the data into the model that learns from it."""

from nemotron_data.chat.shown import learnt_end
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.models.folder import end_answers_at
from nemotron_shared.system import distributed
from stages.sft.schema import SFTConfig

TURN_END = "turn_end"
"""In the data's metadata: {"id": 5, "token": "<|im_end|>"}, or null where answers are closed by nothing."""


def end_answers(task: Task[SFTConfig], outcome: Outcome, end: int | None) -> None:
    """Have the token that closed the answers end those of the published model."""

    def note() -> None:
        for folder in (outcome.directory, *(task.run.directory / other for other in ("best", "last"))):
            if end is not None and (folder / "config.json").is_file():
                end_answers_at(folder, end)

    distributed.on_rank_zero(note)


def end_of_answers(task: Task[SFTConfig]) -> int | None:
    """As the data say; where an engine reads chats itself, what the template of its tokenizer closes answers with."""
    data, model = task.inputs["data"], task.inputs["model"]
    if data is not None and TURN_END in data.manifest.metadata:
        noted = data.manifest.metadata[TURN_END]
        return None if noted is None else noted["id"]
    folder = data.path / "tokenizer" if data is not None else model.path if model is not None else None
    if folder is None:
        return None
    tokenizer = TokenizerFolder(folder)
    template = tokenizer.own_template()
    end = None if template is None else learnt_end(template, f"the chat template of {folder}", tokenizer)
    return None if end is None else end.id
