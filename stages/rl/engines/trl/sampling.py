"""Sample completions for TRL's trainer, and measure how far their log-probabilities are from training's.

If possible, sampling and training use the same computation, bit for bit (`nemotron_engines.exact`); otherwise
transformers samples. Each step logs how far the two are apart.
"""

from collections import Counter, deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel
from transformers.trainer_utils import EvalLoopOutput

from nemotron_engines.checks import require_alike
from nemotron_engines.exact.decode import sample
from nemotron_engines.exact.scoring import code, score_exactly, why_not
from nemotron_engines.lora.kinds import without_adapters
from nemotron_engines.modeling.generation import alone, ends_of
from nemotron_shared.system import distributed
from nemotron_shared.tracking.metrics import Metric
from stages.rl.engines.trl.generators import VLLM
from stages.rl.engines.trl.library import add_fused_lm_head
from stages.rl.engines.trl.routes import Routes, noting_routes
from stages.rl.engines.trl.trainer import StepTrainer, own_tokens


class Recorder(LogitsProcessor):
    """Logits processor that sees the raw logits of each token, and the sampled token one call later."""

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature
        self._noted: list[Tensor] = []
        self._open: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Record the log-probability of the newest token; returns the scores unchanged."""
        if self._open is not None:
            self._noted.append(self._open.gather(1, input_ids[:, -1:])[:, 0])
        self._open = (scores.float() / self._temperature).log_softmax(-1)
        return scores

    def logps(self, completions: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probabilities of each completion's tokens; rows that ended early are padded."""
        assert self._open is not None
        noted = torch.stack([*self._noted, self._open[:, 0]]).T.tolist()  # the last position is set below
        for row, ids, last in zip(noted, completions, self._open, strict=True):
            if len(ids) == len(row):
                row[-1] = float(last[ids[-1]])
        return [row[: len(ids)] for row, ids in zip(noted, completions, strict=True)]


@contextmanager
def sampling_alone(model: Any) -> Generator[None]:
    """Let nothing of the model's own generation settings act inside this block; they are published with it."""
    inner = without_adapters(model)
    own, inner.generation_config = inner.generation_config, alone(inner)
    try:
        yield
    finally:
        inner.generation_config = own


@contextmanager
def computing_as_served(model: Any) -> Generator[None]:
    """Let nothing drop values inside this block, as the adapters of a model in training do."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


@contextmanager
def recording(model: Any, temperature: float) -> Generator[Recorder]:
    """Record everything that `model.generate` samples inside this block."""
    recorder = Recorder(temperature)
    model.generate = partial(model.generate, logits_processor=LogitsProcessorList([recorder]))
    try:
        yield recorder
    finally:
        del model.generate


FARTHEST = 600.0
"""In nats; beyond this, ratios would overflow the log."""


@dataclass
class Differences:
    """Sums over the micro batches of a step, for one process or all."""

    tokens: int = 0
    differing: int = 0
    routed: int = 0  # tokens sampled after a choice of experts
    flips: int = 0  # of these, after a different choice than in training
    multiplied: float = 0.0  # sum of exp(|difference|)
    largest: float = 0.0
    sequences: int = 0
    ratios: float = 0.0  # sum over sequences of probability in training / probability in sampling

    def add(self, sampled: Tensor, trained: Tensor, mask: Tensor, flipped: Tensor | None) -> None:
        """Count one micro batch; all (rows, tokens), log-probabilities in nats, the mask and `flipped` bool."""
        apart = (trained - sampled).double().masked_fill(~mask, 0).clamp(-FARTHEST, FARTHEST)
        self.tokens += int(mask.sum())
        self.differing += int((apart != 0).sum())
        if flipped is not None:
            self.routed += int(mask.sum())
            self.flips += int((flipped & mask).sum())
        self.multiplied += float(apart.abs().exp()[mask].sum())
        self.largest = max(self.largest, float(apart.abs().max()))
        there = mask.any(1)
        self.sequences += int(there.sum())
        self.ratios += float(apart.sum(1).clamp(max=FARTHEST).exp()[there].sum())

    def figures(self) -> dict[Metric, float]:
        """The step's figures over all processes; collective."""
        sums = [self.tokens, self.differing, self.routed, self.flips, self.multiplied, self.sequences, self.ratios]
        whole, largest = torch.tensor(sums, dtype=torch.float64), torch.tensor(self.largest, dtype=torch.float64)
        if distributed.world_size() > 1:
            torch.distributed.all_reduce(whole)
            torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX)
        tokens, differing, routed, flips, multiplied, sequences, ratios = whole.tolist()
        if not tokens:
            return {}
        found: dict[Metric, float] = {
            "differing_tokens": differing / tokens,
            "logprob_difference": float(largest),
            "token_mult_prob_error": multiplied / tokens,
            "sequence_ratio": ratios / sequences,
        }
        if routed:
            found["router_flips"] = flips / routed
        return found


