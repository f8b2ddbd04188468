import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemotron_data.packing import ALGORITHMS, pack
from nemotron_shared.errors import UserError

SIZED = st.integers(1, 200).flatmap(lambda size: st.tuples(st.just(size), st.lists(st.integers(1, size), max_size=60)))


def reference(order: list[int], lengths: list[int], size: int, best: bool) -> list[list[int]]:
    """Look at every bin for every item; the best has least space, the first was opened first."""
    bins: list[list[int]] = []
    for index in order:
        spaces = [size - sum(lengths[i] for i in members) for members in bins]
        fitting = [number for number, space in enumerate(spaces) if space >= lengths[index]]
        if not fitting:
            bins.append([index])
        else:
            bins[min(fitting, key=spaces.__getitem__) if best else fitting[0]].append(index)
    return bins


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(deadline=None)
@given(SIZED, st.integers(0, 2**32))
def test_every_index_once_and_no_bin_too_full(algorithm, sized, seed):
    size, lengths = sized
    bins = pack(np.array(lengths, np.int64), size, algorithm, seed).lists()
    assert sorted(index for members in bins for index in members) == list(range(len(lengths)))
    assert all(members and sum(lengths[i] for i in members) <= size for members in bins)
    assert bins == pack(np.array(lengths, np.int32), size, algorithm, seed).lists()


@settings(deadline=None)
@given(SIZED, st.integers(0, 99))
def test_best_fit_decreasing_needs_as_many_bins_as_a_plain_search(sized, seed):
    size, lengths = sized
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    expected = reference(order, lengths, size, best=True)
    bins = pack(np.array(lengths, np.int64), size, "best_fit_decreasing", seed).lists()
    assert sorted(sum(lengths[i] for i in members) for members in bins) == sorted(
        sum(lengths[i] for i in members) for members in expected
    )


@settings(deadline=None)
@given(SIZED, st.integers(0, 99))
def test_first_fit_shuffle_is_first_fit_in_some_order(sized, seed):
    size, lengths = sized
    bins = pack(np.array(lengths, np.int64), size, "first_fit_shuffle", seed).lists()
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(lengths)).tolist()
    expected = reference(order, lengths, size, best=False)
    assert sorted(bins) == sorted(expected)


def test_concatenative_keeps_the_order():
    assert pack(np.array([6, 4, 7, 3, 1]), 10, "concatenative", 0).lists() == [[0, 1], [2, 3], [4]]


def test_many_sequences_reach_the_known_bin_counts():
    random = np.random.default_rng(7)
    lengths = np.clip(np.exp(random.normal(np.log(600), 1.1, 20_000)).astype(np.int64), 16, 4096)
    floor = -(-int(lengths.sum()) // 4096)
    counts = {algorithm: len(pack(lengths, 4096, algorithm, 1)) for algorithm in ALGORITHMS}
    assert floor <= counts["best_fit_decreasing"] <= floor + 2
    assert counts["best_fit_decreasing"] < counts["first_fit_shuffle"] < counts["concatenative"]


def test_finished_bins_are_mixed_by_the_seed():
    lengths = np.arange(1, 301)
    one, other = (pack(lengths, 300, "best_fit_decreasing", seed).lists() for seed in (1, 2))
    assert one != other
    assert sorted(one) == sorted(other)
    longest = [max(members) for members in one]
    assert longest != sorted(longest, reverse=True)


@pytest.mark.parametrize(("length", "shown"), [(0, "0 tokens"), (11, "11 tokens")])
def test_a_length_that_cannot_be_packed_is_named(length, shown):
    with pytest.raises(UserError, match=f"sequence 1 has {shown}"):
        pack(np.array([5, length, 3]), 10, "best_fit_decreasing", 0)


def test_an_unknown_algorithm_is_refused():
    with pytest.raises(UserError) as caught:
        pack(np.array([1]), 10, "best_fit_decreasin", 0)
    assert "did you mean 'best_fit_decreasing'" in str(caught.value)


def test_nothing_packs_into_nothing():
    assert [pack(np.array([], np.int64), 10, algorithm, 0).lists() for algorithm in ALGORITHMS] == [[], [], [], []]
