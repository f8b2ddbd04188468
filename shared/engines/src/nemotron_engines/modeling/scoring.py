"""Models that give an answer a number: a language model with one output in the place of its vocabulary's.

    <|im_start|>user\\n2+2?<|im_end|>\\n<|im_start|>assistant\\n4<|im_end|>
                                                                 ^ the number is read here, at the last token

transformers has such a class for most architectures, but none for NemotronH, and finds the last token by its not being
the padding token. Where a tokenizer pads with the token that ends an answer, that is the one before. Here the attention
mask says where a text ends.
"""

from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    NemotronHConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_layers import GenericForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHPreTrainedModel

from nemotron_engines.modeling.build import load_model
from nemotron_shared.config.schema import ModelLoadingEngine
from nemotron_shared.system.errors import UserError

HEAD = "score"
"""Name of the output layer in transformers' classes."""


class AtTheEnd:
    """The forward pass of a class for whole texts, which reads the number at each text's last token."""

    def forward(self: Any, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> Any:
        """Logits (texts, 1) in float32 of texts padded on the right, (texts, tokens)."""
        hidden = self.base_model(input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        last = hidden[torch.arange(len(hidden), device=hidden.device), mask.sum(1) - 1]
        with torch.autocast(hidden.device.type, enabled=False):  # two rewards of a pair may be close to each other
            return SequenceClassifierOutput(logits=nn.functional.linear(last.float(), self.score.weight.float()))


class NemotronHForSequenceClassification(AtTheEnd, GenericForSequenceClassification, NemotronHPreTrainedModel):
    """The class that transformers lacks, under the name that it would have there."""


@cache
def scoring_class(config_class: type[PreTrainedConfig]) -> Any:
    """The class for an architecture, named as transformers' own, because config.json records the name.

    Raises:
        UserError: transformers has none that reads one number at one token.
    """
    if issubclass(config_class, NemotronHConfig):
        return NemotronHForSequenceClassification
    own: Any = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING.get(config_class, None)
    if own is None or not issubclass(own, GenericForSequenceClassification):
        what = f"transformers {transformers.__version__} has no class for reward models of {config_class.model_type}"
        raise UserError(what, "start from a model of another architecture, such as NemotronH, Llama or Qwen3")
    return type(own.__name__, (AtTheEnd, own), {"__module__": own.__module__, "__doc__": own.__doc__})


def with_score(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """The layers of a language model, below a score with random weights from `seed`; its own output is dropped.

    Raises:
        UserError: the architecture has no such class.
    """
    config = model.config
    kind = scoring_class(type(config))
    config.num_labels = 1
    with torch.device("meta"):  # its layers are the model's own
        scoring = kind._from_config(config, dtype=model.dtype)
    setattr(scoring, scoring.base_model_prefix, model.base_model)
    spread = getattr(config.get_text_config(), "initializer_range", 0.02)
    drawn = torch.randn(1, scoring.score.in_features, generator=torch.Generator().manual_seed(seed)) * spread
    scoring.score.weight = nn.Parameter(drawn.to(model.device, model.dtype))
    scoring.name_or_path = model.name_or_path
    return scoring


def load_scoring(path: Path, engine: ModelLoadingEngine) -> PreTrainedModel:
    """A published reward model, frozen.

    Raises:
        UserError: as `load_model`; or it gives a text another number of scores than one.
    """
    model = load_model(path, engine, class_for=scoring_class)
    if model.config.num_labels != 1:
        what = f"{path}: gives a text {model.config.num_labels} scores"
        raise UserError(what, "a reward model gives one: make it with `rl -c reward`")
    return model.eval().requires_grad_(False)


@torch.no_grad()
def score_of(model: PreTrainedModel, ids: list[int]) -> float:
    """The score of one text. It goes through the model alone: no padding and no other text can change it."""
    return float(model(input_ids=torch.tensor([ids], device=model.device)).logits)
