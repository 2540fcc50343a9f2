from __future__ import annotations

from functools import partial

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.data import Binary, Categorical, Composite, TensorDictReplayBuffer, Unbounded
from torchrl.envs import (
    CatFrames,
    Compose,
    EnvBase,
    GymEnv,
    InitTracker,
    StepCounter,
    ToTensorImage,
    TransformedEnv,
)
from torchrl.modules import DistributionalQValueActor
from torchrl.objectives import DistributionalDQNLoss

from torchrl_dceo.data import NStepReplayBuffer, SumTreeSampler, make_replay_buffer


class Camera(EnvBase):
    """Shows random frames of two channels; terminates at random."""

    def __init__(self, batch_size=()):
        super().__init__(batch_size=torch.Size(batch_size))
        shape = self.batch_size
        self.observation_spec = Composite(
            pixels=Unbounded((*shape, 2, 3, 3), dtype=torch.uint8),
            state_id=Unbounded(shape, dtype=torch.int64),
            shape=shape,
        )
        self.action_spec = Categorical(4, shape=shape)
        self.reward_spec = Unbounded((*shape, 1))
        done = Binary(1, (*shape, 1), dtype=torch.bool)
        self.done_spec = Composite(done=done, terminated=done.clone(), shape=shape)

    def _state(self):
        return {
            "pixels": torch.randint(256, (*self.batch_size, 2, 3, 3), dtype=torch.uint8),
            "state_id": torch.randint(1000, self.batch_size),
        }

    def _reset(self, tensordict=None):
        done = torch.zeros(*self.batch_size, 1, dtype=torch.bool)
        return TensorDict(
            {**self._state(), "done": done, "terminated": done.clone()}, self.batch_size
        )

    def _step(self, tensordict):
        done = torch.rand(*self.batch_size, 1) < 0.15
        reward = torch.randn(*self.batch_size, 1)
        out = {**self._state(), "reward": reward, "done": done, "terminated": done.clone()}
        return TensorDict(out, self.batch_size)

    def _set_seed(self, seed):
        torch.manual_seed(seed or 0)


def check_against_raw(rb, raw, times, n, gamma):
    """Compares all transitions with the collector's own, ``raw`` ``[E, T]``; ``times``: row -> (stream, t)."""
    batch = rb.transitions()
    assert len(batch) > 0
    for i, row in enumerate(batch["index"].tolist()):
        stream, t = times[row]
        history = raw[stream]
        m, reward = 0, 0.0
        while True:
            reward += gamma**m * history["next", "reward"][t + m].item()
            m += 1
            done = history["next", "done"][t + m - 1].item()
            if m == n or done:
                break
            newest = t + m == raw.shape[1] - 1
            if newest and not history["next", "done"][t + m].item():
                break
        last = t + m - 1
        assert batch["steps_to_next_obs"][i].tolist() == [m]
        assert batch["next", "reward"][i].item() == pytest.approx(reward, abs=1e-5)
        for key in ("pixels", "state_id"):
            assert torch.equal(batch[key][i], history[key][t])
            assert torch.equal(batch["successor", key][i], history["next", key][t])
            assert torch.equal(batch["next", key][i], history["next", key][last])
        assert batch["action"][i] == history["action"][t]
        for key in ("done", "terminated", "truncated"):
            assert torch.equal(batch["next", key][i], history["next", key][last])
            assert torch.equal(batch["successor", key][i], history["next", key][t])


