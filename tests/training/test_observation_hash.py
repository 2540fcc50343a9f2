"""Which observations count as one for distinct draws: the agents' setting, from its check to the drawn batches."""

from __future__ import annotations

import json
import logging
from collections import Counter

import gymnasium
import numpy as np
import pytest
import torch
from training_runs import difference, final_state, rows

from torchrl_dceo.agents import AGENTS, make_agent
from torchrl_dceo.agents.configs import LearnerConfig
from torchrl_dceo.cli.config import compose, parse
from torchrl_dceo.envs import make_env, prepare_env
from torchrl_dceo.hashing import CellHash, ExactHash, SimHash
from torchrl_dceo.training import ReplaySettings, TrainConfig, Trainer, train
from torchrl_dceo.training.errors import RunRefused

ROOMS = 6
DRAWS = 20_000


class Camera(gymnasium.Env):
    """A corridor of rooms, each of its own brightness; every image has other noise, so that none repeats.

    Three of four actions lead back, so that the last rooms are rarely visited.
    """

    action_space = gymnasium.spaces.Discrete(4)
    observation_space = gymnasium.spaces.Box(0, 255, (30, 40, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.room, self.steps = 0, 0
        return self.observed(), {}

    def step(self, action):
        self.room = int(np.clip(self.room + (1 if action == 0 else -1), 0, ROOMS - 1))
        self.steps += 1
        return self.observed(), 0.0, False, self.steps >= 40, {}

    def observed(self):
        # In the middle of a level: the noise never leaves it.
        middle = 32 * self.room + 16
        return self.np_random.integers(middle - 8, middle + 9, (30, 40, 3), dtype=np.uint8)


class Bearings(Camera):
    """The same corridor as a direction with noise: each room has its own quadrant or half-space."""

    observation_space = gymnasium.spaces.Box(-10, 10, (3,), np.float32)

    def observed(self):
        signs = np.array([1 if self.room >> bit & 1 else -1 for bit in range(3)])
        return (signs * self.np_random.uniform(1, 2, 3)).astype(np.float32)


def room_of_image(images):
    return (images.float().flatten(1).mean(1) / 32).long()


def signs(vectors):
    return ((vectors > 0).long() * torch.tensor([1, 2, 4])).sum(1)


def as_floats(vectors):
    return vectors.float().sum(1)


class Signs:
    """A hash of one's own with a setting."""

    def __init__(self, weight=1):
        self.weight = weight

    def __call__(self, vectors):
        return self.weight * signs(vectors)


CASES = {
    "cell": (Camera, "cell", room_of_image),
    "own function": (Bearings, signs, signs),
    "own path": (Bearings, "training.test_observation_hash:signs", signs),
    "own class": (Bearings, Signs, signs),
    "own object": (Bearings, Signs(3), signs),
    "simhash": (Bearings, "simhash", SimHash()),
}


def vector_env(kind):
    """Four in a vector environment of gymnasium."""
    mode = gymnasium.vector.AutoresetMode.DISABLED
    return prepare_env(gymnasium.vector.SyncVectorEnv([kind] * 4, autoreset_mode=mode))


def filled(env, steps=200, **settings):
    """A replay as training makes it, filled by a random policy."""
    torch.manual_seed(0)
    agent = make_agent("dceo", env, network="mlp", num_options=2, **settings)
    replay = agent.replay.make(env, 5000, seed=0)
    env.set_seed(0)
    replay.extend(env.rollout(steps, break_when_any_done=False))
    return replay


def check_uniform(drawn, everything, classes, by_action):
    """Chi-square of the drawn classes (and of their actions), and of rows within each: six deviations at most."""
    key = "pixels" if "pixels" in everything.keys() else "observation"
    found = classes(everything[key]).tolist()
    actions = everything["action"].tolist() if by_action else [0] * len(found)
    groups = list(zip(found, actions, strict=True))
    counts, tried = Counter(groups), Counter(c for c, _ in set(groups))
    assert max(counts.values()) > 10 * min(counts.values()), "visits must be uneven"
    probability = torch.zeros(int(everything["index"].max()) + 1).double()
    for row, group in zip(everything["index"].tolist(), groups, strict=True):
        probability[row] = 1 / (len(tried) * tried[group[0]] * counts[group])
    assert float(probability.sum()) == pytest.approx(1)
    seen = torch.bincount(drawn["index"], minlength=len(probability)).double() / drawn.numel()
    assert seen[probability == 0].sum() == 0
    live = probability > 0
    for wanted, got in (
        (probability[live], seen[live]),
        (
            torch.full((len(tried),), 1 / len(tried)).double(),
            torch.tensor([float((classes(drawn[key]) == c).double().mean()) for c in tried]),
        ),
    ):
        statistic = float(((got - wanted).square() / wanted).sum()) * drawn.numel()
        freedom = len(wanted) - 1
        assert statistic < freedom + 6 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("by_action", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_draws_are_uniform_over_the_classes_of_the_hash(case, by_action):
    kind, given, classes = CASES[case]
    settings = {"replay_newest": None, "replay_by_action": by_action}
    replay = filled(vector_env(kind), observation_hash=given, **settings)
    everything = replay.transitions()
    key = "pixels" if kind is Camera else "observation"
    assert ExactHash()(everything[key]).unique().numel() == len(everything), "none repeats"
    assert replay.num_distinct == classes(everything[key]).unique().numel()
    assert replay.num_distinct >= 4
    check_uniform(replay.sample(DRAWS), everything, classes, by_action)


def test_without_a_hash_every_observation_is_its_own():
    replay = filled(vector_env(Camera), replay_newest=None)
    assert replay.num_distinct == len(replay)


@pytest.mark.parametrize(
    "settings",
    [{"replay_measure": "visits", "laplacian_measure": "distinct"}, {"prioritized": True}],
)
def test_the_laplacians_own_batch_is_drawn_by_it(settings):
    replay = filled(
        vector_env(Camera),
        observation_hash="cell",
        replay_newest=None,
        replay_by_action=False,
        **settings,
    )
    everything = replay.transitions()
    batch = replay.sample(DRAWS)
    check_uniform(batch["uniform"], everything, room_of_image, by_action=False)
    # The main learner's is not.
    with pytest.raises(AssertionError):
        check_uniform(batch, everything, room_of_image, by_action=False)


def test_newest_counts_the_rows_of_a_cell():
    replay = filled(vector_env(Camera), observation_hash="cell", replay_newest=3)
    everything = replay.transitions()
    groups = Counter(
        zip(
            room_of_image(everything["pixels"]).tolist(), everything["action"].tolist(), strict=True
        )
    )
    drawn = replay.sample(DRAWS)["index"].unique().numel()
    assert drawn == sum(min(3, count) for count in groups.values())


def test_cells_by_the_shape_of_images():
    assert CellHash.for_shape([3, 30, 40]).size == (8, 11)
    assert CellHash.for_shape([3, 60, 80]).size == (8, 11)
    assert CellHash.for_shape([4, 84, 84]).size == (8, 8)
    assert CellHash.for_shape([3, 30, 160]).size == (8, 43)  # four views side by side
    assert CellHash.for_shape([3, 200, 28]).size == (8, 1)
    # A map of so few pixels is not downsized: one of them is the agent.
    one, other = torch.zeros(2, 1, 3, 25, 25, dtype=torch.uint8)
    one[:, :, 3, 3] = other[:, :, 3, 4] = 255
    assert CellHash.for_shape([3, 25, 25])(one) != CellHash.for_shape([3, 25, 25])(other)
    assert CellHash()(one) == CellHash()(other)


class Indices(Bearings):
    """An image whose largest value is 10."""

    observation_space = gymnasium.spaces.Box(0, 10, (8, 8, 3), np.uint8)

    def observed(self):
        return np.full((8, 8, 3), 2 * self.room, np.uint8)


def test_brightness_is_relative_to_the_largest_value_of_the_spec():
    replay = filled(vector_env(Indices), observation_hash="cell")
    rooms = replay.transitions()["pixels"].unique().numel()
    assert replay.num_distinct == rooms >= 5


@pytest.mark.parametrize(
    "given", ["cell", "simhash", "training.test_observation_hash:room_of_image"]
)
def test_a_foreign_vector_environment_trains_with_it(given):
    env = vector_env(Camera)
    agent = make_agent("dceo", env, observation_hash=given, network="mlp", num_options=2)
    config = {"total_frames": 400, "learning_starts": 100, "log_period": 200, "progress": False}
    row = train(agent, env, replay_capacity=1000, eval_episodes=0, **config)
    assert row["updates"] > 0 and row["loss_laplacian"] == row["loss_laplacian"]


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_has_the_setting(name):
    env = make_env("NineRooms", room_size=3, batch_size=2, visits="counts")
    assert make_agent(name, env, observation_hash="cell").replay.observation_hash == "cell"


@pytest.mark.parametrize("given", ["simhash", "training.test_observation_hash:room_of_image"])
def test_a_resumed_run_is_the_whole_one_to_the_bit(given, runs, tmp_path):
    spec = {"agent": "dceo", "agent_settings": {"observation_hash": given}}
    runs.run(run_dir=tmp_path / "whole", frames=1200, **spec)
    runs.run(run_dir=tmp_path / "halves", frames=600, **spec)
    runs.run(run_dir=tmp_path / "halves", frames=1200, resume=True, **spec)
    whole, halves = (final_state(tmp_path / name) for name in ("whole", "halves"))
    assert difference(whole, halves) is None
    assert rows(tmp_path / "whole") == rows(tmp_path / "halves")
    runs.run(run_dir=tmp_path / "exact", frames=1200, agent="dceo")
    assert difference(whole["replay"], final_state(tmp_path / "exact")["replay"]) is not None


def make_trainer(run_dir, given, frames=200):
    torch.manual_seed(0)
    env = make_env("NineRooms", room_size=3, batch_size=4, seed=0)
    agent = make_agent("ddqn", env, observation_hash=given, network="mlp")
    config = TrainConfig(
        frames,
        learning_starts=50,
        log_period=100,
        checkpoint_period=100,
        replay_capacity=500,
        progress=False,
    )
    return Trainer(agent, env, config, run_dir=run_dir)


def test_a_run_with_another_hash_is_refused(tmp_path):
    make_trainer(tmp_path / "named", "cell").run()
    with pytest.raises(RunRefused, match=r"observation_hash is 'cell' there and 'simhash' here"):
        make_trainer(tmp_path / "named", "simhash", 300).resume()
    # Objects by their class and public attributes, not by their place in memory.
    make_trainer(tmp_path / "object", SimHash(bits=8)).run()
    with pytest.raises(RunRefused, match=r"observation_hash.bits is 8 there and 9 here"):
        make_trainer(tmp_path / "object", SimHash(bits=9), 300).resume()
    trainer = make_trainer(tmp_path / "object", SimHash(bits=8), 300)
    assert trainer.resume() == 200
    trainer.close()


def test_a_run_from_before_the_setting_is_resumed(tmp_path):
    make_trainer(tmp_path, "exact").run()
    path = tmp_path / "run.json"
    content = json.loads(path.read_text())
    assert content["agent"]["replay"].pop("observation_hash") == "exact"
    trainer = make_trainer(tmp_path, "exact", 300)
    saved = trainer._directory
    path.write_text(json.dumps(content))
    notes = ("versions", "checkpoint", "resumed")
    before = {key: value for key, value in content.items() if key not in notes}
    saved.check(trainer.fingerprint(), before)
    with pytest.raises(RunRefused, match="observation_hash is 'exact' there and 'cell' here"):
        saved.check(make_trainer(tmp_path, "cell", 300).fingerprint(), before)


def no_tensor(observations):
    return observations.tolist()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            "cells",
            r"observation_hash is 'cells' .did you mean 'cell'..; choose from exact, cell, sim",
        ),
        (3, r"observation_hash must be str or Callable, got 3"),
    ],
)
def test_a_wrong_value_is_one_sentence(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        LearnerConfig(observation_hash=given)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            "cell",
            r"'cell' is for images \[C, H, W\], but 'observation' has the shape \[3\]: use 'exact', 'simhash' or",
        ),
        (as_floats, r"one int64 per observation, but returns float32 \[2\] .* return a tensor"),
        (torch.sign, r"but returns float32 \[2, 3\] for two of shape \[3\]"),
        (no_tensor, r"but returns list for two"),
        ("no_such_module:hash", "cannot be imported"),
    ],
)
def test_what_does_not_fit_the_observations_is_refused_before_anything_is_collected(
    given, sentence
):
    env = vector_env(Bearings)
    agent = make_agent("ddqn", env, observation_hash=given, network="mlp")
    with pytest.raises(ValueError, match=sentence) as raised:
        Trainer(agent, env, TrainConfig(100))
    assert "\n" not in str(raised.value)


