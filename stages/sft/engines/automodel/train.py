"""Fine-tune with NeMo Automodel: LoRA adapters or all weights, on our packed rows or on chats as they are."""

from pathlib import Path

from nemotron_data.encoders.masks import ControlTokens
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_engines.automodel.data import packed_file
from nemotron_engines.automodel.loop import train_with_automodel
from nemotron_engines.automodel.settings import AutomodelEngine
from nemotron_engines.rows import PackedRows
from nemotron_shared.engine.spec import Outcome, Task
from stages.sft.engines.automodel.misread import refuse_misread
from stages.sft.schema import SFTConfig


def train(task: Task[SFTConfig[AutomodelEngine]]) -> Outcome:
    """Train on the assistant's tokens."""
    config = task.config
    if config.engine.data == "chat":
        chats = config.engine.chats
        assert chats.train is not None, "engine.data=chat was validated with its file"
        control = None
        if config.data_prep.control_tokens != "allow":
            data = task.inputs["data"]
            tokenizer = TokenizerFolder(data.path / "tokenizer" if data else task.input("model").path)
            control = ControlTokens.of(tokenizer.tokenizer)
        for file in filter(None, (chats.train, chats.valid)):
            refuse_misread(file, control)
        return train_with_automodel(task, "chat", Path(chats.train), Path(chats.valid) if chats.valid else None, None)
    data, batch = task.input("data"), config.train.global_batch_size
    rows = PackedRows(packed_file(data.path / "train.parquet"), config.train.train_iters * batch, config.run.seed)
    valid = data.path / "valid.parquet"
    if not valid.is_file():
        task.run.say("the valid split is empty: no validation")
    return train_with_automodel(
        task,
        "packed",
        data.path / "train.parquet",
        valid if valid.is_file() else None,
        lambda step: rows.tokens_before(step * batch),
    )
