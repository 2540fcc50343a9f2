"""Adam without a signal: what keeps a main learner alive until the first reward."""

from __future__ import annotations

import functools

import pytest
import torch
from torchrl.objectives import SoftUpdate

from torchrl_dceo.agents import make_agent
from torchrl_dceo.agents.agent import Agent
from torchrl_dceo.agents.configs import LearnerConfig
from torchrl_dceo.agents.learners import make_main_learner
from torchrl_dceo.agents.optimizer import make_optimizer
from torchrl_dceo.analysis import find_table_env, state_values
from torchrl_dceo.data import make_replay_buffer
from torchrl_dceo.envs import make_env
from torchrl_dceo.modules import OptionExplorationModule
from torchrl_dceo.modules.exploration import value_termination


@pytest.mark.parametrize("eps", [1e-8, 1e-5])
def test_gradients_of_almost_nothing_move_the_main_learner_by_almost_nothing(eps):
    """The first step of Adam in closed form: lr · g / (|g| + ε), for each loss with its ε."""
    env = make_env("NineRooms", room_size=3)
    config = LearnerConfig(lr=1e-3, adam_eps=eps)
    losses = {name: make_main_learner(env, config)[1] for name in ("option", "main")}
    optimizer = make_optimizer(config, losses)
    assert len(optimizer.param_groups) == (1 if eps == 1e-5 else 2)
    gradient = 1e-6
    for name, loss in losses.items():
        for parameter in loss.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.full_like(parameter, gradient)
        before = [p.detach().clone() for p in loss.parameters() if p.requires_grad]
        optimizer.step()
        optimizer.zero_grad()
        expected = 1e-3 * gradient / (gradient + (1e-5 if name == "main" else eps))
        after = [p for p in loss.parameters() if p.requires_grad]
        for old, new in zip(before, after, strict=True):
            torch.testing.assert_close(
                old - new, torch.full_like(old, expected), rtol=0.1, atol=1e-8
            )


@pytest.mark.slow
def test_values_still_differ_between_states_after_long_without_reward():
    """With torch's ε the values of all states nearly agree after 8,000 updates: a spread 20 times smaller here."""
    torch.manual_seed(0)
    env = make_env("NineRooms", batch_size=16, seed=0, coverage=True, starts="anywhere")
    data = env.rollout(2000, break_when_any_done=False)
    spread = {}
    for eps in (1e-8, 1e-5):
        torch.manual_seed(1)
        config = LearnerConfig(lr=5e-4, main_adam_eps=eps)
        replay = make_replay_buffer(data.numel() * 3, n_steps=5, num_streams=16, seed=1)
        replay.extend(data)
        actor, loss = make_main_learner(env, config)
        optimizer = make_optimizer(config, {"main": loss})
        target = SoftUpdate(loss, tau=0.01)
        for _ in range(8000):
            loss(replay.sample(32))["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
            target.step()
        values = state_values(actor, find_table_env(env), out_key="action_value")
        spread[eps] = float(values.std(0).mean())
    # 5 to 20 times over three seeds, 20 on this one.
    assert 8 * spread[1e-8] < spread[1e-5]


@pytest.mark.parametrize("learner", ["network", "rainbow"])
@pytest.mark.parametrize("independent", [True, False])
def test_options_left_out_of_an_update_do_not_move(independent, learner):
    """Bit for bit, after many updates in which Adam's momentum would have moved them."""
    env = make_env("NineRooms", room_size=3)
    agent = make_agent(
        "dceo",
        env,
        num_options=2,
        signs="both",
        options_per_update=1,
        independent_networks=independent,
        main_learner=learner,
    )
    replay = agent.replay.make(env, 1000, seed=0)
    replay.extend(env.rollout(200, break_when_any_done=False))
    loss = agent.objectives["option"]
    divided, seen = loss._divided, set()
    for _ in range(12):
        before = {key: loss.option_network_params.get(key).clone() for key in divided}
        agent.update(replay.sample(), agent.phases[0])
        (option,) = loss.trained_rows()[0].options
        seen.add(option)
        for key, rows in divided.items():
            now = loss.option_network_params.get(key)
            for other in range(4):
                part = slice(other * rows, (other + 1) * rows)
                assert torch.equal(now[part], before[key][part]) == (other != option)
    assert len(seen) > 1


def test_value_termination_of_shifted_values_is_refused():
    env = make_env("NineRooms", room_size=3)
    agent = make_agent("dceo", env, num_options=2)
    explorer = OptionExplorationModule(
        env.action_spec_unbatched, num_options=2, termination=value_termination
    )
    with pytest.raises(ValueError, match=r"values with 0, .* they are Q \+ f\(s\): pass functools"):
        Agent(agent.policy, agent.objectives, explorer=explorer, optimizer=agent.optimizer)
    reward = agent.objectives["reward"]
    explorer.termination = functools.partial(value_termination, reward=reward)
    Agent(agent.policy, agent.objectives, explorer=explorer, optimizer=agent.optimizer)
