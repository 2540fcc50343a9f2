"""The distinct draw: against brute-force counts through overwriting, streams, frame stacks, saving and loading."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from tensordict import TensorDict

from torchrl_dceo.data import DistinctSampler, make_replay_buffer


class Walkers:
    """Streams of steps among a few states, some visited far more often than others, in episodes of random length."""

    def __init__(self, streams, stack=1, seed=0, states=12):
        self.random = torch.Generator().manual_seed(seed)
        self.action_random = torch.Generator().manual_seed(seed + 1)
        self.streams, self.stack, self.states = streams, stack, states
        self.frames = torch.stack([self._first() for _ in range(streams)])

    def _state(self):
        share = torch.rand((), generator=self.random)
        return int(share**3 * self.states)  # 0 in 44 of 100, the last in 3

    def _first(self):
        return torch.full((self.stack,), self._state())

    def _actions(self, shape):
        """Four, of which the last are rare."""
        return (torch.rand(shape, generator=self.action_random) ** 3 * 4).long()

    def batch(self, time):
        """``[streams, time]`` steps; an observation is the stack of the last states of its episode."""
        steps = {name: [] for name in ("frames", "next", "done")}
        for _ in range(time):
            new = torch.tensor([self._state() for _ in range(self.streams)])
            following = torch.cat([self.frames[:, 1:], new[:, None]], 1)
            done = torch.rand(self.streams, generator=self.random) < 0.15
            for name, value in (("frames", self.frames), ("next", following), ("done", done)):
                steps[name].append(value)
            self.frames = following.clone()
            for stream in done.nonzero().flatten().tolist():
                self.frames[stream] = self._first()
        frames, following, done = (torch.stack(steps[name], 1) for name in steps)
        shape = [self.streams, time]
        end = {
            "reward": torch.zeros(*shape, 1),
            "done": done[..., None],
            "terminated": done[..., None],
        }
        return TensorDict(
            {
                "pixels": frames[..., None, None].to(torch.uint8),
                "action": self._actions(shape),
                "next": {"pixels": following[..., None, None].to(torch.uint8), **end},
            },
            shape,
        )


def make_buffer(streams=1, stack=1, capacity=60, **settings):
    return make_replay_buffer(
        capacity,
        num_streams=streams,
        frame_stack=stack,
        batch_size=8,
        uniform_key="uniform",
        uniform_measure="distinct",
        seed=0,
        **settings,
    )


def brute_force(replay, by_action=False):
    """The rows that can be drawn, and by their observations (and actions), the probability of each."""
    everything = replay.transitions()
    observations = [tuple(frames.flatten().tolist()) for frames in everything["pixels"]]
    actions = everything["action"].tolist() if by_action else [0] * len(observations)
    groups = list(zip(observations, actions, strict=True))
    counts, tried = Counter(groups), Counter(seen for seen, _ in set(groups))
    rows = everything["index"].tolist()
    return {
        row: 1 / (len(tried) * tried[group[0]] * counts[group])
        for row, group in zip(rows, groups, strict=True)
    }


def check_counts(replay):
    """Every row that can be drawn has the brute-force probability, exactly, and no other row has any."""
    expected, sampler = brute_force(replay), replay._distinct
    counts = sampler.count(torch.tensor(list(expected))).double()
    wanted = torch.tensor(list(expected.values()), dtype=torch.float64)
    torch.testing.assert_close((sampler.num_distinct * counts).reciprocal(), wanted)
    assert int((sampler._place >= 0).sum()) == len(expected)
    return expected


def drawn_frequencies(replay, draws):
    index = replay.sample_distinct(draws)["index"]
    return torch.bincount(index, minlength=replay.storage.max_size).double() / draws


@pytest.mark.parametrize("by_action", [False, True])
@pytest.mark.parametrize(("streams", "stack"), [(1, 1), (3, 1), (1, 3), (2, 4)])
def test_frequencies_are_those_of_a_brute_force_count(streams, stack, by_action):
    replay = make_buffer(streams, stack, capacity=60 * streams, by_action=by_action)
    walkers = Walkers(streams, stack)
    for step in range(60):
        replay.extend(walkers.batch(1 + step % 7))
        if len(replay) == 0:
            continue
        expected = brute_force(replay, by_action=True) if by_action else check_counts(replay)
        if step % 20 == 19:
            # And the draws: chi-square, six standard deviations above its mean by a chance below 1e-6.
            frequency, draws = drawn_frequencies(replay, 20_000), 20_000
            probability = torch.zeros_like(frequency)
            rows, values = list(expected), list(expected.values())
            probability[rows] = torch.tensor(values, dtype=torch.float64)
            assert frequency[probability == 0].sum() == 0
            live = probability > 0
            statistic = ((frequency - probability)[live].square() / probability[live]).sum() * draws
            freedom = int(live.sum()) - 1
            assert statistic < freedom + 6 * (2 * freedom) ** 0.5


@pytest.mark.parametrize(("streams", "stack"), [(1, 1), (3, 1), (2, 4)])
@pytest.mark.parametrize("newest", [1, 3])
@pytest.mark.parametrize("by_action", [False, True])
def test_only_the_newest_rows_of_an_observation(streams, stack, newest, by_action):
    """Streams write in turn, each its own ring of time: the newest are those written last, whatever their rows."""
    replay = make_buffer(streams, stack, capacity=60 * streams, newest=newest, by_action=by_action)
    walkers, written = Walkers(streams, stack), {}
    for clock in range(80):
        rows = replay.extend(walkers.batch(1))
        written |= {int(row): clock for row in rows.flatten()}
    everything = replay.transitions()
    by_observation: dict[tuple, list[tuple[int, int]]] = {}
    actions = everything["action"] if by_action else torch.zeros_like(everything["action"])
    for row, frames, action in zip(
        everything["index"].tolist(), everything["pixels"], actions.tolist(), strict=True
    ):
        seen = (*frames.flatten().tolist(), action)
        by_observation.setdefault(seen, []).append((written[row], row))
    drawn = set(replay.sample_distinct(20_000)["index"].tolist())
    for rows_of in by_observation.values():
        rows_of.sort(reverse=True)
        # Streams that write at the same time are equally new.
        oldest = rows_of[min(newest, len(rows_of)) - 1][0]
        own = [(time, row) for time, row in rows_of if row in drawn]
        assert len(own) == min(newest, len(rows_of))
        assert all(time >= oldest for time, _ in own)


def test_a_buffer_that_draws_distinct_observations_itself(tmp_path):
    def build():
        return make_replay_buffer(80, batch_size=8, num_streams=2, sampler="distinct", seed=0)

    replay, walkers = build(), Walkers(2)
    for _ in range(25):
        replay.extend(walkers.batch(5))
    expected = check_counts(replay)
    drawn = torch.bincount(replay.sample(20_000)["index"], minlength=replay.storage.max_size)
    for row, probability in expected.items():
        deviation = (20_000 * probability * (1 - probability)) ** 0.5
        assert abs(int(drawn[row]) - 20_000 * probability) < 5 * deviation
    replay.dumps(tmp_path)
    other = build()
    other.loads(tmp_path)
    for _ in range(15):
        batch = walkers.batch(3)
        replay.extend(batch)
        other.extend(batch)
        assert torch.equal(replay.sample()["index"], other.sample()["index"])
    check_counts(other)


def test_a_uniform_batch_beside_distinct_ones():
    replay = make_replay_buffer(
        80,
        batch_size=8,
        sampler="distinct",
        uniform_key="uniform",
        uniform_measure="visits",
        seed=0,
    )
    walkers = Walkers(1)
    for _ in range(7):
        replay.extend(walkers.batch(10))
    batch = replay.sample(8000)
    shares = torch.bincount(batch["index"]) / 8000
    assert shares.max() > 3 / len(replay)  # a rare observation's row
    shares = torch.bincount(batch["uniform", "index"]) / 8000
    assert shares.max() < 2 / len(replay)


def test_uneven_streams_one_at_a_time():
    """Workers that report alone: some streams are overwritten often, others never."""
    replay, walkers = make_buffer(3, capacity=90), Walkers(3)
    for step in range(40):
        batch, which = walkers.batch(4), [0] if step % 3 else [2]
        replay.extend(batch[which], streams=which)
        check_counts(replay)


def test_it_is_the_uniform_draw_where_all_observations_differ():
    replay = make_replay_buffer(
        80, observation_keys=["observation"], batch_size=8, uniform_measure="distinct", seed=0
    )
    count = 200
    steps = TensorDict({"observation": torch.arange(count).float()[:, None]}, [count])
    steps["action"] = torch.zeros(count)
    steps["next"] = TensorDict({"observation": steps["observation"] + 1}, [count])
    steps["next", "reward"] = torch.zeros(count, 1)
    steps["next", "done"] = steps["next", "terminated"] = torch.zeros(count, 1, dtype=torch.bool)
    for part in steps.split(20):
        replay.extend(part)
    assert replay.num_distinct == len(replay) == 79
    counts = torch.bincount(replay.sample_distinct(40_000)["index"], minlength=80)
    expected = 40_000 / 79
    statistic = ((counts[counts > 0] - expected) ** 2 / expected).sum()
    assert int((counts > 0).sum()) == 79 and statistic < 78 + 6 * (2 * 78) ** 0.5


@pytest.mark.parametrize("by_action", [False, True])
@pytest.mark.parametrize("disk", [False, True])
def test_saved_and_restored_midway(disk, tmp_path, by_action):
    replay, walkers = make_buffer(2, capacity=80, by_action=by_action), Walkers(2)
    for _ in range(25):
        replay.extend(walkers.batch(5))
    other = make_buffer(2, capacity=80, by_action=by_action)
    if disk:
        replay.dumps(tmp_path)
        other.loads(tmp_path)
    else:
        other.load_state_dict(replay.state_dict())
    for _ in range(15):
        batch = walkers.batch(3)
        replay.extend(batch)
        other.extend(batch)
        first, second = replay.sample(), other.sample()
        for key in ("index", ("uniform", "index"), ("uniform", "successor", "pixels")):
            assert torch.equal(first[key], second[key])
    if not by_action:
        check_counts(other)


def test_a_buffer_saved_without_it_is_refused():
    plain = make_replay_buffer(60, batch_size=8)
    plain.extend(Walkers(1).batch(5).squeeze(0))
    with pytest.raises(ValueError, match="has measure=None, this one 'distinct'"):
        make_buffer().load_state_dict(plain.state_dict())


def test_a_buffer_saved_without_actions_is_refused():
    plain = make_buffer()
    plain.extend(Walkers(1).batch(5))
    with pytest.raises(ValueError, match="has by_action=False, this one True: build it with"):
        make_buffer(by_action=True).load_state_dict(plain.state_dict())


def test_emptied():
    replay, walkers = make_buffer(), Walkers(1)
    replay.extend(walkers.batch(20))
    replay.empty()
    assert replay.num_distinct == 0
    with pytest.raises(RuntimeError, match="no transition that can be sampled"):
        replay.sample_distinct()
    replay.extend(walkers.batch(20))
    check_counts(replay)


def test_the_second_batch_is_distinct_beside_priorities():
    replay, walkers = make_buffer(sampler="prioritized", alpha=1.0), Walkers(1)
    rows = replay.extend(walkers.batch(29)).flatten()
    replay.update_priority(rows, (rows == 5).float() + 1e-9)
    batch = replay.sample(4000)
    assert (batch["index"] == 5).float().mean() > 0.99
    seen = batch["uniform", "pixels"].flatten()
    shares = torch.bincount(seen, minlength=12).double() / 4000
    shares = shares[shares > 0]
    assert len(shares) == replay.num_distinct
    assert (shares - 1 / len(shares)).abs().max() < 0.03  # five standard deviations
    assert "priority_weight" not in batch["uniform"].keys()


def test_a_hash_of_ones_own_decides_what_is_the_same():
    replay = make_buffer(observation_hash=lambda pixels: pixels.flatten(1).long().sum(1) % 2)
    replay.extend(Walkers(1).batch(29))
    assert replay.num_distinct == 2
    even = replay.sample_distinct(4000)["pixels"].flatten() % 2 == 0
    assert 0.45 < even.float().mean() < 0.55


def test_several_observations_count_together():
    replay = make_replay_buffer(
        50, observation_keys=["a", "b"], batch_size=4, uniform_measure="distinct"
    )
    a, b = torch.tensor([0, 0, 1, 1, 0, 0]), torch.tensor([0, 1, 0, 1, 0, 0])
    steps = TensorDict({"a": a[:, None], "b": b[:, None], "action": torch.zeros(6)}, [6])
    steps["next"] = steps.select("a", "b").clone()
    steps["next", "reward"] = torch.zeros(6, 1)
    steps["next", "done"] = steps["next", "terminated"] = torch.zeros(6, 1, dtype=torch.bool)
    replay.extend(steps)
    assert replay.num_distinct == 4


def test_bad_arguments():
    with pytest.raises(
        ValueError, match="uniform_measure must be 'visits' or 'distinct', got 'all'"
    ):
        make_replay_buffer(60, uniform_measure="all")
    with pytest.raises(ValueError, match="newest=3 has no effect without sampler='distinct'"):
        make_replay_buffer(60, newest=3)
    with pytest.raises(ValueError, match="by_action=True has no effect without sampler='distinct'"):
        make_replay_buffer(60, by_action=True)
    with pytest.raises(ValueError, match="by_action=True needs 'action' among step_keys, got"):
        make_replay_buffer(60, sampler="distinct", by_action=True, step_keys=["option"])
    with pytest.raises(ValueError, match="needs the actions of the rows, got None"):
        DistinctSampler(4, by_action=True).write(torch.tensor([0]), torch.tensor([5]))
    with pytest.raises(ValueError, match="newest must be at least 1, got 0"):
        make_replay_buffer(60, sampler="distinct", newest=0)
    with pytest.raises(ValueError, match="'prioritized' or 'distinct', got 'recent'"):
        make_replay_buffer(60, sampler="recent")
    with pytest.raises(ValueError, match="the hash must be one of 'exact', 'cell', 'simhash'"):
        make_replay_buffer(60, observation_hash="md5")
    with pytest.raises(RuntimeError, match="uniform_measure='distinct'"):
        make_replay_buffer(60, batch_size=2).sample_distinct()
    with pytest.raises(ValueError, match="max_capacity must be at least 1, got 0"):
        DistinctSampler(0)


def test_a_row_named_twice_is_taken_out_once():
    sampler = DistinctSampler(4, seed=0)
    sampler.write(torch.tensor([0, 1]), torch.tensor([5, 5]))
    sampler.set_live(torch.tensor([0, 1, 1]), torch.tensor([True, True, True]))
    assert sampler.count(torch.tensor([0, 1, 2])).tolist() == [2, 2, 0]
    sampler.set_live(torch.tensor([0, 0]), torch.tensor([False, False]))
    assert sampler.count(torch.tensor([0, 1])).tolist() == [0, 1]
