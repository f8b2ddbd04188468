"""Multi-token prediction, as megatron-core defines it: NemotronH with a block that predicts tokens beyond the next.

One block is applied `engine.mtp_num_layers` times. At depth k and position i, it takes the output of depth k-1 (at
depth 1 the model's last hidden state) and the embedding of token i+k, and predicts token i+k+1 with the model's own
head. Neither reaches into the next document of a packed row.

A model folder holds the block under its published names: `mtp.layers.N` for the N-th layer, the first also with
`eh_proj`, `enorm` and `hnorm`, the last also with `final_layernorm`. transformers' own class ignores it.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, NemotronHConfig, PreTrainedConfig, conversion_mapping
from transformers.masking_utils import create_causal_mask
from transformers.models.nemotron_h import modeling_nemotron_h as stock

from nemotron_data.formats.packed import IGNORED
from nemotron_shared.config.schema import ModelLoadingEngine, TransformersEngine
from nemotron_shared.tracking.metrics import PREDICTION_METRIC

ATTENTION = ("full_attention", "attention")
"""The argument's names, in this version of transformers and in an older one."""


def class_of(engine: ModelLoadingEngine) -> Any:
    """The class that builds and loads an engine's models: transformers' choice, or the class with the block."""
    if isinstance(engine, TransformersEngine) and engine.mtp_num_layers:
        # The published tensor names must be registered for a class from outside the library.
        names: Any = conversion_mapping.get_checkpoint_conversion_mapping("nemotron_h")
        conversion_mapping.register_checkpoint_conversion_mapping("nemotron_h", names, overwrite=True)
        return NemotronHForCausalLM
    return AutoModelForCausalLM


def say_what_is_there(model: Any) -> None:
    """Make the saved config declare only a block that the model has."""
    if isinstance(model.config, NemotronHConfig) and not isinstance(model, NemotronHForCausalLM):
        model.config.num_nextn_predict_layers = 0


class PredictionLayer(stock.NemotronHBlock):
    """One layer of the block. A separate class, so that FSDP2 keeps it together with the model's head."""

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__(config, layer_idx)

        def norm() -> nn.Module:
            return stock.NemotronHRMSNorm(config.hidden_size, eps=config.layer_norm_epsilon)

        if layer_idx == 0:
            self.eh_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
            self.enorm, self.hnorm = norm(), norm()
        if layer_idx == len(config.layers_block_type) - 1:
            self.final_layernorm = norm()


class Prediction(nn.Module):
    """The block, and the losses of its depths since the last `take`.

    Attributes:
        passes: number of depths.
        weight: factor of their mean loss, relative to the next-token loss.
    """

    passes, weight = 1, 0.0

    def __init__(self, config: NemotronHConfig) -> None:
        super().__init__()
        inner: Any = copy.copy(config)
        inner.layers_block_type = config.mtp_layers_block_type
        count = len(config.mtp_layers_block_type or ())
        self.layers = nn.ModuleList([PredictionLayer(inner, index) for index in range(count)])
        self._sums: Tensor | None = None

    def forward(self, hidden: Tensor, embedded: Tensor, mask: Tensor | None, **inputs: Any) -> Tensor:
        """Compute the next depth from `hidden` of the previous one and the embeddings of the following tokens."""
        first: Any = self.layers[0]
        hidden = first.eh_proj(torch.cat([first.enorm(embedded), first.hnorm(hidden)], dim=-1))
        for layer in self.layers:
            hidden = layer(hidden, attention_mask=mask if layer.block_type in ATTENTION else None, **inputs)
        last: Any = self.layers[-1]
        return last.final_layernorm(hidden)

    def note(self, sums: Tensor) -> None:
        """Add a micro batch's summed losses and token counts, (depths, 2)."""
        self._sums = sums if self._sums is None else self._sums + sums

    def take(self) -> dict[str, float]:
        """Mean loss per token of each depth since the last call, over all processes."""
        sums, self._sums = self._sums, None
        if sums is None:
            return {}
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(sums)
        means = (sums[:, 0] / sums[:, 1].clamp(min=1)).tolist()
        return {PREDICTION_METRIC.format(depth=depth): mean for depth, mean in enumerate(means, 1)}


class NemotronHForCausalLM(stock.NemotronHForCausalLM):
    """Named like transformers' class, because config.json records the class name."""

    def __init__(self, config: NemotronHConfig) -> None:
        super().__init__(config)
        self.mtp = Prediction(config)
        self.post_init()

    @classmethod
    def from_config(cls, config: PreTrainedConfig, trust_remote_code: bool = False, **settings: Any) -> Any:
        """As `AutoModelForCausalLM.from_config`."""
        return cls._from_config(config, **settings)

    def forward(self, input_ids: Tensor | None = None, labels: Tensor | None = None, **inputs: Any) -> Any:
        """In training, the loss is the next-token loss, but its gradient is that of all depths."""
        if not self.training or labels is None or input_ids is None:
            return super().forward(input_ids=input_ids, labels=labels, **inputs)
        given: list[Tensor] = []
        hook = self.lm_head.register_forward_pre_hook(lambda _head, args: given.append(args[0]))
        try:
            output = super().forward(input_ids=input_ids, labels=labels, **inputs)
        finally:
            hook.remove()
        further = self._further_loss(given[0], input_ids, labels, **inputs)
        output.loss = output.loss + (further - further.detach())
        return output

    def _further_loss(
        self,
        hidden: Tensor,
        ids: Tensor,
        labels: Tensor,
        shift_labels: Tensor | None = None,
        num_items_in_batch: Any = None,
        **inputs: Any,
    ) -> Tensor:
        """Weighted mean of the depths' losses, scaled to the token count of the main loss."""
        documents = inputs.get("seq_idx")
        documents = torch.zeros_like(ids) if documents is None else documents
        if inputs.get("position_ids") is None:
            inputs["position_ids"] = torch.arange(ids.shape[1], device=ids.device)[None]
        mask = self._mask(hidden, inputs.pop("attention_mask", None), inputs["position_ids"])
        inputs["use_cache"] = False
        targets = following(labels, documents, IGNORED) if shift_labels is None else shift_labels
        trained = (targets != IGNORED).sum()
        whole = trained.clamp(min=1) if num_items_in_batch is None else num_items_in_batch
        sums, loss = [], hidden.new_zeros((), dtype=torch.float32)
        for _depth in range(self.mtp.passes):
            ids, targets = following(ids, documents, 0), following(targets, documents, IGNORED)
            hidden = self.mtp(hidden, self.model.embeddings(ids), mask, **inputs)
            logits = self.lm_head(hidden).float()
            summed = cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
            count = (targets != IGNORED).sum()
            loss = loss + summed * (trained / count.clamp(min=1)) / whole
            sums.append(torch.stack([summed.detach().double(), count.double()]))
        self.mtp.note(torch.stack(sums))
        return self.mtp.weight / self.mtp.passes * loss

    def _mask(self, hidden: Tensor, attention_mask: Tensor | None, position_ids: Tensor) -> Any:
        """The causal mask, as the model itself builds it."""
        return create_causal_mask(
            config=self.config,
            inputs_embeds=hidden,
            attention_mask=attention_mask,
            past_key_values=None,
            position_ids=position_ids,
        )


def following(values: Tensor, documents: Tensor, missing: int) -> Tensor:
    """Shift values left by one; `missing` at the end of each document. All are (rows, tokens)."""
    found = torch.full_like(values, missing)
    goes_on = documents[:, 1:] == documents[:, :-1]
    found[:, :-1] = torch.where(goes_on, values[:, 1:], missing)
    return found
