"""When what is sampled is too far from what is trained."""

from nemotron_shared.errors import UserError


def require_alike(step: int, error: float, limit: float | None) -> None:
    """Compare a step's `token_mult_prob_error` with what the config allows; None allows all.

    Raises:
        UserError: it is larger.
    """
    if limit is not None and error > limit:
        # as many digits as show the two apart
        shown = next((text for n in range(4, 17) if float(text := f"{error:.{n}g}") > limit), repr(error))
        raise UserError(
            f"step {step}: what is sampled is not what is trained: token_mult_prob_error is {shown}, more than "
            f"grpo.sampling_mismatch_limit={limit}",
            "raise the limit, or leave it out: grpo.sampling_mismatch_limit=null",
        )
