"""Learning eigenfunctions on maps: one drawn here reaches the exact ones; degenerate environments never give NaN."""

from __future__ import annotations

import math

import pytest
import torch

from torchrl_dceo.analysis import cosine_similarity
from torchrl_dceo.studies.experiments.eigenfunctions import describe
from torchrl_dceo.studies.experiments.representation import (
    OBJECTIVES,
    RepresentationConfig,
    StateNet,
    _Schedule,
    learn_representation,
)

# Drawn for this test, and nowhere else in the repository.
ZIGZAG = """
##########
#S...#...#
#....#.#.#
##.###.#.#
#......#.#
#.######.#
#........#
##########
"""


RING = "S....\n.##..\n....."


def quick(**settings) -> RepresentationConfig:
    # On a small map eigenvalues are large already: one step apart.
    defaults = {"samples": 20_000, "pair_discount": 0.0, "batch_size": 256, "steps": 300}
    return RepresentationConfig(**{**defaults, **settings})


def finite(rows) -> bool:
    return all(math.isfinite(value) for row in rows for value in row.values())


def test_a_map_drawn_here_reaches_the_exact_eigenfunctions_from_its_text_alone():
    config = RepresentationConfig(
        map=ZIGZAG, dimensions=8, objective="graph_drawing", steps=400, samples=300_000
    )
    result = learn_representation(config)
    last = result.rows[-1]
    assert last["ritz_cluster_cosine"] > 0.995
    # Each function is what the data make of it, and the objective's own d outputs hold them too.
    assert last["ritz_cosine"] == pytest.approx(last["data_limit"], abs=5e-3)
    assert last["outputs_ritz_cluster_cosine"] > 0.99
    # What is returned is what was measured, and so are its eigenvalues: those of the pairs, within their errors.
    states = cosine_similarity(result.learned, result.exact)
    assert float(states.mean) == pytest.approx(result.rows[-1]["ritz_cosine"], abs=1e-4)
    off = (result.ritz.eigenvalues - result.data.eigenvalues).abs()
    assert (off < 4 * result.ritz.standard_errors + 1e-4).all()
    assert (result.ritz.standard_errors[1:] > 0).all()


@pytest.mark.parametrize("ritz", ["features", "outputs"])
def test_ritz_turns_the_span_into_the_eigenfunctions(ritz):
    config = quick(map=RING, objective="graph_drawing", dimensions=3, ritz=ritz)
    result = learn_representation(config)
    last = result.rows[-1]
    assert last["cosine"] < 0.95 < 0.99 < last["ritz_cosine"]
    moments = result.learned.T @ (result.learned * result.data.rho.unsqueeze(-1))
    torch.testing.assert_close(moments, torch.eye(3).double(), rtol=0, atol=1e-3)
    plain = learn_representation(
        quick(map=RING, objective="graph_drawing", dimensions=3, ritz="none")
    )
    assert plain.ritz is None
    assert float(cosine_similarity(plain.learned, plain.exact).mean) < 0.95


def test_a_table_of_states_finds_them_too():
    config = quick(map=RING, dimensions=3, observation="index", barrier=1.0, lr=2e-2, steps=1000)
    config.objective = "allo"
    config.dual_step_size = 3e-3
    result = learn_representation(config)
    assert result.rows[-1]["cosine"] > 0.98
    found = [result.rows[-1][f"eigenvalue_{i}"] for i in range(1, 4)]
    assert found == pytest.approx(result.eigenvalues.tolist(), abs=0.01)  # the duals' eigenvalues


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_improves_and_reports(objective):
    seen = []
    config = quick(map=RING, objective=objective, dimensions=3)
    result = learn_representation(config, report=seen.append)
    assert seen == result.rows and finite(seen)
    assert seen[-1]["span"] > max(0.9, seen[0]["span"] - 0.02)
    assert ("eigenvalue_1" in seen[-1]) == (objective == "allo")
    assert {"step", "seconds", "cosine", "subspace_cosine", "orthogonality_error"} <= set(seen[-1])


