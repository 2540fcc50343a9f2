from __future__ import annotations

import fcntl
import functools
import io
import multiprocessing
import os
import pickle
import signal
import tempfile
from collections import Counter
from pathlib import Path

import pytest
import torch
from torchrl.collectors import MultiSyncCollector
from torchrl.envs import Compose, GymEnv, InitTracker, TransformedEnv
from torchrl.envs.utils import RandomPolicy, check_env_specs

from torchrl_dceo.envs import (
    ActionNoise,
    Coverage,
    RubiksCubeEnv,
    StateCounts,
    find_transform,
    num_states,
    transforms,
)
from torchrl_dceo.envs.transforms import SharedTable


def _cube(**kwargs):
    return RubiksCubeEnv(**{"max_depth": 3, "seed": 0, **kwargs})


def _visits(data, starts):
    """Counts by hand: each step's next state, and the given start states."""
    return Counter(data["next", "state_id"].flatten().tolist()) + Counter(starts)


def _as_counter(counts):
    return Counter({i: n for i, n in enumerate(counts.tolist()) if n})


class TestStateCounts:
    @pytest.mark.parametrize("batch_size", [(), (3,), (2, 2)])
    def test_counts_steps_and_starts(self, batch_size):
        counts = StateCounts(385)
        cube = _cube(batch_size=batch_size, coverage=True, max_steps=7)
        env = TransformedEnv(cube, Compose(InitTracker(), counts))
        data = env.rollout(30, break_when_any_done=False)
        starts = data["state_id"][data["is_init"].squeeze(-1)].tolist()
        envs = cube.batch_size.numel()
        assert len(starts) == envs * 5  # 30 steps, limit 7: five episodes each
        assert _as_counter(counts.counts) == _visits(data, starts)
        assert counts.counts.sum() == envs * 35
        assert counts.counts.dtype == torch.int64

    def test_partial_reset_counts_only_those_that_start(self):
        counts = StateCounts(385)
        env = TransformedEnv(_cube(batch_size=[3], coverage=True), counts)
        data = env.reset()
        before = counts.counts.clone()
        data["_reset"] = torch.tensor([[True], [False], [True]])
        env.reset(data)
        change = counts.counts - before
        assert change.sum() == 2 and change[env.base_env._starts[0]] == 2

    def test_bonus(self):
        counts = StateCounts(5)
        counts.counts.copy_(torch.tensor([0, 1, 4, 9, 16]))
        bonus = counts.bonus(torch.tensor([[1, 2], [4, 3]]))
        assert bonus.dtype == torch.float32
        assert torch.allclose(bonus, torch.tensor([[1.0, 1 / 2], [1 / 4, 1 / 3]]))
        assert counts.bonus(torch.tensor(0)) == 1.0
        assert counts.visited.tolist() == [False, True, True, True, True]
        assert counts.num_visited == 4

    def test_a_clone_shares_the_table(self):
        counts = StateCounts(385)
        for transform in (counts, counts.clone()):
            TransformedEnv(_cube(coverage=True), transform).rollout(10)
        assert counts.counts.sum() == 22

    def test_save_load(self):
        env = TransformedEnv(_cube(coverage=True), Compose(InitTracker(), StateCounts(385)))
        env.rollout(20)
        saved = io.BytesIO()
        torch.save(env.state_dict(), saved)
        saved.seek(0)
        other = TransformedEnv(_cube(coverage=True), Compose(InitTracker(), StateCounts(385)))
        shared = find_transform(other, StateCounts).clone()
        other.load_state_dict(torch.load(saved, weights_only=True))
        assert shared.counts.sum() == 21
        assert shared.counts.equal(find_transform(env, StateCounts).counts)
        smaller = TransformedEnv(_cube(coverage=True), StateCounts(3))
        with pytest.raises(ValueError, match="saved counts are of 385 states, this table of 3"):
            smaller.transform.set_extra_state(shared.counts)

    def test_sampling_is_no_visit(self):
        counts = StateCounts(385)
        env = TransformedEnv(_cube(coverage=True), counts)
        data = env.rollout(5)
        counts(data)
        assert counts.counts.sum() == 6

    def test_specs(self):
        check_env_specs(TransformedEnv(_cube(batch_size=[2]), StateCounts(385)))

    def test_bad_input(self):
        with pytest.raises(ValueError, match="num_states must be at least 1, got 0"):
            StateCounts(0)