class TokenMeans:
    """Means over the tokens of all passes of a step."""

    def __init__(self) -> None:
        self._tokens = 0
        self._sums = Counter[str]()

    def add(self, mask: Tensor, **values: Tensor) -> None:
        """Add a pass; the mask and each value are (rows, tokens). Every pass of a step must give the same names."""
        self._tokens += int(mask.sum())
        self._sums.update({name: float(value.detach().double()[mask].sum()) for name, value in values.items()})

    def take(self) -> dict[str, float]:
        """Return the means over all processes, empty if no token counts, and reset the sums; collective."""
        names = sorted(self._sums)
        whole = torch.tensor([self._tokens, *(self._sums[name] for name in names)], dtype=torch.float64)
        self.__init__()
        if distributed.world_size() > 1:
            torch.distributed.all_reduce(whole)
        tokens, *sums = whole.tolist()
        return {name: total / tokens for name, total in zip(names, sums, strict=True)} if tokens else {}


SAMPLED_EXPERTS = "sampled_experts"
"""Key in a loss's inputs: the `code` of the experts before each token, (rows, tokens)."""
BEFORE_UPDATES = "old_per_token_logps"
"""Key in a loss's inputs: log-probabilities of the sampling model, if a step has several updates."""


class SamplingTrainer(StepTrainer):
    """A GRPOTrainer that keeps the sampling probability of each token."""

    mismatch_limit: float | None = None
    largest_weight: float | None = None
    """Largest weight of truncated importance sampling; None turns it off."""
    generator: VLLM | None = None
    """Draws the completions; None: this class does."""
    _exact: PreTrainedModel | None = None
    _inputs: dict[str, Any] | None = None
    """Inputs of the loss that is being computed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sampled_experts: list[Tensor] = []
        self._trained_experts: list[Tensor] = []
        self._differences, self._means = Differences(), TokenMeans()
        # TRL reads the end tokens of generation_config.json and the tokenizer; config.json may have others
        more = ends_of(self.accelerator.unwrap_model(self.model), self.processing_class) - {*self.eos_token_ids}
        self.eos_token_ids = [*self.eos_token_ids, *sorted(more)]
        self.generation_config.eos_token_id = self.eos_token_ids

    def sample_exactly(self) -> str | None:
        """Sample and train by the same computation from now on; returns the reason if that is impossible."""
        model = without_adapters(self.accelerator.unwrap_model(self.model))
        reason = "autocast computes in bfloat16" if self.args.bf16 else why_not(model)
        if reason is None:
            self._exact = model
            score_exactly(model, self.temperature, self._trained_experts)
        return reason

    def compare_with(self, start: PreTrainedModel | None, weight: float) -> None:
        """Set the reference model of the KL penalty: the starting model, or None to disable the adapters instead.

        TRL would reload the reference by name, but random weights have no name.
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
        """Ids and log-probabilities of one completion per prompt; records the experts before each token."""
        if self.generator is not None:
            return self._generated(self.generator, prompt_ids)
        if (model := self._exact) is None:
            unwrapped = self.accelerator.unwrap_model(self.model_wrapped)
            self.begin_to_draw(self.state.global_step, unwrapped.training, self.drawn_before + self.rows[0], *self.turn)
            with (
                computing_as_served(unwrapped),
                sampling_alone(unwrapped),
                recording(unwrapped, self.temperature) as recorder,
                noting_routes(unwrapped) as routes,
            ):
                completions, _ = super()._generate_single_turn(prompt_ids, *args, **kwargs)
            # each pass chose the token after its last position
            tokens = [found[:, -1] for found in routes.passes(len(prompt_ids))]
            rows = zip(torch.stack(tokens, 1), completions, strict=True) if tokens else ()
            self._sampled_experts = [codes[: len(ids)] for codes, ids in rows]
            return completions, recorder.logps(completions)
        draws = self._draws(model.training)
        with computing_as_served(model):
            answers = sample(model, prompt_ids, draws, self.eos_token_ids, self.temperature, self.top_p)
        self._sampled_experts = [code(torch.stack(answer.routes)) for answer in answers if answer.routes]
        return [answer.ids for answer in answers], [answer.logps for answer in answers]

    def _generated(self, generator: VLLM, prompt_ids: list[list[int]]) -> tuple[list[list[int]], list[list[float]]]:
        """Ids and log-probabilities of one completion per prompt, by the weights of this step."""
        model = self.accelerator.unwrap_model(self.model)
        seeds = [int(np.random.default_rng(key).integers(1 << 62)) for key in self._keys(model.training)]
        drawn = generator.draw(model, self.state.global_step, prompt_ids, seeds)
        return [ids for ids, _ in drawn], [logps for _, logps in drawn]

    def _keys(self, training: bool) -> list[list[int]]:
        """What the random numbers of this process's rows depend on: seed, step, row and turn alone."""
        first = self.drawn_before
        return [[self.seed, training, self.state.global_step, first + row, *self.turn] for row in self.rows]

    def _draws(self, training: bool) -> Tensor:
        """Random numbers for the tokens of this process's rows."""
        most = self.max_completion_length
        return torch.from_numpy(np.stack([np.random.default_rng(key).random(most) for key in self._keys(training)]))

    def _sampled(self) -> list[dict[str, Any]]:
        """Completions of a step, by pass; until the next one, what drew them may rest."""
        made = super()._sampled()
        if self.generator is not None:
            self.generator.rest()
        return made

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """See the base class; what drew the completions may rest."""
        found = super().evaluation_loop(*args, **kwargs)
        if self.generator is not None:
            self.generator.rest()
            self.generator.take_seconds()
        return found

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        """Keep each row's experts with the row when rows are shuffled."""
        found = super()._generate_and_score_completions(inputs)
        if self._sampled_experts:
            found[SAMPLED_EXPERTS] = pad_sequence(self._sampled_experts, batch_first=True)
        return found

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, *args: Any, **kwargs: Any
    ) -> Any:
        """See the base class; also uses them to weight the current loss."""
        own = self.accelerator.unwrap_model(model)
        noted = nullcontext(Routes()) if self._exact else noting_routes(own)
        # before the first update, the probabilities are those of the model that samples
        as_drawn = computing_as_served(own) if self._inputs is None else nullcontext()
        with noted as routes, as_drawn:  # `score_exactly` records its own
            found = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
            )
        before = slice(-logits_to_keep - 1, -1)  # the position before each sampled token
        self._trained_experts += [codes[:, before] for codes in routes.passes(length=input_ids.shape[1])]
        if (inputs := self._inputs) is not None:
            self._logps, self._entropies = found[0].detach(), cast(Tensor, found[1])
            if self.largest_weight is not None and self._exact is None:
                before = inputs.get(BEFORE_UPDATES, self._logps)
                inputs["advantages"] = weighed(inputs, before, self.largest_weight, self.importance_sampling_level)
        return found

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """Compute the loss, and add this micro batch to the differences."""
        self._trained_experts.clear()
        self._inputs, flipped = dict(inputs), None
        try:
            loss = super()._compute_loss(model, self._inputs)
        finally:
            self._inputs = None
        # from the sampling model; later updates of a step train a different one
        if self.is_first_update and (drawn := inputs.get(SAMPLED_EXPERTS)) is not None:
            experts = torch.cat(self._trained_experts)
            experts = experts if self.row_order is None else experts[self.row_order]
            flipped = experts[:, -drawn.shape[1] :] != drawn
        mask = own_tokens(inputs)
        before = inputs.get(BEFORE_UPDATES, self._logps)
        self._differences.add(inputs["sampling_per_token_logps"], before, mask, flipped)
        self._means.add(mask, entropy=self._entropies, **self._compared(inputs, before))
        return loss

    def _compared(self, inputs: Mapping[str, Any], before: Tensor) -> dict[str, Tensor]:
        """Per token of this pass: KL distance to the starting model, and whether its ratio is clipped."""
        found = {}
        if self.batches.updates > 1 and self.loss_type != "sapo":  # whose gate is smooth
            found["clipped_fraction"] = self._clipped(self._logps - before, inputs)
        if (start := inputs.get("ref_per_token_logps")) is not None:
            found["kl"] = (start - self._logps).exp() - (start - self._logps) - 1
        if self.largest_weight is not None and self._exact is None:
            weights = importance_weights(inputs, before, self.importance_sampling_level)
            found["bounded_weights"] = weights > self.largest_weight
        return found

    def _clipped(self, log_ratios: Tensor, inputs: Mapping[str, Any]) -> Tensor:
        """Which tokens' ratios are clipped, (rows, tokens) bool."""
        if self.importance_sampling_level == "sequence":
            mask = own_tokens(inputs)
            means = (log_ratios * mask).sum(1) / mask.sum(1).clamp(min=1)
            log_ratios = means[:, None].expand_as(log_ratios)
        ratios, advantages = log_ratios.exp(), inputs["advantages"].view(len(log_ratios), -1)
        if self.loss_type == "cispo":  # bounds the ratio itself, regardless of the advantage
            return ratios > self.epsilon_high
        too_high, too_low = ratios > 1 + self.epsilon_high, ratios < 1 - self.epsilon_low
        return too_high & (advantages > 0) | too_low & (advantages < 0)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log with the step's differences added.

        Raises:
            UserError: the differences exceed the configured limit.
        """
        if "loss" in logs and self.generator is not None:
            logs.update(self.generator.take_seconds(), stale_steps=self.generator.stale)
        if "loss" in logs:
            found, self._differences = self._differences.figures(), Differences()
            logs.update(dict(found))
            self._note("train", **self._means.take())
            error, limit = found.get("token_mult_prob_error", 1.0), self.mismatch_limit
            if self.generator is not None:
                self.generator.require_same_model(self.state.global_step, error)
            if limit is not None and error > limit and distributed.rank() != 0:
                raise SystemExit(2)  # the first process prints the reason
            require_alike(self.state.global_step, error, limit)
        super().log(logs, start_time)


def weighed(inputs: Mapping[str, Any], trained: Tensor, largest: float, level: str = "token") -> Tensor:
    """Advantages (rows, tokens) for truncated importance sampling: each is multiplied by the token's importance weight,
    at most `largest`. `trained`: (rows, tokens), nats.
    """
    weights = importance_weights(inputs, trained, level)
    return inputs["advantages"].view(len(weights), -1) * weights.clamp(max=largest)


def importance_weights(inputs: Mapping[str, Any], trained: Tensor, level: str) -> Tensor:
    """Probability of each token in training over that in sampling, (rows, tokens); at the level "sequence", that of the
    whole completion; 1 where nothing is learnt.
    """
    mask = own_tokens(inputs)
    apart = (trained - inputs["sampling_per_token_logps"]).masked_fill(~mask, 0)
    if level == "sequence":
        apart = apart.sum(1, keepdim=True).expand_as(apart)
    return apart.exp()
