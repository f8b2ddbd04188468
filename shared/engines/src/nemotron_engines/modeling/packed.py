"""Keep the documents of a packed row apart, by model inputs or by computing them as rows of their own.

A row of 8 tokens that holds documents of 5 and 3 tokens has the starts [0, 5] and gives

    position_ids  0 1 2 3 4 0 1 2      attention: transformers builds a mask from restarting positions
    seq_idx       0 0 0 0 0 1 1 1      Mamba: state and convolution restart where the number changes

Call `model(input_ids, **packed_inputs(starts, length), attention_mask=None, use_cache=False)`: with an attention
mask or a cache transformers ignores the positions. Some architectures (Falcon, BLOOM, OPT, Mamba2, Jamba) never look at
them, and their documents would silently learn from the documents before them. Others (Bamba, GraniteMoeHybrid,
Falcon-H1, Zamba2, LFM2, Qwen3-Next) refuse packed rows without the packages causal_conv1d, mamba_ssm or fla
(transformers 5.23, `use_kernel_func_from_hub_with_fallback`). `keep_apart(model)` returns the reason for both, and
computes their documents as rows of their own from then on.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.utils.rnn import pad_sequence
from transformers import NemotronHConfig
from transformers.modeling_outputs import CausalLMOutput

from nemotron_engines.lora.kinds import without_adapters
from nemotron_engines.modeling.sizes import first_line
from nemotron_shared.system.errors import UserError


def packed_inputs(seq_start_id: Sequence[Sequence[int]], length: int) -> dict[str, Tensor]:
    """`position_ids` (rows, length) int64 and `seq_idx` (rows, length) int32 from each row's document starts.

    Raises:
        UserError: a row's starts do not begin with 0, do not increase, or exceed `length`.
    """
    seq_idx = torch.zeros(len(seq_start_id), length, dtype=torch.int32)
    position_ids = torch.arange(length).repeat(len(seq_start_id), 1)
    for row, starts in enumerate(seq_start_id):
        bounds = [*starts, length]
        if bounds[0] != 0 or any(b <= a for a, b in pairwise(bounds)):
            raise UserError(
                f"packed row {row}: seq_start_id {list(starts)} does not divide {length} tokens into documents",
                "starts must begin with 0, increase strictly, and be below the row's length",
            )
        sizes = torch.tensor(bounds).diff()
        seq_idx[row] = torch.arange(len(sizes), dtype=torch.int32).repeat_interleave(sizes)
        position_ids[row] -= torch.tensor(bounds[:-1]).repeat_interleave(sizes)
    return {"position_ids": position_ids, "seq_idx": seq_idx}


def require_positions(model: Any, longest: int, setting: str, say: Callable[[str], None]) -> None:
    """Refuse texts beyond a model's table of positions, and say where they are beyond what it has learnt to read.

    Args:
        longest: tokens of the longest text.
        setting: what makes texts shorter, such as `data_prep.pack_size`.

    Raises:
        UserError: the model looks positions up in a table, as GPT-2 and OPT do, and it is too short.
    """
    base = without_adapters(model)
    context = getattr(base.config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(context, int) or longest <= context:
        return
    what = f"texts have up to {longest:,} tokens, and the model's context is {context:,}"
    tables = [one for one in base.modules() if isinstance(one, nn.Embedding) and one is not base.get_input_embeddings()]
    if any(context <= len(one.weight) <= context + MORE_POSITIONS for one in tables):
        raise UserError(f"{what}: it has no further positions", f"set {setting}={context}, or shorten the texts")
    say(f"WARNING: {what}: it may not have learnt to read further")


MORE_POSITIONS = 2
"""Rows of OPT's table that no position has."""

# Architectures that ignore positions, or refuse packed rows.


LENGTHS = (12, 9)
ROUNDING = 0.02
"""Allowed difference of logits between a packed and a separate document, relative to the largest."""


def keep_apart(model: Any) -> str | None:
    """Change a model, with or without adapters, that cannot keep packed documents apart; returns the reason."""
    base = without_adapters(model)
    if isinstance(base.config, NemotronHConfig):  # tested for ours (docs/measured.md)
        return None
    if (reason := _why_not_packed(base)) is None:
        return None
    plain = base.forward

    def forward(input_ids: Any = None, labels: Any = None, seq_idx: Any = None, **given: Any) -> Any:
        if seq_idx is None:
            return plain(input_ids=input_ids, labels=labels, **given)
        given = {name: value for name, value in given.items() if name in ("num_items_in_batch", "shift_labels")}
        logits = _one_by_one(plain, input_ids, seq_idx)
        if labels is None:
            return CausalLMOutput(logits=logits)
        return CausalLMOutput(base.loss_function(logits, labels, vocab_size=logits.shape[-1], **given), logits)

    base.forward = forward
    return reason


def _one_by_one(plain: Any, ids: torch.Tensor, seq_idx: torch.Tensor) -> torch.Tensor:
    """Logits of packed rows, from a batch with one right-padded row per document."""
    sizes = [size for row in seq_idx for size in torch.unique_consecutive(row, return_counts=True)[1].tolist()]
    documents = ids.flatten().split(sizes)
    batch = pad_sequence(list(documents), batch_first=True)
    lengths = torch.tensor(sizes, device=ids.device)
    real = torch.arange(batch.shape[1], device=ids.device) < lengths[:, None]
    logits = plain(input_ids=batch, attention_mask=real.long(), use_cache=False).logits
    return logits[real].view(*ids.shape, -1)


@torch.no_grad()
def _why_not_packed(model: Any) -> str | None:
    """Why a document in a packed row does not give the logits of the document alone; None if it does."""
    was_training, last = model.training, model.get_input_embeddings().weight.shape[0] - 1
    model.eval()
    ids = torch.linspace(0, last, 2 * LENGTHS[0] + LENGTHS[1], device=model.device).long()
    first, other, second = ids.split([LENGTHS[0], LENGTHS[0], LENGTHS[1]])
    apart = {name: value.to(model.device) for name, value in packed_inputs([[0, LENGTHS[0]]], sum(LENGTHS)).items()}
    rows = [torch.cat([before, second])[None] for before in (first, other)]
    alone = model(input_ids=second[None], use_cache=False).logits[0]
    try:
        found = [
            model(input_ids=row, attention_mask=None, use_cache=False, **apart).logits[0, LENGTHS[0] :] for row in rows
        ]
    except ValueError as error:  # a package is missing that transformers needs for them
        if isinstance(model, FSDPModule):  # the end of a whole pass lets go of what the broken one has gathered
            model(input_ids=second[None], use_cache=False)
        return f"transformers refuses packed rows: {first_line(error)}"
    finally:
        model.train(was_training)
    moved, length = (found[0] - found[1]).abs().max(), alone.abs().max()
    same = bool(moved <= 1e-5 * length) and bool((found[0] - alone).abs().max() <= ROUNDING * length)
    return None if same else "in this architecture they would see each other"