def test_without_distinct_draws_a_warning_says_that_it_has_no_effect(caplog):
    env = make_env("NineRooms", room_size=3, batch_size=4)
    config = {"total_frames": 40, "learning_starts": 20, "eval_episodes": 0, "progress": False}
    with caplog.at_level(logging.WARNING):
        agent = make_agent("ddqn", env, observation_hash=signs, replay_measure="visits")
        train(agent, env, **config)
    assert "test_observation_hash:signs' has no effect" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        train(make_agent("ddqn", env, observation_hash="cell"), env, **config)
    assert "no effect" not in caplog.text


def test_the_command_line_has_it():
    settings = parse(compose(["env=nine_rooms", "agent=dceo", "agent.observation_hash=cell"]))
    assert settings.agent_settings["observation_hash"] == "cell"
    own = "training.test_observation_hash:signs"
    settings = parse(compose(["agent=ddqn", f"agent.observation_hash={own}"]))
    assert settings.agent_settings["observation_hash"] == own
    with pytest.raises(ValueError, match=r"agent\.observation_hash is 'simhsh' .did you mean"):
        parse(compose(["agent=dceo", "agent.observation_hash=simhsh"]))


def test_replay_settings_by_hand():
    env = vector_env(Camera)
    replay = ReplaySettings(measure="distinct", observation_hash="cell").make(env, 100, seed=0)
    assert replay._observation_hash.size == (8, 11)
