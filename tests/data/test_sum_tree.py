from __future__ import annotations

import pytest
import torch

from torchrl_dceo.data.samplers import SumTree


def naive_find(weights: torch.Tensor, mass: torch.Tensor) -> list[int]:
    found = []
    for value in mass.tolist():
        total = 0.0
        for leaf, weight in enumerate(weights.tolist()):
            total += weight
            if total > value:
                found.append(leaf)
                break
    return found


# One family, whole levels, one leaf more than a whole level, and three levels.
@pytest.mark.parametrize(
    ("size", "fan_out"), [(1, 4), (4, 4), (16, 4), (17, 4), (100, 3), (300, 128)]
)
def test_finds_what_a_running_sum_finds(size, fan_out):
    tree = SumTree(size, fan_out)
    weights = torch.randint(0, 8, (size,)).double()  # whole numbers: sums are exact in any order
    weights[-1] += 1
    order = torch.randperm(size)
    tree.set(order, weights[order])
    assert tree.total == weights.sum()
    assert torch.equal(tree.leaves, weights)
    assert torch.equal(tree.get(order), weights[order])
    mass = torch.arange(int(weights.sum()), dtype=torch.float64)
    mass = torch.cat([mass, mass + 0.5])
    assert tree.find(mass).tolist() == naive_find(weights, mass)


def test_many_updates_leave_no_trace():
    tree, weights = SumTree(500, 8), torch.zeros(500, dtype=torch.float64)
    for _ in range(300):
        index = torch.randint(500, (7,)).unique()
        value = torch.rand(index.numel(), dtype=torch.float64) * 10.0 ** torch.randint(-8, 8, (1,))
        tree.set(index, value)
        weights[index] = value
    fresh = SumTree(500, 8)
    fresh.fill(weights)
    assert tree.total == fresh.total
    tree.set(torch.arange(500), torch.zeros(500))
    assert tree.total == 0.0  # corrections by differences would leave a remainder


def test_the_largest_of_duplicates_counts():
    tree = SumTree(10, 4)
    tree.set(torch.tensor([3, 3]), torch.tensor([9.0, 9.0]))
    tree.set(torch.tensor([3, 5, 3, 3]), torch.tensor([1.0, 7.0, 4.0, 2.0]))
    assert tree.leaves.tolist() == [0, 0, 0, 4, 0, 7, 0, 0, 0, 0]
    assert tree.total == 11.0


def test_a_leaf_of_weight_zero_is_never_found():
    tree = SumTree(1000, 8)
    weights = torch.rand(1000, dtype=torch.float64) * (torch.rand(1000) < 0.3)
    weights[-1] = weights[0] = 0.0
    tree.fill(weights)
    # The borders between leaves, where rounding could go wrong, and the very end.
    borders = weights.cumsum(0)
    end = torch.tensor([tree.total], dtype=torch.float64)
    mass = torch.cat(
        [torch.zeros(1).double(), borders, borders.nextafter(end), borders.nextafter(-end), end]
    )
    found = tree.find(mass.clamp(0, tree.total))
    assert (tree.get(found) > 0).all()


def test_restores_every_level():
    tree, other = SumTree(100, 4), SumTree(100, 4)
    tree.set(torch.arange(100), torch.rand(100))
    other.load(tree.state())
    mass = torch.rand(50, dtype=torch.float64) * tree.total
    assert torch.equal(tree.find(mass), other.find(mass))
    tree.set(torch.arange(100), torch.zeros(100))
    assert other.total > 0  # a copy


@pytest.mark.parametrize(("size", "fan_out"), [(0, 4), (10, 1)])
def test_bad_sizes(size, fan_out):
    with pytest.raises(ValueError, match=r"at least one leaf|at least 2"):
        SumTree(size, fan_out)
