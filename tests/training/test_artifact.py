"""Encoder and options on their own: the same functions after saving and loading, and nothing else is accepted."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from torchrl_dceo.agents import make_agent
from torchrl_dceo.data.persistence import save_state
from torchrl_dceo.envs import make_env
from torchrl_dceo.modules import EigenReward
from torchrl_dceo.modules.networks import MultiHeadNet, StackedNet, grid_net, mlp_net, nature_net
from torchrl_dceo.training import load_options, save_options
from torchrl_dceo.training.architectures import build_network, describe_network


@pytest.mark.parametrize(
    "network",
    [
        grid_net((3, 13, 13), 4),
        grid_net((3, 19, 17), 4),
        nature_net((4, 84, 84), 5),
        mlp_net(6, 4),
        nn.Sequential(nn.Flatten(-2), nn.Linear(6, 3, bias=False), nn.ReLU(), nn.Linear(3, 2)),
        MultiHeadNet(lambda out: grid_net((3, 13, 13), out), 3, 4),
        MultiHeadNet(lambda out: mlp_net(6, out), 3, (2, 4)),
        StackedNet(lambda out: grid_net((3, 13, 13), out), 3, 4),
        StackedNet(lambda out: mlp_net(6, out), 3, (2, 4)),
    ],
    ids=lambda network: type(network).__name__,
)
def test_a_network_built_from_its_description_computes_the_same(network):
    built = build_network(describe_network(network))
    built.load_state_dict(network.state_dict())
    inner = getattr(network, "network", getattr(network, "_template", (network,)))
    inner = inner[0] if isinstance(inner, tuple) else inner
    if "ConvNet" in type(inner).__name__:
        x = torch.randint(256, (2, *describe_network(inner)["in_shape"]), dtype=torch.uint8)
    else:
        x = torch.randn(2, 2, 3) if isinstance(inner[0], nn.Flatten) else torch.randn(2, 6)
    assert torch.equal(built(x), network(x))


def make(agent: str = "dceo", env=None, **settings):
    env = make_env("NineRooms", room_size=3, batch_size=3) if env is None else env
    return make_agent(agent, env, **settings), env


@pytest.mark.parametrize(
    ("env_settings", "settings"),
    [
        ({}, {"num_options": 3, "dimensions": 5}),
        ({}, {"num_options": 2, "dimensions": 4, "signs": "both", "independent_networks": True}),
        ({"observation": "xy"}, {"num_options": 3, "dimensions": 3, "skip_first": False}),
        ({}, {"num_options": 2, "dimensions": 4, "signs": "-", "reward_mode": "telescoped"}),
    ],
)
def test_loaded_options_are_those_saved(tmp_path, env_settings, settings):
    env = make_env("NineRooms", room_size=3, batch_size=4, **env_settings)
    agent, _ = make(env=env, **settings)
    save_options(tmp_path, agent)
    torch.manual_seed(1)  # what is loaded depends on the files alone
    options, encoder, reward = load_options(tmp_path, env)
    own = agent.objectives["reward"]
    step = env.rollout(2)[:, 0]
    policy_values = agent.policy[1](step.clone())["option_action_value"]
    assert torch.equal(options(step.clone())["option_action_value"], policy_values)
    expected = own.encoder(step.clone())["representation"]
    assert torch.equal(encoder(step.clone())["representation"], expected)
    assert isinstance(reward, EigenReward) and reward.num_rewards == own.num_rewards
    assert (reward.signs, reward.skip_first, reward.mode) == (own.signs, own.skip_first, own.mode)
    if own.mode == "telescoped":
        own.reuse_representation = False
        for module in (own, reward):
            module.set_keys(successor="next")  # the steps of a rollout, not a replay's
        ours, theirs = reward(step.clone()), own(step.clone())
        assert torch.equal(ours["option_reward"], theirs["option_reward"])
        assert ours["option_reward"].abs().sum() > 0


def test_frozen_or_not(tmp_path):
    agent, _ = make(num_options=2, dimensions=3)
    save_options(tmp_path, agent)
    for frozen in (True, False):
        options, encoder, _ = load_options(tmp_path, frozen=frozen)
        weights = [*options.parameters(), *encoder.parameters()]
        assert all(weight.requires_grad != frozen for weight in weights)
    # What is loaded shares nothing with the agent.
    before = next(agent.parameters()).clone()
    with torch.no_grad():
        for weight in weights:
            weight.zero_()
    assert torch.equal(next(agent.parameters()), before)


def test_in_a_fresh_process(tmp_path):
    """Nothing but the file is needed to load: no agent is built, and no Hydra imported."""
    agent, _ = make(num_options=2, dimensions=3)
    save_options(tmp_path, agent)
    code = f"""
import sys
from torchrl_dceo.training.option_io import load_options
assert "hydra" not in sys.modules
print(load_options({str(tmp_path)!r}).options.num_options)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "4\n", result.stderr  # two in both directions


def test_skills_without_a_representation(tmp_path):
    agent, env = make("diayn", num_options=3)
    save_options(tmp_path, agent)
    options, encoder, reward = load_options(tmp_path, env)
    assert options.num_options == 3 and encoder is None and reward is None


def test_what_does_not_fit_is_refused(tmp_path):
    agent, _ = make(num_options=2, dimensions=3)
    save_options(tmp_path / "options", agent)
    cases = [
        (
            make_env("RubiksCube222", max_depth=3),
            "the options have 4 actions, this environment has 9",
        ),
        (make_env("NineRooms", observation="xy"), "read 'pixels', which this environment does not"),
        (make_env("NineRooms"), r"do not fit observations of shape \[3, 19, 19\]"),
    ]
    for env, message in cases:
        with pytest.raises(ValueError, match=message):
            load_options(tmp_path / "options", env)
    with pytest.raises(ValueError, match="this agent has no options"):
        save_options(tmp_path / "none", make("ddqn")[0])
    save_state(tmp_path / "other", {"counters": {}})
    with pytest.raises(ValueError, match="holds no option set: save one with save_options"):
        load_options(tmp_path / "other")
    with pytest.raises(FileNotFoundError, match="No saved state"):
        load_options(tmp_path / "nowhere")
    for file in (tmp_path / "options").iterdir():
        good = file.read_bytes()
        for bad in (good[:-1], good[:99] + bytes([good[99] ^ 1]) + good[100:]):
            file.write_bytes(bad)
            with pytest.raises(ValueError, match="damaged"):
                load_options(tmp_path / "options")
        file.write_bytes(good)


class Own(nn.Module):
    def __init__(self, out: int) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * 13 * 13, out)

    def forward(self, pixels):
        return self.layer(pixels.flatten(-3).float())


def test_a_network_of_ones_own(tmp_path):
    agent, env = make(num_options=2, dimensions=3)
    agent.objectives["reward"].encoder.module = own = Own(3)
    save_options(tmp_path, agent)
    with pytest.raises(ValueError, match=r"of class Own cannot be built .* as encoder_network"):
        load_options(tmp_path)
    _, encoder, _ = load_options(tmp_path, encoder_network=Own(3))
    pixels = env.reset()["pixels"]
    assert torch.equal(encoder(pixels), own(pixels))