def test_graph_drawing_finds_the_span_but_not_the_vectors():
    config = quick(map=RING, objective="graph_drawing", dimensions=3)
    last = learn_representation(config).rows[-1]
    assert last["span"] > 0.98 and last["cosine"] < 0.95


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_disconnected_maps_are_learned_part_by_part(objective):
    """Eigenvalue 0 comes once a part: its functions may rotate, the subspace of the constants of each part is found."""
    config = quick(map="S...#.....", objective=objective, dimensions=2, steps=1200)
    result = learn_representation(config)
    assert finite(result.rows)
    assert result.eigenvalues.abs().max() < 1e-9
    assert result.rows[-1]["subspace_cosine"] > 0.97


def test_one_start_compares_only_what_can_be_reached():
    config = quick(map="S...#.....", starts="one", dimensions=2, objective="generalized", steps=500)
    config.episode_steps = 100
    result = learn_representation(config)
    assert result.exact[4:].abs().max() == 0 and finite(result.rows)
    assert result.rows[-1]["cosine"] > 0.97


def test_more_dimensions_than_states_are_refused():
    with pytest.raises(ValueError, match="must not exceed the 3 states that can be reached, got 4"):
        learn_representation(quick(map="S..", dimensions=4))
    with pytest.raises(ValueError, match="must not exceed the 3 states that can be reached, got 4"):
        learn_representation(quick(map="S..#...", starts="one", dimensions=4))
    # As many as states is allowed.
    assert finite(learn_representation(quick(map="S..", dimensions=3, steps=20)).rows)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_constant_observations_give_a_constant_and_no_nan(objective):
    """Nothing but f_1 can be represented: every other cosine is 0, every number finite."""
    blind = torch.ones(6, 2)
    config = quick(map="S.....", objective=objective, dimensions=3, steps=100)
    last = learn_representation(config, observations=blind).rows[-1]
    assert finite([last])
    assert last["cosine_1"] == pytest.approx(1) and last["cosine_2"] < 1e-6 > last["cosine_3"]


def test_state_net_looks_up_what_it_would_compute():
    torch.manual_seed(0)
    table, network = torch.randn(5, 2), torch.nn.Linear(2, 3)
    net, many = StateNet(network, table), torch.randint(5, (4, 10))
    values = net(many)
    torch.testing.assert_close(values, network(table[many]))
    gradient = torch.autograd.grad(values.square().sum(), network.weight)[0]
    torch.testing.assert_close(
        gradient, torch.autograd.grad(network(table[many]).square().sum(), network.weight)[0]
    )
    torch.testing.assert_close(net(many[0, :2]), network(table[many[0, :2]]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"objective": "alo"},
            "objective is 'alo' .did you mean 'allo'.*; choose from graph_drawing, ",
        ),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"batch_size": 1}, "batch_size must be at least 2, got 1"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ValueError, match=message):
        RepresentationConfig(**settings)


def test_images_in_parts_are_encoded_as_at_once():
    """Above the parts' size too: the same values and gradients."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3)).double()
    net = StateNet(network, torch.randn(150, 3, 2, 2, dtype=torch.float64))
    ids = torch.randint(150, (400,))
    for states in (ids, ids[:100]):
        out, expected = net(states), network(net.observations)[states]
        torch.testing.assert_close(out, expected)
        gradients = [
            torch.autograd.grad(f.square().sum(), network[1].weight) for f in (out, expected)
        ]
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(("saturation", "steps"), [(0.0, 300), (0.02, 90)])
def test_the_step_size_falls_once_the_eigenvalues_no_longer_do(saturation, steps):
    schedule = _Schedule(RepresentationConfig(steps=300, saturation=saturation, lr=1.0))
    for step in range(10, 300, 10):
        if step > schedule.last:
            break
        schedule.observe(step, max(1.0, 4.0 - step / 10))  # falls until step 30, then stays
    assert schedule.last == steps
    held = round(2 * steps / 3)
    assert schedule(held) == 1.0 > schedule(held + 10) > schedule(steps - 1) > 0
    assert schedule(steps) == pytest.approx(0.0, abs=1e-9)


def test_parts_that_no_path_joins_are_named_and_each_is_found():
    config = quick(
        map="S....#....\n.....#....\n..#..#....", dimensions=4, objective="graph_drawing"
    )
    result = learn_representation(config)
    assert int((result.eigenvalues.abs() < 1e-9).sum()) == 2
    assert result.rows[-1]["ritz_cluster_cosine"] > 0.98
    assert "2 parts of the map are not joined by any path" in describe(result)
    joined = learn_representation(quick(map=RING, dimensions=3, steps=20))
    assert "not joined" not in describe(joined)
