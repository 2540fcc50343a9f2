"""Tables of transitions by name or from a file, and pairs of states weighed by visits or all alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchrl_dceo.analysis import cosine_similarity
from torchrl_dceo.analysis.spectra.exact import pair_eigenfunctions, pair_shares
from torchrl_dceo.envs import GridWorldEnv
from torchrl_dceo.envs.grid.random_maps import random_map
from torchrl_dceo.studies.experiments import GivenTableEnv, Pairs, collect_pairs, find_table
from torchrl_dceo.studies.experiments.representation import (
    RepresentationConfig,
    _Draws,
    _reversible,
    learn_representation,
)

# Two rings of five and four states, joined by one step that can be taken back.
RINGS = np.array(
    [[(i + 1) % 5, (i - 1) % 5, i] for i in range(5)]
    + [[5 + (i + 1) % 4, 5 + (i - 1) % 4, 5 + i] for i in range(4)]
)
RINGS[0, 2], RINGS[5, 2] = 5, 0


def quick(**settings) -> RepresentationConfig:
    given = {"samples": 40_000, "batch_size": 512, "steps": 300, "dimensions": 3}
    return RepresentationConfig(**{**given, "objective": "graph_drawing", **settings})


@pytest.mark.parametrize("suffix", [".npy", ".csv"])
def test_a_table_of_ones_own_is_learned_from_its_file(tmp_path, suffix):
    path = tmp_path / f"rings{suffix}"
    if suffix == ".npy":
        np.save(path, RINGS)
    else:
        np.savetxt(path, RINGS, delimiter=",", fmt="%d")
    assert find_table(path).next_state.tolist() == RINGS.tolist()
    result = learn_representation(quick(map=str(path), lr=2e-2))
    assert result.rows[-1]["ritz_cluster_cosine"] > 0.98
    # The first function that is not constant tells the rings apart.
    first = result.learned[:, 1]
    assert (
        first[:5].sign().unique().numel() == 1
        and (first[:5].sign() != first[5:].sign().mean()).all()
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.array([[0, 3], [1, 0]]), "has 2 states, numbered from 0, but leads to state 3"),
        (np.array([[0.5, 0.5], [1, 0]]), "must hold the numbers of next states, got 0.5"),
        (np.array([0, 1]), r"shape \[states, actions\], got \[2\]"),
        (np.array([[0, -1]]), "but leads to state -1"),
    ],
)
def test_tables_that_are_none_are_refused(tmp_path, content, message):
    np.save(tmp_path / "t.npy", content)
    with pytest.raises(ValueError, match=message):
        find_table(tmp_path / "t.npy")


def test_files_that_are_none_are_refused(tmp_path):
    (tmp_path / "t.csv").write_text("left,right\n0,1\n")
    with pytest.raises(ValueError, match="is no table of numbers"):
        find_table(tmp_path / "t.csv")
    np.save(tmp_path / "o.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="is no table of numbers"):
        find_table(tmp_path / "o.npy")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        find_table(tmp_path / "missing.npy")


def test_tables_by_name():
    assert find_table("cave:3").num_states == GridWorldEnv(random_map(3, "cave")).num_states
    assert find_table("RubiksCube3").num_states == 385
    with pytest.raises(ValueError, match="unknown map 'EscapeRom'"):
        find_table("EscapeRom")
    escape = find_table("EscapeRoom")
    assert not _reversible(escape) and _reversible(find_table("RubiksCube3"))
    # Walks with uniform starts begin in every state that occurs, and in no other.
    pairs = collect_pairs(escape, 20_000, episode_steps=1)
    occurs = escape.table.occurs.nonzero().flatten()
    assert pairs.states.unique().tolist() == occurs.tolist()


@pytest.mark.parametrize("name", ["EscapeRoom", "RubiksCube3"])
def test_objects_and_the_cube_are_compared_with_their_own_spectrum(name):
    result = learn_representation(quick(map=name, observation="pixels", steps=20, evaluations=2))
    last = result.rows[-1]
    # The optimum on the pairs is close to the exact functions: the same operator, on both sides.
    assert last["data_cluster_limit"] > 0.97
    if (
        name == "EscapeRoom"
    ):  # one step apart; on the cube pairs are further apart, and eigenvalues larger
        torch.testing.assert_close(result.data.eigenvalues, result.eigenvalues, rtol=0.1, atol=1e-3)
    assert result.learned.isfinite().all()


def test_distinct_pairs_weigh_every_first_state_alike():
    states, successors = torch.tensor([0] * 90 + [1] * 9 + [2]), torch.tensor([1] * 45 + [2] * 55)
    shares = pair_shares(states, successors, 4, measure="distinct")
    by_hand = torch.zeros(4, 4, dtype=torch.float64)
    for first, second in zip(states.tolist(), successors.tolist(), strict=True):
        by_hand[first, second] += 1 / 3 / states.tolist().count(first)
    torch.testing.assert_close(shares, by_hand)
    config = quick(measure="distinct", batch_size=30_000)
    batch = _Draws(Pairs(states, successors), config)()
    drawn = pair_shares(batch["state_id"], batch["next", "state_id"], 4)
    # A standard error of 0.003.
    assert (drawn - by_hand).abs().max() < 0.015
    often = _Draws(Pairs(states, successors), quick(batch_size=30_000))()["state_id"]
    assert float((often == 0).float().mean()) == pytest.approx(0.9, abs=0.01)


def test_the_measure_of_the_data_is_that_of_what_is_learned():
    """From one start, walks visit the states unevenly: the two measures have different optima, and each is found."""
    found = {}
    for measure in ("visits", "distinct"):
        config = quick(
            map="S" + "." * 14, starts="one", observation="index", lr=2e-2, measure=measure,
            pair_discount=0.0, episode_steps=60,
        )  # fmt: skip
        result = learn_representation(config)
        expected = pair_eigenfunctions(
            *collect_pairs(result.env, 40_000, starts="one", episode_steps=60),
            15, 3, measure=measure,
        )  # fmt: skip
        similarity = cosine_similarity(result.learned, expected.eigenfunctions, rho=expected.rho)
        assert float(similarity.mean) > 0.995
        found[measure] = expected.eigenvalues
    assert float((found["visits"] / found["distinct"] - 1).abs()[1:].max()) > 0.1


def test_a_table_of_its_own_env_has_no_goal():
    env = GivenTableEnv(torch.tensor([[1], [0]]), slip=0.0, max_steps=5)
    rollout = env.rollout(5)
    assert not rollout["next", "terminated"].any() and rollout["next", "reward"].sum() == 0
