"""Advantages: those of NeMo-RL's recipes, those of whole groups, and none at all where nothing is to be told apart."""

from math import nan

import numpy as np
import pytest

from stages.rl.engines.trl.batches import advantages_of, mean_and_spread

RIGHT_AND_WRONG = [  # of a group of 8: how many are right, and the advantage of a right and of a wrong one
    (1, 1.000, -0.378),
    (2, 2.268, -0.586),
    (4, 1.069, -1.069),
    (7, 0.378, -1.000),
]


@pytest.mark.parametrize(("right", "of_right", "of_wrong"), RIGHT_AND_WRONG)
def test_a_completion_is_compared_with_the_others(right: int, of_right: float, of_wrong: float) -> None:
    rewards = np.array([[1.0] * right + [0.0] * (8 - right)])
    found = advantages_of(rewards, leave_one_out=True, normalize=True)[0]
    assert found[:right] == pytest.approx([of_right] * right, abs=5e-4)
    assert found[right:] == pytest.approx([of_wrong] * (8 - right), abs=5e-4)


def test_or_with_the_whole_group() -> None:
    rewards = np.array([[1.0, 0, 0, 0, 0, 0, 0, 0]])
    assert advantages_of(rewards, leave_one_out=False, normalize=True)[0, :2] == pytest.approx(
        [2.4749, -0.3536], abs=1e-4
    )
    assert advantages_of(rewards, leave_one_out=False, normalize=False)[0, :2].tolist() == [0.875, -0.125]


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8, 16])
@pytest.mark.parametrize("reward", [0.1, 0.2, 0.7, 1.2, 1 / 3, 1e-9, 1e9])
def test_equal_rewards_give_none(size: int, reward: float) -> None:
    for leave_one_out in (True, False):
        for normalize in (True, False):
            found = advantages_of(np.full((2, size), reward), leave_one_out=leave_one_out, normalize=normalize)
            assert not found.any()
    mean, spread = mean_and_spread(np.full((2, size), reward))
    assert (mean == reward).all() and not spread.any()


def test_others_that_are_equal_are_no_scale() -> None:
    found = advantages_of(np.array([[0.2] * 7 + [1.2]]), leave_one_out=True, normalize=True)[0]
    assert found[-1] == 1.0, "and not 1 over the rounding of seven times 0.2"


@pytest.mark.parametrize("leave_one_out", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
def test_a_group_that_lost_completions_is_made_of_the_others(leave_one_out: bool, normalize: bool) -> None:
    """Its neighbours are not filled up from it, nor it from them; one that is left alone is compared with none."""
    how = {"leave_one_out": leave_one_out, "normalize": normalize}
    found = advantages_of(np.array([[1, 0, nan, 0.5], [nan, nan, 7, nan], [0, 3, 0, 1]]), **how)
    assert found[0, [0, 1, 3]].tolist() == advantages_of(np.array([[1, 0, 0.5]]), **how)[0].tolist()
    assert found[0, 2] == 0 and not found[1].any()
    assert found[2].tolist() == advantages_of(np.array([[0.0, 3, 0, 1]]), **how)[0].tolist()


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_rewards_that_differ_by_rounding_are_equal(scale: float) -> None:
    one, other = 0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1
    assert one != other
    rewards = scale * np.array([[one, other, other, 0.5]])
    found = advantages_of(rewards, leave_one_out=True, normalize=True)[0]
    assert found[3] == pytest.approx(-0.1 * scale)  # the others have no deviation
    assert advantages_of(rewards[:, :3], leave_one_out=True, normalize=True)[0] == pytest.approx([0, 0, 0], abs=1e-9)
