"""What agents need is added to any environment where it is missing, never twice, and odd ones are refused."""

from __future__ import annotations

import re

import gymnasium
import pytest
import torch
from foreign.never_seen import (
    SIDE,
    Meadow,
    MeadowChannelsFirst,
    MeadowDictionary,
    MeadowFloats,
    MeadowGrey,
    Ring,
    images,
)
from torchrl.data import Bounded, Categorical, Composite, MultiCategorical
from torchrl.envs import (
    CatFrames,
    GymEnv,
    GymWrapper,
    InitTracker,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)
from torchrl.envs.utils import check_env_specs

from torchrl_dceo.envs import StateCounts, find_transform, make_env, prepare_env
from torchrl_dceo.envs.prepare import PreparedEnv, frame_stack_of


def kinds(env):
    found = []
    while isinstance(env, TransformedEnv):
        found += [type(transform).__name__ for transform in env.transform]
        env = env.base_env
    return found


@pytest.mark.parametrize("meadow", [Meadow, MeadowChannelsFirst, MeadowFloats])
def test_every_image_becomes_the_same_bytes_with_channels_first(meadow):
    env = prepare_env(meadow())
    check_env_specs(env)
    seen = env.rollout(4, lambda td: td.set("action", torch.tensor(1)))["pixels"]
    assert seen.dtype is torch.uint8 and seen.shape == (4, 3, SIDE, SIDE)
    expected = torch.zeros(4, SIDE, SIDE, dtype=torch.uint8)
    expected[torch.arange(4), 0, torch.arange(4)] = 255
    assert (seen == expected.unsqueeze(1)).all()


def test_a_grey_image_gets_a_channel():
    seen = prepare_env(MeadowGrey()).reset()["pixels"]
    assert seen.shape == (1, SIDE, SIDE) and seen[0, 0, 0] == 255 and seen.sum() == 255


def test_a_dictionary_becomes_one_vector_without_its_text():
    env = prepare_env(MeadowDictionary())
    check_env_specs(env)
    seen = env.reset()["observation"]
    # In the order of their names: 75 of the image, 2 of the place, 5 of the row.
    assert seen.dtype is torch.float32 and seen.shape == (75 + 2 + 5,)
    assert seen[:3].tolist() == [1.0] * 3 and seen[75:77].tolist() == [-1.0, -1.0]
    assert seen[77:].tolist() == [1.0, 0, 0, 0, 0]
    assert "image" in env.reset().keys()  # an environment may read its state from its own entries


def test_a_bare_batched_environment_with_nested_entries_and_one_hot_actions():
    env = prepare_env(Ring(batch_size=[3]))
    check_env_specs(env)
    data = env.rollout(20, break_when_any_done=False)
    assert data["observation"].shape == (3, 20, 14) and data["action"].shape == (3, 20)
    # The index that the policy writes is the action that the environment takes.
    moved = (
        data["next", "observation"][..., 2:].argmax(-1) - data["observation"][..., 2:].argmax(-1)
    ) % 12
    going = ~data["next", "done"][..., 0]
    assert (moved[going] == (2 * data["action"][going] - 1) % 12).all()
    ends = data["next", "done"][..., 0]
    assert data["is_init"].any() and (data["next", "episode_reward"][ends] == 1).all()


def test_nothing_is_added_twice():
    own = TransformedEnv(GymEnv("CartPole-v1"), RewardSum())
    own.append_transform(InitTracker())
    own.append_transform(StepCounter())
    env = prepare_env(own)
    assert sorted(kinds(env)) == ["CategoricalAction", "InitTracker", "RewardSum", "StepCounter"]
    assert prepare_env(env) is env and prepare_env(own) is env
    complete = make_env("NineRooms")
    assert prepare_env(complete) is complete


def test_an_index_becomes_a_one_hot_vector():
    categorical = GymEnv("FrozenLake-v1", categorical_action_encoding=True)
    for base in (categorical, GymEnv("FrozenLake-v1")):
        seen = prepare_env(base).reset()["observation"]
        assert seen.dtype is torch.float32 and seen.tolist() == [1.0] + [0.0] * 15


@pytest.mark.parametrize(
    ("shape", "layout"),
    [((7, 7, 3), "hwc"), ((3, 7, 7), "chw"), ((84, 84, 12), "hwc"), ((12, 84, 84), "chw"),
     ((60, 80, 3), "hwc"), ((3, 60, 80), "chw"), ((4, 4, 3), "hwc"), ((3, 4, 4), "chw")],
)  # fmt: skip
def test_the_layout_is_read_off_the_shape(shape, layout):
    channels = shape[0] if layout == "chw" else shape[-1]
    assert prepare_env(images(shape)).observation_spec["pixels"].shape[0] == channels


@pytest.mark.parametrize("shape", [(3, 3, 3), (3, 5, 3), (5, 5, 5), (10, 20, 30)])
def test_an_ambiguous_layout_is_refused_with_the_line_to_set(shape):
    with pytest.raises(
        ValueError,
        match=r"does not determine its channel dimension: prepare_env\(env, layout='hwc'\)",
    ):
        prepare_env(images(shape))
    assert prepare_env(images(shape), layout="hwc").observation_spec["pixels"].shape[0] == shape[-1]


def test_the_smallest_maps_of_this_package_are_not_taken_for_others():
    assert prepare_env(make_env("S.G")).reset()["pixels"].shape == (3, 1, 3)


def test_an_image_without_bounds_is_refused():
    with pytest.raises(ValueError, match="without bounds"):
        prepare_env(images((3, 9, 9), torch.float32, bounded=False))


