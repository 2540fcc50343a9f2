"""ObstructedKey: break through the blue wall to the key, then leave by a door a few rooms away."""

from __future__ import annotations

from typing import Any

from torchrl_dceo.envs.maps import rooms
from torchrl_dceo.envs.minigrid_worlds.key_and_door import KeyDoorWorld, room_middle

__all__ = ["ObstructedKey", "obstructed_key"]


def obstructed_key(room_size: int = 5, num_breakable: int | None = None) -> list[str]:
    """Returns the map: four rooms in a row that is bent into a square, the key behind a wall.

    Args:
        room_size (int): cells along a room's side. Default: 5.
        num_breakable (int, optional): length of the blue part of the wall in front of the key; the
            rest of it is ordinary wall. The number of states doubles with each tile. Default: the
            whole wall, at most 5 tiles.

    Examples:
        >>> from torchrl_dceo.envs.minigrid_worlds.obstructed_key import obstructed_key
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


class ObstructedKey(KeyDoorWorld):
    """The paper's Obstructed key: +1 only for leaving by the door.

    Four rooms, each connected to the next. A blue wall cuts the key off from the rest of the first
    room; the agent starts in the second and has to toggle at least one tile away. The locked door
    is in the fourth. See :class:`KeyDoorWorld` for ``state_id`` and the actions. The layout and the
    step limit are ours: the paper shows only a picture.

    Keyword Args:
        room_size (int): cells along a room's side. Default: 5.
        num_breakable (int, optional): tiles of the blue wall. Default: ``min(room_size, 5)``.
        **kwargs: the arguments of :class:`KeyDoorWorld` but its map.

    Examples:
        >>> from torchrl_dceo.envs.minigrid_worlds import ObstructedKey
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
