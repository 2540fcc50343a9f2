"""Play an environment by hand: ``python -m torchrl_dceo.envs.play EscapeRoom``, in the terminal or a window."""
# ruff: noqa: T201  (a command for people: printing is what it is for)

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Generator, Iterable, Sequence

import gymnasium as gym
import pygame

from torchrl_dceo.envs.grid.grid_world import TILE_KINDS, tile
from torchrl_dceo.envs.minigrid import ENVIRONMENTS, MiniGridMapEnv, env_id
from torchrl_dceo.envs.minigrid.cells import KIND

__all__ = ["decode_keys", "draw_ansi", "main", "play"]

_KEYS = {
    "w": "up",
    "d": "right",
    "s": "down",
    "a": "left",
    "p": "pickup",
    "t": "toggle",
    **{name: name for name in ("up", "right", "down", "left")},
}
_ARROWS = {"A": "up", "B": "down", "C": "right", "D": "left"}
_QUIT = ("q", "escape")
# Letters in addition to colours, for people who cannot distinguish them.
_LETTERS = {
    "agent": "@ ",
    "agent_with_key": "@k",
    "goal": "G ",
    "key": "k ",
    "door_locked": "D ",
    "door_closed": "d ",
    "door_open": "[]",
    "obstacle": "^ ",
    "obstacle_down": "v ",
    "breakable": "::",
}


def draw_ansi(grid_env: MiniGridMapEnv) -> str:
    """Returns the environment as coloured text, two characters per cell, goal included even if it is hidden.

    Examples:
        >>> from torchrl_dceo.envs.minigrid import EscapeRoom
        >>> from torchrl_dceo.envs.play import draw_ansi
        >>> grid_env = EscapeRoom(room_size=3)
        >>> _ = grid_env.reset(seed=0)
        >>> draw_ansi(grid_env).count("@"), len(draw_ansi(grid_env).splitlines())
        (1, 9)
    """
    kinds = grid_env.cells.copy()
    x, y = grid_env.agent_pos
    kinds[y, x] = KIND["agent" if grid_env.carrying is None else "agent_with_key"]
    lines = []
    for row in kinds.tolist():
        cells = [_ansi_cell(TILE_KINDS[kind]) for kind in row]
        lines.append("".join(cells) + "\x1b[0m")
    return "\n".join(lines)


def _ansi_cell(kind: str) -> str:
    red, green, blue = tile(kind).flatten().tolist()
    ink = 30 if red + green + blue > 300 else 97  # black on bright cells, white on dark ones
    return f"\x1b[48;2;{red};{green};{blue};{ink}m{_LETTERS.get(kind, '  ')}"


def decode_keys(chunk: str) -> list[str]:
    """Splits terminal input into keys: letters, ``up``, ``right``, ``down``, ``left``, ``escape``.

    Examples:
        >>> from torchrl_dceo.envs.play import decode_keys
        >>> decode_keys("w\\x1b[Ap")
        ['w', 'up', 'p']
    """
    keys = []
    for match in re.finditer(r"\x1b[\[O]([A-D])|(.)", chunk, flags=re.DOTALL):
        arrow, letter = match.groups()
        if arrow:
            keys.append(_ARROWS[arrow])
        else:
            keys.append("escape" if letter in ("\x1b", "\x03", "\x04") else letter.lower())
    return keys


