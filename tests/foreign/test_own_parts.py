"""Networks, rewards, terminations and selections of one's own, by function or by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchrl_dceo.agents import make_agent
from torchrl_dceo.agents.configs import LearnerConfig
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import load_agent, train


class Small(nn.Module):
    def __init__(self, shape, out_features):
        super().__init__()
        self.linear = nn.Linear(shape.numel(), out_features)

    def forward(self, pixels):
        return self.linear(pixels.float().flatten(-3))


class Recurrent(Small):
    def __init__(self, shape, out_features):
        super().__init__(shape, out_features)
        self.memory = nn.GRUCell(out_features, out_features)


class FirstPixel(nn.Module):
    """Rewards option i by i + 1 where the first pixel changes."""

    def __init__(self, encoder, num_options, *, successor):
        super().__init__()
        self.encoder, self.num_options, self.successor = [encoder], num_options, successor

    def forward(self, batch):
        changed = batch["pixels"][:, 0, 0, 0] != batch[self.successor, "pixels"][:, 0, 0, 0]
        scale = torch.arange(1, self.num_options + 1)
        return batch.set("option_reward", changed.float().unsqueeze(-1) * scale)


def always(tensordict, option):
    return torch.ones(option.shape)


def last_option(tensordict, num_options):
    return torch.full(tensordict.shape, num_options - 1)


def small_env(**kwargs):
    return make_env("NineRooms", room_size=3, batch_size=4, seed=0, **kwargs)


@pytest.mark.parametrize("part", [Small, "foreign.test_own_parts:Small"])
def test_networks_of_ones_own(part):
    agent = make_agent("dceo", small_env(), network=part, num_options=2)
    kinds = [type(module).__name__ for module in agent.modules()]
    assert kinds.count("Small") >= 3 and "ConvNet" not in kinds
    only = make_agent("dceo", small_env(), encoder=part, num_options=2)
    encoder = only.objectives["reward"].encoder
    assert any(type(module).__name__ == "Small" for module in encoder.modules())
    assert any(type(module).__name__ == "ConvNet" for module in only.policy.modules())


def test_what_cannot_be_a_network_is_refused_in_one_sentence():
    with pytest.raises(
        ValueError, match=r"recurrent networks .GRUCell. are not supported: supported are"
    ):
        make_agent("ddqn", small_env(), network=Recurrent)
    with pytest.raises(ValueError, match=r"network is 'natur' .did you mean 'nature'"):
        LearnerConfig(network="natur")
    with pytest.raises(ValueError, match="cannot be imported"):
        make_agent("ddqn", small_env(), network="no_such_module:net")


def test_option_reward_termination_and_selection_of_ones_own():
    env = small_env()
    agent = make_agent(
        "dceo",
        env,
        option_reward=FirstPixel,
        termination="foreign.test_own_parts:always",
        selection=last_option,
        num_options=3,
        option_prob=1.0,
        eps_end=1.0,
    )
    assert agent.policy[1].num_options == 3
    row = train(agent, env, total_frames=400, learning_starts=100, log_period=400, progress=False)
    # Every option ends after a step, and only the last one starts.
    assert row["option_starts"] == 400 == row["option_starts_3"] and row["option_starts_1"] == 0
    batch_reward = agent.objectives["reward"]
    assert batch_reward.encoder[0].out_keys == ["representation"]


def test_a_run_with_parts_of_ones_own_is_loaded_again(tmp_path):
    env = small_env()
    agent = make_agent("dceo", env, network=Small, termination=always, num_options=2)
    train(agent, env, total_frames=200, learning_starts=100, run_dir=tmp_path, progress=False)
    learned = load_agent(tmp_path, small_env())
    observed = learned.env.reset()
    assert torch.equal(
        learned.options(observed.clone())["option_action_value"],
        agent.policy[1](observed.clone())["option_action_value"],
    )
    assert learned.metadata["agent"]["network"].endswith(":Small")