# TorchRL 0.14.1's CatFrames cannot reset some of the environments of a batch of two dimensions.
@pytest.mark.parametrize(("shape", "stack"), [((), 1), ((), 4), ((3,), 1), ((3,), 4), ((2, 2), 1)])
def test_fed_by_a_collector(shape, stack):
    # With stacks, this is also the test that they are those of CatFrames, padding at a reset included.
    env = TransformedEnv(Camera(shape), Compose(StepCounter(6), InitTracker()))
    if stack > 1:
        env.append_transform(CatFrames(N=stack, dim=-3, in_keys=["pixels"], padding="same"))
    streams = max(1, torch.Size(shape).numel())
    policy = env.rand_action
    collector = Collector(env, policy, frames_per_batch=7 * streams, total_frames=7 * streams * 12)
    rb = make_replay_buffer(
        50 * streams,
        n_steps=3,
        gamma=0.9,
        num_streams=streams,
        state_keys=["state_id"],
        frame_stack=stack,
    )
    batches, times = [], {}
    for data in collector:
        begin = 7 * len(batches)
        rows = rb.extend(data).view(streams, 7).tolist()
        batches.append(data.clone().reshape(streams, 7))
        times.update({row: (s, begin + t) for s in range(streams) for t, row in enumerate(rows[s])})
    collector.shutdown()
    raw = torch.cat(batches, 1)
    assert raw["next", "truncated"].any() and raw["next", "terminated"].any()
    assert rb.transitions()["pixels"].dtype == torch.uint8
    assert rb.storage[0]["pixels"].shape == (2, 3, 3)  # one frame a row
    check_against_raw(rb, raw, times, 3, 0.9)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_a_collector_may_write_by_itself(shape):
    env = Camera(shape)
    streams = max(1, torch.Size(shape).numel())
    rb = make_replay_buffer(100 * streams, n_steps=2, num_streams=streams, state_keys=["state_id"])
    frames = 8 * streams
    collector = Collector(
        env, env.rand_action, frames_per_batch=frames, total_frames=5 * frames, replay_buffer=rb
    )
    for _ in collector:
        pass
    collector.shutdown()
    assert rb.write_count == 5 * frames
    assert 39 * streams <= len(rb) <= 40 * streams


def test_a_reset_of_the_collector_is_noticed():
    env = TransformedEnv(Camera(), InitTracker())
    collector = Collector(
        env, env.rand_action, frames_per_batch=5, total_frames=50, reset_at_each_iter=True
    )
    rb = make_replay_buffer(200, n_steps=3, state_keys=["state_id"])
    batches, where = [], {}
    for data in collector:
        where.update({row: (len(batches), t) for t, row in enumerate(rb.extend(data).tolist())})
        batches.append(data.clone())
    collector.shutdown()
    batch = rb.transitions()
    for i, row in enumerate(batch["index"].tolist()):
        number, t = where[row]
        shown = batches[number]["next", "pixels"][t + batch["steps_to_next_obs"][i].item() - 1]
        assert torch.equal(batch["next", "pixels"][i], shown)


@pytest.mark.slow
def test_workers_of_a_multi_process_collector_are_streams_of_their_own():
    make = partial(GymEnv, "CartPole-v1", categorical_action_encoding=True)
    collector = MultiSyncCollector(
        [make, make], frames_per_batch=20, total_frames=400, cat_results="stack"
    )
    rb = make_replay_buffer(1000, n_steps=3, num_streams=2, observation_keys=["observation"])
    for data in collector:
        assert data.shape == (2, 10)
        rb.extend(data)
    collector.shutdown()
    batch = rb.transitions()
    # The physics of CartPole tie s to its successor: x' = x + 0.02 v.
    moved = batch["observation"][:, 0] + 0.02 * batch["observation"][:, 1]
    torch.testing.assert_close(batch["successor", "observation"][:, 0], moved, atol=1e-5, rtol=0)
    assert len(batch) >= 398


def filled(env, turns=25, **kwargs):
    rb = make_replay_buffer(
        80,
        n_steps=3,
        num_streams=2,
        state_keys=["state_id"],
        frame_stack=2,
        batch_size=16,
        **kwargs,
    )
    for _ in range(turns):
        rb.extend(env.batch(4))
    return rb


def same(one: TensorDict, two: TensorDict) -> bool:
    return set(one.keys(True, True)) == set(two.keys(True, True)) and bool((one == two).all())