class OddActions(Ring):
    def __init__(self, spec):
        super().__init__()
        self.action_spec = spec


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        (Bounded(-1, 1, (2,)), "continuous actions of shape [2] are not supported"),
        (MultiCategorical([2, 3]), "several discrete actions at once (shape [2])"),
        (Categorical(3, shape=(2,)), "several discrete actions at once (shape [2])"),
        (Composite(left=Categorical(2), right=Categorical(2)), "actions under 'left', 'right'"),
    ],
)
def test_other_actions_are_refused_in_one_sentence(spec, what):
    sentence = (
        re.escape(what) + r".*: supported are discrete actions, one of n, under the entry 'action'$"
    )
    with pytest.raises(ValueError, match=sentence):
        prepare_env(OddActions(spec))


def test_frames_are_stacked_after_formatting_and_only_then_stored_once():
    env = make_env("gym", entry_point=Meadow, frame_stack=3, max_steps=6, seed=0)
    assert env.reset()["pixels"].shape == (9, SIDE, SIDE)
    assert frame_stack_of(env, "pixels").N == 3
    own = GymWrapper(Meadow(), categorical_action_encoding=True)
    stacked = TransformedEnv(own, CatFrames(N=2, dim=-1, in_keys=["pixels"]))
    assert prepare_env(stacked).reset()["pixels"].shape == (6, SIDE, SIDE)
    assert frame_stack_of(prepare_env(stacked), "pixels") is None
    assert len(env.rollout(50)) == 6


def test_the_settings_of_gym_environments():
    env = make_env("gym", id="CartPole-v1", batch_size=3, clip_rewards=True, max_steps=7, seed=1)
    data = env.rollout(7, break_when_any_done=False)
    assert data["next", "truncated"][:, -1].all() and isinstance(env, PreparedEnv)
    none = make_env("gym", id="CartPole-v1", coverage=True, seed=1).rollout(5)
    assert none["next", "reward"].sum() == 0 and none["next", "episode_reward"].sum() == 0
    for wrong, sentence in (
        ({"id": "CartPool-v1"}, "did you mean 'CartPole-v1'"),
        ({}, "needs either id"),
        ({"id": "CartPole-v1", "frame_stack": 0}, "frame_stack must be at least 1, got 0"),
        ({"entry_point": "foreign.never_seen.Meadow"}, "write it as 'package.module:name'"),
        ({"entry_point": "foreign.never_seen:Meado"}, "did you mean 'Meadow'"),
        ({"id": "CartPole-v1", "kwargs": {"wind": 3}}, "cannot be built with"),
        ({"id": "CartPole-v1", "frames": 3}, "unknown setting of gym 'frames'"),
    ):
        with pytest.raises(ValueError, match=sentence):
            make_env("gym", **wrong)


def test_wrappers_by_name():
    pytest.importorskip("minigrid")
    plain = make_env("gym", id="MiniGrid-FourRooms-v0", seed=0)
    assert plain.reset()["observation"].shape == (7 * 7 * 3 + 4,)
    wrapped = make_env(
        "gym", id="MiniGrid-FourRooms-v0", wrappers=["minigrid.wrappers:ImgObsWrapper"], seed=0
    )
    assert wrapped.reset()["pixels"].shape == (3, 7, 7)


def test_of_a_large_image_and_other_entries_the_image_is_read():
    pytest.importorskip("minigrid")
    from minigrid.wrappers import RGBImgPartialObsWrapper

    env = RGBImgPartialObsWrapper(gymnasium.make("MiniGrid-Empty-5x5-v0"))
    with pytest.warns(UserWarning, match="read the image 'image' and leave out 'direction'"):
        prepared = prepare_env(env)
    assert prepared.reset()["pixels"].shape == (3, 56, 56)


@pytest.mark.parametrize("meadow", [Meadow, MeadowFloats, MeadowGrey])
def test_visited_states_are_counted_without_a_state_id(meadow):
    env = prepare_env(meadow(), visits="counts")
    torch.manual_seed(0)
    data = env.rollout(600, break_when_any_done=False)
    places = {tuple(image.flatten().tolist()) for image in data["next", "pixels"]}
    start = tuple(data["pixels"][0].flatten().tolist())
    counts = find_transform(env, StateCounts)
    assert counts.num_visited == len(places | {start}) <= SIDE * SIDE
    assert counts.counts.sum() == 600 + data["is_init"].sum()


def test_a_vector_of_whole_numbers_is_counted_exactly():
    env = prepare_env(GymEnv("FrozenLake-v1", is_slippery=False), visits="counts")
    data = env.rollout(300, break_when_any_done=False)
    squares = set(data["observation"].argmax(-1).tolist())
    squares |= set(data["next", "observation"].argmax(-1).tolist())
    assert find_transform(env, StateCounts).num_visited == len(squares)


def test_many_states_hardly_share_a_place():
    """Of 2000 images that differ in one byte, by even numbers too, a table of 2²⁰ places has about 2 pairs in one."""
    from tensordict import TensorDict

    from torchrl_dceo.envs.prepare import HashedState

    images = torch.zeros(2000, 3, 10, 10, dtype=torch.uint8)
    images.view(2000, -1)[torch.arange(2000), torch.arange(2000) % 300] = (
        16 * (torch.arange(2000) // 300 + 1)
    ).to(torch.uint8)
    data = TensorDict({"pixels": images}, [2000])
    places = HashedState(in_key="pixels")._call(data)["state_id"]
    assert 2000 - len(places.unique()) <= 12
    assert len(torch.unique(images.view(2000, -1), dim=0)) == 2000


def test_several_environments_share_one_table():
    env = prepare_env(
        SerialEnv(2, lambda: GymWrapper(Meadow(), categorical_action_encoding=True)),
        visits="counts",
    )
    env.rollout(10, break_when_any_done=False)
    assert find_transform(env, StateCounts).counts.sum() == 22
