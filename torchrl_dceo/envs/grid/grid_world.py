"""A map as a batched, tensor-only environment, and the tiles that it is drawn with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torchrl.data import Bounded
from torchrl.data.tensor_specs import TensorSpec

from torchrl_dceo.envs.grid.layouts import FLOOR, MOVES, WALL, Cell, Layout, parse_layout
from torchrl_dceo.envs.table_env import TableEnv

__all__ = [
    "TILE_KINDS",
    "GridWorldEnv",
    "draw_tiles",
    "tile",
    "tile_set",
]

# Index = the integer that an environment's cell grid holds. All colours differ, also when shown as grey.
_COLOURS: dict[str, tuple[int, int, int]] = {
    "floor": (0, 0, 0),
    "wall": (100, 100, 100),
    "agent": (255, 0, 0),
    "goal": (0, 255, 0),
    "key": (255, 255, 0),
    "agent_with_key": (255, 160, 60),
    "door_locked": (160, 90, 200),
    "door_closed": (120, 60, 30),
    "door_open": (60, 30, 15),
    "obstacle": (0, 120, 255),
    "breakable": (40, 40, 200),
    "obstacle_down": (0, 230, 255),
}


TILE_KINDS: tuple[str, ...] = tuple(_COLOURS)


_SHAPED_FROM = 8


def _shape_mask(kind: str, size: int) -> Tensor:
    """Which pixels of a large tile carry the kind's colour; the rest is floor."""
    axis = (torch.arange(size) + 0.5) / size
    y, x = axis[:, None], axis[None, :]
    if kind in ("agent", "obstacle", "obstacle_down"):
        return (x - 0.5) ** 2 + (y - 0.5) ** 2 < 0.38**2
    if kind == "key":
        bow = (x - 0.5) ** 2 + (y - 0.3) ** 2 < 0.18**2
        blade = ((x - 0.5).abs() < 0.07) & (y > 0.3) & (y < 0.85)
        bit = (x > 0.5) & (x < 0.7) & (y > 0.7) & (y < 0.82)
        return bow | blade | bit
    if kind == "door_open":
        return (x < 0.2).expand(size, size)
    if kind in ("door_locked", "door_closed"):
        return (x > 0.05) & (x < 0.95) & (y > 0.05) & (y < 0.95)
    return torch.ones(size, size, dtype=torch.bool)


@cache
def tile(kind: str, size: int = 1) -> Tensor:
    """Returns the tile of one kind, ``uint8`` of shape ``[3, size, size]``.

    The tensor is shared: do not write into it.

    Examples:
        >>> from torchrl_dceo.envs.grid.grid_world import tile
        >>> tile("agent").flatten().tolist()
        [255, 0, 0]
    """
    if kind not in _COLOURS:
        raise KeyError(f"unknown tile kind {kind!r}; the kinds are {', '.join(TILE_KINDS)}")
    if size < 1:
        raise ValueError(f"tile_size must be at least 1, got {size}")
    colour = torch.tensor(_COLOURS[kind], dtype=torch.uint8)[:, None, None]
    if size < _SHAPED_FROM:
        return colour.expand(3, size, size).contiguous()
    if kind == "agent_with_key":
        return torch.where(_shape_mask("key", size), tile("key", size), tile("agent", size))
    floor = torch.tensor(_COLOURS["floor"], dtype=torch.uint8)[:, None, None]
    picture = torch.where(_shape_mask(kind, size), colour, floor)
    if kind == "door_locked":  # a keyhole
        axis = (torch.arange(size) + 0.5) / size
        hole = (axis[None, :] - 0.5) ** 2 + (axis[:, None] - 0.5) ** 2 < 0.12**2
        picture = torch.where(hole, tile("key", 1).expand(3, size, size), picture)
    return picture.contiguous()


@cache
def tile_set(size: int = 1) -> Tensor:
    """Returns all tiles in the order of :data:`TILE_KINDS`, shape ``[kinds, 3, size, size]``.

    The tensor is shared: do not write into it.

    Examples:
        >>> from torchrl_dceo.envs.grid.grid_world import TILE_KINDS, tile_set
        >>> tile_set(4).shape == (len(TILE_KINDS), 3, 4, 4)
        True
    """
    return torch.stack([tile(kind, size) for kind in TILE_KINDS])