@pytest.mark.parametrize("turns", [0, 3, 25])  # empty, part of the ring, several times around
@pytest.mark.parametrize("storage", ["memory", "memmap"])
@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_goes_on_identically_after_saving(build_env, tmp_path, sampler, storage, turns):
    env = build_env(2, 40, stack=2)
    rb = filled(env, turns, sampler=sampler, storage=storage, seed=0)
    if turns:
        rb.update_priority(torch.arange(80), torch.rand(80)) if sampler == "prioritized" else None
        rb.sample()
        rb.sample_uniform(5)
    state = rb.state_dict()
    rb.dumps(tmp_path / "rb")
    assert not any(path.suffix in (".pkl", ".pt", ".t") for path in (tmp_path / "rb").rglob("*"))
    others = [filled(build_env(2, 40, stack=2, seed=9), t, sampler=sampler, seed=4) for t in (0, 7)]
    others[0].load_state_dict(state)
    others[1].loads(tmp_path / "rb")
    for _ in range(3):
        more = env.batch(4)
        for buffer in (rb, *others):
            buffer.extend(more)
        batch, uniform, rows = rb.sample(), rb.sample_uniform(9), rb.transitions()
        batch["td_error"] = torch.rand(16)
        rb.update_tensordict_priority(batch)
        for other in others:
            again = other.sample()
            again["td_error"] = batch["td_error"]
            other.update_tensordict_priority(again)
            assert same(again, batch)
            assert same(other.sample_uniform(9), uniform)
            assert same(other.transitions(), rows)
            assert other.write_count == rb.write_count


def test_state_dict_is_a_copy(build_env):
    env = build_env(2, 40, stack=2)
    rb = filled(env, seed=0)
    state, batch = rb.state_dict(), rb.sample()
    for _ in range(20):
        rb.extend(env.batch(4))
    rb.load_state_dict(state)
    assert same(rb.sample(), batch)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"capacity": 160}, "rows_per_stream"),
        ({"num_streams": 1}, "rows_per_stream=40, this one 80"),
        ({"capacity": 40, "num_streams": 1}, "num_streams=2, this one 1"),
        ({"frame_stack": 1}, "frame_stack=2, this one 1"),
        ({"state_keys": []}, "states="),
        ({"sampler": "prioritized"}, "sampler="),
    ],
)
def test_a_buffer_of_another_layout_is_refused(build_env, tmp_path, change, name):
    filled(build_env(2, 40, stack=2)).dumps(tmp_path)
    settings = {
        "capacity": 80,
        "num_streams": 2,
        "frame_stack": 2,
        "state_keys": ["state_id"],
        **change,
    }
    other = make_replay_buffer(settings.pop("capacity"), **settings)
    with pytest.raises(ValueError, match=f"The saved replay buffer has .*{name}"):
        other.loads(tmp_path)


def test_settings_are_restored(build_env):
    rb = filled(build_env(2, 40, stack=2), gamma=0.7)
    other = filled(build_env(2, 40, stack=2), 0, gamma=0.9)
    rb.n_steps = 2
    other.load_state_dict(rb.state_dict())
    assert (other.n_steps, other.gamma, other.batch_size) == (2, 0.7, 16)


def atari(steps):
    data = TensorDict({"pixels": torch.zeros(steps, 4, 84, 84, dtype=torch.uint8)}, [steps])
    data["action"] = torch.zeros(steps, dtype=torch.int64)
    data["option"] = torch.zeros(steps, dtype=torch.int64)
    data["next"] = TensorDict({"pixels": data["pixels"], "reward": torch.zeros(steps, 1)}, [steps])
    for key in ("done", "terminated", "truncated"):
        data["next", key] = torch.zeros(steps, 1, dtype=torch.bool)
    return data


def test_memory_of_a_transition():
    rb = make_replay_buffer(
        1000, n_steps=3, frame_stack=4, step_keys=["action", "option"], sampler="prioritized"
    )
    rb.extend(atari(10))
    assert rb.storage.max_size == 1000
    state = rb.state_dict(copy=False)
    held = sum(value.numel() * value.element_size() for value in rb.writer.tensors.values())
    rest = [
        *state["writer"]["ring"].values(),
        *state["sampler"]["tree"],
        state["sampler"]["barred"],
    ]
    held += sum(value.numel() * value.element_size() for value in rest)
    assert 7056 < held / 1000 < 7200


