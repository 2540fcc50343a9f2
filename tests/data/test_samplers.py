from __future__ import annotations

import pickle

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.scheduler import LinearScheduler

from torchrl_dceo.data import SumTreeSampler, UniformStepSampler
from torchrl_dceo.data.ring import StreamRing


def chi_square(counts: torch.Tensor, probability: torch.Tensor) -> float:
    expected = counts.sum() * probability
    return float(((counts - expected) ** 2 / expected).sum())


def bound(cells: int) -> float:
    # Mean k - 1, variance 2 (k - 1): five standard deviations.
    return cells - 1 + 5 * (2 * (cells - 1)) ** 0.5


def draws(sampler, count: int) -> torch.Tensor:
    return torch.cat([sampler.sample(None, 1000)[0] for _ in range(count // 1000)])


@pytest.mark.parametrize("streams", [1, 3])
def test_uniform_is_uniform_over_the_steps_of_a_wrapped_ring(streams):
    ring = StreamRing(20, streams, frame_stack=2)
    for turn in range(40):
        some = None if turn % 3 or streams == 1 else torch.tensor([0, 2]).numpy()
        ring.advance(torch.rand(streams if some is None else 2, 3) < 0.3, None, some)
    rows = ring.sampleable()
    assert 10 * streams < rows.numel() == ring.size == rows.unique().numel()
    counts = draws(UniformStepSampler(ring, seed=0), 100_000).bincount(minlength=20 * streams)
    assert counts[rows].sum() == 100_000
    assert chi_square(counts[rows], torch.full([ring.size], 1 / ring.size)) < bound(ring.size)


def test_uniform_is_seeded_and_saved():
    ring = StreamRing(50)
    ring.advance(torch.zeros(1, 20, dtype=torch.bool))
    one, two, other = (UniformStepSampler(ring, seed) for seed in (0, 0, 1))
    first = one.sample(None, 30)[0]
    assert torch.equal(first, two.sample(None, 30)[0])
    assert not torch.equal(first, other.sample(None, 30)[0])
    other.load_state_dict(one.state_dict())
    assert torch.equal(other.sample(None, 30)[0], two.sample(None, 30)[0])
    copy = pickle.loads(pickle.dumps(other))
    assert torch.equal(copy.sample(None, 30)[0], two.sample(None, 30)[0])
    # Without a seed, torch's global one governs it, and a draw does not touch it.
    torch.manual_seed(5)
    free = UniformStepSampler(ring)
    state = torch.get_rng_state()
    expected = free.sample(None, 30)[0]
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(5)
    assert torch.equal(UniformStepSampler(ring).sample(None, 30)[0], expected)


def test_uniform_from_too_short_a_buffer():
    ring = StreamRing(10)
    sampler = UniformStepSampler(ring)
    with pytest.raises(RuntimeError, match="no transition that can be sampled"):
        sampler.sample(None, 1)
    ring.advance(torch.zeros(1, 1, dtype=torch.bool))
    with pytest.raises(RuntimeError, match="once the next step has been written"):
        sampler.sample(None, 1)
    assert not sampler.can_sample(None, 1)
    ring.advance(torch.zeros(1, 1, dtype=torch.bool))
    assert sampler.sample(None, 1)[0].tolist() == [0]


@pytest.mark.parametrize("stratified", [False, True])
@pytest.mark.parametrize(("alpha", "eps"), [(1.0, 0.0), (0.6, 0.1), (0.0, 0.0)])
def test_frequencies_and_weights_against_a_naive_reference(alpha, eps, stratified):
    beta, size = 0.7, 200
    priority = torch.rand(size) ** 3
    priority[::7] = 0.0
    sampler = SumTreeSampler(size, alpha, beta, eps, stratified=stratified, seed=0)
    sampler.extend(torch.arange(size))
    sampler.update_priority(torch.arange(size), priority)
    expected = []
    for value in priority.double().tolist():
        expected.append((value + eps) ** alpha if value + eps > 0 else 0.0)
    probability = torch.tensor(expected) / sum(expected)
    possible = probability > 0
    assert possible.sum() == (size if eps else size - 29)

    counts = torch.zeros(size)
    for _ in range(200):
        index, info = sampler.sample(None, 1000)
        counts += index.bincount(minlength=size)
        naive = (size * probability[index]) ** -beta
        torch.testing.assert_close(info["priority_weight"], (naive / naive.max()).float())
    assert counts[~possible].sum() == 0
    statistic = chi_square(counts[possible], probability[possible])
    assert statistic < bound(int(possible.sum()))
    if stratified:
        # Each stratum is met exactly once a draw: far less noise than independent draws have.
        assert statistic < 0.5 * int(possible.sum())


def test_draws_have_enough_digits_for_large_buffers(monkeypatch):
    # float32 random numbers are multiples of 2^-24: they would pass over rows of a large buffer.
    sampler, seen = SumTreeSampler(10, seed=0), []
    sampler.extend(torch.arange(10))
    find = sampler._tree.find
    monkeypatch.setattr(sampler._tree, "find", lambda mass: seen.append(mass) or find(mass))
    sampler.sample(None, 100)
    fine = seen[0] / sampler._tree.total * 2**24 % 1
    assert fine.gt(1e-6).double().mean() > 0.9


def test_new_rows_get_the_largest_priority():
    sampler = SumTreeSampler(10, alpha=0.5, seed=0)
    sampler.extend(torch.tensor([0]))
    assert sampler.default_priority == 1.0
    sampler.update_priority(torch.tensor([0]), torch.tensor([16.0]))
    sampler.update_priority(torch.tensor([0]), torch.tensor([4.0]))
    sampler.add(1)
    assert sampler.default_priority == 16.0
    assert sampler._tree.leaves[:3].tolist() == [2.0, 4.0, 0.0]


def test_barred_rows_stay_barred():
    sampler = SumTreeSampler(10, seed=0)
    sampler.set_live(torch.tensor([2, 3]), torch.tensor([False, True]))
    sampler.update_priority(torch.tensor([2, 3]), torch.tensor([100.0, 1.0]))
    assert set(sampler.sample(None, 100)[0].tolist()) == {3}
    sampler.set_live(torch.tensor([2]), torch.tensor([True]))
    assert set(sampler.sample(None, 100)[0].tolist()) == {2, 3}


def test_duplicates_take_the_largest_and_negative_indices_are_left_out():
    sampler = SumTreeSampler(10, alpha=1.0, seed=0)
    sampler.update_priority(torch.tensor([1, -1, 1, 2]), torch.tensor([1.0, 50.0, 3.0, 2.0]))
    assert sampler._tree.leaves.tolist() == [0, 3, 2, 0, 0, 0, 0, 0, 0, 0]
    sampler.update_priority(4, 2.5)
    assert sampler._tree.leaves[4] == 2.5
    sampler.update_priority(torch.tensor([1, 2]), 0.0)
    assert set(sampler.sample(None, 50)[0].tolist()) == {4}


def test_beta_and_alpha_may_be_annealed():
    sampler = SumTreeSampler(4, alpha=1.0, beta=0.0, seed=0)
    sampler.update_priority(torch.arange(4), torch.tensor([0.0, 1.0, 4.0, 9.0]))
    assert (sampler.sample(None, 100)[1]["priority_weight"] == 1).all()
    schedule = LinearScheduler(sampler, "beta", final_value=1.0, num_steps=2)
    schedule.step()
    schedule.step()
    assert sampler.beta == 1.0
    index, info = sampler.sample(None, 100)
    torch.testing.assert_close(
        info["priority_weight"], 1 / torch.tensor([0.0, 1.0, 4.0, 9.0])[index]
    )
    sampler.alpha = 0.5
    assert sampler._tree.leaves.tolist() == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match="positive values only"):
        sampler.alpha = 0.0


def test_in_a_plain_torchrl_buffer():
    sampler = SumTreeSampler(100, alpha=1.0, beta=1.0, seed=0)
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(100), sampler=sampler, batch_size=256)
    rb.extend(TensorDict({"x": torch.arange(50)}, [50]))
    batch = rb.sample()
    assert set(batch["x"].tolist()) <= set(range(50)) and batch["priority_weight"].eq(1).all()
    batch["td_error"] = (batch["x"] == 7).float()
    rb.update_tensordict_priority(batch)
    assert 7 in batch["x"]
    index = rb.sample()["index"]
    assert index.eq(7).any() and not torch.isin(index, batch["index"][batch["x"] != 7]).any()
    rb.extend(TensorDict({"x": torch.arange(60), "td_error": torch.zeros(60)}, [60]))
    assert not torch.isin(rb.sample()["index"], torch.arange(50, 100)).any()


def test_prioritized_is_seeded_and_saved(tmp_path):
    def make(seed):
        return SumTreeSampler(1000, alpha=0.7, beta=0.3, seed=seed)

    one, two = make(0), make(0)
    for sampler in (one, two):
        sampler.extend(torch.arange(600))
        sampler.update_priority(torch.arange(600), torch.arange(600) / 7)
        sampler.set_live(torch.tensor([5]), torch.tensor([False]))
    assert torch.equal(one.sample(None, 50)[0], two.sample(None, 50)[0])
    by_state, by_file = make(1), make(2)
    by_state.load_state_dict(one.state_dict())
    one.dumps(tmp_path / "sampler")
    by_file.loads(tmp_path / "sampler")
    copy = pickle.loads(pickle.dumps(one))
    index, info = one.sample(None, 50)
    for other in (by_state, by_file, copy):
        again, weights = other.sample(None, 50)
        assert torch.equal(again, index) and torch.equal(
            weights["priority_weight"], info["priority_weight"]
        )
        other.update_priority(torch.tensor([5]), 1e9)  # still barred
        assert 5 not in other.sample(None, 50)[0]
        assert other.default_priority == 1e9
    with pytest.raises(ValueError, match="The saved sampler has 1000 rows, this one 10"):
        SumTreeSampler(10).load_state_dict(one.state_dict())


@pytest.mark.parametrize("name", ["alpha", "beta", "eps"])
@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_bad_settings(name, value):
    with pytest.raises(ValueError, match=f"{name} must be at least 0 and finite"):
        SumTreeSampler(10, **{name: value})


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_bad_priorities(value):
    sampler = SumTreeSampler(10)
    with pytest.raises(ValueError, match="finite and at least 0"):
        sampler.update_priority(torch.arange(3), torch.tensor([1.0, value, 2.0]))
    with pytest.raises(ValueError, match="got 2 for 3 rows"):
        sampler.update_priority(torch.arange(3), torch.ones(2))
    with pytest.raises(ValueError, match="storage of one dimension"):
        sampler.update_priority(torch.zeros(3, 2), torch.ones(3))


def test_nothing_to_draw():
    sampler = SumTreeSampler(10)
    with pytest.raises(RuntimeError, match="no row with a positive priority"):
        sampler.sample(None, 1)
    sampler.extend(torch.arange(4))
    assert sampler.can_sample(None, 1)
    sampler.update_priority(torch.arange(4), 0.0)
    with pytest.raises(RuntimeError, match="set eps > 0"):
        sampler.sample(None, 1)
