"""Settings of a model's config.json that act in a training, and what becomes of them: docs/models.md has the table.

    without_dropout(model)          in RL: what is drawn and compared is what is trained
    loss_of_routers(model.config)   0.02, which transformers would add to the loss of fine-tuning

config.json itself is published with the model as it was.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from transformers import PreTrainedModel

DROPOUT = ("dropout", "pdrop", "layerdrop", "jitter")
"""Parts of the names of such settings, and of attributes of modules that hold them. Layers are dropped by OPT; what a
router reads is jittered by Mixtral, MiniMax and DBRX."""
THRESHOLDS = {"phimoe": ("router_jitter_noise",)}
"""By `model_type`, settings so named that act outside of training, too: PhiMoE's says which experts are too far from
the best one (transformers 5.23)."""


def dropouts(config: Any) -> dict[str, float]:
    """The settings of a config by which a training drops values or changes them at random."""
    text = config.get_text_config()
    kept = THRESHOLDS.get(text.model_type, ())
    return {key: value for key, value in _rates(text.to_dict()).items() if key not in kept}


def _rates(values: Mapping[str, Any]) -> dict[str, float]:
    """Of a config and the sections in it: `resid_pdrop` and DBRX's `ffn_config.moe_jitter_eps`."""
    found: dict[str, float] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= {f"{key}.{name}": rate for name, rate in _rates(value).items()}
        elif isinstance(value, float) and value > 0 and any(part in key for part in DROPOUT):
            found[key] = value
    return found


class WithoutRates:
    """The config that a layer sees: that of the model, with rates of 0.

    Args:
        rates: their names.
    """

    def __init__(self, config: Any, rates: Iterable[str]) -> None:
        self.__dict__.update(dict.fromkeys(rates, 0.0))
        self._config = config

    def __getattr__(self, name: str) -> Any:
        if name == "_config":  # not there while an object is copied
            raise AttributeError(name)
        return getattr(self._config, name)


def without_dropout(model: Any) -> None:
    """Let a model compute in training as it computes otherwise.

    TRL's `disable_dropout` sees modules of torch alone (TRL 1.16); most attention reads its own attribute, and
    Falcon and Persimmon read the config where they compute (transformers 5.23).
    """
    rates = dropouts(model.config)
    kept = THRESHOLDS.get(model.config.get_text_config().model_type, ())
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and name not in kept and any(part in name for part in DROPOUT):
                setattr(module, name, 0.0)
        if rates and not isinstance(module, PreTrainedModel) and hasattr(module, "config"):
            module.config = WithoutRates(module.config, rates)


def loss_of_routers(config: Any) -> float:
    """Weight of the auxiliary loss that transformers' classes add where config.json has `output_router_logits`, or 0.

    Left out here: it is added once for each micro batch (transformers 5.23), so its weight depends on their number.
    `engine.moe_aux_loss_coeff` has one for routers of NemotronH's kind.
    """
    text = config.get_text_config()
    return float(getattr(text, "router_aux_loss_coef", 0) or 0) if getattr(text, "output_router_logits", False) else 0.0
