"""The Atari games by name, and where in the console's memory the player is."""

from __future__ import annotations

import difflib
import functools
import re
from pathlib import Path
from typing import NamedTuple

import ale_py
from ale_py import roms

__all__ = ["MONTEZUMA", "RamMap", "game_names", "minimal_actions", "ram_map", "rom_path"]


class RamMap(NamedTuple):
    """Addresses in the 128 bytes of memory of an Atari console.

    Attributes:
        room (int, optional): which room, screen or level the player is in. ``None``: the game has one.
        x (int): the player's column.
        y (int): the player's row; whether it grows upward or downward is the game's affair.
        num_rooms (int): rooms are numbered from 0 to one less.
    """

    room: int | None
    x: int
    y: int
    num_rooms: int = 256


# Checked against the screen by tests/envs/test_atari.py: x grows to the right, y upward.
MONTEZUMA = RamMap(room=3, x=42, y=43, num_rooms=24)
_KNOWN = {"MontezumaRevenge": MONTEZUMA}


def _camel(rom: str) -> str:
    return "".join(word.capitalize() for word in rom.split("_"))


def game_names() -> list[str]:
    """Returns the games whose ROM comes with ale-py, as ``MontezumaRevenge``, ``Pong``, …

    Examples:
        >>> from torchrl_dceo.envs.atari_games import game_names
        >>> "MontezumaRevenge" in game_names(), "Pong" in game_names()
        (True, True)
    """
    return sorted(map(_camel, roms.get_all_rom_ids()))


def rom_path(game: str) -> Path:
    """Returns the ROM of a game, or says which name was meant.

    Examples:
        >>> from torchrl_dceo.envs.atari_games import rom_path
        >>> rom_path("MsPacman").name
        'ms_pacman.bin'
    """
    known = {_camel(rom): rom for rom in roms.get_all_rom_ids()}
    if game not in known:
        lower = {name.lower(): name for name in known}
        plain = re.sub(r"[\W_]", "", game).lower()
        close = difflib.get_close_matches(plain, lower, n=1, cutoff=0.6)
        hint = f" (did you mean {lower[close[0]]!r}?)" if close else ""
        raise ValueError(
            f"unknown Atari game {game!r}{hint}; see torchrl_dceo.envs.atari_games.game_names()"
        )
    path = roms.get_rom_path(known[game])
    if path is None:
        raise FileNotFoundError(f"ale-py has no ROM of {game!r}: reinstall ale-py")
    return path


def ram_map(game: str) -> RamMap | None:
    """Returns where the player of a game is in memory, if we know."""
    return _KNOWN.get(game)


@functools.lru_cache
def minimal_actions(game: str, full: bool = False) -> tuple[ale_py.Action, ...]:
    """Returns the actions that do something in a game, or all eighteen of the joystick.

    Examples:
        >>> from torchrl_dceo.envs.atari_games import minimal_actions
        >>> [action.name for action in minimal_actions("Freeway")]
        ['NOOP', 'UP', 'DOWN']
    """
    path = rom_path(game)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    console = ale_py.ALEInterface()
    console.loadROM(path)
    return tuple(console.getLegalActionSet() if full else console.getMinimalActionSet())
