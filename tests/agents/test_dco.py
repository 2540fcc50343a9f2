from __future__ import annotations

import itertools

import pytest
import torch
from tensordict import TensorDict

from torchrl_dceo.agents import make_agent
from torchrl_dceo.analysis import exact_eigenfunctions
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import Agent, Phase

CORRIDOR = "S........."


def make_corridor(**settings):
    return make_env(CORRIDOR, observation="index", coverage=True, **settings)


def eigenfunction(agent: Agent, observation: torch.Tensor) -> torch.Tensor:
    """The representation [1, f]."""
    with torch.no_grad():
        return agent.objectives["reward"].encoder.module(observation)


@pytest.mark.parametrize("barrier", [1.0, 0.3])
def test_the_objective_is_that_of_one_function_orthogonal_to_the_constant(barrier):
    """½ E[(f(s) - f(s'))²] + β E[(f(u)² - 1)(f(v)² - 1) + 2 f(u) f(v)] over pairs of different states u, v."""
    agent = make_agent("dco", make_corridor(), barrier=barrier)
    s, successor = torch.randn(5, 10), torch.randn(5, 10)
    batch = TensorDict({"observation": s, "successor": {"observation": successor}}, [5])
    f, f_next = eigenfunction(agent, s)[:, 1], eigenfunction(agent, successor)[:, 1]
    pairs = [(u**2 - 1) * (v**2 - 1) + 2 * u * v for u, v in itertools.permutations(f.tolist(), 2)]
    expected = 0.5 * (f - f_next).square().mean() + barrier * sum(pairs) / len(pairs)
    loss = agent.objectives["laplacian"](batch)["loss_laplacian"]
    torch.testing.assert_close(loss, expected)


def test_finds_the_first_eigenfunction_that_is_not_constant():
    env = make_corridor()
    agent = make_agent("dco", env, lr=1e-3)
    P = env.base_env.transition_matrix().to_dense().float()
    observations = env.base_env.observe(torch.arange(10))
    only_f = Phase("representation", objectives=("laplacian",))
    for _ in range(600):
        s = torch.randint(10, (64,))
        following = torch.multinomial(P[s], 1).squeeze(-1)
        batch = TensorDict(
            {
                "observation": observations[s],
                "successor": {"observation": observations[following]},
            },
            [64],
        )
        agent.update(batch, only_f)
    f = eigenfunction(agent, observations)
    assert torch.equal(f[:, 0], torch.ones(10))
    _, exact = exact_eigenfunctions(env.base_env, 2)
    assert torch.cosine_similarity(f[:, 1].double(), exact[:, 1], dim=0).abs() > 0.97


@pytest.mark.parametrize(("signs", "num_options"), [("+", 1), ("-", 1), ("both", 2)])
def test_options_follow_the_eigenfunction_to_its_ends(signs, num_options):
    agent = make_agent("dco", make_corridor(), signs=signs, reward_mode="telescoped")
    s, following = torch.randn(4, 10), torch.randn(4, 10)
    batch = TensorDict({"observation": s, "successor": {"observation": following}}, [4])
    climb = (eigenfunction(agent, following) - eigenfunction(agent, s))[:, 1:]
    expected = {"+": climb, "-": -climb, "both": torch.cat([climb, -climb], -1)}[signs]
    torch.testing.assert_close(agent.objectives["reward"](batch)["option_reward"], expected)
    assert agent.explorer.num_options == num_options


def test_online_by_default_two_phases_on_request():
    assert [phase.name for phase in make_agent("dco", make_corridor()).phases] == ["online"]
    two_phase = make_agent("dco", make_corridor(), discovery_frames=500)
    discovery, learning = two_phase.phases
    assert discovery.frames == 500 and discovery.reward_free
    assert tuple(discovery.objectives) == ("laplacian", "reward", "option")
    assert tuple(learning.objectives) == ("main",)


def test_more_than_one_eigenfunction_is_refused():
    with pytest.raises(
        ValueError, match="dco follows one eigenfunction, so num_options must be 1, got 10"
    ):
        make_agent("dco", make_corridor(), num_options=10)