def draw_tiles(kinds: Tensor, size: int = 1) -> Tensor:
    """Draws grids of tiles.

    Args:
        kinds (Tensor): indices into :data:`TILE_KINDS`, int64 of shape ``[*, H, W]``.
        size (int): pixels along the side of a tile.

    Returns:
        the images, ``uint8`` of shape ``[*, 3, H * size, W * size]``.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.envs.grid.grid_world import draw_tiles
        >>> draw_tiles(torch.tensor([[0, 1]]))[0].tolist()  # the red channel of a floor and a wall
        [[0, 100]]
    """
    height, width = kinds.shape[-2:]
    flat = kinds.reshape(-1, height, width)
    tiles = tile_set(size).to(kinds.device)[flat]  # [N, H, W, 3, size, size]
    picture = tiles.permute(0, 3, 1, 4, 2, 5)
    return picture.reshape(*kinds.shape[:-2], 3, height * size, width * size)


_FLOOR, _WALL, _AGENT, _GOAL = map(TILE_KINDS.index, ("floor", "wall", "agent", "goal"))


class GridWorldEnv(TableEnv):
    """A batched grid environment over any ASCII map.

    The agent moves up, right, down or left (actions 0 to 3, see
    :data:`torchrl_dceo.envs.grid.layouts.ACTIONS`); a move into a wall leaves it where it is. With
    probability ``slip`` the action is overwritten by a uniformly random one. Reaching a goal gives
    +1 and terminates the episode, every other step gives 0, and an episode is truncated after
    ``max_steps`` steps. Without a goal, or with ``coverage=True``, there is no reward and no
    termination.

    Args:
        layout (str, Path or Layout): the map or the path of its file: ``#`` wall, space
            or ``.`` floor, ``S`` start (several: one is drawn at each reset), ``G`` goal. See
            :mod:`torchrl_dceo.envs.grid.maps` for the maps of the package.

    Keyword Args:
        observation (str): the kind of observation:

            - ``"pixels"`` (default): the map from above, one tile per cell, in the entry ``pixels``,
              uint8 ``[*B, 3, height * tile_size, width * tile_size]``;
            - ``"xy"``: the entry ``observation``, float32 ``[*B, 2]``: column and row, scaled such that
              the first is -1 and the last 1;
            - ``"index"``: the entry ``observation``, float32 ``[*B, num_states]``: one-hot of
              ``state_id``.
        tile_size (int): pixels along the side of a cell. Default: 1.
        goal_visible (bool): whether ``pixels`` shows the goals. Default: ``False``, as in the paper.
        coverage (bool): no reward and no termination at a goal. Default: ``False``.
        goals (cells, optional): (row, column) of the goals, instead of the map's.
        starts (cells or ``"anywhere"``, optional): (row, column) of the starts, instead of the
            map's; ``"anywhere"`` for every floor cell that is not a goal.
        batch_size (Sequence[int]): any number of batch dimensions. Default: ``()``.
        slip (float): probability that the action is overwritten. Default: 0.15.
        max_steps (int, optional): step limit; ``None`` for none. Default: 100.
        seed (int, optional): by default drawn from torch's global generator.
        device (torch.device or str): Default: ``"cpu"``.

    ``state_id`` numbers the free cells row by row; ``cells`` ``[num_states, 2]`` contains the (row,
    column) of each, ``height`` and ``width`` the size of the map.

    Examples:
        >>> from torchrl_dceo.envs.grid.grid_world import GridWorldEnv
        >>> from torchrl_dceo.envs.grid.maps import nine_rooms
        >>> env = GridWorldEnv(nine_rooms(), batch_size=[64], seed=0)
        >>> rollout = env.rollout(10)
        >>> rollout["pixels"].shape
        torch.Size([64, 10, 3, 19, 19])
        >>> env.num_states, env.cells[rollout["state_id"][0, 0]].tolist()  # starts top right
        (237, [1, 17])
        >>> mine = GridWorldEnv("S..#\\n.#.G", observation="xy", slip=0.0)
        >>> mine.reset()["observation"].tolist()
        [-1.0, -1.0]
    """

    # Observations of all states are kept as one table up to this many bytes, and computed at each
    # step beyond it.
    _largest_table = 2**26

    cells: Tensor
    _seen_kinds: Tensor
    _render_kinds: Tensor
    _observations: Tensor | None

    def __init__(
        self,
        layout: str | Path | Layout,
        *,
        observation: Literal["pixels", "xy", "index"] = "pixels",
        tile_size: int = 1,
        goal_visible: bool = False,
        coverage: bool = False,
        goals: Iterable[Cell] | None = None,
        starts: Iterable[Cell] | Literal["anywhere"] | None = None,
        batch_size: Sequence[int] = (),
        slip: float = 0.15,
        max_steps: int | None = 100,
        seed: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if observation not in ("pixels", "xy", "index"):
            raise ValueError(f"observation must be 'pixels', 'xy' or 'index', got {observation!r}")
        if tile_size < 1:
            raise ValueError(f"tile_size must be at least 1, got {tile_size}")
        checked = _marked(parse_layout(layout), goals, starts, coverage)
        number = {cell: i for i, cell in enumerate(checked.cells)}
        super().__init__(
            _move_table(checked),
            [number[cell] for cell in checked.starts],
            [number[cell] for cell in checked.goals] or None,
            "pixels" if observation == "pixels" else "observation",
            _observation_spec(observation, checked, tile_size),
            batch_size=batch_size,
            slip=slip,
            max_steps=max_steps,
            seed=seed,
            device=device,
        )
        self.layout = checked
        self.observation = observation
        self.tile_size = tile_size
        self.height, self.width = checked.height, checked.width
        cells = torch.tensor(checked.cells, device=self.device)
        self.register_buffer("cells", cells, persistent=False)
        seen, drawn = _tile_kinds(checked, goals=goal_visible), _tile_kinds(checked, goals=True)
        self.register_buffer("_seen_kinds", seen.to(self.device), persistent=False)
        self.register_buffer("_render_kinds", drawn.to(self.device), persistent=False)
        self.register_buffer("_observations", self._observation_table(), persistent=False)

    def observe(self, state_ids: Tensor) -> Tensor:
        """Returns what the agent sees in each state, of shape ``[*state_ids.shape, ...]``.

        Args:
            state_ids (Tensor): int64 of any shape.

        Examples:
            >>> import torch
            >>> from torchrl_dceo.envs.grid.grid_world import GridWorldEnv
            >>> env = GridWorldEnv("S.G", observation="xy")
            >>> env.observe(torch.arange(env.num_states)).tolist()
            [[-1.0, -1.0], [0.0, -1.0], [1.0, -1.0]]
        """
        if self._observations is None:
            return self._compute_observation(state_ids)
        # index_select, and not indexing: several times faster on many small rows, and never a view.
        rows = self._observations.index_select(0, state_ids.reshape(-1))
        return rows.view(*state_ids.shape, *self._observation_shape)

    def render(self, state_ids: Tensor | None = None, *, tile_size: int = 16) -> Tensor:
        """Draws the environment for people, goals included whether the agent sees them or not.

        Args:
            state_ids (Tensor, optional): int64 of any shape ``B``. Default: the environments of the
                batch as they are now.

        Keyword Args:
            tile_size (int): pixels along the side of a cell. Default: 16.

        Returns:
            uint8 of shape ``[*B, height * tile_size, width * tile_size, 3]`` (RGB, channels last).

        Examples:
            >>> from torchrl_dceo.envs.grid.grid_world import GridWorldEnv
            >>> env = GridWorldEnv("S.G", batch_size=[2])
            >>> env.reset()["state_id"].tolist(), env.render().shape
            ([0, 0], torch.Size([2, 16, 48, 3]))
        """
        states = self._state if state_ids is None else state_ids
        kinds = self._render_kinds.expand(*states.shape, self.height, self.width)
        return self._draw_for_people(kinds, states, tile_size)

    def _draw_for_people(self, kinds: Tensor, states: Tensor, tile_size: int) -> Tensor:
        picture = draw_tiles(self._with_agent(kinds, states), tile_size)
        return picture.movedim(-3, -1).contiguous()

    def _with_agent(self, kinds: Tensor, state_ids: Tensor) -> Tensor:
        """Puts the agent of each state on its grid of tile kinds ``[*, H, W]``."""
        row, column = self.cells[state_ids].unbind(-1)
        place = (row * self.width + column).unsqueeze(-1)
        return kinds.flatten(-2).scatter(-1, place, _AGENT).view_as(kinds)

    def _compute_observation(self, state_ids: Tensor, kinds: Tensor | None = None) -> Tensor:
        if self.observation == "index":
            return torch.nn.functional.one_hot(state_ids, self.num_states).float()
        if self.observation == "xy":
            last = torch.tensor([self.height - 1, self.width - 1], device=self.device).clamp(min=1)
            return (2 * self.cells[state_ids] / last - 1).flip(-1)
        if kinds is None:
            kinds = self._seen_kinds.expand(*state_ids.shape, self.height, self.width)
        return draw_tiles(self._with_agent(kinds, state_ids), self.tile_size)

    def _observation_table(self) -> Tensor | None:
        every_state = torch.arange(self.num_states, device=self.device)
        one = self._compute_observation(every_state[:1])
        self._observation_shape = one.shape[1:]
        if self.num_states * one.nbytes > self._largest_table:
            return None
        return self._compute_observation(every_state).flatten(1)


def _marked(
    layout: Layout,
    goals: Iterable[Cell] | None,
    starts: Iterable[Cell] | Literal["anywhere"] | None,
    coverage: bool,
) -> Layout:
    if starts == "anywhere":
        # Of the cells that a goal can be reached from, so that the result passes the checks.
        ends = set(layout.goals if goals is None else goals)
        regions = layout.regions
        near = {int(regions[goal]) for goal in ends if layout.is_open(*goal)} or set(
            range(1, 1 + regions.max())
        )
        starts = [cell for cell in layout.cells if int(regions[cell]) in near]
        starts = [cell for cell in starts if coverage or cell not in ends]
    elif isinstance(starts, str):
        raise ValueError(f"starts must be (row, column) cells or 'anywhere', got {starts!r}")
    if coverage:
        layout.with_marks(goals=goals)  # checked all the same
        goals = ()
    return layout.with_marks(starts=starts, goals=goals)


def _move_table(layout: Layout) -> Tensor:
    """The state after each action in each state: the neighbour, or the same state before a wall."""
    marks = np.pad(layout.marks, 1, constant_values=WALL)
    has_number, is_open = marks != WALL, marks == FLOOR
    numbers = np.zeros(marks.shape, np.int64)
    numbers[has_number] = np.arange(has_number.sum())
    rows, columns = np.nonzero(has_number)
    table = np.repeat(numbers[has_number][:, None], len(MOVES), axis=1)
    for action, (down, right) in enumerate(MOVES):
        place = (rows + down, columns + right)
        table[:, action] = np.where(is_open[place], numbers[place], table[:, action])
    return torch.from_numpy(table)


def _tile_kinds(layout: Layout, goals: bool) -> Tensor:
    kinds = np.where(layout.marks == FLOOR, _FLOOR, _WALL)
    for cell in layout.goals if goals else ():
        kinds[cell] = _GOAL
    return torch.from_numpy(kinds)


def _observation_spec(observation: str, layout: Layout, tile_size: int) -> TensorSpec:
    if observation == "pixels":
        shape = (3, layout.height * tile_size, layout.width * tile_size)
        return Bounded(0, 255, shape=shape, dtype=torch.uint8)
    if observation == "xy":
        return Bounded(-1.0, 1.0, shape=(2,), dtype=torch.float32)
    return Bounded(0.0, 1.0, shape=(len(layout.cells),), dtype=torch.float32)
