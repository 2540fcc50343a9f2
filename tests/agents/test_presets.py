"""The presets: they build, learn, and differ from our defaults where it is known that they do."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from torchrl_dceo.agents import AGENTS, PRESETS, make_agent, preset_settings
from torchrl_dceo.agents.optimizer import MixedOptimizer
from torchrl_dceo.agents.presets import UNTOUCHED
from torchrl_dceo.agents.rainbow import RainbowConfig
from torchrl_dceo.envs import make_env
from torchrl_dceo.modules import EigenReward
from torchrl_dceo.modules.networks import StackedNet
from torchrl_dceo.settings import defaults
from torchrl_dceo.training import train

KINDS = ("grid", "cube", "3d", "atari")
# Where a preset has the value that dceo has by default: ours is theirs.
SAME_AS_OURS = {"paper": {"norm", "skip_first"}, "authors": {"target_period"}}


@pytest.mark.parametrize("preset", ["paper", "authors"])
@pytest.mark.parametrize("agent", AGENTS)
def test_builds_and_learns(agent, preset):
    torch.manual_seed(0)
    env = make_env("NineRooms", room_size=3, seed=0, visits="counts")
    built = make_agent(agent, env, preset=preset, **_short(agent))
    run = preset_settings(preset, AGENTS[agent].config).run
    row = train(
        built,
        env,
        total_frames=100,
        learning_starts=36,
        log_period=10,
        eval_episodes=0,
        progress=False,
        **{"update_period": run["update_period"]},
    )
    assert row["updates"] > 5 and row["loss_main"] < 10


def _short(agent):
    return {"discovery_frames": 50} if hasattr(AGENTS[agent].config, "discovery_frames") else {}


def test_every_field_is_set_by_a_preset_or_known_to_be_left_alone():
    for name, kind in AGENTS.items():
        touched = {
            field
            for preset in PRESETS
            for env in KINDS
            for field in preset_settings(preset, kind.config, env).agent
        }
        known = {field.name for field in fields(kind.config)}
        # One eigenfunction, and an option to each of its ends, is what dco is.
        its_own = {"num_options", "signs", "options_per_update"} if name == "dco" else set()
        if issubclass(kind.config, RainbowConfig):  # the authors' values for Atari
            its_own = set(vars(RainbowConfig)["__annotations__"])
        left = UNTOUCHED | its_own
        assert known <= touched | left, f"{name}: {known - touched - left}"
        assert not touched & UNTOUCHED
    every = {field.name for kind in AGENTS.values() for field in fields(kind.config)}
    assert every >= UNTOUCHED


def test_a_preset_has_our_value_only_where_it_is_known():
    ours = defaults(AGENTS["dceo"].config)
    for preset, expected in SAME_AS_OURS.items():
        theirs = preset_settings(preset, AGENTS["dceo"].config, total_frames=150_000).agent
        assert {name for name, value in theirs.items() if ours[name] == value} == expected


def test_what_the_paper_says():
    settings = preset_settings("paper", AGENTS["dceo"].config, total_frames=300_000)
    agent = settings.agent
    assert (agent["lr"], agent["num_options"], agent["signs"]) == (1e-4, 10, "+")
    assert (agent["reward_mode"], agent["option_gamma"], agent["norm"]) == (
        "discounted",
        None,
        "squared",
    )
    assert agent["target_tau"] is None and not agent["centre_pixels"]
    assert agent["eps_frames"] == 30_000 and agent["main_adam_eps"] == 1e-8
    assert settings.run == {"num_envs": 1, "update_period": 1, "replay_capacity": None}
    for kind, number in (("cube", 3), ("3d", 5), ("atari", 5)):
        assert preset_settings("paper", AGENTS["dceo"].config, kind).agent["num_options"] == number
    long = preset_settings("paper", AGENTS["dceo"].config, total_frames=2_000_000).run
    assert long["replay_capacity"] == 1_000_000
    assert preset_settings("ours", AGENTS["dceo"].config) == ({}, {}, {})


def test_the_agent_of_the_paper_is_built_so():
    agent = make_agent("dceo", make_env("NineRooms", room_size=3), preset="paper")
    reward = agent.objectives["reward"]
    assert isinstance(reward, EigenReward)
    assert (reward.mode, reward.signs, reward.gamma, reward.num_options) == (
        "discounted",
        "+",
        0.99,
        10,
    )
    assert any(isinstance(module, StackedNet) for module in agent.policy.modules())
    assert "centring" not in agent.objectives
    assert agent.explorer.option_eps == 0 and agent.explorer.annealing_num_steps == 100_000
    assert {group["lr"] for group in agent.optimizer.param_groups} == {1e-4}
    assert (
        make_agent("dceo", make_env("NineRooms"), preset="paper", lr=1e-3).made_from["lr"] == 1e-3
    )


def test_rmsprop_is_that_of_torch_with_epsilon_under_the_root():
    """By another way: torch's centred RMSProp has its ε outside of the root, so it is compared without one."""
    torch.manual_seed(0)
    start = torch.randn(5)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    mixed = MixedOptimizer([{"params": [ours], "rmsprop": True, "eps": 0.0}], lr=0.01)
    plain = torch.optim.RMSprop([theirs], lr=0.01, alpha=0.95, centered=True, eps=0.0)
    for _ in range(20):
        gradient = torch.randn(5)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        mixed.step()
        plain.step()
    torch.testing.assert_close(ours, theirs)
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.tensor([1e-6])
    MixedOptimizer([{"params": [weight], "rmsprop": True, "eps": 1e-4}], lr=1.0).step()
    assert weight.item() == pytest.approx(-1e-6 / 1e-4**0.5, rel=1e-3)


def test_the_authors_agent_in_3d_has_two_rules():
    config = preset_settings("authors", AGENTS["dceo"].config, "3d").agent
    agent = make_agent("dceo", make_env("NineRooms", room_size=3), **config)
    assert isinstance(agent.optimizer, MixedOptimizer)
    rules = {
        (bool(group.get("rmsprop")), group["lr"], group["eps"])
        for group in agent.optimizer.param_groups
    }
    assert rules == {(False, 1e-4, 1e-8), (True, 2.5e-4, 0.01 / 32**2)}
    f = {id(p) for p in agent.objectives["laplacian"].parameters()}
    for group in agent.optimizer.param_groups:
        assert bool(group.get("rmsprop")) != bool({id(p) for p in group["params"]} & f)


def test_options_left_out_do_not_move_under_rmsprop_or_beside_a_table():
    for settings, name in (
        ({"optimizer": "rmsprop"}, "NineRooms"),
        ({"main_learner": "table"}, "RubiksCube222"),
    ):
        torch.manual_seed(0)
        size = {"room_size": 3} if name == "NineRooms" else {"max_depth": 2}
        env = make_env(name, seed=0, visits="counts", **size)
        agent = make_agent(
            "dceo",
            env,
            options_per_update=1,
            num_options=3,
            independent_networks=True,
            signs="+",
            **settings,
        )
        replay = agent.replay.make(env, 500, seed=0)
        for transform in agent.transforms:
            env = env.append_transform(transform)
        replay.extend(env.rollout(60, break_when_any_done=False))
        stack = next(m for m in agent.policy.modules() if isinstance(m, StackedNet))
        before = [p.detach().clone() for p in stack.stacked]
        for _ in range(2):
            agent.learn(replay, agent.phases[0])
            moved = [
                any(bool((p[i] != b[i]).any()) for p, b in zip(stack.stacked, before, strict=True))
                for i in range(3)
            ]
            assert sum(moved) == 1
            before = [p.detach().clone() for p in stack.stacked]