def test_memmap_is_the_same_on_files(build_env, tmp_path):
    in_memory = filled(build_env(2, 40, stack=2), seed=0)
    on_files = filled(
        build_env(2, 40, stack=2), seed=0, storage="memmap", scratch_dir=tmp_path / "x"
    )
    assert same(in_memory.sample(), on_files.sample())
    assert list((tmp_path / "x").rglob("*.memmap"))
    assert type(on_files.sample()["pixels"]) is torch.Tensor


def test_is_a_torchrl_buffer(build_env):
    rb = filled(build_env(2, 40, stack=2), sampler="prioritized")
    assert isinstance(rb, TensorDictReplayBuffer) and type(rb) is NStepReplayBuffer
    batch, info = rb.sample(return_info=True)
    assert torch.equal(info["index"], batch["index"]) and "priority_weight" in batch.keys()
    assert batch.batch_size == (16,)
    assert batch["steps_to_next_obs"].shape == (16, 1)
    assert batch["steps_to_next_obs"].dtype == torch.int64
    assert len(rb.sample(5)) == 5
    assert len(next(iter(rb))) == 16
    assert rb.can_sample(16)
    assert rb[3]["pixels"].shape == (2, 1, 1)  # a raw row: one frame
    rb.empty()
    assert len(rb) == 0 and rb.write_count == 0
    with pytest.raises(RuntimeError, match="the buffer is empty or too short"):
        rb.sample()


def test_transforms_see_finished_transitions():
    rb = make_replay_buffer(
        100,
        n_steps=2,
        frame_stack=4,
        batch_size=8,
        transform=ToTensorImage(
            in_keys=["pixels", ("next", "pixels")], from_int=True, shape_tolerant=True
        ),
    )
    rb.append_transform(lambda batch: batch.set("extra", batch["next", "reward"] + 1))
    data = atari(10)
    data["pixels"][:] = 255
    rb.extend(data)
    batch = rb.sample()
    assert batch["pixels"].dtype == torch.float32 and batch["pixels"].max() == 1.0
    assert batch["successor", "pixels"].dtype == torch.uint8
    assert batch["extra"].eq(1).all()
    assert rb.sample_uniform()["extra"].eq(1).all()
    assert rb.transitions()["extra"].eq(1).all()


def test_nested_keys(build_env):
    env = build_env(1, 100)
    data = env.batch(6)[0]
    renamed = data.copy()
    for part in (renamed, renamed["next"]):
        part["agent", "view"] = part.pop("pixels")
        part["agent", "id"] = part.pop("state_id")
    renamed["agent", "action"] = renamed.pop("action")
    rb = make_replay_buffer(100, n_steps=2, state_keys=["state_id"], window=True)
    nested = make_replay_buffer(
        100,
        n_steps=2,
        observation_keys=[("agent", "view")],
        state_keys=[("agent", "id")],
        step_keys=[("agent", "action")],
        window=True,
    )
    rb.extend(data)
    nested.extend(renamed)
    expected, found = rb.transitions(), nested.transitions()
    assert torch.equal(found["agent", "action"], expected["action"])
    for part in ([], ["next"], ["successor"]):
        assert torch.equal(found[(*part, "agent", "view")], expected[(*part, "pixels")])
        assert torch.equal(found[(*part, "agent", "id")], expected[(*part, "state_id")])
    assert torch.equal(found["window", "agent", "view"], expected["window", "pixels"])
    again = make_replay_buffer(
        100,
        n_steps=2,
        observation_keys=[("agent", "view")],
        state_keys=[("agent", "id")],
        step_keys=[("agent", "action")],
        window=True,
    )
    again.load_state_dict(nested.state_dict())
    assert same(again.transitions(), found)