def play(
    env: gym.Env, keys: Iterable[str], show: Callable[[str], None], *, seed: int | None = None
) -> list[float]:
    """Plays with the given keys until they end or one of them quits.

    Args:
        env (gym.Env): one of the environments, wrapped or not.
        keys (Iterable[str]): keys as returned by :func:`decode_keys`.
        show (Callable): called with one line of text after every change.

    Keyword Args:
        seed (int, optional): seed of the first episode.

    Returns:
        The return of each started episode.

    Examples:
        >>> from torchrl_dceo.envs.minigrid import FourRooms
        >>> from torchrl_dceo.envs.play import play
        >>> said = []
        >>> play(FourRooms(slip=0.0), ["right", "x", "q"], said.append, seed=0)
        [0.0]
        >>> said[1]
        'step 1 of 100 · right · reward 0 · state 1'
    """
    grid_env = env.unwrapped
    if not isinstance(grid_env, MiniGridMapEnv):
        raise ValueError(
            f"play needs one of the MiniGrid environments, got {type(grid_env).__name__}"
        )
    usable = {key: name for key, name in _KEYS.items() if name in grid_env.action_names}
    others = {"pickup": ", p pick up", "toggle": ", t toggle"}
    hint = "wasd or arrows move" + "".join(others.get(name, "") for name in grid_env.action_names)
    returns = [0.0]
    over = False
    env.reset(seed=seed)
    show(f"{grid_env.mission} · {hint}, r restart, q quit")
    for key in keys:
        if key in _QUIT:
            break
        if over or key == "r":
            env.reset()
            returns.append(0.0)
            over = False
            show("a new episode")
        elif key in usable:
            _, reward, terminated, truncated, _ = env.step(grid_env.action_names.index(usable[key]))
            returns[-1] += float(reward)
            over = terminated or truncated
            text = (
                f"step {grid_env.step_count} of {grid_env.max_steps} · {usable[key]} · "
                f"reward {reward:g} · state {grid_env.state_id}"
            )
            show(text + (" · the episode is over, any key starts the next" if over else ""))
        else:
            show(f"{key!r} does nothing · {hint}, r restart, q quit")
    return returns


def _terminal_keys() -> Generator[str, None, None]:
    """Reads keys as they are pressed, without waiting for Enter."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor, termios.TCSANOW)  # keeps keys that were typed during the start
        while chunk := os.read(descriptor, 64):
            yield from decode_keys(chunk.decode(errors="ignore"))
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _window_keys() -> Generator[str, None, None]:
    while True:
        event = pygame.event.wait()
        if event.type == pygame.QUIT:
            return
        if event.type == pygame.KEYDOWN:
            yield pygame.key.name(event.key)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code.

    Examples:
        >>> from torchrl_dceo.envs.play import main
        >>> main(["--list"])
        NineRooms
        FourRooms
        Maze
        GridMaze
        EscapeRoom
        RoomsWithObstacles
        ObstructedKey
        0
    """
    parser = argparse.ArgumentParser(prog="python -m torchrl_dceo.envs.play", description=__doc__)
    parser.add_argument("id", nargs="?", help="an environment, such as EscapeRoom")
    parser.add_argument("--list", action="store_true", help="list the environments")
    parser.add_argument("--seed", type=int, help="of the first episode")
    parser.add_argument("--slip", type=float, default=0.15, help="default: 0.15")
    parser.add_argument("--window", action="store_true", help="MiniGrid's window, not the terminal")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(ENVIRONMENTS))
        return 0
    try:
        if options.id is None:
            raise ValueError(f"name an environment to play: {', '.join(ENVIRONMENTS)}")
        name = env_id(options.id)
        if not options.window and not sys.stdin.isatty():
            raise ValueError("stdin is not a terminal: run this in one, or pass --window")
        env = gym.make(name, slip=options.slip, render_mode="human" if options.window else None)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    grid_env = env.unwrapped
    assert isinstance(grid_env, MiniGridMapEnv)
    clear = "" if options.window else "\x1b[2J\x1b[H"

    def show(text: str) -> None:
        picture = "" if options.window else draw_ansi(grid_env) + "\n"
        print(f"{clear}{picture}{text}", flush=True)

    keys = _window_keys() if options.window else _terminal_keys()
    try:
        play(env, keys, show, seed=options.seed)
    except KeyboardInterrupt:
        pass
    except pygame.error as error:
        print(f"cannot open a window ({error}): leave out --window", file=sys.stderr)
        return 2
    finally:
        keys.close()  # restores the terminal
        env.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
