from __future__ import annotations

import numpy as np
import pytest

from torchrl_dceo.analysis.statistics import bootstrap_interval


def test_several_arrays_are_drawn_from_independently():
    """The difference of two draws of {0, 1}: -1 with probability 1/16, so a 95 % interval has both ends."""
    pair = np.array([[0.0], [1.0]])
    low, high = bootstrap_interval([pair, pair], lambda a, b: (a - b).mean(axis=0))
    assert (low[0], high[0]) == (-1.0, 1.0)
    together, _ = bootstrap_interval(pair, lambda a: (a - a).mean(axis=0))
    assert together[0] == 0.0


def test_arrays_may_have_different_numbers_of_runs():
    few, many = np.zeros((2, 1)), np.ones((7, 1))
    seen = set()

    def statistic(a, b):
        seen.add((a.shape, b.shape))
        return b.mean(axis=0) - a.mean(axis=0)

    low, high = bootstrap_interval([few, many], statistic, repetitions=20)
    assert (low[0], high[0]) == (1.0, 1.0) and seen == {((2, 1), (7, 1))}


def test_the_interval_has_its_confidence():
    """Means of 100 normal numbers: ± 1.645 standard errors at 90 %."""
    scores = np.random.default_rng(0).normal(size=(100, 1))
    low, high = bootstrap_interval(scores, lambda drawn: drawn.mean(axis=0), confidence=0.9)
    expected = 1.645 * scores.std(ddof=1) / 10
    assert (high[0] - low[0]) / 2 == pytest.approx(expected, rel=0.1)


def test_the_seed_fixes_the_draws_and_the_global_generator_is_left_alone():
    scores = np.random.default_rng(0).normal(size=(5, 1))

    def interval(seed):
        return bootstrap_interval(scores, lambda a: a.mean(axis=0), repetitions=30, seed=seed)

    np.random.seed(3)
    expected = np.random.rand()
    np.random.seed(3)
    first, again, other = interval(0), interval(0), interval(1)
    assert np.random.rand() == expected
    assert first[0] == again[0] and first[0] != other[0]


@pytest.mark.parametrize("shapes", [[(3, 1)], [(4, 2, 3)], [(2, 1), (7, 2)], [(1, 1)]])
@pytest.mark.parametrize("confidence", [0.95, 0.5])
def test_the_intervals_are_those_of_rliable(shapes, confidence):
    library = pytest.importorskip("rliable.library")
    generator = np.random.default_rng(0)
    arrays = [generator.normal(size=shape) for shape in shapes]

    def statistic(*drawn):
        return np.array([np.mean([d.mean() for d in drawn]), max(d.max() for d in drawn)])

    np.random.seed(5)
    _, expected = library.get_interval_estimates(
        {"runs": arrays[0] if len(arrays) == 1 else arrays},
        statistic,
        reps=50,
        confidence_interval_size=confidence,
    )
    scores = arrays[0] if len(arrays) == 1 else arrays
    found = bootstrap_interval(scores, statistic, confidence=confidence, repetitions=50, seed=5)
    np.testing.assert_allclose(np.array(found), expected["runs"], rtol=1e-12)
