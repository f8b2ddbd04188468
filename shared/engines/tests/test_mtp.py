"""Multi-token prediction, judged against layers written out in float64, one document at a time."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron_support import config_of
from moe_support import EXPERTS, TOP_K, engine, gradients, some_ids, tiny_model
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy, softmax

from nemotron_data.tokenizers.tiny import save_tokenizer
from nemotron_engines.checks import local_needs, require_alike
from nemotron_engines.modeling.build import ONLY_MADE, load_model, save_model
from nemotron_engines.modeling.mtp import following
from nemotron_engines.modeling.packed import packed_inputs
from nemotron_shared.machine.machine import Machine
from nemotron_shared.system.errors import UserError

PASSES, WEIGHT, STARTS = 2, 0.7, [[0, 5], [0, 4, 9]]
PREDICTS = engine(mtp_num_layers=PASSES, mtp_loss_scaling_factor=WEIGHT)
LAPTOP = Machine(python="3.12", processes=1, gpus=(), memory=16e9, free_disk=1e11)
BLOCK = {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"}


def predicting_model() -> Any:
    model: Any = tiny_model(PREDICTS, **BLOCK)
    model.mtp.passes, model.mtp.weight = PASSES, WEIGHT
    with torch.no_grad():  # norms that are all one would agree wherever they stand
        for name, parameter in model.mtp.named_parameters():
            if "norm" in name:
                parameter.copy_(torch.linspace(0.5, 1.5, len(parameter)))
    return model


class Reference:
    """The block for one document: positions whose input does not exist are not computed at all."""

    def __init__(self, model: Any) -> None:
        self.model, self.config = model, model.config
        self.value = {name: value.double() for name, value in model.mtp.named_parameters()}
        self.value |= {name: value.double() for name, value in model.mtp.named_buffers()}

    def losses(self, hidden: Tensor, ids: Tensor, labels: Tensor) -> list[Tensor]:
        """Of each depth the losses of its targets; labels[i] is the token at i, -100 where it is not trained."""
        found, hidden = [], hidden.double()
        for depth in range(1, PASSES + 1):
            hidden = self.block(hidden[: len(ids) - depth], self.model.model.embeddings.weight.double()[ids[depth:]])
            targets = labels[depth + 1 :]
            logits = hidden[: len(targets)] @ self.model.lm_head.weight.double().T
            kept = targets != -100
            found.append(cross_entropy(logits[kept], targets[kept], reduction="none"))
        return found

    def block(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        joined = [self.norm(embedded, "layers.0.enorm.weight"), self.norm(hidden, "layers.0.hnorm.weight")]
        x = torch.cat(joined, -1) @ self.value["layers.0.eh_proj.weight"].T
        x = x + self.attention(self.norm(x, "layers.0.norm.weight"))
        x = x + self.experts(self.norm(x, "layers.1.norm.weight"))
        return self.norm(x, "layers.1.final_layernorm.weight")

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + self.config.layer_norm_epsilon).sqrt() * self.value[name]

    def attention(self, x: Tensor) -> Tensor:
        heads, shared, size = (
            getattr(self.config, name) for name in ("num_attention_heads", "num_key_value_heads", "head_dim")
        )
        q, k, v = ((x @ self.value[f"layers.0.mixer.{one}_proj.weight"].T).split(size, -1) for one in "qkv")
        out, past = [], torch.ones(len(x), len(x)).tril().bool()
        for head in range(heads):
            group = head // (heads // shared)
            scores = (q[head] @ k[group].T / size**0.5).masked_fill(~past, -torch.inf)
            out.append(softmax(scores, -1) @ v[group])
        return torch.cat(out, -1) @ self.value["layers.0.mixer.o_proj.weight"].T

    def experts(self, x: Tensor) -> Tensor:
        w = {name.removeprefix("layers.1.mixer."): one for name, one in self.value.items() if ".1.mixer." in name}
        scores = (x @ w["gate.weight"].T).sigmoid()
        chosen = (scores + w["gate.e_score_correction_bias"]).topk(TOP_K).indices
        latent, out = x @ w["fc1_latent_proj.weight"].T, []
        for one, row, experts in zip(latent, scores, chosen, strict=True):
            share = row[experts] / row[experts].sum() * self.config.routed_scaling_factor
            made = [w["experts.down_proj"][e] @ (w["experts.up_proj"][e] @ one).relu().square() for e in experts]
            out.append(sum(a * b for a, b in zip(share, made, strict=True)))
        beside = (x @ w["shared_experts.up_proj.weight"].T).relu().square() @ w["shared_experts.down_proj.weight"].T
        return torch.stack(out) @ w["fc2_latent_proj.weight"].T + beside


def documents(starts: list[list[int]] | None, ids: Tensor) -> list[tuple[int, int, int]]:
    """Row, first token, and end of each."""
    bounds = [[*row, ids.shape[1]] for row in (starts or [[0]] * len(ids))]
    return [(row, a, b) for row, one in enumerate(bounds) for a, b in pairwise(one)]


@pytest.mark.parametrize("starts", [None, STARTS], ids=["rows", "packed"])
def test_losses_and_gradients_are_those_of_the_definition(starts: list[list[int]] | None) -> None:
    model, ids = predicting_model(), some_ids()
    labels = ids.clone()
    labels[1, 6:8] = -100
    for row, first, _ in documents(starts, ids):
        labels[row, first] = -100
    packed = packed_inputs(starts, ids.shape[1]) if starts else {}
    inputs = {"input_ids": ids, "use_cache": False, **packed}

    model.eval()  # the loss of the next token alone
    main = model(**inputs, labels=labels).loss
    hidden, reference = model.model(**inputs).last_hidden_state, Reference(model)
    parts = [reference.losses(hidden[r, a:b], ids[r, a:b], labels[r, a:b]) for r, a, b in documents(starts, ids)]
    wanted = [torch.cat(depth).mean() for depth in zip(*parts, strict=True)]
    (main + WEIGHT * torch.stack(wanted).mean()).backward()
    theirs = gradients(model)

    output = model.train()(**inputs, labels=labels)
    output.loss.backward()
    ours = gradients(model)
    assert output.loss.item() == main.item()
    assert list(model.mtp.take().values()) == pytest.approx([one.item() for one in wanted], rel=1e-5)
    assert ours.keys() == theirs.keys() == dict(model.named_parameters()).keys()
    worst = max(float((ours[name] - value).norm() / value.norm()) for name, value in theirs.items() if value.any())
    assert worst <= 1e-4


def test_parts_of_a_step_add_up_and_activations_computed_again_change_nothing() -> None:
    model, ids = predicting_model(), some_ids()
    tokens = ids[:, 1:].numel()
    model(input_ids=ids, labels=ids, num_items_in_batch=tokens).loss.backward()
    whole, losses = gradients(model), model.mtp.take()
    model.gradient_checkpointing_enable()
    for row in ids:
        model(input_ids=row[None], labels=row[None], num_items_in_batch=tokens).loss.backward()
    parts = gradients(model)
    assert max(float((parts[name] - one).norm() / one.norm()) for name, one in whole.items()) <= 1e-4
    assert model.mtp.take() == pytest.approx(losses)
    assert list(losses) == ["mtp_loss/1", "mtp_loss/2"]


def test_what_follows_ends_with_a_document() -> None:
    values, parts = torch.tensor([[1, 2, 3, 4, 5]]), torch.tensor([[0, 0, 0, 1, 1]])
    once = following(values, parts, -1)
    assert once.tolist() == [[2, 3, -1, 5, -1]]
    assert following(once, parts, -1).tolist() == [[3, -1, -1, -1, -1]]


def test_the_block_is_saved_under_the_published_names_and_read_again(tmp_path: Path) -> None:
    model, ids = predicting_model(), some_ids()
    (tmp_path / "tokenizer").mkdir()
    save_tokenizer(tmp_path / "tokenizer")
    save_model(model, tmp_path / "tokenizer", tmp_path / "whole")
    names = {name for name in load_file(tmp_path / "whole" / "model.safetensors") if name.startswith("mtp.")}
    attention = {f"mixer.{one}_proj.weight" for one in "qkvo"}
    moe = {f"mixer.experts.{e}.{one}_proj.weight" for e in range(EXPERTS) for one in ("up", "down")}
    moe |= {f"mixer.shared_experts.{one}_proj.weight" for one in ("up", "down")}
    moe |= {"mixer.fc1_latent_proj.weight", "mixer.fc2_latent_proj.weight"}
    moe |= {"mixer.gate.weight", "mixer.gate.e_score_correction_bias", "final_layernorm.weight"}
    first = {"eh_proj.weight", "enorm.weight", "hnorm.weight"} | attention
    assert names == {f"mtp.layers.0.{n}" for n in first | {"norm.weight"}} | {
        f"mtp.layers.1.{n}" for n in moe | {"norm.weight"}
    }
    again: Any = load_model(tmp_path / "whole", PREDICTS)
    assert type(again) is type(model)
    assert (again.config.num_nextn_predict_layers, again.config.architectures) == (1, ["NemotronHForCausalLM"])
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())
    plain: Any = load_model(tmp_path / "whole", ONLY_MADE)  # as for generation, and for a training without it
    assert not hasattr(plain, "mtp")
    assert torch.equal(plain.eval()(input_ids=ids).logits, model.eval()(input_ids=ids).logits)
    save_model(plain, tmp_path / "tokenizer", tmp_path / "plain")
    assert not any(name.startswith("mtp.") for name in load_file(tmp_path / "plain" / "model.safetensors"))
    assert load_model(tmp_path / "plain", ONLY_MADE).config.num_nextn_predict_layers == 0


@pytest.mark.parametrize(("blocks", "refused"), [(0, 1), (1, 0), (2, 1)])
def test_a_model_without_the_one_block_is_refused_before_any_work(blocks: int, refused: int) -> None:
    wanted = ("engine.mtp_num_layers=2", "engine.mtp_loss_scaling_factor=0.3")
    config = config_of("pretrain", "tiny", *wanted, f"++model.overrides.num_nextn_predict_layers={blocks}")
    found = [problem.message for problem in local_needs(config, {}, LAPTOP).others]
    assert len(found) == refused
    assert all(f"model.architecture has {blocks} prediction blocks" in message for message in found)


@pytest.mark.parametrize(("stage", "tied"), [("pretrain", True), ("sft", True), ("rl", True), ("pretrain", False)])
def test_a_head_that_would_not_be_tied_is_not_promised(stage: str, tied: bool) -> None:
    """It would be trained apart from the embeddings, and other programs would read these in its place."""
    config = config_of(stage, "tiny", f"++model.overrides.tie_word_embeddings={str(tied).lower()}")
    found = [problem.message for problem in local_needs(config, {}, LAPTOP).others]
    assert [one.partition(",")[0] for one in found] == ["model.architecture: tie_word_embeddings is true"] * tied


def test_depths_without_a_weight_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"add engine\.mtp_loss_scaling_factor=0\.3, as"):
        engine(mtp_num_layers=2)


def test_a_mismatch_is_told_with_the_digits_that_show_it() -> None:
    with pytest.raises(UserError, match=r"is 1\.00000002, more than grpo\.sampling_mismatch_limit=1\.00000001"):
        require_alike(1, 1.00000002, 1.00000001)
