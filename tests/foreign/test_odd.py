"""What strangers' environments have: odd spaces, keys, batches and habits. Read right, or refused in a sentence."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from foreign.never_seen import Meadow
from foreign.odd import Chain, Countdown, Seen, indices_seen, stacked_images_seen, tuple_seen
from gymnasium import spaces
from torchrl.envs import Compose, InitTracker, RewardSum, StepCounter, TransformedEnv

from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import make_env, prepare_env
from torchrl_dceo.envs.gym import OptionActionWrapper
from torchrl_dceo.envs.observations import ObservationReader
from torchrl_dceo.training import train

DOWN = 2


def after_one_step_down(env):
    env = prepare_env(env)
    start = env.reset()
    return env.step(start.set("action", torch.tensor(DOWN)))["next"]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (tuple_seen, [0, 1, 0, 0, 0, 1, 0]),  # index 1 of 5, then the place
        (indices_seen, [0, 1, 0, 0, 0] + [1] + [0] * 8),  # index 1 of 5, index 0 of 9
        (
            lambda: Seen(spaces.Discrete(25, start=7), lambda p: int(7 + 5 * p[0] + p[1])),
            [0] * 5 + [1] + [0] * 19,
        ),
        (
            lambda: Seen(spaces.MultiBinary([2, 2]), lambda p: np.array([[1, 0], [p[0], 0]])),
            [1, 0, 1, 0],
        ),
        (lambda: Seen(spaces.Box(0, 2000, (2,), np.uint16), lambda p: p * 500), [0.25, 0]),
        (lambda: Seen(spaces.Box(-8, 8, (2,), np.int64), lambda p: p - 5), [-0.5, -0.625]),
        (lambda: Seen(spaces.Box(0, 255, (2,), np.uint8), lambda p: p * 51), [0.2, 0]),
        # Bounds that are those of the type mean nothing.
        (lambda: Seen(spaces.Box(-(2**62), 2**62, (2,), np.int64), lambda p: p * 3), [3, 0]),
    ],
    ids=["tuple", "indices", "start", "binary", "uint16", "signed", "bytes", "unbounded"],
)
def test_vectors(make, expected):
    seen = after_one_step_down(make())["observation"]
    assert seen.dtype is torch.float32
    torch.testing.assert_close(seen, torch.tensor(expected, dtype=torch.float32))
    # Single observations, as a wrapper reads them, are the same.
    env = make()
    env.reset()
    read = ObservationReader(env)(env.step(DOWN + int(env.action_space.start))[0])
    assert torch.equal(read["observation"], seen)


def test_a_stack_of_images_has_the_channels_of_all():
    pixels = after_one_step_down(stacked_images_seen())["pixels"]
    assert pixels.shape == (6, 9, 9) and pixels.dtype is torch.uint8
    assert pixels[:, 1, 0].tolist() == [100, 0, 100, 0, 100, 200]
    assert pixels.long().sum() == 500
    stack = gymnasium.wrappers.FrameStackObservation(Meadow(), 4)
    assert prepare_env(stack).reset()["pixels"].shape == (12, 5, 5)


def test_images_of_small_whole_numbers():
    space = spaces.Box(-1, 3, (7, 7, 2), np.int8)
    env = Seen(space, lambda place: np.full((7, 7, 2), place[0] - 1, np.int8))
    pixels = after_one_step_down(env)["pixels"]
    assert pixels.shape == (2, 7, 7) and pixels.unique().tolist() == [1]
    assert prepare_env(env).observation_spec["pixels"].space.high.max() == 4


def scale_of_the_main_learner(env):
    return make_agent("ddqn", env, main_pixel_scale=2.0).policy[0].module[0].module.scale


def test_the_main_learner_scales_images_by_their_brightest_value():
    pytest.importorskip("minigrid")
    from minigrid.wrappers import ImgObsWrapper, RGBImgPartialObsWrapper

    symbolic = ImgObsWrapper(gymnasium.make("MiniGrid-Empty-5x5-v0"))
    coloured = ImgObsWrapper(RGBImgPartialObsWrapper(gymnasium.make("MiniGrid-Empty-5x5-v0")))
    own = gymnasium.wrappers.TransformObservation(
        symbolic, lambda image: image * 20, symbolic.observation_space
    )
    for env, brightest in ((symbolic, 10), (coloured, 255), (own, 255)):
        space = prepare_env(env).observation_spec["pixels"].space
        assert space.high.max() == brightest
        assert scale_of_the_main_learner(env) == pytest.approx(2 / brightest)
    assert scale_of_the_main_learner(make_env("NineRooms")) == 2 / 255


def test_actions_that_start_at_one():
    space = spaces.Box(0, 4, (2,), np.float32)
    env = Seen(space, lambda place: place.astype(np.float32), spaces.Discrete(4, start=1))
    prepared = prepare_env(env)
    prepared.rollout(
        100, break_when_any_done=False
    )  # the environment asserts that they are its own
    assert prepared.action_spec.space.n == 4
    assert after_one_step_down(env)["observation"].tolist() == [1, 0]
    wrapped = OptionActionWrapper(env, make_agent("dceo", env, num_options=2, signs="+").policy[1])
    wrapped.reset(seed=0)
    assert wrapped.step(DOWN)[0].tolist() == [1, 0] and wrapped.action_space.n == 6
    wrapped.step(5)


def test_an_index_with_a_dimension_of_its_own_is_a_plain_action():
    env = prepare_env(Chain([3], column=True))
    assert env.rollout(5)["action"].shape == (3, 5)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Seen(spaces.Sequence(spaces.Discrete(3)), lambda p: (1,)),
         "observations of Sequence are not supported: supported are images, vectors, indices"),
        (lambda: Seen(spaces.Text(9), lambda p: "hello"), "no observation that a network could read"),
        (lambda: Chain(mask=True), r"masks of actions \('action_mask'\) are not supported"),
        (lambda: Chain(reward_shape=(2,)), r"rewards {'reward': \[2\]} are not supported"),
        (lambda: Chain([3], reward_shape=()), r"of shape \[3, 1\]$"),
        (lambda: gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync"),
         "SyncVectorEnv that resets itself at the next step is not supported: gymnasium.make_vec"),
        (lambda: "CartPole-v1", "must be TorchRL's EnvBase, gymnasium.Env or .*, got str"),
    ],
    ids=["sequence", "text", "mask", "rewards", "reward", "vector", "name"],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_in_one_sentence(make, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence) as error:
        prepare_env(make())
    assert "\n" not in str(error.value)


def test_an_entry_that_is_named_is_read_beside_a_mask():
    env = prepare_env(Chain(mask=True), observation=["square"])
    assert env.reset()["observation"].shape == (1,)


@pytest.mark.parametrize("mode", ["SAME_STEP", "DISABLED"])
def test_vector_environments_of_gymnasium(mode):
    kind = gymnasium.vector.AutoresetMode[mode]
    base = gymnasium.vector.SyncVectorEnv([Countdown] * 3, autoreset_mode=kind)
    data = prepare_env(base).rollout(9, break_when_any_done=False)
    assert data.batch_size == (3, 9)
    for row in data:
        assert row["observation"][:, 0].tolist() == [0, 1, 2, 3] * 2 + [0]
        assert row["next", "observation"][:, 0].tolist() == [1, 2, 3, 4] * 2 + [1]
        assert row["next", "done"][:, 0].tolist() == [False, False, False, True] * 2 + [False]
        assert row["next", "episode_reward"][:, 0].tolist() == [1, 2, 3, 4] * 2 + [1]


def test_what_transforms_write_under_other_names_is_not_observed():
    chain = Compose(
        RewardSum(in_keys=["reward"], out_keys=["so_far"]),
        StepCounter(7, step_count_key="age"),
        InitTracker(init_key="fresh"),
    )
    env = prepare_env(TransformedEnv(Chain(), chain))
    data = env.rollout(30, break_when_any_done=False)
    assert data["observation"].shape == (30, 2)  # clock and square
    assert data["next", "done"].any() and data["age"].max() == 6


def short(name, env, **kwargs):
    torch.manual_seed(0)
    more = {"discovery_frames": 90} if name == "cic" else {}
    agent = make_agent(name, env, batch_size=8, **more)
    return train(agent, env, total_frames=180, learning_starts=60, update_period=12, log_period=60,
                 replay_capacity=300, progress=False, **kwargs)  # fmt: skip


@pytest.mark.parametrize("name", ["ddqn", "dceo", "cic", "rainbow_dceo"])
@pytest.mark.parametrize(
    "make",
    [tuple_seen, stacked_images_seen, lambda: Chain([2])],
    ids=["tuple", "stacked", "stateless"],
)
def test_every_kind_of_agent_trains_in_odd_environments(name, make):
    row = short(name, make(), discovery_env=make() if name == "cic" else None)
    assert row["frames"] == 180 and row["updates"] >= 5
    assert all(np.isfinite(value) for key, value in row.items() if key.startswith("loss"))


def test_a_vector_environment_of_gymnasium_can_be_trained_in(tmp_path):
    kind = gymnasium.vector.AutoresetMode.DISABLED
    env = gymnasium.vector.SyncVectorEnv([Countdown] * 3, autoreset_mode=kind)
    row = short("dceo", env, run_dir=tmp_path, draw=False)
    assert row["episodes"] > 5 and (tmp_path / "progress.csv").exists()
