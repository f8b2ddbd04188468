"""Which prompts a step asks, and who samples them: nothing is left out, and nothing depends on what came before."""

import pytest

from stages.rl.engines.trl.batches import Batches


@pytest.mark.parametrize(("prompts", "per_step"), [(42, 4), (7, 7), (10, 9), (255, 128)])
def test_every_epoch_has_each_prompt_once_in_an_order_of_its_own(prompts: int, per_step: int) -> None:
    batches, epochs = Batches(prompts, per_step, 2, 1, seed=7), 6
    asked = [number for step in range(-(-epochs * prompts // per_step)) for number in batches.asked(step)]
    orders = [tuple(asked[first : first + prompts]) for first in range(0, epochs * prompts, prompts)]
    assert all(sorted(order) == list(range(prompts)) for order in orders)
    assert len(set(orders)) == epochs == 6


def test_a_step_is_known_without_those_before_it() -> None:
    went_on, begun = Batches(42, 4, 2, 1, seed=7), Batches(42, 4, 2, 1, seed=7)
    for step in range(25):
        went_on.asked(step)
    assert begun.asked(25) == went_on.asked(25) != Batches(42, 4, 2, 1, seed=8).asked(25)


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_processes_share_every_update(processes: int) -> None:
    batches = Batches(prompts=42, per_step=4, completions=4, updates=2, seed=7)
    mine = [batches.rows_of(process, processes) for process in range(processes)]
    size = 8 // processes
    for update in range(2):
        together = [row for rows in mine for row in rows[update * size : (update + 1) * size]]
        assert sorted(together) == list(range(update * 8, update * 8 + 8))
