"""A uniform batch beside one drawn by priorities."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from torchrl_dceo.data import make_replay_buffer

ROWS = 64


def make_buffer(**settings):
    replay = make_replay_buffer(
        200,
        observation_keys=["observation"],
        sampler="prioritized",
        alpha=1.0,
        batch_size=200,
        seed=0,
        **settings,
    )
    steps = TensorDict({"observation": torch.arange(ROWS + 1.0)[:-1, None]}, [ROWS])
    steps["action"] = torch.zeros(ROWS)
    steps["next"] = TensorDict({"observation": torch.arange(ROWS + 1.0)[1:, None]}, [ROWS])
    steps["next", "reward"] = torch.zeros(ROWS, 1)
    steps["next", "done"] = steps["next", "terminated"] = torch.zeros(ROWS, 1, dtype=torch.bool)
    rows = replay.extend(steps)
    # All the priority on one row.
    replay.update_priority(rows, (rows == 5).float())
    return replay


def test_samples_bring_a_uniform_batch_along():
    batch = make_buffer(uniform_key="uniform").sample()
    assert (batch["index"] == 5).all()
    counts = torch.bincount(batch["uniform", "index"], minlength=ROWS)[: ROWS - 1]
    # 200 draws from 63 rows: 3.2 a row; no row has as many as 15 but by a chance below 1e-5.
    assert int((counts > 0).sum()) > 45 and int(counts.max()) < 15
    pairs = batch["uniform"]
    assert torch.equal(pairs["successor", "observation"], pairs["observation"] + 1)
    assert "priority_weight" not in pairs.keys() and "priority_weight" in batch.keys()


def test_the_uniform_batch_is_drawn_again_after_a_restore():
    replay = make_buffer(uniform_key="uniform")
    state = replay.state_dict()
    first = replay.sample()
    other = make_buffer(uniform_key="uniform")
    other.load_state_dict(state)
    again = other.sample()
    for key in ("index", ("uniform", "index")):
        assert torch.equal(first[key], again[key])


def test_without_the_key_there_is_none():
    assert "uniform" not in make_buffer().sample().keys()


def test_a_key_that_is_taken_is_refused():
    with pytest.raises(
        ValueError, match="uniform_key='successor' is already an entry of the samples"
    ):
        make_buffer(uniform_key="successor")
