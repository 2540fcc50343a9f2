"""EscapeRoom: fetch the key in another room, come back, leave by the locked door."""

from __future__ import annotations

from typing import Any

from torchrl_dceo.envs.maps import rooms
from torchrl_dceo.envs.minigrid_worlds.key_and_door import KeyDoorWorld, room_middle

__all__ = ["EscapeRoom", "escape_room"]


def escape_room(room_size: int = 5) -> list[str]:
    """Returns the map: a ring of four rooms, the key in the one across from the door's.

    Examples:
        >>> from torchrl_dceo.envs.minigrid_worlds.escape_room import escape_room
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


class EscapeRoom(KeyDoorWorld):
    """The paper's Escape room: +1 only for leaving the room that the agent starts in.

    Four rooms in a ring. The agent starts in the middle of one; its door to the outside is locked,
    and the key lies in the far corner of the opposite room. See :class:`KeyDoorWorld` for
    ``state_id`` and the actions. The layout and the step limit are ours: the paper shows only a
    picture.

    Keyword Args:
        room_size (int): cells along a room's side. Default: 5.
        **kwargs: the arguments of :class:`KeyDoorWorld` but its map.

    Examples:
        >>> from torchrl_dceo.envs.minigrid_worlds import EscapeRoom
        >>> env = EscapeRoom()
        >>> env.reset(seed=0)[0]["pixels"].shape, env.num_states, env.plan_length, env.max_steps
        ((3, 13, 13), 420, 35, 210)
    """

    def __init__(self, *, room_size: int = 5, **kwargs: Any) -> None:
        super().__init__(escape_room(room_size), **kwargs)
