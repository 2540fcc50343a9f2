"""Pairs of states from random walks: where they start, how far apart they are, what that does to the spectrum."""

from __future__ import annotations

import pytest
import torch

from torchrl_dceo.analysis import cosine_similarity, exact_eigenfunctions
from torchrl_dceo.analysis.spectra.exact import pair_eigenfunctions
from torchrl_dceo.envs import GridWorldEnv
from torchrl_dceo.studies.experiments import collect_pairs

ENV = GridWorldEnv("S......\n.##.##.\n.......", observation="xy")


def test_pairs_are_moves_and_the_walk_is_uniformly_random():
    states, successors = collect_pairs(ENV, 100_000, seed=3)
    assert states.shape == successors.shape == (100_000,)
    counts = torch.zeros(ENV.num_states, ENV.num_states)
    counts.index_put_((states, successors), torch.ones(len(states)), accumulate=True)
    sampled = counts / counts.sum(1, keepdim=True)
    exact = ENV.transition_matrix().to_dense().float()
    assert (sampled[exact == 0] == 0).all()
    # 5900 visits a state: a standard error of 0.006.
    assert (sampled - exact).abs().max() < 0.03


def test_starts_anywhere_or_where_the_map_says():
    uniform = collect_pairs(ENV, 20_000, episode_steps=1).states
    share = torch.bincount(uniform, minlength=ENV.num_states) / len(uniform)
    assert (share * ENV.num_states - 1).abs().max() < 0.15
    one = collect_pairs(ENV, 1000, starts="one", episode_steps=10).states.view(-1, 10)
    assert (one[:, 0] == 0).all() and one.max() > 0


def test_discounted_pairs_keep_the_eigenfunctions_and_raise_the_eigenvalues():
    discount = 0.8
    pairs = collect_pairs(ENV, 400_000, discount=discount, episode_steps=100)
    values, exact = exact_eigenfunctions(ENV, 5)
    spectrum = pair_eigenfunctions(*pairs, ENV.num_states, 5)
    assert cosine_similarity(spectrum.eigenfunctions, exact, values).subspace_mean > 0.99
    predicted = values / (1 - discount * (1 - values))
    # Episodes are 25 times as long as a pair: the cut takes off a few percent.
    torch.testing.assert_close(spectrum.eigenvalues, predicted, rtol=0.08, atol=2e-3)


def test_kept_actions_go_further():
    env = GridWorldEnv("S" + "." * 60, observation="xy")
    far = [
        collect_pairs(env, 5000, starts="one", episode_steps=50, repeat=repeat)
        .states.float()
        .mean()
        for repeat in (1.0, 10.0)
    ]
    assert far[1] > 1.5 * far[0]


def test_same_seed_same_pairs():
    first, again, other = (collect_pairs(ENV, 500, seed=seed).states for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"starts": "corner"}, "starts must be 'uniform' or 'one', got 'corner'"),
        ({"discount": 1.0}, r"discount must lie in \[0, 1\), got 1.0"),
        ({"repeat": 0.5}, "repeat must be at least 1, got 0.5"),
        ({"episode_steps": 0}, "episode_steps must be at least 1, got 0"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ValueError, match=message):
        collect_pairs(ENV, 100, **settings)
