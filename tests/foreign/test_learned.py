"""Using what was learned: agents from run directories, options of plain modules, macro actions, films, numbers."""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
import pytest
import torch
from foreign.never_seen import SIDE, Meadow, MeadowDictionary
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.data import Categorical

from torchrl_dceo.agents import make_agent
from torchrl_dceo.cli import main as dceo
from torchrl_dceo.envs import make_env, prepare_env
from torchrl_dceo.envs.gym import OptionActionWrapper
from torchrl_dceo.modules import EigenReward, OptionQValueActor
from torchrl_dceo.modules.networks import MultiHeadNet, mlp_net
from torchrl_dceo.training import load_agent, load_options, save_options, train
from torchrl_dceo.training.run_settings import read_settings


class ByHand:
    """Options with a fixed action each."""

    num_options = 4

    def __call__(self, tensordict):
        self.seen = tensordict
        return tensordict.set("option_action_value", torch.eye(4))


def test_an_option_is_a_macro_action():
    env = OptionActionWrapper(Meadow(), ByHand(), option_duration=1e9)
    assert env.action_space == gymnasium.spaces.Discrete(8)
    _, _ = env.reset(seed=0)
    _, _, _, _, info = env.step(1)  # a step to the right
    assert info["option_steps"] == 1 and env.unwrapped.place.tolist() == [0, 1]
    env.unwrapped.limit = 20
    # Down, until the episode ends.
    _, reward, terminated, truncated, info = env.step(4 + 2)
    assert env.unwrapped.place.tolist() == [SIDE - 1, 1] and truncated and not terminated
    assert info["option_steps"] == 19 and reward == 0
    env.unwrapped.limit = 30
    env.reset()
    env.step(4 + 1)
    assert env.unwrapped.place.tolist() == [0, SIDE - 1]
    pixels = env.options.seen["pixels"]
    assert pixels.shape == (3, SIDE, SIDE) and pixels[:, 0, SIDE - 1].tolist() == [255] * 3


def test_rewards_on_the_way_are_summed_and_discounted():
    class Paying(Meadow):
        def step(self, action):
            seen, _, *rest = super().step(action)
            return seen, 1.0, *rest

    env = OptionActionWrapper(Paying(), ByHand(), option_duration=1e9, gamma=0.5)
    env.reset(seed=0)
    _, reward, *_, info = env.step(4)
    assert info["option_steps"] == Meadow.limit and reward == pytest.approx(2 * (1 - 0.5**30))


def test_the_length_of_a_macro_action_is_geometric():
    env = OptionActionWrapper(Meadow(), ByHand(), option_duration=4)
    env.unwrapped.limit = 10**9
    env.reset(seed=3)
    lengths = np.array([env.step(4)[-1]["option_steps"] for _ in range(1500)])
    # Mean 4, deviation √12: the mean of 1500 lies within 0.36 with a probability beyond 0.9999.
    assert abs(lengths.mean() - 4) < 0.36 and lengths.min() == 1 and lengths.max() > 10


def test_options_learned_on_a_dictionary_act_in_it():
    agent = make_agent("dceo", MeadowDictionary(), num_options=2, signs="+")
    env = OptionActionWrapper(MeadowDictionary(), agent.policy[1])
    env.reset(seed=0)
    expected = agent.policy[1](prepare_env(MeadowDictionary()).reset())["option_action_value"][1]
    assert env._option_action(1) == int(expected.argmax())


def test_options_and_encoder_of_plain_modules_come_back(tmp_path):
    torch.manual_seed(0)
    net = MultiHeadNet(lambda out: mlp_net(6, out, num_cells=(8,)), num_heads=3, head_shape=5)
    options = OptionQValueActor(net, num_options=3, in_keys=["observation"], spec=Categorical(5))
    encoder = TensorDictModule(mlp_net(6, 4), in_keys=["observation"], out_keys=["f"])
    reward = EigenReward(encoder, num_options=3, successor="next")
    data = TensorDict(
        {"observation": torch.randn(2, 6), "next": {"observation": torch.randn(2, 6)}}, [2]
    )
    for name, parts in (
        ("options", {}),
        ("encoder", {"encoder": encoder}),
        ("reward", {"reward": reward}),
    ):
        save_options(tmp_path / name, options, **parts)
        loaded = load_options(tmp_path / name)
        values = (actor(data.clone())["option_action_value"] for actor in (options, loaded.options))
        assert torch.equal(*values)
        assert (loaded.encoder is None) == (name == "options") and (loaded.reward is None) == (
            name != "reward"
        )
        if loaded.encoder is not None:
            assert torch.equal(loaded.encoder(data.clone())["f"], encoder(data.clone())["f"])
    assert torch.equal(
        loaded.reward(data.clone())["option_reward"], reward(data.clone())["option_reward"]
    )


