"""Completions for TRL's trainer, and how far their log-probabilities are from those that training computes.

Where it can, the model is sampled and trained by one computation, with the same bits (`nemotron_engines.exact`);
elsewhere transformers samples. Either way each step's log says how far the two are apart.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from nemotron_engines.exact.decode import sample
from nemotron_engines.exact.scoring import code, score_exactly
from nemotron_engines.exact.support import why_not
from nemotron_engines.mismatch import require_alike
from nemotron_shared.runtime import distributed
from stages.rl.engines.trl.differences import Differences
from stages.rl.engines.trl.figures import TokenMeans
from stages.rl.engines.trl.library import add_fused_lm_head
from stages.rl.engines.trl.recorded import recording
from stages.rl.engines.trl.routes import noting_routes
from stages.rl.engines.trl.steps import StepTrainer

SAMPLED_EXPERTS = "sampled_experts"
"""Among the inputs of a loss: the `code` of the experts behind each token, (rows, tokens)."""
BEFORE_UPDATES = "old_per_token_logps"
"""Log-probabilities of the model that sampled, where a step has several updates."""


class SamplingTrainer(StepTrainer):
    """A GRPOTrainer that knows with which probability each token was drawn."""

    mismatch_limit: float | None = None
    largest_weight: float | None = None
    """Of truncated importance sampling; None leaves it out."""
    _exact: PreTrainedModel | None = None
    _inputs: dict[str, Any] | None = None
    """Of the loss that is being computed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sampled_experts: list[Tensor] = []
        self._trained_experts: list[Tensor] = []
        self._differences, self._means = Differences(), TokenMeans()

    def sample_exactly(self) -> str | None:
        """Sample and train by one computation from now on, unless something keeps it from that: then say what."""
        model = self.accelerator.unwrap_model(self.model)
        model = model.get_base_model() if hasattr(model, "get_base_model") else model
        reason = "bfloat16 is computed by autocast" if self.args.bf16 else why_not(model)
        if reason is None:
            self._exact = model
            score_exactly(model, self.temperature, self._trained_experts)
        return reason

    def compare_with(self, start: PreTrainedModel | None, weight: float) -> None:
        """Weigh the distance to the model that training starts from, if need be to a copy of it; None: adapters are
        left out of the one that is trained.

        TRL would load the copy anew by its name, and random weights have none.
        """
        self.beta = weight
        if start is None:
            return
        self.ref_model = start.eval().requires_grad_(False).to(self.accelerator.device)
        if self._exact is None:
            add_fused_lm_head(start, temperature=self.temperature)
        else:
            score_exactly(start, self.temperature, deque(maxlen=0))

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        """Ids and log-probabilities of one completion for each prompt; notes the experts behind each token."""
        if (model := self._exact) is None:
            unwrapped = self.accelerator.unwrap_model(self.model_wrapped)
            self.begin_to_draw(self.state.global_step, unwrapped.training, self.rows[0])
            with recording(unwrapped, self.temperature) as recorder, noting_routes(unwrapped) as routes:
                completions, _ = super()._generate_single_turn(prompt_ids, *args, **kwargs)
            # each pass chose the token behind its last position
            tokens = [found[:, -1] for found in routes.passes(len(prompt_ids))]
            rows = zip(torch.stack(tokens, 1), completions, strict=True) if tokens else ()
            self._sampled_experts = [codes[: len(ids)] for codes, ids in rows]
            return completions, recorder.logps(completions)
        training = model.training
        draws = self._draws(training)
        model.eval()
        answers = sample(model, prompt_ids, draws, self.eos_token_ids, self.temperature, self.top_p)
        model.train(training)
        self._sampled_experts = [code(torch.stack(answer.routes)) for answer in answers if answer.routes]
        return [answer.ids for answer in answers], [answer.logps for answer in answers]

    def _draws(self, training: bool) -> Tensor:
        """What the tokens of this process's rows are drawn with: by seed, step and number of the row alone."""
        most = self.max_completion_length
        keys = [[self.seed, training, self.state.global_step, row] for row in self.rows]
        return torch.from_numpy(np.stack([np.random.default_rng(key).random(most) for key in keys]))

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        """Each row keeps the experts behind its tokens, wherever rows are shuffled to."""
        found = super()._generate_and_score_completions(inputs)
        if self._sampled_experts:
            found[SAMPLED_EXPERTS] = pad_sequence(self._sampled_experts, batch_first=True)
        return found

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, *args: Any, **kwargs: Any
    ) -> Any:
        """See the base class; the loss that asks for them is weighed by them."""
        with noting_routes(self.accelerator.unwrap_model(model)) as routes:  # none, where `score_exactly` notes them
            found = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
            )
        before = slice(-logits_to_keep - 1, -1)  # the position behind which a token is drawn
        self._trained_experts += [codes[:, before] for codes in routes.passes(length=input_ids.shape[1])]
        if (inputs := self._inputs) is not None:
            self._logps, self._entropies = found[0].detach(), cast(Tensor, found[1])
            if self.largest_weight is not None and self._exact is None:
                inputs["advantages"] = weighed(inputs, inputs.get(BEFORE_UPDATES, self._logps), self.largest_weight)
        return found

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """The loss, and what this micro batch shows of differences."""
        self._trained_experts.clear()
        self._inputs, flipped = dict(inputs), None
        try:
            loss = super()._compute_loss(model, self._inputs)
        finally:
            self._inputs = None
        # of the model that sampled; later updates of a step have another one
        if self.is_first_update and (drawn := inputs.get(SAMPLED_EXPERTS)) is not None:
            experts = torch.cat(self._trained_experts)
            experts = experts if self.row_order is None else experts[self.row_order]
            flipped = experts[:, -drawn.shape[1] :] != drawn
        mask = inputs["completion_mask"].bool()
        before = inputs.get(BEFORE_UPDATES, self._logps)
        self._differences.add(inputs["sampling_per_token_logps"], before, mask, flipped)
        self._means.add(mask, entropy=self._entropies, **self._compared(inputs, before))
        return loss

    def _compared(self, inputs: Mapping[str, Any], before: Tensor) -> dict[str, Tensor]:
        """What the loss of this pass makes of each token: its distance to the starting model, and whether it is cut."""
        apart, better = (self._logps - before).exp(), inputs["advantages"].view(len(before), -1) > 0
        worse = inputs["advantages"].view(len(before), -1) < 0
        clipped = (apart > 1 + self.epsilon_high) & better | (apart < 1 - self.epsilon_low) & worse
        found = {"clipped_fraction": clipped} if self.batches.updates > 1 else {}
        if (start := inputs.get("ref_per_token_logps")) is not None:
            found["kl"] = (start - self._logps).exp() - (start - self._logps) - 1
        return found

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the step's differences.

        Raises:
            UserError: they are larger than the config allows.
        """
        if "loss" in logs:
            found, self._differences = self._differences.figures(), Differences()
            logs.update(dict(found))
            self._note("train", **self._means.take())
            error, limit = found.get("token_mult_prob_error", 1.0), self.mismatch_limit
            if limit is not None and error > limit and distributed.rank() != 0:
                raise SystemExit(2)  # the first process says why
            require_alike(self.state.global_step, error, limit)
        super().log(logs, start_time)


def weighed(inputs: Mapping[str, Any], trained: Tensor, largest: float) -> Tensor:
    """Advantages (rows, tokens) for truncated importance sampling: times a token's probability in training over that
    with which it was drawn, at most `largest`. `trained`: (rows, tokens), nats.
    """
    mask = inputs["completion_mask"].bool()
    ratios = (trained - inputs["sampling_per_token_logps"]).masked_fill(~mask, 0).exp()
    return inputs["advantages"].view(len(mask), -1) * ratios.clamp(max=largest)
