from __future__ import annotations

import itertools

import pytest
import torch
from torchrl.envs.utils import check_env_specs

from torchrl_dceo.envs import RubiksCubeEnv
from torchrl_dceo.envs.cube import (
    CUBE_ACTIONS,
    apply_moves,
    cube_graph,
    move_permutations,
)

# An independent model, from geometry: x points right, y up, z to the viewer. Each face has an
# outward normal, and the directions "right" and "down" of its picture in the unfolded net.
FACES = {
    "U": ((0, 1, 0), (1, 0, 0), (0, 0, 1)),
    "R": ((1, 0, 0), (0, 0, -1), (0, -1, 0)),
    "F": ((0, 0, 1), (1, 0, 0), (0, -1, 0)),
    "D": ((0, -1, 0), (1, 0, 0), (0, 0, -1)),
    "L": ((-1, 0, 0), (0, 0, 1), (0, -1, 0)),
    "B": ((0, 0, -1), (-1, 0, 0), (0, -1, 0)),
}


def _cross(a, b):
    return (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])


def _dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def _turn(vector, axis):
    """A quarter turn, clockwise for someone who looks at the face from outside."""
    along = _dot(vector, axis)
    across = _cross(vector, axis)
    return tuple(along * a + c for a, c in zip(axis, across, strict=True))


def _places():
    """(corner, normal) of the 24 stickers, in the order of the net."""
    places = []
    for normal, right, down in FACES.values():
        for row, column in itertools.product((-1, 1), (-1, 1)):
            corner = tuple(
                n + column * r + row * d for n, r, d in zip(normal, right, down, strict=True)
            )
            places.append((corner, normal))
    return places


def reference_moves() -> list[tuple[int, ...]]:
    """For each action, from which place the sticker at each place comes."""
    places = _places()
    moves = []
    for face in "URF":
        axis = FACES[face][0]
        source = list(range(24))
        for index, (corner, normal) in enumerate(places):
            if _dot(corner, axis) > 0:
                source[places.index((_turn(corner, axis), _turn(normal, axis)))] = index
        word = list(range(24))
        for _ in range(3):
            word = [word[i] for i in source]
            moves.append(tuple(word))
    return moves


