"""The group of the 2x2x2 cube: its stickers, its moves and all states close to the solved one."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = ["CUBE_ACTIONS", "CubeGraph", "apply_moves", "cube_graph", "move_permutations"]

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
# at the bottom, back and left (stickers 14, 18, 23) never moves: that takes out the 24 ways of
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

    Ids count the states in the order in which breadth-first search meets them, actions tried in the
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
        that word has a shorter equal (from 9 moves on), it is the first state of that depth.
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
        >>> from torchrl_dceo.envs.cube_moves import CUBE_ACTIONS, move_permutations
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
        >>> from torchrl_dceo.envs.cube_moves import apply_moves
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
        >>> from torchrl_dceo.envs.cube_moves import cube_graph
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