def test_uniform_batches_from_a_prioritized_buffer(build_env):
    rb = filled(build_env(2, 40, stack=2), sampler="prioritized", beta=1.0, seed=0)
    rows = rb.transitions()["index"]
    rb.update_priority(rows, 0.0)
    rb.update_priority(rows[:1], 1e6)
    drawn = torch.cat([rb.sample()["index"] for _ in range(60)])
    assert drawn.eq(rows[0]).all()
    batches = [rb.sample_uniform(200) for _ in range(100)]
    assert "priority_weight" not in batches[0].keys()
    counts = torch.cat([batch["index"] for batch in batches]).bincount(minlength=80)[rows]
    expected = 20_000 / len(rows)
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic < len(rows) - 1 + 5 * (2 * len(rows)) ** 0.5


def test_priorities_given_with_the_data(build_env):
    rb = make_replay_buffer(100, state_keys=["state_id"], sampler=SumTreeSampler(100, 1.0, seed=0))
    data = build_env(1, 100, mean_length=1e9).batch(6)[0]
    rb.extend(data.set("td_error", torch.tensor([0.0, 0, 3, 0, 0, 9])))
    # Row 5 is the newest: its priority counts for nothing, since the row cannot be drawn yet.
    assert set(rb.sample(50)["index"].tolist()) == {2}


def test_distributional_loss_takes_a_batch_of_as_many_transitions_as_atoms():
    # With steps_to_next_obs of shape [B] the support would be broadcast wrongly, silently when B = atoms.
    atoms = batch_size = 12
    net = nn.Sequential(nn.Linear(4, 2 * atoms), nn.Unflatten(-1, (atoms, 2)))
    actor = DistributionalQValueActor(
        TensorDictModule(net, in_keys=["observation"], out_keys=["action_value"]),
        spec=Categorical(2),
        support=torch.linspace(0, 1, atoms),
        action_space="categorical",
    )
    loss = DistributionalDQNLoss(actor, gamma=0.9, delay_value=False)
    env = GymEnv("CartPole-v1", categorical_action_encoding=True)
    rb = make_replay_buffer(300, n_steps=3, gamma=0.9, observation_keys=["observation"], seed=0)
    rb.extend(env.rollout(100, break_when_any_done=False))
    batch = rb.sample(batch_size)
    whole = loss(batch)["loss"]
    parts = torch.stack([loss(part)["loss"] for part in batch.split(2)])
    torch.testing.assert_close(whole, parts.mean())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_streams": 0}, "num_streams must be at least 1, got 0"),
        ({"storage": "disk"}, "storage must be 'memory' or 'memmap', got 'disk'"),
        ({"scratch_dir": "/x"}, "scratch_dir='/x' has no effect"),
        (
            {"sampler": "slice"},
            "sampler must be 'uniform', 'prioritized' or 'distinct', got 'slice'",
        ),
        ({"sampler": SumTreeSampler(10)}, "The sampler has 10 rows, the buffer 100"),
        ({"capacity": 3}, "too short for n_steps=1"),
        ({"pair_steps": 0}, "pair_steps must be an integer of at least 1, got 0"),
        (
            {"pair_steps": 98},
            "too short for pair_steps=98 and frame_stack=1: set capacity to at least 101",
        ),
        ({"uniform_key": "later"}, "uniform_key='later' is already an entry of the samples"),
    ],
)
def test_bad_settings(settings, message):
    settings = {"capacity": 100, **settings}
    with pytest.raises(ValueError, match=message):
        make_replay_buffer(settings.pop("capacity"), **settings)


def test_a_batch_size_is_needed():
    rb = make_replay_buffer(100)
    rb.extend(atari(10))
    for size in (None, 0, -3):
        with pytest.raises(ValueError, match=f"batch_size must be at least 1, got {size}"):
            rb.sample(size)


def test_too_short_a_buffer():
    rb = make_replay_buffer(100, batch_size=4)
    with pytest.raises(RuntimeError, match="no transition that can be sampled"):
        rb.sample()
    rb.extend(atari(1))
    assert len(rb) == 0
    with pytest.raises(RuntimeError, match="no transition that can be sampled"):
        rb.sample()
    rb.extend(atari(1))
    assert len(rb) == 1 and len(rb.sample()) == 4
