"""Stop a training whose sampling and training probabilities differ too much."""

from nemotron_shared.errors import UserError


def require_alike(step: int, error: float, limit: float | None) -> None:
    """Check a step's `token_mult_prob_error` against the configured limit; None means no limit.

    Raises:
        UserError: the limit is exceeded.
    """
    if limit is not None and error > limit:
        # enough digits to tell the two apart
        shown = next((text for n in range(4, 17) if float(text := f"{error:.{n}g}") > limit), repr(error))
        raise UserError(
            f"step {step}: sampling and training disagree: token_mult_prob_error is {shown}, more than "
            f"grpo.sampling_mismatch_limit={limit}",
            "raise the limit, or leave it out: grpo.sampling_mismatch_limit=null",
        )