def _add_many(table, times):
    # Long additions, so that processes meet.
    for _ in range(times):
        table.add(torch.zeros(5000, dtype=torch.int64))


def _add_one(table, about_to_add):
    about_to_add.set()
    table.add(torch.ones(1, dtype=torch.int64))


def _hold_a_table(ready):
    table = SharedTable(3)
    ready.set()
    signal.pause()
    del table


def _make_counted_cube(transform):
    return TransformedEnv(_cube(coverage=True, max_steps=50), transform.clone())


class TestSharing:
    def test_processes_add_to_one_table(self):
        table = SharedTable(3)
        context = multiprocessing.get_context("fork")
        workers = [context.Process(target=_add_many, args=(table, 200)) for _ in range(3)]
        for worker in workers:
            worker.start()
        _add_many(table, 200)
        for worker in workers:
            worker.join()
        assert table.values.tolist() == [4_000_000, 0, 0]

    def test_addition_waits_for_the_lock_of_another_process(self):
        table = SharedTable(3)
        table.add(torch.tensor([2]))  # opens the file, which the worker inherits, lock and all
        context = multiprocessing.get_context("fork")
        about_to_add = context.Event()
        worker = context.Process(target=_add_one, args=(table, about_to_add))
        fcntl.flock(table._file, fcntl.LOCK_EX)
        worker.start()
        assert about_to_add.wait(30)
        worker.join(0.3)
        early = table.values.tolist()
        fcntl.flock(table._file, fcntl.LOCK_UN)
        worker.join()
        assert early == [0, 0, 1]
        assert table.values.tolist() == [0, 1, 1]

    def test_file_goes_with_its_creator(self):
        table = SharedTable(3)
        name = Path(table._name)
        copy = pickle.loads(pickle.dumps(table))
        del copy
        assert name.exists()
        del table
        assert not name.exists()

    def test_file_of_a_killed_process_goes_with_the_next_table(self, tmp_path, monkeypatch):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        context = multiprocessing.get_context("fork")
        ready = context.Event()
        worker = context.Process(target=_hold_a_table, args=(ready,))
        worker.start()
        assert ready.wait(60)
        (killed,) = tmp_path.iterdir()
        foreign = tmp_path / "torchrl_dceo_notes.counts"
        foreign.write_text("somebody's own")
        transforms._remove_orphans.cache_clear()
        table = SharedTable(3)
        assert killed.exists()  # its process is alive
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        transforms._remove_orphans.cache_clear()
        other = SharedTable(3)
        assert {path.name for path in tmp_path.iterdir()} == {
            foreign.name,
            Path(table._name).name,
            Path(other._name).name,
        }

    def test_workers_of_a_collector_share_the_table(self):
        counts = StateCounts(385)
        make = functools.partial(_make_counted_cube, counts)
        collector = MultiSyncCollector(
            [make, make],
            RandomPolicy(_cube().action_spec),
            frames_per_batch=100,
            total_frames=200,
        )
        seen = torch.zeros(385, dtype=torch.int64)
        for data in collector:
            states = data["next", "state_id"].flatten()
            seen.index_add_(0, states, torch.ones_like(states))
        collector.shutdown()
        # The workers may already have begun the next step or reset; what was delivered is counted.
        assert seen.sum() == 200
        assert (counts.counts >= seen).all()
        starts = counts.counts - seen
        assert starts.sum() >= 4 and starts.argmax() == _cube().reset()["state_id"]


