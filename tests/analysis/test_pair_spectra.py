"""The eigenfunctions of sampled pairs: the optimum that an objective has on its data."""

from __future__ import annotations

import pytest
import torch

from torchrl_dceo.analysis import cosine_similarity, exact_eigenfunctions
from torchrl_dceo.analysis.spectra import span_alignment
from torchrl_dceo.analysis.spectra.exact import pair_eigenfunctions
from torchrl_dceo.envs import GridWorldEnv

ENV = GridWorldEnv("S....\n.##..\n.....")


def every_move() -> tuple[torch.Tensor, torch.Tensor]:
    """Each action once in each state: the uniformly random walk under uniform weights, without noise."""
    states = torch.arange(ENV.num_states).repeat_interleave(4)
    return states, ENV.next_state.reshape(-1)


def test_noiseless_pairs_have_the_exact_spectrum():
    values, exact = exact_eigenfunctions(ENV, 5)
    spectrum = pair_eigenfunctions(*every_move(), ENV.num_states, 5)
    torch.testing.assert_close(spectrum.eigenvalues, values)
    torch.testing.assert_close(
        cosine_similarity(spectrum.eigenfunctions, exact, values).subspace_cosines,
        torch.ones(5, dtype=torch.float64),
    )


def test_they_minimise_the_sampled_smoothness_also_where_visits_are_not_stationary():
    """Under the sampled weights each is orthonormal, and its ½E(f(s)-f(s'))² is its eigenvalue."""
    torch.manual_seed(0)
    states = torch.randint(ENV.num_states, (400,)).clamp(max=6)  # many pairs leave state 6
    successors = ENV.next_state[states, torch.randint(4, (400,))]
    seen = torch.cat([states, successors]).unique()
    # Close the data: every state that is a successor also comes first.
    states, successors = torch.cat([states, seen]), torch.cat([successors, seen])
    spectrum = pair_eigenfunctions(states, successors, ENV.num_states, 4)
    f = spectrum.eigenfunctions
    moments = f[states].T @ f[states] / len(states)
    torch.testing.assert_close(moments, torch.eye(4, dtype=torch.float64))
    smoothness = 0.5 * (f[states] - f[successors]).square().mean(0)
    torch.testing.assert_close(smoothness, spectrum.eigenvalues)
    assert spectrum.eigenvalues[0].abs() < 1e-12  # the constant, stationary or not


def test_refusals():
    states, successors = every_move()
    with pytest.raises(ValueError, match=r"must have one shape, got \[3\] and"):
        pair_eigenfunctions(states[:3], successors, ENV.num_states, 2)
    with pytest.raises(ValueError, match=r"d must lie in \[1, 1\]"):
        pair_eigenfunctions(states[:4], successors[:4], ENV.num_states, 2)


def test_span_alignment_ignores_rotations_and_sees_what_is_missing():
    _, exact = exact_eigenfunctions(ENV, 3)
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64)).Q
    assert span_alignment(exact @ turn, exact) == pytest.approx(1.0)
    lacking = exact.clone()
    lacking[:, 2] = 0
    assert span_alignment(lacking, exact) == pytest.approx(2 / 3)
