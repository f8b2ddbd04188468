"""The Trainer of the supervised stages: rows in dataset order, load balancing, token-weighted validation."""

from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy, pad
from torch.utils.data import SequentialSampler
from transformers import EvalPrediction, Trainer

from nemotron_data.formats.packed import IGNORED
from nemotron_engines.kernels.experts import note_real_rows
from nemotron_engines.lora.kinds import without_adapters
from nemotron_engines.modeling.mtp import Prediction
from nemotron_engines.modeling.taken import loss_of_routers
from nemotron_engines.transformers.balance import LoadBalancing
from nemotron_engines.transformers.trainer import StageTrainer
from nemotron_shared.config.schema import TransformersEngine

TOKEN_LOSS = "token_loss"


class ScheduledTrainer(StageTrainer, Trainer):
    """A Trainer that reads rows in dataset order and follows our learning-rate schedule.

    The datasets are shuffled by a seed, so any row can be read without the ones before it. A validation's loss is the
    mean over trained tokens. The library's own is the mean of batch means, which depends on the micro batch and the
    number of processes.
    """

    def __init__(self, *, engine: TransformersEngine, **settings: Any) -> None:
        super().__init__(**settings, preprocess_logits_for_metrics=losses_of_rows, compute_metrics=mean_over_tokens)
        self._loss_shifts_labels = False  # the Trainer counts labels, and our labels are already shifted
        self._loss_of_routers = loss_of_routers(without_adapters(self.model).config)
        self._foreign = type(without_adapters(self.model)).__module__.startswith("transformers_modules.")
        self._balancing: LoadBalancing | None = None
        self._prediction: Prediction | None = getattr(self.model, "mtp", None) if engine.mtp_num_layers else None
        if self._prediction is not None:
            self._prediction.passes, self._prediction.weight = engine.mtp_num_layers, engine.mtp_loss_scaling_factor
        if engine.moe_router_bias_update_rate or engine.moe_aux_loss_coeff:
            self._balancing = LoadBalancing(self.model, engine, engine.mtp_num_layers)  # ty: ignore[invalid-argument-type]
            self.add_callback(self._balancing)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Loss of a micro batch; with load balancing, its gradient includes the routers' auxiliary loss."""
        real = inputs.pop("real", None)
        note_real_rows(real)
        inputs |= self._labels(inputs["labels"])
        if self._loss_of_routers:
            inputs["output_router_logits"] = False
        if self._balancing is None or not model.training:
            return super().compute_loss(model, inputs, *args, **kwargs)
        with self._balancing.passing(1 / self.current_gradient_accumulation_steps, real):
            return super().compute_loss(model, inputs, *args, **kwargs)

    def _labels(self, aligned: torch.Tensor) -> dict[str, torch.Tensor]:
        """Labels in the form that the model expects. transformers' own classes do not shift `shift_labels` again; a
        model's custom code may not know this argument, and shifts `labels` itself.
        """
        if self._foreign:
            return {"labels": pad(aligned[:, :-1], (1, 0), value=IGNORED)}
        return {"labels": aligned, "shift_labels": aligned}

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log with the metrics of load balancing and of predictions added, at each step."""
        if "loss" in logs:
            for part in filter(None, (self._balancing, self._prediction)):
                logs |= part.take()
        super().log(logs, *args, **kwargs)

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """Replace the library's mean with the mean over tokens."""
        found = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        found.metrics.pop(f"{metric_key_prefix}_loss")
        if (loss := found.metrics.pop(f"{metric_key_prefix}_{TOKEN_LOSS}", None)) is not None:
            found.metrics[f"{metric_key_prefix}_loss"] = loss
        return found

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        return SequentialSampler(self.train_dataset if train_dataset is None else train_dataset)  # ty: ignore[invalid-argument-type]


def losses_of_rows(logits: torch.Tensor | tuple[torch.Tensor, ...], labels: torch.Tensor) -> torch.Tensor:
    """Summed loss and number of trained tokens of each row, shape (rows, 2).

    Args:
        logits: shape (rows, tokens, vocabulary), alone or before the model's other outputs; or, of a model that
            computes its loss in chunks, the result already.
        labels: shape (rows, tokens), aligned with the logits; -100 is not trained.
    """
    predictions = logits if isinstance(logits, torch.Tensor) else logits[0]
    if predictions.dim() == 2:
        return predictions
    losses = cross_entropy(predictions.transpose(1, 2).float(), labels, reduction="none", ignore_index=IGNORED)
    return torch.stack([losses.sum(1, dtype=torch.float64), (labels != IGNORED).sum(1)], dim=1)


def mean_over_tokens(rows: EvalPrediction) -> dict[str, float]:
    """Validation loss from the two numbers of each row; empty if no row has a trained token."""
    total, tokens = np.asarray(rows.predictions).sum(0)
    return {TOKEN_LOSS: total / tokens} if tokens else {}
