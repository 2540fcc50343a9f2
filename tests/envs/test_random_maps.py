"""Random maps: the same for the same seed, connected, of the size and kind asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from torchrl_dceo.analysis import reachable_states
from torchrl_dceo.envs import GridWorldEnv
from torchrl_dceo.envs.grid.layouts import parse_layout
from torchrl_dceo.envs.grid.random_maps import random_map

KINDS = ("rooms", "maze", "cave")


@pytest.mark.parametrize("kind", [*KINDS, None])
@pytest.mark.parametrize("seed", range(8))
def test_maps_are_connected_and_of_the_size_asked_for(kind, seed):
    text = random_map(seed, kind)
    env = GridWorldEnv(text, coverage=True)
    assert 60 <= env.num_states <= 600
    assert reachable_states(env.next_state, env._starts).all()
    assert len(parse_layout(text).starts) == 1
    # Walled in on all sides, and no wider than that.
    rows = text.split("\n")
    assert set(rows[0]) == set(rows[-1]) == {"#"} and {row[0] + row[-1] for row in rows} == {"##"}
    assert set(rows[1]) != {"#"} != set(rows[-2])


def test_a_seed_is_a_map_and_another_seed_another():
    assert len({random_map(seed, kind) for seed in range(20) for kind in KINDS}) == 60
    code = "from torchrl_dceo.envs.grid.random_maps import random_map; print(random_map(5, 'cave'))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == random_map(5, "cave")


def test_sizes_go_from_small_to_large():
    counts = torch.tensor([sum(c != "#" for c in random_map(s)) for s in range(60)])
    assert counts.min() < 110 and counts.max() > 400 and 120 < counts.median() < 320


def test_kinds_differ_in_what_they_are():
    """A maze's cells have two neighbours on the whole, a cave's almost four."""
    degree = {}
    for kind in KINDS:
        moved = []
        for seed in range(6):
            env = GridWorldEnv(random_map(seed, kind), coverage=True)
            here = torch.arange(env.num_states).unsqueeze(-1)
            moved.append((env.next_state != here).sum(1).double().mean())
        degree[kind] = float(torch.stack(moved).mean())
    assert degree["maze"] < 2.4 < 2.8 < degree["rooms"] and degree["cave"] > 3


def test_refusals():
    with pytest.raises(ValueError, match="kind must be one of 'rooms', 'maze', 'cave', got 'lake'"):
        random_map(0, "lake")
    with pytest.raises(ValueError, match="no more than max_states, got 70 and 60"):
        random_map(0, min_states=70, max_states=60)
