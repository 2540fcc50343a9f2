"""What is drawn: the arrays behind the pictures, and the words on them."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from torchrl_dceo.analysis import (
    cosine_similarity,
    draw_eigenfunctions,
    draw_options,
    draw_rollout,
    draw_visits,
    exact_eigenfunctions,
    option_climb,
    rollout_frames,
    save_rollout_gif,
)
from torchrl_dceo.analysis.figures import COLOURS, colormap
from torchrl_dceo.analysis.figures.maps import map_image
from torchrl_dceo.envs import GridWorldEnv
from torchrl_dceo.envs.grid.layouts import parse_layout
from torchrl_dceo.envs.grid.maps import nine_rooms

SMALL = "S.#\n.XG\n..."


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))


def maps_of(axes) -> list[np.ndarray]:
    return [np.ma.filled(image.get_array(), np.nan) for image in axes.images]


def test_map_image_puts_each_state_in_its_cell():
    layout = parse_layout(SMALL)
    image = map_image(layout, torch.arange(8))
    nan = float("nan")
    expected = torch.tensor([[0.0, 1.0, nan], [2.0, nan, 4.0], [5.0, 6.0, 7.0]])
    torch.testing.assert_close(image, expected.double(), equal_nan=True)
    with pytest.raises(
        ValueError, match=r"a map of 8 states needs as many values, got shape \[3\]"
    ):
        map_image(layout, torch.zeros(3))


def test_visits_are_coloured_never_visited_is_grey_and_walls_are_dark():
    layout = parse_layout(SMALL)
    counts = torch.tensor([40, 0, 3, 0, 1, 0, 2, 5])
    figure = draw_visits(layout, counts)
    base, shown = maps_of(figure.axes[0])
    assert [tuple(round(255 * c) for c in base[cell]) for cell in ((0, 1), (0, 2), (1, 1))] == [
        rgb(COLOURS["unvisited"]),
        rgb(COLOURS["wall"]),
        rgb(COLOURS["wall"]),
    ]
    nan = float("nan")
    np.testing.assert_equal(shown, [[40, nan, nan], [3, nan, 1], [nan, 2, 5]])
    assert {text.get_text() for text in figure.axes[0].texts} == {"S", "G"}
    assert figure.get_suptitle() == "State visitation · 5 of 8 states"
    assert figure.axes[1].get_ylabel() == "visits"


def test_visits_go_from_white_to_red():
    low, high = colormap("visits")(0.0), colormap("visits")(1.0)
    assert low[:3] == (1.0, 1.0, 1.0)
    assert high[0] > 0.4 and max(high[1:3]) < 0.2


def test_visits_before_the_first_step_can_be_drawn():
    draw_visits(parse_layout(SMALL), torch.zeros(8, dtype=torch.int64)).canvas.draw()


def test_an_environment_that_starts_anywhere_is_not_covered_with_marks():
    env = GridWorldEnv("S....\n....G", starts="anywhere")
    assert len(draw_visits(env.layout, torch.ones(10)).axes[0].texts) == 1  # the goal


def test_each_eigenfunction_is_scaled_by_its_largest_value_and_has_its_similarity():
    env = GridWorldEnv(nine_rooms(3))
    values, exact = exact_eigenfunctions(env, 6)
    learned = 3 * exact
    learned[:, 3] = exact[:, 3] + exact[:, 4]
    figure = draw_eigenfunctions(env.layout, learned, cosine_similarity(learned, exact, values))
    # Two rows of three, without a blank place, and a colour bar.
    assert len(figure.axes) == 7 and all(axes.axison for axes in figure.axes)
    assert "max" in figure.axes[6].get_ylabel()
    for i, axes in enumerate(figure.axes[:6]):
        shown = maps_of(axes)[1]
        limit = float(learned[:, i].abs().max())
        np.testing.assert_allclose(shown[~np.isnan(shown)], learned[:, i].numpy() / limit)
        assert axes.images[1].get_clim() == (-1, 1)
    titles = [axes.get_title() for axes in figure.axes[:6]]
    assert titles[0] == "$f_{1}$  |cos| 1.00"
    assert titles[1] == "$f_{2}$  |cos| 1.00*"  # x and y are alike: a repeated eigenvalue
    assert titles[3] == "$f_{4}$  |cos| 0.71"
    assert "repeated eigenvalue" in figure.get_supxlabel()


def test_options_show_values_arrows_and_the_top():
    env = GridWorldEnv("S..\n...", slip=0.0)
    right = torch.tensor([0.0, 1.0, 0.0, 0.0]).expand(6, 4)
    values = torch.stack([right * torch.arange(1.0, 7.0).unsqueeze(-1), right], dim=1)
    followed = torch.stack([torch.arange(6.0), -torch.arange(6.0)], dim=1)
    climb = option_climb(values, followed, env.next_state)
    figure = draw_options(env, values, followed, climb)
    assert len(figure.axes) == 2
    axes = figure.axes[0]
    np.testing.assert_allclose(maps_of(axes)[1], [[1, 2, 3], [4, 5, 6]])
    arrows, stays, ring = axes.collections
    assert sorted(map(tuple, arrows.get_offsets().tolist())) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert set(arrows.U.tolist()) == {1} and set(arrows.V.tolist()) == {0}
    assert sorted(map(tuple, stays.get_offsets().tolist())) == [(2, 0), (2, 1)]
    assert ring.get_offsets().tolist() == [[2, 1]]
    assert axes.get_title() == f"option 1 · climbs {float(climb.mean()[0]):.2f}"


def test_arrows_point_where_the_move_leads():
    env = GridWorldEnv("...\n.S.\n...", slip=0.0)
    for action in range(4):
        values = torch.zeros(9, 1, 4)
        values[..., action] = 1
        axes = draw_options(env, values).axes[0]
        arrows = axes.collections[0]
        index = arrows.get_offsets().tolist().index([1, 1])
        row, column = env.cells[env.next_state[4, action]].tolist()
        # The picture's y grows downward, as rows do: quiver's angles="xy" follows the axis.
        assert axes.yaxis_inverted() and arrows.angles == "xy"
        assert (1 + arrows.U[index], 1 + arrows.V[index]) == (column, row)


def test_rollout_frames_show_where_the_option_is_and_was():
    layout = parse_layout("S..#")
    frames = rollout_frames(layout, [0, 1, 2], tile_size=10)
    assert [frame.shape for frame in frames] == [(10, 40, 3)] * 3
    assert all(frame.dtype == np.uint8 for frame in frames)
    centre = [tuple(frames[2][5, 10 * column + 5].tolist()) for column in range(4)]
    ink, agent, wall = rgb(COLOURS["ink"]), rgb(COLOURS["fourth"]), rgb(COLOURS["wall"])
    assert centre == [ink, ink, agent, wall]
    assert tuple(frames[0][5, 5].tolist()) == agent
    assert tuple(frames[0][5, 15].tolist()) == rgb(COLOURS["floor"])


def test_the_floor_of_a_rollout_is_the_function_it_climbs():
    frames = rollout_frames(
        parse_layout("S...."), [0], torch.tensor([0.0, -2, 0, 1, 2]), tile_size=9
    )
    shades = [tuple(frames[0][1, 9 * column + 1].tolist()) for column in (1, 4)]
    ends = [tuple(round(255 * c) for c in colormap("signed")(x)[:3]) for x in (0.0, 1.0)]
    assert shades == ends


def test_the_strip_shows_first_and_last_step():
    figure = draw_rollout(parse_layout("S" + "." * 30), list(range(31)), title="A way")
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["step 0", "step 8", "step 15", "step 22", "step 30"]
    assert figure.get_suptitle() == "A way"
    assert len(draw_rollout(parse_layout("S."), [0]).axes) == 1


def test_the_gif_has_every_step_and_loops(tmp_path):
    from PIL import Image

    frames = rollout_frames(parse_layout("S.."), [0, 1, 2])
    with Image.open(save_rollout_gif(tmp_path / "a.gif", frames)) as gif:
        assert gif.n_frames == 3 and gif.info["loop"] == 0
        gif.seek(2)
        assert gif.info["duration"] > 1000  # a pause at the end
        distance = np.abs(np.asarray(gif.convert("RGB")).astype(int) - frames[2]).max()
        assert distance < 30  # 256 colours
    with pytest.raises(ValueError, match="at least one frame"):
        save_rollout_gif(tmp_path / "b.gif", [])


def test_the_users_own_style_stays_as_it_is():
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw_visits(parse_layout(SMALL), torch.ones(8))
    assert dict(matplotlib.rcParams) == before


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # Python's own mark of a missing module
    with pytest.raises(
        ImportError, match=r"^figures need matplotlib: pip install 'torchrl-dceo\[analysis\]'$"
    ):
        draw_visits(parse_layout(SMALL), torch.ones(8))
