"""Options that end at their top, and the share of exploratory steps when durations are measured."""

from __future__ import annotations

import copy

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import Categorical

from torchrl_dceo.agents import make_agent
from torchrl_dceo.analysis import exact_eigenfunctions
from torchrl_dceo.analysis.spectra.options import solved_option_values
from torchrl_dceo.envs import GridWorldEnv, make_env
from torchrl_dceo.modules import EigenReward, OptionExplorationModule, TopTermination

CORRIDOR = "S.....G"


def corridor_values() -> tuple[torch.Tensor, torch.Tensor]:
    """The first non-constant eigenfunction f ``[S, 1]`` of a corridor, and exact values of its option."""
    env = GridWorldEnv(CORRIDOR, slip=0.15)
    f = exact_eigenfunctions(env, 2)[1][:, 1:]
    values = solved_option_values(
        f, env.next_state, gamma=0.95, slip=env.slip, terminal=torch.zeros_like(env._is_goal)
    )
    return f.float(), values.float()


def identity_reward(mode: str) -> EigenReward:
    encoder = TensorDictModule(nn.Identity(), in_keys=["observation"], out_keys=["representation"])
    return EigenReward(encoder, 1, skip_first=False, mode=mode, gamma=0.95)


@pytest.mark.parametrize("mode", ["telescoped", "potential"])
def test_an_exact_option_ends_at_its_top_and_only_there(mode):
    f, values = corridor_values()
    if mode == "potential":
        values = values + f.unsqueeze(-1)
    td = TensorDict({"option_action_value": values, "observation": f}, [len(f)])
    ends = TopTermination(identity_reward(mode), duration=5)(
        td, torch.zeros(len(f), dtype=torch.int64)
    )
    expected = torch.full((len(f),), 0.2)
    expected[f.squeeze(-1).argmax()] = 1.0
    torch.testing.assert_close(ends, expected)


def test_each_environment_is_asked_for_its_own_option():
    values = torch.tensor([[[-1.0, -2.0], [3.0, -1.0]]]).expand(4, 2, 2)
    td = TensorDict({"option_action_value": values}, [4])
    # Without an option, -1, the answer does not matter but must exist.
    ends = TopTermination(duration=2)(td, torch.tensor([0, 1, 0, -1]))
    assert ends[:3].tolist() == [1.0, 0.5, 1.0] and ends.shape == (4,)


def test_a_duration_below_one_step_is_named():
    with pytest.raises(ValueError, match=r"duration must be at least 1 step, got 0\.5"):
        TopTermination(duration=0.5)


class _EndsAfter(nn.Module):
    """Ends an option with a fixed probability that the explorer is not told of."""

    def forward(self, tensordict, option):
        return torch.full(option.shape, 0.25)


@pytest.mark.parametrize("eps", [0.1, 0.5])
def test_a_share_of_epsilon_of_all_steps_explores_with_a_measured_duration(eps):
    """Told D = 40, while options last 4 steps: unmeasured, the share would be a fraction of ε."""
    torch.manual_seed(0)
    explore = OptionExplorationModule(
        Categorical(4),
        num_options=3,
        eps_init=eps,
        eps_end=eps,
        option_prob=1.0,
        option_duration=40,
        eps_per="step",
        termination=_EndsAfter(),
    )
    assert explore.measures_duration
    shares = []
    td = TensorDict(
        {
            "action": torch.zeros(500, dtype=torch.int64),
            "option": torch.full((500,), -1),
            "is_init": torch.zeros(500, 1, dtype=torch.bool),
            "option_action_value": torch.randn(500, 3, 4),
        },
        [500],
    )
    for step in range(400):
        td["action"].zero_()
        td = explore(td)
        explore.observe(td)
        if step >= 100:
            shares.append((td["option"] >= 0).float().mean())
        td["option"] = td["next", "option"]
    assert float(explore._mean_length()) == pytest.approx(4.0, rel=0.15)
    assert float(torch.stack(shares).mean()) == pytest.approx(eps, abs=0.015)


def test_the_measured_duration_is_saved_and_a_known_one_is_not():
    settings = {"num_options": 2, "eps_per": "step"}
    measured = OptionExplorationModule(Categorical(2), termination=_EndsAfter(), **settings)
    batch = TensorDict(
        {
            "option": torch.tensor([0, 0, 0, 1]),
            "option_start": torch.tensor([True, False, False, True]),
        },
        [4],
    )
    measured.observe(batch)
    restored = OptionExplorationModule(Categorical(2), termination=_EndsAfter(), **settings)
    restored.load_state_dict(measured.state_dict())
    torch.testing.assert_close(restored._mean_length(), measured._mean_length())
    assert float(measured._mean_length()) < 10
    known = OptionExplorationModule(Categorical(2), **settings)
    known.observe(batch)
    assert known._mean_length() == 10 and "option_steps" not in known.state_dict()


def test_dceo_ends_options_at_their_top_with_the_current_encoder():
    env = make_env("NineRooms", room_size=3, seed=0)
    agent = make_agent("dceo", env, option_duration=7.0)
    ends = agent.explorer.termination
    assert isinstance(ends, TopTermination) and ends.duration == 7.0
    assert agent.explorer.measures_duration
    # Worker processes have a copy of the policy, whose tensors are overwritten with the current ones.
    copied = copy.deepcopy(agent.policy)
    with torch.no_grad():
        for parameter in ends.reward.encoder.parameters():
            parameter.add_(1.0)
    for old, new in zip(copied.parameters(), agent.policy.parameters(), strict=True):
        old.data.copy_(new)
    copied_ends = next(m for m in copied.modules() if isinstance(m, TopTermination))
    for old, new in zip(
        copied_ends.reward.encoder.parameters(), ends.reward.encoder.parameters(), strict=True
    ):
        torch.testing.assert_close(old, new)


@pytest.mark.parametrize("agent", ["dceo", "dceo_two_phase", "dco"])
def test_the_papers_length_is_a_setting(agent):
    env = make_env("NineRooms", room_size=3, seed=0)
    assert isinstance(make_agent(agent, env).explorer.termination, TopTermination)
    assert make_agent(agent, env, termination=None).explorer.termination is None
    assert make_agent("rainbow_dceo", env).explorer.termination is None


def test_skills_have_no_top():
    env = make_env("NineRooms", room_size=3, seed=0)
    assert make_agent("diayn", env).explorer.termination is None
    with pytest.raises(ValueError, match="termination 'top' is for options that follow eigenfunct"):
        make_agent("diayn", env, termination="top")
