from __future__ import annotations

import pytest
import torch

from torchrl_dceo.analysis.figures.positions import (
    draw_object_eigenfunctions,
    object_layout,
    separation,
)
from torchrl_dceo.analysis.spectra.exact import pair_eigenfunctions
from torchrl_dceo.envs.minigrid import EscapeRoom
from torchrl_dceo.envs.minigrid.key_and_door import KeyDoorTableEnv, list_states
from torchrl_dceo.studies.experiments.representation import (
    RepresentationConfig,
    learn_representation,
)


def test_separation_against_a_loop():
    before, after = torch.randn(20), torch.randn(30) + 0.7
    ordered = sum(float(b > a) + float(b == a) / 2 for a in before for b in after) / 600
    apart = separation(before, after)
    assert apart.auc == pytest.approx(max(ordered, 1 - ordered))
    spread = ((19 * before.var() + 29 * after.var()) / 48).sqrt()
    assert apart.distance == pytest.approx(float((after.mean() - before.mean()) / spread), rel=1e-5)
    flipped = separation(-before, -after)
    assert flipped.auc == pytest.approx(apart.auc)
    assert flipped.distance == pytest.approx(apart.distance)


def test_separation_of_signs():
    assert separation(-torch.rand(5) - 0.1, torch.rand(4) + 0.1)[::2] == (1.0, 1.0)
    assert separation(torch.ones(5), torch.ones(4)).auc == 0.5


@pytest.fixture(scope="module")
def table():
    return list_states(EscapeRoom(room_size=3, slip=0.0, coverage=True))


def test_the_key_is_a_bottleneck_of_the_exact_eigenfunction(table):
    """Every state without the key is on one side of all states with the open door, and hardly any with it is beyond."""
    states = table.occurs.nonzero().flatten()
    f = pair_eigenfunctions(
        states.repeat_interleave(6), table.next_state[states].flatten(), len(table.occurs), 2
    ).eigenfunctions[:, 1]
    parts = [f[k * 41 : (k + 1) * 41][table.occurs[k * 41 : (k + 1) * 41]] for k in range(4)]
    assert separation(parts[0], parts[1]).auc > 0.99
    assert separation(parts[0], parts[2])[::2] == (1.0, 1.0)  # and the sign tells the open door


def test_learning_on_an_environment_of_objects(table):
    """Some steps with pixels: finite values in every state, compared with the spectrum of all pairs."""
    config = RepresentationConfig(
        observation="pixels", samples=2000, dimensions=3, steps=4, batch_size=256
    )
    result = learn_representation(config, env=KeyDoorTableEnv(table, coverage=True))
    assert result.learned.shape == (164, 3) and result.learned.isfinite().all()
    assert float(result.eigenvalues[0]) == pytest.approx(0, abs=1e-9)
    kept = result.exact[table.occurs]
    assert torch.allclose(kept[:, 0], kept[:1, 0].expand(len(kept)), atol=1e-6)  # constant


def test_figure(table):
    layout = object_layout(EscapeRoom(room_size=3).rows)
    assert len(layout.cells) == 41
    maps = [("before", torch.randn(41)), ("after", torch.randn(41))]
    picture = torch.zeros(9, 9, 3, dtype=torch.uint8)
    figure = draw_object_eigenfunctions(layout, [("f", maps), ("g", maps)], picture, "title")
    titles = [axes.get_title() for axes in figure.axes]
    assert [t for t in titles if t] == ["f · before", "after", "environment", "g · before", "after"]
