"""The loss of on-policy distillation, in the place of GRPO's: distances to a teacher at every sampled token.

    sampled   2+2=  4      the model's own completion, drawn as in GRPO
    student  .2 .7 .1      its distribution of the token after 2+2=
    teacher  .0 .9 .1      the teacher's; the loss is their KL over the whole vocabulary

TRL's DistillationTrainer has the same loss (beta 0 is `forward`, 1 is `reverse`), in its own loop; here everything
else is that of our GRPO: prompts, draws, validation, resuming.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from nemotron_engines.modeling.build import load_model
from nemotron_shared.engine.spec import Task
from nemotron_shared.system import distributed
from stages.rl.engines.trl.sampling import SamplingTrainer
from stages.rl.engines.trl.starting import require_same_vocabulary, tokens_of
from stages.rl.schema import RLConfig, TRLEngine


class DistillingTrainer(SamplingTrainer):
    """A trainer that learns a teacher's distributions on its own completions."""

    teacher: PreTrainedModel | None = None
    """None: train by GRPO."""
    kl_type = "reverse"
    known: int | None = None
    """The first so many logits are compared: models of one tokenizer may have more logits than it has tokens."""

    def learn_from(self, teacher: PreTrainedModel, kl_type: str) -> None:
        """Learn a teacher's distributions from now on."""
        self.teacher, self.kl_type, self.learns_from_rewards = teacher, kl_type, False
        self.known = min(tokens_of(self.accelerator.unwrap_model(self.model)), tokens_of(teacher))

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """The pass's share of the mean over the tokens of the step."""
        if self.teacher is None:
            return super()._compute_loss(model, inputs)
        mask, student = inputs["completion_mask"], self._distributions(model, inputs)
        with torch.no_grad():
            teacher = self._distributions(self.teacher, inputs)
        apart = divergence(student, teacher, self.kl_type)
        entropy = -(student.exp() * student).sum(-1)
        self._means.add(mask.bool(), kl=apart, entropy=entropy)
        # processes average their gradients
        return (apart * mask).sum() * distributed.world_size() / inputs["num_items_in_batch"].clamp(min=1)

    def _distributions(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """Log-probabilities of every token of both vocabularies, (rows, completion's tokens, known) float32."""
        ids, mask = (
            torch.cat([inputs[f"prompt_{one}"], inputs[f"completion_{one}"]], dim=1) for one in ("ids", "mask")
        )
        kept = inputs["completion_ids"].shape[1] + 1  # and the position before the first
        logits = model(input_ids=ids, attention_mask=mask, logits_to_keep=kept, use_cache=False).logits
        logits = logits[:, :-1, : self.known]
        return (logits.float() / self.temperature).log_softmax(-1)


def divergence(student: Tensor, teacher: Tensor, kl_type: str) -> Tensor:
    """KL between distributions, given as log-probabilities (..., vocabulary), in nats: (...).

    `forward` is that of the student from the teacher, weighted by the teacher; `reverse` is weighted by the student.
    """
    one, other = (teacher, student) if kl_type == "forward" else (student, teacher)
    return (one.exp() * (one - other)).sum(-1)


def load_teacher(task: Task[RLConfig[TRLEngine]], student: PreTrainedModel, tokenizer: Any) -> PreTrainedModel:
    """The teacher, frozen.

    Raises:
        UserError: its vocabulary is another one.
    """
    teacher = task.input("teacher")
    model = load_model(teacher.path, task.config.engine, trusted=teacher.trusted, dtype=torch.float32)
    require_same_vocabulary("teacher", teacher, model, student, tokenizer)
    return model.eval().requires_grad_(False).to(student.device)
