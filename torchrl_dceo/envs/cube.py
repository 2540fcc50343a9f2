"""The 2x2x2 Rubik's cube: its moves as permutations of stickers, and the batched environment."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchrl.data import Bounded

from torchrl_dceo.envs.table_env import TableEnv

__all__ = [
    "CUBE_ACTIONS",
    "CubeGraph",
    "RubiksCubeEnv",
    "apply_moves",
    "cube_graph",
    "move_permutations",
]

# Faces in this order, four stickers each, row by row as in the unfolded net:
#
#            U  0  1
#               2  3
#    L 16 17 F  8  9 R  4  5 B 20 21
#      18 19   10 11    6  7   22 23
#            D 12 13
#              14 15
FACES = "URFDLB"


NUM_STICKERS = 24


# Every position is at most 11 of these moves from the solved one.
MAX_DEPTH = 11


# A clockwise quarter turn takes the sticker at each place of a cycle to the next place. The corner
# at the bottom, back and left (stickers 14, 18, 23) never moves, which removes the 24 ways of
# holding the cube.
_CYCLES: dict[str, tuple[tuple[int, ...], ...]] = {
    "U": ((0, 1, 3, 2), (8, 16, 20, 4), (9, 17, 21, 5)),
    "R": ((4, 5, 7, 6), (9, 1, 22, 13), (11, 3, 20, 15)),
    "F": ((8, 9, 11, 10), (2, 4, 13, 19), (3, 6, 12, 17)),
}


# The action index: face by face, by one, two and three quarter turns.
CUBE_ACTIONS: tuple[str, ...] = tuple(
    f"{face}{turn}" for face in _CYCLES for turn in ("", "2", "'")
)


class CubeGraph(NamedTuple):
    """All states within ``max_depth`` moves of the solved cube, which is state 0.

    Ids count the states in the order of breadth-first search, actions tried in the
    order of :data:`CUBE_ACTIONS`: deterministic, and the ids of a smaller ``max_depth`` are the
    first ids of a larger one.

    Attributes:
        stickers (Tensor): colour (index of the face it belongs to when solved) of each sticker,
            int64 ``[S, 24]``.
        next_state (Tensor): int64 ``[S, 9]``; a move that would leave the set leads back to where
            it started.
        depth (Tensor): moves from the solved state, int64 ``[S]``.
    """

    stickers: Tensor
    next_state: Tensor
    depth: Tensor

    @property
    def rim_state(self) -> int:
        """The fixed start of the environment, a state at the largest depth.

        It is reached by turning U, R, F, U, R, F, … once each, ``max_depth`` turns in all. Where
        a shorter word leads to the same state (from 9 moves on), it is the first state of that depth.
        """
        max_depth, state = int(self.depth[-1]), 0
        quarter_turns = range(0, len(CUBE_ACTIONS), 3)
        for turn in range(max_depth):
            state = int(self.next_state[state, quarter_turns[turn % 3]])
        if self.depth[state] < max_depth:
            state = int((self.depth == max_depth).nonzero()[0])
        return state


@cache
def _permutations() -> np.ndarray:
    identity = np.arange(NUM_STICKERS)
    table = []
    for cycles in _CYCLES.values():
        quarter = identity.copy()
        for cycle in cycles:
            for source, target in zip(cycle, cycle[1:] + cycle[:1], strict=True):
                quarter[target] = source
        half = quarter[quarter]
        table += [quarter, half, half[quarter]]
    return np.stack(table)


def move_permutations() -> Tensor:
    """Returns each move as a gather, int64 ``[9, 24]``: ``after = before[..., permutation]``.

    Examples:
        >>> from torchrl_dceo.envs.cube import CUBE_ACTIONS, move_permutations
        >>> moves = move_permutations()
        >>> quarter, half, inverse = moves[:3]  # U, U2, U'
        >>> bool((quarter[quarter] == half).all()), quarter[inverse].tolist() == list(range(24))
        (True, True)
        >>> CUBE_ACTIONS
        ('U', 'U2', "U'", 'R', 'R2', "R'", 'F', 'F2', "F'")
    """
    return torch.from_numpy(_permutations().copy())


def apply_moves(word: str) -> Tensor:
    """Returns the stickers, int64 ``[24]``, after a word of moves is applied to the solved cube.

    Examples:
        >>> from torchrl_dceo.envs.cube import apply_moves
        >>> apply_moves("U R2 F' F R2 U'").equal(apply_moves(""))
        True
    """
    stickers = torch.arange(NUM_STICKERS) // 4
    permutations = move_permutations()
    for name in word.split():
        if name not in CUBE_ACTIONS:
            raise ValueError(f"unknown move {name!r}; the moves are {', '.join(CUBE_ACTIONS)}")
        stickers = stickers[permutations[CUBE_ACTIONS.index(name)]]
    return stickers


def _codes(stickers: np.ndarray) -> np.ndarray:
    """One integer per state: the stickers as digits base 6 (6^24 fits into 63 bits)."""
    return stickers.astype(np.int64) @ (6 ** np.arange(NUM_STICKERS, dtype=np.int64))


@lru_cache(maxsize=4)
def cube_graph(max_depth: int) -> CubeGraph:
    """Returns all states within ``max_depth`` moves, by breadth-first search. Cached: read only.

    There are 385 states within 3 moves, 12,224 within 5 and 3,674,160 in all: past 8 moves the
    tables take gigabytes and half a minute.

    Examples:
        >>> from torchrl_dceo.envs.cube import cube_graph
        >>> graph = cube_graph(3)
        >>> graph.depth.bincount().tolist()
        [1, 9, 54, 321]
    """
    if not 1 <= max_depth <= MAX_DEPTH:
        raise ValueError(f"max_depth must lie in [1, {MAX_DEPTH}], got {max_depth}")
    permutations = _permutations()
    layers = [np.arange(NUM_STICKERS, dtype=np.int8)[None] // 4]
    seen = _codes(layers[0])  # sorted
    for _ in range(max_depth):
        reached = layers[-1][:, permutations].reshape(-1, NUM_STICKERS)
        codes, first = np.unique(_codes(reached), return_index=True)
        new = ~np.isin(codes, seen, assume_unique=True)
        layers.append(reached[np.sort(first[new])])
        seen = np.union1d(seen, codes[new])
    stickers = np.concatenate(layers)
    codes = _codes(stickers)
    order = np.argsort(codes)
    targets = np.stack([_codes(stickers[:, permutation]) for permutation in permutations], axis=1)
    place = np.searchsorted(seen, targets).clip(max=len(seen) - 1)
    inside = seen[place] == targets
    here = np.arange(len(stickers))[:, None]
    depth = np.repeat(np.arange(len(layers)), [len(layer) for layer in layers])
    return CubeGraph(
        torch.from_numpy(stickers.astype(np.int64)),
        torch.from_numpy(np.where(inside, order[place], here)),
        torch.from_numpy(depth),
    )


# Where each face lies in the unfolded cross (row, column, in faces), in the order of FACES.
_NET = ((0, 1), (1, 2), (1, 1), (2, 1), (1, 0), (1, 3))


# White, red, green, yellow, orange, blue: the usual colours; last, the border of the stickers.
_COLOURS = (
    (255, 255, 255),
    (200, 20, 30),
    (0, 155, 72),
    (255, 213, 0),
    (255, 105, 0),
    (0, 70, 173),
    (25, 25, 25),
)


class RubiksCubeEnv(TableEnv):
    """The pocket cube of the paper: nine moves, all states within ``max_depth`` of the solved one.

    Actions: U, R, F by one, two or three quarter turns (``action_names``); the corner at the
    bottom, back and left does not move. A move that would leave the set does nothing. Episodes start in
    one fixed state ``max_depth`` moves from solved, the one reached from the solved cube by the
    turns U, R, F, U, R, … (``start``). Solving the cube gives +1 and terminates, unless
    ``coverage=True``. The paper uses depth 3 for tables, 5 for networks.

    The entry ``observation`` is float32 ``[*B, 144]``: for each of the 24 stickers, face by face in
    the order U R F D L B, the one-hot code of its colour. ``state_id`` 0 is the solved cube; see
    :class:`~torchrl_dceo.envs.cube.CubeGraph` for the others. Everything else is as in
    :class:`~torchrl_dceo.envs.table_env.TableEnv`.

    Keyword Args:
        max_depth (int): the largest number of moves from the solved cube. Default: 5 (12,224 states).
        coverage (bool): no reward and no termination at the solved cube. Default: ``False``.
        start (int, optional): another start state.
        batch_size (Sequence[int]): any number of batch dimensions. Default: ``()``.
        slip (float): probability that a random action overwrites the chosen one. Default: 0.15.
        max_steps (int, optional): step limit. Default: 100.
        seed (int, optional): by default drawn from torch's global generator.
        device (torch.device or str): Default: ``"cpu"``.

    Examples:
        >>> from torchrl_dceo.envs import RubiksCubeEnv
        >>> env = RubiksCubeEnv(max_depth=3, batch_size=[2], slip=0.0, seed=0)
        >>> env.num_states, env.reset()["observation"].shape
        (385, torch.Size([2, 144]))
        >>> plan = iter(["F'", "R'", "U'"])  # undoes the start U R F
        >>> rollout = env.rollout(
        ...     3, lambda td: td.set("action", env.action_index(next(plan)).expand(2))
        ... )
        >>> rollout["next", "state_id"][0].tolist()
        [10, 1, 0]
        >>> rollout["next", "reward"][0].flatten().tolist()
        [0.0, 0.0, 1.0]
    """

    action_names = CUBE_ACTIONS

    def __init__(
        self,
        *,
        max_depth: int = 5,
        coverage: bool = False,
        start: int | None = None,
        batch_size: Sequence[int] = (),
        slip: float = 0.15,
        max_steps: int | None = 100,
        seed: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        graph = cube_graph(max_depth)
        num_states = len(graph.depth)
        if start is None:
            start = graph.rim_state
        elif not 0 <= start < num_states:
            raise ValueError(f"start must be a state id in [0, {num_states - 1}], got {start}")
        super().__init__(
            graph.next_state,
            [start],
            None if coverage else [0],
            "observation",
            Bounded(0.0, 1.0, shape=(NUM_STICKERS * len(FACES),), dtype=torch.float32),
            batch_size=batch_size,
            slip=slip,
            max_steps=max_steps,
            seed=seed,
            device=device,
        )
        self.max_depth = max_depth
        self.register_buffer("stickers", graph.stickers.to(self.device), persistent=False)
        self.register_buffer("depth", graph.depth.to(self.device), persistent=False)
        self.register_buffer(
            "_one_hot", torch.eye(len(FACES), device=self.device), persistent=False
        )

    def observe(self, state_ids: Tensor) -> Tensor:
        """Returns the sticker one-hots of any states, float32 ``[*state_ids.shape, 144]``.

        Examples:
            >>> import torch
            >>> from torchrl_dceo.envs import RubiksCubeEnv
            >>> env = RubiksCubeEnv(max_depth=3)
            >>> solved = env.observe(torch.tensor(0)).view(6, 4, 6)  # face, sticker, colour
            >>> solved.argmax(-1).tolist()[1]
            [1, 1, 1, 1]
        """
        return self._one_hot[self.stickers[state_ids]].flatten(-2)

    @classmethod
    def action_index(cls, name: str) -> Tensor:
        """Returns the action of that name (``"R"``, ``"R2"``, ``"R'"``) as a tensor.

        Examples:
            >>> from torchrl_dceo.envs import RubiksCubeEnv
            >>> RubiksCubeEnv.action_index("F2")
            tensor(7)
        """
        if name not in cls.action_names:
            raise ValueError(f"unknown move {name!r}; the moves are {', '.join(cls.action_names)}")
        return torch.tensor(cls.action_names.index(name))

    def render(self, state_ids: Tensor | None = None, *, tile_size: int = 16) -> Tensor:
        """Returns the cube unfolded into a cross, ``uint8 [*B, 6 * tile_size, 8 * tile_size, 3]``.

        Args:
            state_ids (Tensor, optional): which states; by default the current ones.
            tile_size (int): width of a sticker in pixels, at least 3 (with its edge). Default: 16.

        Examples:
            >>> from torchrl_dceo.envs import RubiksCubeEnv
            >>> env = RubiksCubeEnv(max_depth=3, batch_size=[5])
            >>> _ = env.reset()
            >>> env.render().shape
            torch.Size([5, 96, 128, 3])
        """
        if tile_size < 3:
            raise ValueError(f"tile_size must be at least 3, got {tile_size}")
        state_ids = self._state if state_ids is None else state_ids
        ink = len(FACES)
        colour = torch.nn.functional.pad(self.stickers[state_ids], (0, 1), value=ink)
        picture = colour[..., self._net_picture(tile_size)]
        return torch.tensor(_COLOURS, dtype=torch.uint8, device=self.device)[picture]

    def _net_picture(self, tile_size: int) -> Tensor:
        """The sticker of each pixel of the net; index 24 is the border."""
        net = torch.full((6, 8), NUM_STICKERS)
        for face, (row, column) in enumerate(_NET):
            stickers = torch.arange(4 * face, 4 * face + 4).view(2, 2)
            net[2 * row : 2 * row + 2, 2 * column : 2 * column + 2] = stickers
        edge = max(1, tile_size // 12)
        inside = torch.zeros(tile_size, dtype=torch.bool)
        inside[edge:-edge] = True
        mask = (inside[:, None] & inside).repeat(6, 8)
        large = net.repeat_interleave(tile_size, 0).repeat_interleave(tile_size, 1)
        return torch.where(mask, large, NUM_STICKERS).to(self.device)
