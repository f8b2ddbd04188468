"""Completions for TRL's trainer, and how far their log-probabilities are from those that training computes.

Where it can, the model is sampled and trained by one computation, with the same bits (`nemotron_engines.exact`);
elsewhere transformers samples. Either way each step's log says how far the two are apart.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from nemotron_engines.exact.decode import Answer, sample
from nemotron_engines.exact.scoring import code, score_exactly
from nemotron_engines.exact.support import why_not
from nemotron_shared.errors import UserError
from nemotron_shared.runtime import distributed
from stages.rl.engines.trl.differences import Differences
from stages.rl.engines.trl.groups import TeachingRowsTrainer
from stages.rl.engines.trl.recorded import recording

SAMPLED_EXPERTS = "sampled_experts"
"""Among the inputs of a loss: the `code` of the experts behind each token, (rows, tokens)."""


class SamplingTrainer(TeachingRowsTrainer):
    """A GRPOTrainer that knows with which probability each token was drawn."""

    mismatch_limit: float | None = None
    _exact: PreTrainedModel | None = None
    _seed = 0
    _validated = 0
    _differences = Differences()

    def sample_exactly(self, seed: int) -> str | None:
        """Sample and train by one computation from now on, unless something keeps it from that: then say what."""
        model = self.accelerator.unwrap_model(self.model)
        model = model.get_base_model() if hasattr(model, "get_base_model") else model
        reason = "bfloat16 is computed by autocast" if self.args.bf16 else why_not(model)
        if reason is None:
            self._seed, self._exact, self._trained_experts = seed, model, list[Tensor]()
            score_exactly(model, self.temperature, self._trained_experts)
        return reason

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        """Ids and log-probabilities of one completion for each prompt."""
        self._answers: list[Answer] = []
        if (model := self._exact) is None:
            with recording(self.accelerator.unwrap_model(self.model_wrapped), self.temperature) as recorder:
                completions, _ = super()._generate_single_turn(prompt_ids, *args, **kwargs)
            return completions, recorder.logps(completions)
        training = model.training
        draws = self._draws(len(prompt_ids), training)
        model.eval()
        self._answers = sample(model, prompt_ids, draws, self.eos_token_ids, self.temperature, self.top_p)
        model.train(training)
        return [answer.ids for answer in self._answers], [answer.logps for answer in self._answers]

    def _draws(self, rows: int, training: bool) -> Tensor:
        """What the tokens of this process's rows are drawn with: by seed, step and number of the row alone."""
        first, most = distributed.rank() * rows, self.max_completion_length
        if not training:
            first += self._validated
            self._validated += distributed.world_size() * rows
        keys = [[self._seed, training, self.state.global_step, first + row] for row in range(rows)]
        return torch.from_numpy(np.stack([np.random.default_rng(key).random(most) for key in keys]))

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        """Each row keeps the experts behind its tokens, wherever rows are shuffled to."""
        found = super()._generate_and_score_completions(inputs)
        if self._answers and self._answers[0].routes:
            codes = [code(torch.stack(answer.routes)) for answer in self._answers]
            found[SAMPLED_EXPERTS] = pad_sequence(codes, batch_first=True)
        return found

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, None, None]:
        """A validation counts rewards; the loss of single completions would mean nothing."""
        self._prepare_inputs(inputs)
        return torch.zeros((), device=self.accelerator.device), None, None

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Each validation draws from its own beginning."""
        self._validated = 0
        return super().evaluation_loop(*args, **kwargs)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._trained_logps = found[0].detach()
        return found

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """The loss, and what this micro batch shows of differences."""
        loss, flipped = super()._compute_loss(model, inputs), None
        if (drawn := inputs.get(SAMPLED_EXPERTS)) is not None:
            experts = torch.cat(self._trained_experts)
            experts = experts if self.row_order is None else experts[self.row_order]
            flipped = experts[:, -drawn.shape[1] :] != drawn
            self._trained_experts.clear()
        mask = inputs["completion_mask"].bool()
        self._differences.add(inputs["sampling_per_token_logps"], self._trained_logps, mask, flipped)
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the step's differences.

        Raises:
            UserError: they are larger than the config allows.
        """
        if "loss" in logs:
            found, self._differences = self._differences.figures(self._exact is not None), Differences()
            logs.update(dict(found))
            error = found.get("token_mult_prob_error", 1.0)
            if self.mismatch_limit is not None and error > self.mismatch_limit:
                if distributed.rank() != 0:
                    raise SystemExit(2)
                raise UserError(
                    f"step {self.state.global_step}: what is sampled is not what is trained: token_mult_prob_error is "
                    f"{error:.4g}, more than grpo.sampling_mismatch_limit={self.mismatch_limit}",
                    "raise the limit, or leave it out: grpo.sampling_mismatch_limit=null",
                )
        super().log(logs, start_time)
