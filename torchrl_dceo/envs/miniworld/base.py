"""Base of the 3D environments: simulator, images, save/restore, and floor plan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from miniworld.entity import Box
from miniworld.miniworld import MiniWorldEnv, Room
from miniworld.params import DEFAULT_PARAMS
from pyglet import gl

from torchrl_dceo.envs.env_state import pack_generator, unpack_generator
from torchrl_dceo.envs.miniworld.view import (
    View,
    camera_matrix,
    perspective_matrix,
    preload,
    shared_window,
)

__all__ = [
    "FloorPlan",
    "MiniWorld3D",
]


class FloorPlan:
    """The floor of a MiniWorld environment: free positions, and numbered cells for counting visits.

    Positions are (x, z) in metres. A position is free if it is inside a room and an agent there touches no wall.

    Args:
        rooms (sequence of miniworld.miniworld.Room): the rooms and hallways, with their walls generated.
        radius (float): of the agent.
        cell_size (float): side of a cell in metres.
        step (float): resolution of the search for cells that can be entered.

    Attributes:
        outlines (list of np.ndarray): ``[corners, 2]`` of each room.
        walls (np.ndarray): ``[W, 2, 2]``, both ends of each wall.
        low (np.ndarray): the least (x, z) of all rooms.
        high (np.ndarray): the largest (x, z) of all rooms.
        num_cells (int): the number of cells that an agent can enter.
        cell_centres (np.ndarray): ``[num_cells, 2]``.
    """

    def __init__(
        self, rooms: Sequence[Any], radius: float, cell_size: float = 1.0, step: float = 0.2
    ) -> None:
        if not cell_size > 0:
            raise ValueError(f"cell_size must be positive, got {cell_size}")
        self.outlines = [np.asarray(room.outline)[:, [0, 2]].astype(float) for room in rooms]
        self._normals = [np.asarray(room.edge_norms)[:, [0, 2]].astype(float) for room in rooms]
        self.walls = np.concatenate([room.wall_segs for room in rooms])[:, :, [0, 2]].astype(float)
        self.radius, self.cell_size = radius, cell_size
        corners = np.concatenate(self.outlines)
        self.low, self.high = corners.min(0), corners.max(0)
        shape = np.maximum(1, np.ceil((self.high - self.low) / cell_size - 1e-9)).astype(int)
        self._shape = shape
        self._bounds = self.low.tolist(), (shape - 1).tolist()
        fine = self.lattice(step)
        index = self._cell_index(fine)
        entered = np.unique(index[:, 0] * shape[1] + index[:, 1])
        self.num_cells = len(entered)
        cells = np.stack([entered // shape[1], entered % shape[1]], -1)
        self.cell_centres = self.low + (cells + 0.5) * cell_size
        # A cell that an agent can enter by less than a step counts as its nearest neighbour.
        every = np.moveaxis(np.indices(tuple(shape)), 0, -1).reshape(-1, 2)
        nearest = ((every[:, None] - cells[None]) ** 2).sum(-1).argmin(1)
        self._number = nearest.reshape(shape).tolist()

    def _cell_index(self, positions: np.ndarray) -> np.ndarray:
        index = np.floor((positions - self.low) / self.cell_size).astype(int)
        return index.clip(0, self._shape - 1)

    def cell_of(self, x: float, z: float) -> int:
        """The index of the cell of a position."""
        # _cell_index of one position, without NumPy's overhead: it is called at every step.
        (low_x, low_z), (last_x, last_z) = self._bounds
        i = math.floor((x - low_x) / self.cell_size)
        j = math.floor((z - low_z) / self.cell_size)
        return self._number[min(max(i, 0), last_x)][min(max(j, 0), last_z)]

    def room_of(self, positions: np.ndarray) -> np.ndarray:
        """The index of the room or hallway that contains each of ``[..., 2]`` positions, or is nearest to it."""
        heights = [
            ((positions[..., None, :] - outline) * normals).sum(-1).min(-1)
            for outline, normals in zip(self.outlines, self._normals, strict=True)
        ]
        return np.stack(heights, -1).argmax(-1)

    def is_free(self, positions: np.ndarray) -> np.ndarray:
        """Whether an agent can be at each of ``[..., 2]`` positions."""
        inside = np.zeros(positions.shape[:-1], bool)
        for outline, normals in zip(self.outlines, self._normals, strict=True):
            heights = ((positions[..., None, :] - outline) * normals).sum(-1)
            inside |= (heights > 0).all(-1)
        # A doorway is the border of two rooms, where a position is inside of neither.
        on_border = ~inside
        for outline, normals in zip(self.outlines, self._normals, strict=True):
            heights = ((positions[..., None, :] - outline) * normals).sum(-1)
            inside |= on_border & (heights > -1e-6).all(-1)
        start, along = self.walls[:, 0], self.walls[:, 1] - self.walls[:, 0]
        offset = positions[..., None, :] - start
        share = ((offset * along).sum(-1) / (along**2).sum(-1)).clip(0, 1)
        distance = np.linalg.norm(offset - share[..., None] * along, axis=-1).min(-1)
        return inside & (distance >= self.radius)

    def lattice(self, spacing: float) -> np.ndarray:
        """The free positions ``[P, 2]`` of a square grid, by x first."""
        return self.lattice_grid(spacing)[1]

    def lattice_grid(self, spacing: float) -> tuple[np.ndarray, np.ndarray]:
        """A mask of the free points of a square grid over the floor, ``[I, J]``, and their positions, ``[P, 2]``."""
        counts = np.floor((self.high - self.low) / spacing + 1e-9).astype(int)
        # The same margin on both sides: symmetric environments get symmetric grids.
        margin = (self.high - self.low - counts * spacing) / 2
        axes = [self.low[k] + margin[k] + spacing * np.arange(counts[k] + 1) for k in range(2)]
        points = np.stack(np.meshgrid(*axes, indexing="ij"), -1)
        free = self.is_free(points)
        return free, points[free]


ACTION_NAMES = ("turn_left", "turn_right", "move_forward")


class MiniWorld3D(MiniWorldEnv):
    """A first-person environment with the actions turn left, turn right and forward.

    A subclass, mixed with an environment of MiniWorld or with its own ``_gen_world`` and ``step``, defines the
    rooms and stores the goal in ``self.box``. The rooms must be the same in every episode: they are built
    once, and an episode only places agent and goal. Images are MiniWorld's, but rendered faster
    (:class:`~torchrl_dceo.envs.miniworld.view.View`, ``benchmarks/miniworld.py``). There is no
    domain randomisation.

    Observations are a dictionary: ``pixels`` ``uint8 [3, H, views · W]``; ``state_id``, the cell of the floor that the
    agent, independent of its heading (for counting visits: the environment has more states than that); ``pose``
    ``float32 [3]``, x and z in metres and the heading in radians.

    Keyword Args:
        max_steps (int): the length of an episode.
        coverage (bool): no box, no reward, no end but the step limit. Default: ``False``.
        obs_width (int): Default: 80, MiniWorld's own.
        obs_height (int): Default: 60.
        samples (int): samples per pixel (anti-aliasing); 1 is faster. Default: 4.
        views (int): the number of views all around, side by side in one wide image: with 4 to the left,
            ahead, to the right and behind. One view may not identify a room; four show all doors of a room, and
            convolutions share the features of all views. Default: 1.
        cell_size (float): side of a cell of ``state_id``, in metres. Default: 1.
        render_mode (str, optional): ``"rgb_array"`` or ``None``.

    Attributes:
        action_names (tuple of str): the name of each action.
        fixed_heading (float, optional): the heading in radians if the agent cannot turn.
        num_states (int): ``state_id`` lies in ``[0, num_states)``.
        floor_plan (FloorPlan): the positions where the agent can be.
    """

    action_names: tuple[str, ...] = ACTION_NAMES
    fixed_heading: float | None = None
    params: Any = DEFAULT_PARAMS
    agent: Any
    entities: list[Any]

    def __init__(
        self,
        *,
        max_steps: int,
        coverage: bool = False,
        obs_width: int = 80,
        obs_height: int = 60,
        samples: int = 4,
        views: int = 1,
        cell_size: float = 1.0,
        render_mode: str | None = None,
    ) -> None:
        if max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {max_steps}")
        if views < 1:
            raise ValueError(f"views must be at least 1, got {views}")
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode must be 'rgb_array' or None, got {render_mode!r}")
        # Not MiniWorldEnv's constructor: it creates a window and a frame buffer of 120 MB for each environment.
        self.actions = MiniWorldEnv.Actions
        self.action_space = gym.spaces.Discrete(len(self.action_names))
        self.max_episode_steps = max_steps
        self.domain_rand = False
        self.window, self.view, self.render_mode = None, "agent", render_mode
        self.coverage, self.views = coverage, views
        self.shadow_window = shared_window()
        self.obs_fb = View(obs_width, obs_height, samples)
        self._vis_fb: View | None = None
        self._static_list: int | None = None
        self._walls: tuple[np.ndarray, tuple[np.ndarray, ...]] | None = None
        self._box_list: int | None = None
        self._drawn_box: tuple[Any, ...] | None = None
        self._made: list[Room] = []
        self._remade: Iterator[Room] | None = None
        self.reset()
        self.floor_plan = FloorPlan(self.rooms, self.agent.radius, cell_size)
        self.num_states = self.floor_plan.num_cells
        self.observation_space = gym.spaces.Dict(
            pixels=gym.spaces.Box(0, 255, (3, obs_height, views * obs_width), np.uint8),
            state_id=gym.spaces.Discrete(self.num_states),
            pose=gym.spaces.Box(-np.inf, np.inf, (3,), np.float32),
        )

    # Rooms, once

    def add_room(self, **kwargs: Any) -> Room:
        """Adds a room; in later episodes, returns the corresponding room of the first episode."""
        if self._remade is not None:
            return next(self._remade)
        room = super().add_room(**kwargs)
        for texture in (room.wall_tex_name, room.floor_tex_name, room.ceil_tex_name):
            preload(texture)
        self._made.append(room)
        return room

    def connect_rooms(self, *args: Any, **kwargs: Any) -> None:
        """Connects two rooms, in the first episode."""
        if self._remade is None:
            super().connect_rooms(*args, **kwargs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode."""
        if not self._made:
            MiniWorldEnv.reset(self, seed=seed)
        else:
            gym.Env.reset(self, seed=seed)
            self.step_count = 0
            self.agent = type(self.agent)()
            self.entities = []
            self._remade = iter(self._made)
            self._gen_world()
            for entity in self.entities:
                entity.randomize(self.params, None)
        self._leave_out_the_goal()
        return (self.observe() if hasattr(self, "floor_plan") else None), {}

    def _leave_out_the_goal(self) -> None:
        if self.coverage:
            self.entities = [entity for entity in self.entities if entity is self.agent]

    # Steps

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes one of the actions, numbered as in ``action_names``."""
        index, names = int(action), self.action_names
        if not 0 <= index < len(names):
            raise ValueError(
                f"action must lie in [0, {len(names)}), got {action}: the actions are {', '.join(names)}"
            )
        self.step_count += 1
        self._act(index)
        reached = not self.coverage and self.near(self.box)
        reward = self._reward() if reached else 0.0
        truncated = self.step_count >= self.max_episode_steps
        return self.observe(), reward, bool(reached), truncated, {}

    def _act(self, index: int) -> None:
        """Moves the agent: by default turn left, turn right, forward."""
        if index == self.actions.move_forward:
            self.move_agent(self.params.sample(None, "forward_step"), 0.0)
        else:
            angle = self.params.sample(None, "turn_step")
            self.turn_agent(angle if index == self.actions.turn_left else -angle)

    def near(self, ent0: Any, ent1: Any = None) -> bool:
        """Whether two entities, by default one and the agent, are near each other, as in MiniWorld."""
        other = self.agent if ent1 is None else ent1
        between = ent0.pos - other.pos
        reach = ent0.radius + other.radius + 1.1 * self.max_forward_step
        return math.sqrt(between.dot(between)) < reach

    def intersect(self, ent: Any, pos: np.ndarray, radius: float) -> Any:
        """What an entity would touch at a position: ``True`` for a wall, an entity, or ``None``.

        MiniWorld's arithmetic, to the last bit, without the zeros of the height, and with the walls' own products
        computed once: a quarter of a step's time.
        """
        start_x, start_z, along_x, along_z, squared = self._wall_products()
        x, _, z = pos.tolist()
        share = ((x - start_x) * along_x + (z - start_z) * along_z) / squared
        share = np.minimum(np.maximum(share, 0), 1)
        gap_x, gap_z = start_x + share * along_x - x, start_z + share * along_z - z
        if (np.sqrt(gap_x * gap_x + gap_z * gap_z) < radius).any():
            return True
        for other in self.entities:
            if other is ent:
                continue
            other_x, _, other_z = other.pos.tolist()
            between = np.array([other_x - x, 0.0, other_z - z])
            if math.sqrt(between.dot(between)) < radius + other.radius:
                return other
        return None

    def _wall_products(self) -> tuple[np.ndarray, ...]:
        """Start and direction (x and z) of every wall, and its squared length."""
        if self._walls is None or self._walls[0] is not self.wall_segs:
            start, end = self.wall_segs[:, 0], self.wall_segs[:, 1]
            along = end - start
            columns = [start[:, 0], start[:, 2], along[:, 0], along[:, 2], (along * along).sum(1)]
            self._walls = self.wall_segs, tuple(column.copy() for column in columns)
        return self._walls[1]

    # What is seen

    def observe(self) -> dict[str, Any]:
        """Returns the observation of the current state (new arrays at each call)."""
        x, _, z = self.agent.pos
        return {
            "pixels": self._look_around(),
            "state_id": np.int64(self.floor_plan.cell_of(x, z)),
            "pose": np.array([x, z, self.agent.dir], np.float32),
        }

    def observe_at(self, positions: np.ndarray, heading: float) -> np.ndarray:
        """The images at ``[P, 2]`` positions, ``uint8 [P, 3, H, views · W]``; does not change the environment."""
        before = self.agent.pos, self.agent.dir
        pictures = []
        try:
            for x, z in positions:
                self.agent.pos, self.agent.dir = np.array([x, 0.0, z]), heading
                pictures.append(self._look_around())
        finally:
            self.agent.pos, self.agent.dir = before
        return np.stack(pictures)

    def _look_around(self) -> np.ndarray:
        ahead, view = self.agent.dir, self.obs_fb
        if self.views == 1:
            return np.ascontiguousarray(self.render_obs().transpose(2, 0, 1))
        pixels = np.empty((3, view.height, self.views, view.width), np.uint8)
        # From left to right, so the heading decreases.
        leftmost = (self.views - 1) // 2
        try:
            for k in range(self.views):
                self.agent.dir = ahead + (leftmost - k) * 2 * np.pi / self.views
                pixels[:, :, k] = self.render_obs().transpose(2, 0, 1)
        finally:
            self.agent.dir = ahead
        return pixels.reshape(3, view.height, -1)

    @property
    def vis_fb(self) -> View:
        """The large frame buffer of images for people, created when first needed."""
        if self._vis_fb is None:
            self._vis_fb = View(800, 600, 16)
        return self._vis_fb

    def _render_static(self) -> None:
        """Compiles the drawing of rooms and light once, into a display list with its own number.

        MiniWorld always uses number 1, so that a second environment in the same process would replace the
        first. Number 1 is not used here, so that MiniWorld's own environments can run in the same process.
        """
        if self._static_list is not None:
            return
        self._static_list = gl.glGenLists(2) + 1
        gl.glNewList(self._static_list, gl.GL_COMPILE)
        gl.glEnable(gl.GL_LIGHTING)
        gl.glEnable(gl.GL_LIGHT0)
        for kind, values in (
            # As in MiniWorld, where adding [1] to an array turns the position into a direction: parallel light, so
            # that the brightness of a wall depends on its orientation.
            (gl.GL_POSITION, [*(np.asarray(self.light_pos) + 1), 0]),
            (gl.GL_AMBIENT, [*self.light_ambient, 1]),
            (gl.GL_DIFFUSE, [*self.light_color, 1]),
        ):
            gl.glLightfv(gl.GL_LIGHT0, kind, (gl.GLfloat * 4)(*values))
        gl.glShadeModel(gl.GL_SMOOTH)
        gl.glEnable(gl.GL_COLOR_MATERIAL)
        gl.glColorMaterial(gl.GL_FRONT_AND_BACK, gl.GL_AMBIENT_AND_DIFFUSE)
        gl.glEnable(gl.GL_TEXTURE_2D)
        for room in self.rooms:
            room._render()
        gl.glEndList()

    def render_obs(self, frame_buffer: Any = None) -> np.ndarray:
        """Draws the agent's view, ``uint8 [H, W, 3]``."""
        view = self.obs_fb if frame_buffer is None else frame_buffer
        self.shadow_window.switch_to()
        view.bind()
        gl.glClearColor(*self.sky_color, 1.0)
        gl.glClear(gl.GL_COLOR_BUFFER_BIT | gl.GL_DEPTH_BUFFER_BIT)
        agent = self.agent
        gl.glMatrixMode(gl.GL_PROJECTION)
        gl.glLoadMatrixf(perspective_matrix(agent.cam_fov_y, view.width / view.height))
        gl.glMatrixMode(gl.GL_MODELVIEW)
        x, y, z = agent.pos.tolist()
        gl.glLoadMatrixf(camera_matrix(x, y + agent.cam_height, z, agent.dir))
        return self._render_world(view, render_agent=False)

    def _render_world(self, frame_buffer: Any, render_agent: bool) -> np.ndarray:
        gl.glCallList(self._static_list)
        for entity in self.entities:
            if type(entity) is Box:
                self._render_box(entity)
            elif entity is not self.agent or render_agent:
                entity.render()
        return frame_buffer.resolve()

    def _render_box(self, box: Any) -> None:
        """Draws a box, whose forty calls of OpenGL are compiled again only when it is another or somewhere else."""
        drawn = (*box.pos.tolist(), box.dir, *box.size, *box.color_vec)
        if drawn != self._drawn_box:
            if self._box_list is None:
                # Two numbers, as for the rooms: 1 is MiniWorld's.
                self._box_list = gl.glGenLists(2) + 1
            gl.glNewList(self._box_list, gl.GL_COMPILE)
            box.render()
            gl.glEndList()
            self._drawn_box = drawn
        gl.glCallList(self._box_list)

    # Save and restore

    def get_state(self) -> dict[str, Any]:
        """Returns the complete state, generator included: integers and arrays."""
        return {
            "positions": np.array([entity.pos for entity in self.entities], np.float64),
            "headings": np.array([entity.dir for entity in self.entities], np.float64),
            "step_count": int(self.step_count),
            "rng": pack_generator(self.np_random),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores a state of :meth:`get_state`; the environment continues exactly."""
        positions, headings = np.asarray(state["positions"]), np.asarray(state["headings"])
        if len(positions) != len(self.entities):
            raise ValueError(
                f"the saved environment has {len(positions)} objects, but this one has {len(self.entities)}: "
                "build it with the same coverage"
            )
        for entity, position, heading in zip(self.entities, positions, headings, strict=True):
            entity.pos, entity.dir = np.array(position, np.float64), float(heading)
        self.step_count = int(state["step_count"])
        self.np_random = unpack_generator(state["rng"])
