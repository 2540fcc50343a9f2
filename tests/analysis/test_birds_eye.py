"""Values, distances and ways over a floor plan; the parts that need no OpenGL first."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from needs_miniworld import needs_miniworld
from tensordict.nn import TensorDictModule

from torchrl_dceo.analysis import draw_run
from torchrl_dceo.analysis.figures.birds_eye import (
    BirdsEye,
    axis_correlation,
    geodesic_distances,
    load_birds_eye,
    look_from_above,
    option_reach,
    option_ways,
    save_birds_eye,
)
from torchrl_dceo.analysis.figures.birds_eye_figures import (
    draw_birds_eye,
    draw_option_ways,
    save_film,
)


def plain_distances(free: np.ndarray, spacing: float, source: int) -> list[float]:
    """By relaxing every edge until nothing changes."""
    cells = [tuple(cell) for cell in np.argwhere(free)]
    index = {cell: k for k, cell in enumerate(cells)}
    distance = [math.inf] * len(cells)
    distance[source] = 0.0
    for _ in cells:
        for (i, j), k in index.items():
            for di in (-1, 0, 1):
                for dj in (-1, 0, 1):
                    other = index.get((i + di, j + dj))
                    corner = (i + di, j) in index and (i, j + dj) in index
                    if other is not None and corner:
                        step = spacing * math.hypot(di, dj)
                        distance[other] = min(distance[other], distance[k] + step)
    return distance


@pytest.mark.parametrize("seed", range(3))
def test_geodesic_distances(seed):
    free = np.random.default_rng(seed).random((6, 7)) < 0.75
    distances = geodesic_distances(free, 0.5, source=2)
    assert distances.tolist() == pytest.approx(plain_distances(free, 0.5, 2))


def two_rooms() -> np.ndarray:
    free = np.ones((9, 9), bool)
    free[4] = False
    free[4, 8] = True
    return free


def test_a_function_of_the_way_is_ordered_along_its_axis_and_others_are_not():
    free = two_rooms()
    far = geodesic_distances(free, 1.0, source=0)
    assert axis_correlation(far**2, free, 1.0) > 0.95
    assert axis_correlation(-(far**3), free, 1.0) > 0.95
    straight = np.argwhere(free)[:, 0] * 0.0 + np.random.default_rng(0).random(free.sum())
    assert abs(axis_correlation(straight, free, 1.0)) < 0.5


def make_view(**settings) -> BirdsEye:
    free = two_rooms()
    positions = np.argwhere(free).astype(float)
    values = np.stack([np.ones(len(positions)), positions[:, 0], positions[:, 1]], -1)
    walls = np.array([[[0.0, 0.0], [8.0, 0.0]], [[0.0, 0.0], [0.0, 8.0]]])
    ways = np.array([[[0.0, 0.0], [1.0, 0.0]], [[0.0, 0.0], [0.0, 1.0]]])
    return BirdsEye(
        **{
            "walls": walls,
            "free": free,
            "positions": positions,
            "heading": 0.5,
            "values": values,
            "followed": values[:, 1:],
            "ways": ways,
            **settings,
        }
    )


def test_saved_and_drawn(tmp_path):
    view = make_view()
    save_birds_eye(tmp_path, view)
    loaded = load_birds_eye(tmp_path)
    for name in ("walls", "free", "positions", "values", "followed", "ways"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(view, name))
    assert loaded.heading == 0.5
    (tmp_path / "progress.csv").write_text("frames,loss_main\n0,1.0\n10,0.5\n")
    names = [path.name for path in draw_run(tmp_path)]
    assert names == ["learning_curve.png", "birds_eye.png", "option_ways.png"]


def test_colours_lie_where_the_values_are():
    """x to the right and z down, white at the mean."""
    axes = draw_birds_eye(make_view()).axes
    assert [a.get_title() for a in axes] == ["f2", "f3"]
    for image, along in ((axes[0].images[0], 1), (axes[1].images[0], 0)):
        array = np.ma.filled(image.get_array(), np.nan)
        assert np.all(np.diff(np.nanmean(array, axis=1 - along)) > 0)
        assert abs(np.nanmean(array)) < 1e-9
        assert image.get_extent() == pytest.approx([-0.5, 8.5, 8.5, -0.5])
    for view in (make_view(), make_view(followed=None)):
        for panel in [*axes, *draw_option_ways(view).axes]:
            lower, upper = panel.get_ylim()
            left, right = panel.get_xlim()
            assert lower > upper and left < right


def test_views_without_options_or_representation():
    with pytest.raises(ValueError, match="holds no ways"):
        draw_option_ways(make_view(ways=None))
    figure = draw_option_ways(make_view(followed=None, values=np.zeros((73, 0))))
    assert [a.get_title() for a in figure.axes] == ["option 1", "option 2"]


def test_a_damaged_file_is_said_to_be(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no birds_eye\.npz"):
        load_birds_eye(tmp_path)
    (tmp_path / "birds_eye.npz").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="is damaged"):
        load_birds_eye(tmp_path)


@pytest.mark.parametrize("with_av", [True, False])
def test_film(tmp_path, monkeypatch, with_av):
    frames = [np.full((24, 32, 3), 40 * k, np.uint8) for k in range(5)]
    if with_av:
        av = pytest.importorskip("av")
        path = save_film(tmp_path / "film", frames)
        with av.open(str(path)) as container:
            shown = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        assert len(shown) == 5 and path.suffix == ".mp4"
        for frame, expected in zip(shown, frames, strict=True):
            assert abs(float(frame.mean()) - expected.mean()) < 4
        return
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    path = save_film(tmp_path / "film.mp4", frames)
    assert path.suffix == ".gif" and path.read_bytes()[:3] == b"GIF"
    with pytest.raises(ValueError, match="at least one frame"):
        save_film(tmp_path / "film", [])


# With an environment


@needs_miniworld
def test_the_view_from_above_and_the_ways_of_options():
    from torchrl_dceo.envs.miniworld import MiniWorldFourRooms

    env = MiniWorldFourRooms(coverage=True, samples=1)
    brightness = TensorDictModule(
        lambda pixels: pixels.float().mean((-3, -2, -1)).unsqueeze(-1),
        in_keys=["pixels"],
        out_keys=["brightness"],
    )
    view = look_from_above(brightness, env, spacing=2.0, heading=0.3)
    assert view.values.shape == (len(view.positions), 1) and view.free.sum() == len(view.positions)
    expected = env.observe_at(view.positions[5:6], 0.3).mean()
    assert view.values[5, 0] == pytest.approx(expected, abs=1e-3)
    assert look_from_above(None, env, spacing=2.0).values.shape == (len(view.positions), 0)

    # Option 0 goes forward, option 1 turns on the spot.
    values = torch.tensor([[[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]])
    actor = SimpleNamespace(out_keys=["option_action_value"])

    class Fixed:
        out_keys = actor.out_keys

        def __call__(self, tensordict):
            return tensordict.set("option_action_value", values)

    ways, frames = option_ways(
        Fixed(), env, start=(-4.0, 4.0), heading=math.pi, steps=6, film=1, film_size=(32, 24)
    )
    assert ways.shape == (2, 7, 2) and len(frames) == 7 and frames[0].shape == (24, 32, 3)
    np.testing.assert_allclose(ways[0, :, 0], -4.0 - 0.15 * np.arange(7), atol=1e-6)
    np.testing.assert_allclose(ways[1], np.broadcast_to([-4.0, 4.0], (7, 2)))
    assert not np.array_equal(frames[0], frames[-1])


@needs_miniworld
def test_reach_is_that_of_steps_one_by_one():
    """Options that always take one action, against the environment itself; random walks against their closed form."""
    from torchrl_dceo.envs.miniworld import MiniWorldFourRoomsStrafe

    env = MiniWorldFourRoomsStrafe(coverage=True, obs_width=8, obs_height=6, samples=1)
    left, forward = 0, 2
    always = torch.nn.functional.one_hot(torch.tensor([forward, left]), 4).float()
    actor = TensorDictModule(
        lambda pixels: always.expand(len(pixels), 2, 4), ["pixels"], ["option_action_value"]
    )
    found = option_reach(actor, env, places=30, steps=30, walks=40, seed=3)
    lattice = env.floor_plan.lattice(0.25)
    starts = lattice[np.random.default_rng(3).choice(len(lattice), 30, replace=False)]
    crossed = 0
    for m, start in enumerate(starts):
        for n, action in enumerate((forward, left)):
            env.reset(seed=0)
            env.agent.pos = np.array([start[0], 0.0, start[1]])
            for _ in range(30):
                env.step(action)
            end = env.agent.pos[[0, 2]]
            assert found["reach"][m, n] == pytest.approx(np.linalg.norm(end - start))
            # Rooms and hallways are divided by lines of whole numbers: at -1 and 1, along either axis.
            zones = np.searchsorted([-1, 1], end), np.searchsorted([-1, 1], start)
            assert found["crossed"][m, n] == (zones[0] != zones[1]).any()
            crossed += found["crossed"][m, n]
    assert 5 < crossed < 55
    # A walk of T steps of length l in the open: l √(π T) / 2; walls hold some of them back.
    free = 0.15 * math.sqrt(math.pi * 30) / 2
    assert 0.75 * free < found["walk_reach"].mean() < free
    note = draw_option_ways(make_view(**found)).texts[-1].get_text()
    assert (
        f"{found['reach'].mean():.1f} m away, a random walk {found['walk_reach'].mean():.1f} m"
        in note
    )


@needs_miniworld
def test_rooms_of_the_floor_plan_are_numbered_as_built():
    from torchrl_dceo.envs.miniworld import MyWayHomeSparseStrafe

    env = MyWayHomeSparseStrafe(coverage=True, obs_width=8, obs_height=6, samples=1)
    centres = np.array([((r.min_x + r.max_x) / 2, (r.min_z + r.max_z) / 2) for r in env.rooms])
    np.testing.assert_array_equal(env.floor_plan.room_of(centres), np.arange(len(centres)))