def reference_search(max_depth: int) -> dict[tuple[int, ...], int]:
    """Depth of every state within max_depth, with plain dictionaries."""
    moves = reference_moves()
    solved = tuple(i // 4 for i in range(24))
    depth = {solved: 0}
    frontier = [solved]
    for level in range(1, max_depth + 1):
        reached = []
        for state in frontier:
            for move in moves:
                target = tuple(state[i] for i in move)
                if target not in depth:
                    depth[target] = level
                    reached.append(target)
        frontier = reached
    return depth


class TestMoves:
    def test_states_per_depth(self):
        counts = [1, 9, 54, 321, 1847, 9992, 50136]
        assert cube_graph(6).depth.bincount().tolist() == counts
        assert len(cube_graph(3).depth) == 385
        assert len(cube_graph(5).depth) == 12_224

    def test_permutations_equal_rotations_of_the_corners(self):
        assert move_permutations().tolist() == [list(move) for move in reference_moves()]

    def test_orders_and_inverses(self):
        identity = torch.arange(24)
        for action, move in enumerate(move_permutations()):
            powers = [identity]
            while len(powers) == 1 or not powers[-1].equal(identity):
                powers.append(powers[-1][move])
            assert len(powers) - 1 == (2 if CUBE_ACTIONS[action].endswith("2") else 4)
        moves = move_permutations().view(3, 3, 24)
        for quarter, half, inverse in moves:
            assert quarter[inverse].equal(identity)
            assert inverse[quarter].equal(identity)
            assert half[half].equal(identity)

    def test_three_stickers_of_the_fixed_corner_never_move(self):
        still = (move_permutations() == torch.arange(24)).all(0).nonzero().flatten()
        assert still.tolist() == [14, 18, 23]

    @pytest.mark.parametrize("max_depth", [3, 5])
    def test_table_equals_the_reference(self, max_depth):
        graph = cube_graph(max_depth)
        depth = reference_search(max_depth)
        states = [tuple(row) for row in graph.stickers.tolist()]
        assert states == list(depth)  # ids in the order of breadth-first search
        assert graph.depth.tolist() == list(depth.values())
        table = graph.next_state.tolist()
        left_the_set = 0
        for action, move in enumerate(reference_moves()):
            for index, state in enumerate(states):
                target = tuple(state[i] for i in move)
                if target in depth:
                    assert states[table[index][action]] == target
                else:
                    left_the_set += 1
                    assert table[index][action] == index
        assert left_the_set > 0

    def test_ids_of_a_smaller_set_are_kept(self):
        assert cube_graph(4).stickers.equal(cube_graph(5).stickers[: 1 + 9 + 54 + 321 + 1847])

    @pytest.mark.parametrize("max_depth", range(1, 7))
    def test_start_is_the_documented_word_at_the_rim(self, max_depth):
        graph = cube_graph(max_depth)
        word = " ".join("URFURF"[:max_depth])
        assert graph.stickers[graph.rim_state].equal(apply_moves(word))
        assert graph.depth[graph.rim_state] == max_depth

    def test_bad_input(self):
        with pytest.raises(ValueError, match=r"max_depth must lie in \[1, 11\], got 0"):
            cube_graph(0)
        with pytest.raises(ValueError, match=r"max_depth must lie in \[1, 11\], got 12"):
            cube_graph(12)
        with pytest.raises(ValueError, match="unknown move 'L'; the moves are U, U2"):
            apply_moves("U L")


class TestEnvironment:
    @pytest.mark.parametrize("batch_size", [(), (4,), (2, 3)])
    @pytest.mark.parametrize("coverage", [True, False])
    def test_specs(self, batch_size, coverage):
        env = RubiksCubeEnv(max_depth=3, batch_size=batch_size, coverage=coverage)
        check_env_specs(env, seed=0)
        data = env.rollout(5, break_when_any_done=False)
        assert data["observation"].shape == (*batch_size, 5, 144)
        assert data["state_id"].shape == data["action"].shape == (*batch_size, 5)
        assert data["state_id"].dtype == data["action"].dtype == torch.int64

    @pytest.mark.parametrize("max_depth", [3, 5])
    def test_solved_in_exactly_max_depth_moves(self, max_depth):
        env = RubiksCubeEnv(max_depth=max_depth, slip=0.0, seed=0)
        start = int(env.reset()["state_id"])
        parent: dict[int, tuple[int, int]] = {start: (-1, -1)}
        frontier, level = [start], 0
        while 0 not in parent:
            level += 1
            reached = []
            for state in frontier:
                for action, target in enumerate(env.next_state[state].tolist()):
                    if target not in parent:
                        parent[target] = (state, action)
                        reached.append(target)
            frontier = reached
        assert level == max_depth
        plan, state = [], 0
        while state != start:
            state, action = parent[state]
            plan.append(action)
        actions = iter(reversed(plan))
        data = env.rollout(100, lambda td: td.set("action", torch.tensor(next(actions))))
        assert data["next", "reward"].flatten().tolist() == [0.0] * (max_depth - 1) + [1.0]
        assert data["next", "terminated"].flatten().tolist() == [False] * (max_depth - 1) + [True]
        assert not data["next", "truncated"].any()

    def test_moves_out_of_the_set_do_nothing(self):
        env = RubiksCubeEnv(max_depth=3, slip=0.0)
        data = env.reset()
        start = data["state_id"].clone()
        stuck = []
        for action in range(9):
            data = env.reset()
            data["action"] = torch.tensor(action)
            if env.step(data)["next", "state_id"] == start:
                stuck.append(action)
        # U R F can be shortened only by turning F: the six turns of the other faces lead out.
        assert stuck == [0, 1, 2, 3, 4, 5]

    def test_observation_is_the_one_hot_of_the_stickers(self):
        env = RubiksCubeEnv(max_depth=3, batch_size=[3], seed=1)
        data = env.rollout(20, break_when_any_done=False)
        assert data["observation"].equal(env.observe(data["state_id"]))
        colours = data["observation"].view(3, 20, 24, 6)
        assert colours.argmax(-1).equal(env.stickers[data["state_id"]])
        assert (colours.sum(-1) == 1).all()

    def test_coverage_mode_never_ends_at_the_solved_cube(self):
        env = RubiksCubeEnv(max_depth=1, coverage=True, batch_size=[8], max_steps=None, seed=0)
        data = env.rollout(200, break_when_any_done=False)
        assert (data["next", "state_id"] == 0).any()
        assert not data["next", "done"].any()
        assert not data["next", "reward"].any()

    def test_render_is_the_net_of_the_stickers(self):
        env = RubiksCubeEnv(max_depth=3, batch_size=[2, 1])
        env.reset()
        assert env.render().shape == (2, 1, 96, 128, 3)
        assert env.render().dtype == torch.uint8
        size = 10
        picture = env.render(torch.tensor(0), tile_size=size)
        centres = picture[size // 2 :: size, size // 2 :: size]
        white, yellow, ink = [255, 255, 255], [255, 213, 0], [25, 25, 25]
        assert centres[:2, 2:4].reshape(-1, 3).tolist() == [white] * 4
        assert centres[4:, 2:4].reshape(-1, 3).tolist() == [yellow] * 4
        assert centres[0, 0].tolist() == centres[5, 7].tolist() == ink
        # After U the top row of the front shows what was on the right (red).
        turned = env.render(env.next_state[0, 0], tile_size=size)
        row = turned[size // 2 :: size, size // 2 :: size][2]
        assert row[2].tolist() == row[3].tolist() == centres[2, 4].tolist() == [200, 20, 30]

    def test_bad_input(self):
        with pytest.raises(ValueError, match=r"start must be a state id in \[0, 384\], got 385"):
            RubiksCubeEnv(max_depth=3, start=385)
        with pytest.raises(ValueError, match="unknown move 'X'; the moves are U, U2"):
            RubiksCubeEnv.action_index("X")
        with pytest.raises(ValueError, match="tile_size must be at least 3, got 2"):
            RubiksCubeEnv(max_depth=3).render(tile_size=2)
