"""ALE's vector environment against ours: an independent model of the same pictures, written in C++ with OpenCV."""

from __future__ import annotations

import pytest
import torch
from torchrl.envs.utils import check_env_specs

from torchrl_dceo.data import make_replay_buffer
from torchrl_dceo.envs import get_env_state, make_env, set_env_state
from torchrl_dceo.envs.atari.env import AtariEnv
from torchrl_dceo.envs.atari.vector import AtariVectorEnv


def _play(env, actions, **kwargs):
    sequence = iter(actions)
    return env.rollout(
        len(actions),
        lambda td: td.set("action", next(sequence).clone()),
        break_when_any_done=False,
        **kwargs,
    )


def _both(game, steps, **kwargs):
    settings = {"batch_size": [2], "sticky": 0.0, "seed": 0, **kwargs}
    ours, vector = AtariEnv(game, **settings), AtariVectorEnv(game, num_threads=1, **settings)
    n = ours.action_spec.space.n
    actions = torch.randint(n, (steps, 2), generator=torch.Generator().manual_seed(0))
    return _play(ours, actions), _play(vector, actions)


@pytest.mark.parametrize("game", ["MontezumaRevenge", "SpaceInvaders"])
def test_same_pictures_rewards_and_ends(game):
    """Resets, stacks, frame skip, pooling, grey and size, to one level of grey (how OpenCV rounds)."""
    ours, vector = _both(game, 200, max_steps=70)
    assert ours["next", "truncated"].sum() == 4
    for key in ("reward", "done", "terminated", "truncated"):
        assert ours["next", key].equal(vector["next", key]), key
    for data in ("root", "next"):
        one, two = (d if data == "root" else d["next"] for d in (ours, vector))
        difference = (one["pixels"].int() - two["pixels"].int()).abs()
        assert difference.max() <= 1
        assert (difference > 0).float().mean() < 1e-3


def test_the_end_of_a_game_and_the_next_start():
    env = make_env("Atari/Pong", vector=True, batch_size=2, num_threads=1, seed=0)
    data = env.rollout(1100, break_when_any_done=False)
    ends = data["next", "terminated"][..., 0].nonzero()
    assert len(ends) >= 2  # a random player loses 21 points in about 900 steps
    for i, t in ends.tolist():
        assert data["next", "episode_reward"][i, t] <= -15
        if t + 1 < 1100:
            first = data["pixels"][i, t + 1]
            assert data["is_init"][i, t + 1] and (first == first[:1]).all()
            assert not first[-1].equal(data["next", "pixels"][i, t, -1])
            assert data["next", "pixels"][i, t, :-1].equal(data["pixels"][i, t, 1:])


def test_a_reset_in_mid_game():
    env = AtariVectorEnv("MontezumaRevenge", batch_size=[2], sticky=0.0, num_threads=1, seed=0)
    start = env.reset()["pixels"]
    data = _play(env, torch.full((5, 2), 4))[:, -1]["next"].select("pixels")
    assert not data["pixels"].equal(start)
    after = env.reset(data.clone().set("_reset", torch.tensor([[False], [True]])))["pixels"]
    assert after[0].equal(data["pixels"][0]) and after[1].equal(start[1])


def test_a_restored_run_cuts_the_episodes_that_were_on():
    def make(seed):
        return make_env("MontezumaRevenge", vector=True, batch_size=2, num_threads=1, seed=seed)

    env = make(0)
    replay = make_replay_buffer(100, num_streams=2, frame_stack=4)
    before = env.rollout(6)
    replay.extend(before)
    carried = env.step_mdp(before[:, -1])
    saved = get_env_state(env)
    other = make(1)
    other.reset()
    set_env_state(other, saved)
    actions = torch.zeros((4, 2), dtype=torch.int64)
    after = _play(other, actions, auto_reset=False, tensordict=carried)
    replay.extend(after)
    assert after["next", "truncated"][:, :, 0].tolist() == [[True, False, False, False]] * 2
    assert not after["next", "terminated"].any()
    assert after["next", "pixels"][:, 0].equal(carried["pixels"])
    assert (after["pixels"][:, 1] == after["pixels"][:, 1, :1]).all()  # a new game
    batch = replay.transitions()
    assert len(batch) == 2 * 9
    assert batch["next", "truncated"].sum() == 2


def test_specs_and_coverage_mode():
    env = make_env("MontezumaRevenge", vector=True, batch_size=2, num_threads=1, coverage=True)
    check_env_specs(env)
    assert not {"state_id", "room", "position"} & set(env.observation_spec.keys())


def test_what_it_does_not_offer_is_said():
    with pytest.raises(ValueError, match=r"one batch dimension, got batch_size \[\]"):
        make_env("MontezumaRevenge", vector=True)
    with pytest.raises(ValueError, match="needs state_id, which this environment does not provide"):
        make_env("MontezumaRevenge", vector=True, batch_size=2, visits="counts")
    for setting in ("ram", "life_ends"):
        with pytest.raises(ValueError, match=f"vector=True does not support {setting}"):
            make_env("MontezumaRevenge", vector=True, batch_size=2, **{setting: True})
    with pytest.raises(ValueError, match="num_threads=2 has no effect without vector=True"):
        make_env("MontezumaRevenge", num_threads=2)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"sticky": -0.1}, r"sticky must lie in \[0, 1\], got -0.1"),
        ({"frame_skip": 0}, "frame_skip must be at least 1, got 0"),
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"max_steps": 0}, "max_steps must be at least 1"),
    ],
)
def test_bad_values_are_refused_before_they_reach_ale(setting, message):
    with pytest.raises(ValueError, match=message):
        AtariVectorEnv("Pong", batch_size=[2], **setting)
