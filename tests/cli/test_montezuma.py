"""The recipe of Montezuma's Revenge: the authors' settings, and Rainbow under every agent."""

from __future__ import annotations

import pytest

from torchrl_dceo._fast.losses import CategoricalDQNLoss
from torchrl_dceo.agents import AGENTS
from torchrl_dceo.cli import config, train

# Of the paper and of the authors' code, for Atari.
AUTHORS = {
    "lr": 6.25e-5,
    "adam_eps": 1.5e-4,
    "n_steps": 3,
    "gamma": 0.99,
    "batch_size": 32,
    "eps_init": 1.0,
    "eps_end": 0.01,
    "eps_frames": 250_000,
    "num_atoms": 51,
    "v_max": 10.0,
    "main_learner": "rainbow",
    "prioritized": True,
    "target_tau": None,
    "centre_pixels": False,
}
OPTIONS = {
    "num_options": 5,
    "option_prob": 0.9,
    "option_duration": 10.0,
    "dimensions": 20,
    "norm": "log1p",
    "signs": "+",
    "reward_mode": "telescoped",
    "one_step_options": False,
}


def compose(*overrides: str) -> dict:
    return config.compose(["env=montezuma", *overrides])


@pytest.mark.parametrize("agent", AGENTS)
def test_every_agent_learns_as_rainbow_does(agent):
    settings = compose(f"agent={agent}")
    assert {key: settings["agent"][key] for key in AUTHORS} == AUTHORS
    # In updates: 8000 steps.
    assert settings["agent"]["target_period"] * settings["update_period"] == 8000
    assert settings["replay_capacity"] == 1_000_000 and settings["learning_starts"] == 20_000
    if "option_prob" in settings["agent"]:
        assert settings["agent"]["option_prob"] == 0.9


def test_rainbow_dceo_has_the_authors_settings():
    settings = compose()["agent"]
    assert settings["name"] == "rainbow_dceo"
    assert {key: settings[key] for key in OPTIONS} == OPTIONS


@pytest.mark.parametrize("agent", ["rainbow", "rainbow_dceo"])
def test_the_defaults_in_code_are_those_of_the_yaml(agent):
    settings = compose(f"agent={agent}")["agent"]
    own = AGENTS[agent].config()
    names = [name for name in {**AUTHORS, **OPTIONS} if name in settings]
    assert {name: settings[name] for name in names} == {name: getattr(own, name) for name in names}


@pytest.mark.parametrize("agent", ["rnd", "rainbow_dceo"])
def test_builds_an_atari_agent_with_each_frame_stored_once(agent, tmp_path):
    pytest.importorskip("ale_py")
    settings = compose(f"agent={agent}", "replay_capacity=200", "eval_episodes=0")
    trainer = train.build(settings, tmp_path)
    assert type(trainer.agent.objectives["main"]) is CategoricalDQNLoss
    assert trainer.eval_env is None
    trainer.replay.extend(trainer.env.rollout(12, break_when_any_done=False))
    assert trainer.replay.writer.tensors["pixels"].shape[1:] == (1, 84, 84)
    out = trainer.agent.learn(trainer.replay, trainer.agent.phases[0])
    assert out["loss_main"].isfinite()


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("compile=fast", "compile must be true, false or one of default, "),
        ("eval_episodes=-1", "eval_episodes must be at least 0, got -1"),
    ],
)
def test_what_a_recipe_cannot_do_is_said(override, sentence, capsys):
    with pytest.raises(SystemExit, match=sentence):
        train.check(["env=montezuma", override])
