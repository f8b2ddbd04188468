"""What the tests of NeMo Evaluator's engines share."""

import stat
from pathlib import Path
from typing import Any

import torch

from nemotron_data.tokenizers.folder import provide_tokenizer
from nemotron_engines.modeling.build import load_tokenizer, random_model, save_model
from nemotron_shared.config.compose import compose
from nemotron_shared.config.references import resolve
from nemotron_shared.config.schema import RandomModelSection
from nemotron_shared.config.validate import validate
from stages.eval.schema import EvalConfig

CONFIG = Path(__file__).parent.parent / "stages" / "eval" / "config"


def config_of(choice: str, *overrides: str) -> EvalConfig:
    """A validated config."""
    composed = compose(CONFIG, choice, overrides)
    return validate(EvalConfig, resolve(composed.tree, lambda role, field: None), composed.origins)


def tiny_model(folder: Path, *, spread: float = 0.3) -> tuple[Any, Any]:
    """A tiny hybrid model whose random weights are large enough for its answers to differ; saved in `folder`."""
    beside = folder.with_name(f"{folder.name}-tokenizer")
    provide_tokenizer("tiny", beside)
    tokenizer = load_tokenizer(beside)
    section = RandomModelSection(architecture="super3_tiny", overrides={}, tokenizer="tiny")
    model = random_model(section, tokenizer, 7, config_of("tiny").engine).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, spread)
    save_model(model, beside, folder)
    return model, tokenizer


def program(path: Path, script: str) -> Path:
    """An executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path