def test_the_settings_of_a_run_are_read_without_hydra(tmp_path):
    (tmp_path / "config.yaml").write_text(
        "num_options: 4\nagent: {num_options: '${num_options}', lr: 5e-4}\n"
    )
    assert read_settings(tmp_path)["agent"] == {"num_options": 4, "lr": 5e-4}
    (tmp_path / "config.yaml").write_text("agent: [")
    with pytest.raises(ValueError, match="cannot be read, restore it from a copy"):
        read_settings(tmp_path)
    with pytest.raises(FileNotFoundError, match="is not the directory of a run"):
        read_settings(tmp_path / "nowhere")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run by the command line, in this process."""
    import yaml

    from torchrl_dceo.cli.config import compose
    from torchrl_dceo.cli.train import build

    folder = tmp_path_factory.mktemp("run")
    words = [
        "env=gym",
        "env.id=CartPole-v1",
        "total_frames=300",
        "learning_starts=100",
        "num_envs=2",
    ]
    settings = compose([*words, "eval_episodes=0", "progress=false", "log_period=100"])
    build(settings, folder).run()
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    return folder


def test_an_agent_is_loaded_in_one_call(run_dir):
    learned = load_agent(run_dir, seed=3)
    assert learned.metadata["env"]["id"] == "CartPole-v1" and learned.metadata["frames"] == 300
    assert learned.encoder.out_keys == ["representation"]
    data = learned.env.rollout(5, learned.policy)
    assert "option" in data.keys() and len(data) == 5
    with pytest.raises(ValueError, match="slip cannot be combined with env"):
        load_agent(run_dir, make_env("gym", id="CartPole-v1"), slip=0.1)


def test_a_run_from_python_needs_its_environment(tmp_path):
    env = Meadow()
    agent = make_agent("ddqn", env)
    train(agent, env, total_frames=200, learning_starts=100, run_dir=tmp_path, progress=False)
    with pytest.raises(ValueError, match="does not hold the environment of its run"):
        load_agent(tmp_path)
    learned = load_agent(tmp_path, Meadow())
    assert learned.options is None and learned.encoder is None
    assert not (tmp_path / "agent.yaml").exists()
    (tmp_path / "config.yaml").unlink()
    with pytest.raises(ValueError, match="does not name the agent"):
        load_agent(tmp_path, Meadow())
    again = load_agent(tmp_path, Meadow(), agent=make_agent("ddqn", Meadow()))
    assert torch.equal(*(next(a.policy.parameters()) for a in (again.agent, agent)))


def test_evaluate_prints_the_greedy_return(run_dir, capsys):
    assert dceo(["evaluate", str(run_dir), "--episodes", "3"]) == 0
    said = capsys.readouterr().out
    assert "dceo after 300 frames" in said and "greedy return over 3 episodes: mean" in said
    assert dceo(["evaluate", str(run_dir), "--episodes", "0"]) == 2
    assert "--episodes must be at least 1, got 0" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["mp4", "gif"])
def test_render_films_the_policy_and_an_option(run_dir, tmp_path, suffix, capsys):
    pytest.importorskip("av")
    film = tmp_path / f"film.{suffix}"
    words = ["render", str(run_dir), "--option", "2", "--steps", "6", "-o", str(film)]
    assert dceo(words) == 0 and film.stat().st_size > 1000
    if suffix == "mp4":
        import av

        with av.open(str(film)) as container:
            frames = list(container.decode(video=0))
        assert len(frames) == 7 and (frames[0].width, frames[0].height) == (600, 400)
    capsys.readouterr()
    assert dceo(["render", str(run_dir), "--option", "99", "-o", str(film)]) == 2
    assert "--option must lie between 1 and 10, got 99" in capsys.readouterr().err


def test_a_film_of_another_kind_is_said(run_dir, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)  # not installed
    words = ["render", str(run_dir), "--steps", "3", "-o"]
    assert dceo([*words, str(tmp_path / "film.mp4")]) == 0
    assert (tmp_path / "film.gif").is_file()
    assert "an mp4 needs PyAV: pip install 'torchrl-dceo[video]'" in capsys.readouterr().err
    assert dceo([*words, "film.avi"]) == 2
    assert "a film is an .mp4 or a .gif, got -o film.avi" in capsys.readouterr().err


def test_render_shows_pixels_where_an_environment_draws_nothing(tmp_path):
    from torchrl_dceo.cli.runs import film

    env = Meadow()
    agent = make_agent("ddqn", env)
    train(agent, env, total_frames=200, learning_starts=100, run_dir=tmp_path, progress=False)
    frames = list(film(load_agent(tmp_path, Meadow()), max_steps=3))
    assert len(frames) == 4 and frames[0].shape == (240, 240, 3)
    assert frames[0][:48, :48].min() == 255 and frames[0].sum() == 48 * 48 * 3 * 255
    with pytest.raises(ValueError, match="this agent has no options"):
        list(film(load_agent(tmp_path, Meadow()), option=1))