class TestCoverage:
    @pytest.mark.parametrize("batch_size", [(), (3,), (2, 2)])
    def test_number_of_distinct_states_so_far(self, batch_size):
        coverage = Coverage(385)
        env = TransformedEnv(_cube(batch_size=batch_size, coverage=True), coverage)
        check_env_specs(env)
        coverage.counts.zero_()
        data = env.rollout(40)
        assert data["next", "coverage"].shape == (*batch_size, 40, 1)
        flat = data.reshape(-1, 40)
        seen = set(flat["state_id"][:, 0].tolist())
        assert (data["coverage"][..., 0, 0] == len(seen)).all()
        for t in range(40):
            seen |= set(flat["next", "state_id"][:, t].tolist())
            assert (flat["next", "coverage"][:, t] == len(seen)).all()
        assert coverage.num_visited == len(seen) > 5
        assert coverage.visited.nonzero().flatten().tolist() == sorted(seen)


class TestActionNoise:
    def _env(self, **kwargs):
        return TransformedEnv(_cube(batch_size=[50_000], slip=0.0), ActionNoise(**kwargs))

    # Also an action that is not the last: a share that is too large may show in the last one alone.
    @pytest.mark.parametrize(("chosen", "other"), [(8, 7), (6, 8)])
    @pytest.mark.parametrize("prob", [0.0, 0.15, 1.0])
    def test_frequency_and_uniform_choice(self, prob, chosen, other):
        env = self._env(prob=prob, seed=0)
        data = env.reset()
        start = int(data["state_id"][0])
        data["action"] = torch.full((50_000,), chosen)
        where = env.step(data)["next", "state_id"]
        table = env.base_env.next_state[start]
        # On the rim of the cube each turn of F leads elsewhere, the other six do nothing.
        expected = {
            int(table[chosen]): 1 - prob * 8 / 9,
            int(table[other]): prob / 9,
            start: prob * 6 / 9,
        }
        for state, share in expected.items():
            assert (where == state).float().mean().item() == pytest.approx(share, abs=0.008)

    def test_tensordict_keeps_the_chosen_action(self):
        env = self._env(prob=1.0, seed=0)
        data = env.reset()
        data["action"] = torch.full((50_000,), 8)
        assert (env.step(data)["action"] == 8).all()

    def test_seeds(self):
        def run(seed):
            env = TransformedEnv(_cube(batch_size=[4], slip=0.0), ActionNoise(1.0, seed=seed))
            policy = lambda td: td.set("action", torch.zeros(4, dtype=torch.int64))  # noqa: E731
            return env.rollout(20, policy, break_when_any_done=False)["next", "state_id"]

        assert run(1).equal(run(1))
        assert not run(1).equal(run(2))

    def test_save_load(self):
        env, other = self._env(prob=0.5, seed=1), self._env(prob=0.5, seed=2)
        env.step(env.rand_action(env.reset()))
        other.load_state_dict(env.state_dict())
        data = env.rand_action(env.reset())
        copy = other.reset()
        copy["action"] = data["action"]
        assert env.step(data)["next", "state_id"].equal(other.step(copy)["next", "state_id"])

    def test_gym_environment_with_partial_resets(self):
        base = GymEnv("CartPole-v1", categorical_action_encoding=True)
        env = TransformedEnv(base, ActionNoise(0.5, seed=0))
        check_env_specs(env)
        assert env.rollout(60, break_when_any_done=False)["next", "done"].any()

    def test_bad_input(self):
        with pytest.raises(ValueError, match=r"prob must lie in \[0, 1\], got 2"):
            ActionNoise(2)
        env = TransformedEnv(GymEnv("CartPole-v1"), ActionNoise(0.5))
        with pytest.raises(TypeError, match="needs a categorical action, got OneHot"):
            env.rollout(2)


def test_num_states():
    assert num_states(TransformedEnv(_cube(batch_size=[2, 2]), InitTracker())) == 385
    with pytest.raises(KeyError, match="no entry 'state_id'"):
        num_states(GymEnv("CartPole-v1"))


def test_find_transform():
    counts = Coverage(385)
    env = TransformedEnv(TransformedEnv(_cube(), counts), InitTracker())
    assert find_transform(env, StateCounts).counts is counts.counts
    assert find_transform(env, ActionNoise) is None
    assert find_transform(_cube(), StateCounts) is None
