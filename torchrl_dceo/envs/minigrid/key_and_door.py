"""Environments with a key and a door (Escape Room, Obstructed Key), and the table of all their states."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchrl.data import Bounded

from torchrl_dceo.envs.grid.maps import rooms
from torchrl_dceo.envs.minigrid.base import OBJECT_ACTIONS, MiniGridMapEnv, step_limit
from torchrl_dceo.envs.minigrid.cells import KIND
from torchrl_dceo.envs.table_env import TableEnv

__all__ = [
    "EscapeRoom",
    "KeyDoorEnv",
    "KeyDoorTableEnv",
    "ObstructedKey",
    "StateTable",
    "escape_room",
    "list_states",
    "obstructed_key",
    "room_middle",
]

# The phase of the task, the lowest digit of the objects' part of the state.
_PHASES = {KIND["door_locked"]: 1, KIND["door_open"]: 2, KIND["door_closed"]: 3}


def room_middle(room_size: int) -> int:
    """Returns the row and column of the middle of the first room of a map of rooms.

    Examples:
        >>> from torchrl_dceo.envs.minigrid.key_and_door import room_middle
        >>> room_middle(5)
        3
    """
    if room_size < 3:
        raise ValueError(f"room_size must be at least 3, got {room_size}")
    return 1 + room_size // 2


class KeyDoorEnv(MiniGridMapEnv):
    """An environment with one key and one locked door, and any number of breakable tiles.

    ``pickup`` takes the key from a neighbouring cell permanently. ``toggle`` breaks the breakable tiles
    and opens or closes the door next to the agent; a locked door opens only to an agent that
    carries the key. Moving into the open door gives +1 and ends the episode.

    The state is countable: ``state_id = position + num_positions * (phase + 4 * broken)``, where
    ``position`` counts the cells that are no wall, row by row, ``phase`` is 0 without the key, 1 with
    it, 2 once the door is open and 3 after it was closed again, and bit ``i`` of ``broken`` is set if
    the ``i``-th breakable tile (row by row) is broken. ``num_states`` is the size of a table over
    these numbers; a few of them cannot occur (e.g. a position on an unbroken wall).

    Args:
        rows (Sequence[str]): the map, with exactly one ``S``, one ``K`` and one ``D``.

    Keyword Args:
        max_steps (int, optional): step limit. Default: :func:`step_limit` of the shortest plan.
        **kwargs: the other arguments of :class:`MiniGridMapEnv`.

    Attributes:
        plan_length (int): actions of the shortest plan, without slip.

    Examples:
        >>> from torchrl_dceo.envs.minigrid.key_and_door import KeyDoorEnv
        >>> env = KeyDoorEnv(["#####", "#K SD", "#####"], slip=0.0)
        >>> _ = env.reset(seed=0)
        >>> up, right, down, left, pickup, toggle = range(6)
        >>> plan = [left, pickup, right, toggle, right]
        >>> [env.step(action)[1] for action in plan], env.plan_length
        ([0.0, 0.0, 0.0, 0.0, 1.0], 5)
    """

    def __init__(
        self,
        rows: Sequence[str],
        *,
        max_steps: int | None = None,
        mission: str = "fetch the key and leave by the locked door",
        **kwargs: Any,
    ) -> None:
        for symbol, thing in (("S", "start"), ("K", "key"), ("D", "door")):
            found = sum(row.count(symbol) for row in rows)
            if found != 1:
                raise ValueError(f"the map needs exactly one {thing} ({symbol}), got {found}")
        self.plan_length = _plan_length(rows)
        super().__init__(
            rows,
            max_steps=step_limit(self.plan_length) if max_steps is None else max_steps,
            mission=mission,
            actions=OBJECT_ACTIONS,
            **kwargs,
        )

    def _read_map(self, rows: Sequence[str]) -> None:
        super()._read_map(rows)
        self._door = _find(rows, "D")
        self._breakable = [
            (x, y) for y, row in enumerate(rows) for x, symbol in enumerate(row) if symbol == "B"
        ]
        self.num_states = self.num_positions * 4 * 2 ** len(self._breakable)

    def _object_state(self) -> int:
        x, y = self._door
        phase = 0 if self.carrying is None else _PHASES[int(self.cells[y, x])]
        whole = KIND["breakable"]
        broken = sum(
            1 << i for i, (x, y) in enumerate(self._breakable) if self.cells[y, x] != whole
        )
        return phase + 4 * broken


def _find(rows: Sequence[str], symbol: str) -> tuple[int, int]:
    return next((row.index(symbol), y) for y, row in enumerate(rows) if symbol in row)


def _plan_length(rows: Sequence[str]) -> int:
    """The number of actions of the shortest plan: to the key, through breakable tiles, and to the door."""
    key, door = _find(rows, "K"), _find(rows, "D")
    # A breakable tile takes a toggle and a move. The way back uses the same hole.
    out = _walk_lengths(rows, _find(rows, "S"), {" ": 1, ".": 1, "S": 1, "B": 2})
    lengths = []
    for spot in _around(key):
        if spot in out:
            back = _walk_lengths(rows, spot, dict.fromkeys(" .SBK", 1))
            ends = [back[end] for end in _around(door) if end in back]
            lengths += [
                out[spot] + end + 3 for end in ends
            ]  # pickup, toggle, and the move through the door
    if not lengths:
        raise ValueError("the map cannot be solved: the key or the door is out of reach")
    return min(lengths)


def _around(cell: tuple[int, int]) -> list[tuple[int, int]]:
    x, y = cell
    return [(x, y - 1), (x + 1, y), (x, y + 1), (x - 1, y)]


def _walk_lengths(
    rows: Sequence[str], source: tuple[int, int], enter_cost: dict[str, int]
) -> dict[tuple[int, int], int]:
    """Returns the number of actions from ``source`` to every ``(x, y)`` that can be reached.

    ``enter_cost`` is the number of actions to enter a cell of each character; a character that
    is missing cannot be entered.
    """
    lengths: dict[tuple[int, int], int] = {}
    frontier = [(0, source)]
    while frontier:
        length, (x, y) = heapq.heappop(frontier)
        if (x, y) in lengths:
            continue
        lengths[x, y] = length
        for nx, ny in _around((x, y)):
            inside = 0 <= ny < len(rows) and 0 <= nx < len(rows[ny])
            if inside and rows[ny][nx] in enter_cost:
                heapq.heappush(frontier, (length + enter_cost[rows[ny][nx]], (nx, ny)))
    return lengths


def escape_room(room_size: int = 5) -> list[str]:
    """Returns the map: a ring of four rooms; the key is in the room opposite the door.

    Examples:
        >>> from torchrl_dceo.envs.minigrid.key_and_door import escape_room
        >>> print("\\n".join(escape_room(3)))
        #########
        #...#...#
        D.S.....#
        #...#...#
        ##.###.##
        #...#...#
        #.......#
        #...#..K#
        #########
    """
    middle, far = room_middle(room_size), 2 * room_size + 1
    text = rooms(2, 2, room_size, start=(middle, middle), goal=(far, far)).replace("G", "K")
    rows = text.split("\n")
    rows[middle] = "D" + rows[middle][1:]
    return rows


class EscapeRoom(KeyDoorEnv):
    """The paper's Escape room: +1 only for leaving through the door of the first room.

    Four rooms in a ring. The agent starts in the middle of one; the door to the outside is locked,
    and the key lies in the far corner of the opposite room. See :class:`KeyDoorEnv` for
    ``state_id`` and the actions. The layout and the step limit are not from the paper, which shows only an
    image.

    Keyword Args:
        room_size (int): cells along a room's side. Default: 5.
        **kwargs: the arguments of :class:`KeyDoorEnv` but its map.

    Examples:
        >>> from torchrl_dceo.envs.minigrid import EscapeRoom
        >>> env = EscapeRoom()
        >>> env.reset(seed=0)[0]["pixels"].shape, env.num_states, env.plan_length, env.max_steps
        ((3, 13, 13), 420, 35, 210)
    """

    def __init__(self, *, room_size: int = 5, **kwargs: Any) -> None:
        super().__init__(escape_room(room_size), **kwargs)


def obstructed_key(room_size: int = 5, num_breakable: int | None = None) -> list[str]:
    """Returns the map: a chain of four rooms in a square, with the key behind a wall.

    Args:
        room_size (int): cells along a room's side. Default: 5.
        num_breakable (int, optional): length of the blue, breakable part of the wall in front of the key; the
            rest is ordinary wall. The number of states doubles with each tile. Default: the
            whole wall, at most 5 tiles.

    Examples:
        >>> from torchrl_dceo.envs.minigrid.key_and_door import obstructed_key
        >>> print("\\n".join(obstructed_key(3)))
        #########
        #.B.#...#
        #KB...S.#
        #.B.#...#
        ######.##
        #...#...#
        D.......#
        #...#...#
        #########
    """
    middle, pitch = room_middle(room_size), room_size + 1
    if num_breakable is None:
        num_breakable = min(room_size, 5)
    if not 1 <= num_breakable <= room_size:
        raise ValueError(f"num_breakable must lie in [1, {room_size}], got {num_breakable}")
    start, key = (middle, pitch + middle), (middle, 1)
    text = rooms(2, 2, room_size, start=start, goal=key, closed=[((0, 0), (1, 0))])
    cells = [list(row) for row in text.replace("G", "K").replace("X", "#").split("\n")]
    first = 1 + (room_size - num_breakable) // 2
    for y in range(1, pitch):
        cells[y][2] = "B" if first <= y < first + num_breakable else "#"
    cells[pitch + middle][0] = "D"
    return ["".join(row) for row in cells]


class ObstructedKey(KeyDoorEnv):
    """The paper's Obstructed key: +1 only for leaving through the door.

    A chain of four rooms. A blue wall separates the key from the rest of the first
    room; the agent starts in the second room and has to break at least one tile. The locked door
    is in the fourth. See :class:`KeyDoorEnv` for ``state_id`` and the actions. The layout and the
    step limit are not from the paper, which shows only an image.

    Keyword Args:
        room_size (int): cells along a room's side. Default: 5.
        num_breakable (int, optional): tiles of the blue wall. Default: ``min(room_size, 5)``.
        **kwargs: the arguments of :class:`KeyDoorEnv` but its map.

    Examples:
        >>> from torchrl_dceo.envs.minigrid import ObstructedKey
        >>> env = ObstructedKey()
        >>> env.reset(seed=0)[0]["pixels"].shape, env.num_states, env.plan_length, env.max_steps
        ((3, 13, 13), 13312, 32, 200)
    """

    def __init__(
        self, *, room_size: int = 5, num_breakable: int | None = None, **kwargs: Any
    ) -> None:
        mission = "break the blue wall, fetch the key and leave by the locked door"
        rows = obstructed_key(room_size, num_breakable)
        super().__init__(rows, **{"mission": mission, **kwargs})


class StateTable(NamedTuple):
    """The result of :func:`list_states`; a row is a ``state_id`` of the environment.

    Attributes:
        next_state (Tensor): int64 ``[S, A]``; a state that cannot occur leads to itself.
        pixels (Tensor): uint8 ``[S, 3, H, W]``; black where a state cannot occur.
        occurs (Tensor): bool ``[S]``, which states can be reached from the start.
        goals (Tensor): the states in the open door, int64 ``[G]``.
        start (int): the state in which episodes start.
    """

    next_state: Tensor
    pixels: Tensor
    occurs: Tensor
    goals: Tensor
    start: int


def list_states(env: KeyDoorEnv) -> StateTable:
    """Lists all states reachable from the start, objects included, by trying every action in every state.

    The search continues behind the door: as in coverage mode, an agent in the open door can come back.

    Args:
        env (KeyDoorEnv): with ``slip=0.0``; its state is changed.

    Examples:
        >>> from torchrl_dceo.envs.minigrid import EscapeRoom
        >>> from torchrl_dceo.envs.minigrid.key_and_door import list_states
        >>> table = list_states(EscapeRoom(room_size=3, slip=0.0))
        >>> table.next_state.shape, int(table.occurs.sum())
        (torch.Size([164, 6]), 160)
    """
    if env.slip:
        raise ValueError(
            f"states can only be listed in a deterministic environment: build it with slip=0.0, got {env.slip}"
        )
    env.reset(seed=0)
    num_states, num_actions = env.num_states, len(env.action_names)
    moves = np.tile(np.arange(num_states)[:, None], (1, num_actions))
    pixels = np.zeros((num_states, *env.observe()["pixels"].shape), np.uint8)
    start, known = env.state_id, np.zeros(num_states, bool)
    known[start] = True
    frontier, goals = [env.get_state()], []
    while frontier:
        saved = frontier.pop()
        env.set_state(saved)
        state = env.state_id
        pixels[state] = env.observe()["pixels"]
        if tuple(env.agent_pos) == env._door:
            goals.append(state)
        for action in range(num_actions):
            if env.state_id != state:
                env.set_state(saved)
            env.step(action)
            following = env.state_id
            moves[state, action] = following
            if not known[following]:
                known[following] = True
                frontier.append(env.get_state())
    return StateTable(
        torch.from_numpy(moves),
        torch.from_numpy(pixels),
        torch.from_numpy(known),
        torch.tensor(sorted(goals), dtype=torch.int64),
        start,
    )


class KeyDoorTableEnv(TableEnv):
    """A batched, table-based version of a key-and-door environment: same states, moves, images and goal.

    For methods that need all states: exact eigenfunctions, and representations over all positions with and without
    the key. Recipes train in the MiniGrid environment.

    Args:
        table (StateTable): from :func:`list_states`.

    Keyword Args:
        batch_size (Sequence[int]): Default: ``()``.
        starts (str, optional): ``"anywhere"``: each start is drawn from all states that can occur. Default: the map's.
        coverage (bool): no goal, no reward. Default: ``False``.
        slip (float): Default: 0.15.
        max_steps (int, optional): Default: none.
        seed (int, optional): by default drawn from torch's global generator.

    Examples:
        >>> from torchrl_dceo.envs.minigrid import EscapeRoom
        >>> from torchrl_dceo.envs.minigrid.key_and_door import KeyDoorTableEnv, list_states
        >>> env = KeyDoorTableEnv(list_states(EscapeRoom(room_size=3, slip=0.0)), batch_size=[4], seed=0)
        >>> env.rollout(10)["pixels"].shape
        torch.Size([4, 10, 3, 9, 9])
    """

    def __init__(
        self,
        table: StateTable,
        *,
        batch_size: Sequence[int] = (),
        starts: Literal["anywhere"] | None = None,
        coverage: bool = False,
        slip: float = 0.15,
        max_steps: int | None = None,
        seed: int | None = None,
    ) -> None:
        if starts not in (None, "anywhere"):
            raise ValueError(f"starts must be None or 'anywhere', got {starts!r}")
        anywhere = table.occurs.nonzero().flatten().tolist()
        super().__init__(
            table.next_state,
            [table.start] if starts is None else anywhere,
            None if coverage else table.goals.tolist(),
            "pixels",
            Bounded(0, 255, table.pixels.shape[1:], dtype=torch.uint8),
            batch_size=batch_size,
            slip=slip,
            max_steps=max_steps,
            seed=seed,
        )
        self.table = table

    def observe(self, state_ids: Tensor) -> Tensor:
        """Returns the images of the states, uint8 ``[*, 3, H, W]``."""
        return self.table.pixels[state_ids]
