"""Grid environments whose map changes during a run; the observation does not indicate the change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchrl.envs import EnvBase, TransformedEnv

from torchrl_dceo.envs.grid.grid_world import GridWorldEnv
from torchrl_dceo.envs.grid.layouts import Layout, parse_layout

__all__ = [
    "SwitchingGridWorldEnv",
    "current_map",
    "follow_map",
    "hold_map",
    "set_steps_made",
    "steps_made",
]


class SwitchingGridWorldEnv(GridWorldEnv):
    """A grid environment whose map is replaced after given numbers of steps (the paper's non-stationary tasks).

    Each environment of the batch counts its own steps, over all its episodes. Once it has made
    ``switch_steps[i]`` of them, map ``i + 1`` is in force: its walls and goals from the next step on,
    its starts from the next reset on. Nothing else happens: the running episode continues, no entry of the tensordict
    indicates the change, and ``state_id`` keeps its meaning. The result of a step belongs to the map that the
    step was made in, so the first image of a new map comes with the first step in it.

    The step counts are part of :meth:`get_env_state`: a restored environment switches when it would have.

    Args:
        layouts (Sequence of str, Path or Layout): the maps in their order, of equal size and with the
            same cells numbered: mark a hallway that closes (or is still to open) with ``X``, a wall that
            keeps its ``state_id``. An agent that is in a hallway when it closes can leave it.
        switch_steps (int or Sequence[int]): the total number of steps of an environment before each
            switch, increasing; one fewer than ``layouts``.

    Keyword Args:
        **kwargs: those of :class:`~torchrl_dceo.envs.grid.grid_world.GridWorldEnv`, except ``goals`` and
            ``starts``, which each map defines itself.

    ``stationary_env(i)`` is the stationary environment of map ``i``. ``observe``, ``transition_matrix`` and
    ``next_state`` refer to the first map.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.envs.grid.maps import nine_rooms_goal_switch
        >>> from torchrl_dceo.envs.grid.switching import SwitchingGridWorldEnv
        >>> env = SwitchingGridWorldEnv(nine_rooms_goal_switch(), 100, seed=0)
        >>> first = env.rollout(100)[0]["state_id"]
        >>> then = env.rollout(1)[0]["state_id"]
        >>> env.cells[first].tolist(), env.cells[then].tolist()
        ([1, 17], [1, 1])
    """

    _all_moves: Tensor
    _all_goals: Tensor
    _all_starts: Tensor
    _start_counts: Tensor
    _all_seen_kinds: Tensor
    _all_render_kinds: Tensor
    _all_observations: Tensor | None
    _switch_steps: Tensor
    _held: int | None = None

    def __init__(
        self,
        layouts: Sequence[str | Path | Layout],
        switch_steps: int | Sequence[int],
        **kwargs: Any,
    ) -> None:
        for name in ("goals", "starts"):
            if name in kwargs:
                raise TypeError(f"{name} is given by the marks of each map, not as an argument")
        maps = [parse_layout(layout) for layout in layouts]
        steps = [switch_steps] if isinstance(switch_steps, int) else list(switch_steps)
        _check(maps, steps)
        super().__init__(maps[0], **kwargs)
        self.layouts = tuple(maps)
        self._env_settings = {**kwargs, "batch_size": (), "seed": 0}
        self._stack_tables([self.stationary_env(i) for i in range(len(maps))])
        boundaries = torch.tensor(steps, device=self.device)
        self.register_buffer("_switch_steps", boundaries, persistent=False)
        self._map = self._map_in_force()

    def stationary_env(self, index: int) -> GridWorldEnv:
        """Returns a new, single, stationary environment of one of the maps, with the same states.

        Examples:
            >>> from torchrl_dceo.envs.grid.maps import nine_rooms_topology_switch
            >>> from torchrl_dceo.envs.grid.switching import SwitchingGridWorldEnv
            >>> env = SwitchingGridWorldEnv(nine_rooms_topology_switch(), 1000)
            >>> [env.stationary_env(i).num_states for i in (0, 1)]
            [237, 237]
        """
        return GridWorldEnv(self.layouts[index], **self._env_settings)

    @property
    def map_index(self) -> Tensor:
        """The map of the last step of each environment, int64 ``[*B]``; before the first step, map 0.

        Examples:
            >>> from torchrl_dceo.envs.grid.switching import SwitchingGridWorldEnv
            >>> env = SwitchingGridWorldEnv(["S..G", "G..S"], 2, slip=0.0)
            >>> [(env.rollout(1), int(env.map_index))[1] for _ in range(3)]
            [0, 0, 1]
        """
        return self._map_after((self._env_steps - 1).clamp(min=0))

    def hold_map(self, index: int | None) -> None:
        """Fixes the map of all environments, independent of their steps; ``None`` removes the override.

        For evaluation in a separate environment with the map of training, see :func:`follow_map`. It is not
        part of :meth:`get_env_state`.

        Examples:
            >>> from torchrl_dceo.envs.grid.switching import SwitchingGridWorldEnv
            >>> env = SwitchingGridWorldEnv(["S..G", "G..S"], 100)
            >>> env.hold_map(1)
            >>> int(env.reset()["state_id"])
            3
        """
        if index is not None and not 0 <= index < len(self.layouts):
            raise ValueError(f"index must lie in [0, {len(self.layouts)}), got {index}")
        self._held = index

    def render(self, state_ids: Tensor | None = None, *, tile_size: int = 16) -> Tensor:
        """Draws the environments in their current maps (or ``state_ids``, in the first map).

        See :meth:`torchrl_dceo.envs.grid.grid_world.GridWorldEnv.render`.
        """
        if state_ids is not None:
            return super().render(state_ids, tile_size=tile_size)
        return self._draw_for_people(self._all_render_kinds[self._map], self._state, tile_size)

    def set_env_state(self, state: dict[str, Tensor]) -> None:
        """Restores a state of :meth:`get_env_state`, including the current map."""
        super().set_env_state(state)
        self._map = self._map_in_force()

    def _stack_tables(self, envs: Sequence[GridWorldEnv]) -> None:
        """Concatenates the tables of all maps: a state in map i is row ``i * S + state``."""
        most_starts = max(len(env.layout.starts) for env in envs)
        starts = [env._starts for env in envs]
        padded = [torch.nn.functional.pad(s, (0, most_starts - len(s))) for s in starts]
        observed = [w._observations for w in envs if w._observations is not None]
        tables = {
            "_all_moves": torch.cat([env._moves for env in envs]),
            "_all_goals": torch.cat([env._is_goal for env in envs]),
            "_all_starts": torch.stack(padded),
            "_start_counts": torch.tensor([len(s) for s in starts], device=self.device),
            "_all_seen_kinds": torch.stack([env._seen_kinds for env in envs]),
            "_all_render_kinds": torch.stack([env._render_kinds for env in envs]),
            "_all_observations": torch.cat(observed) if observed else None,
        }
        for name, table in tables.items():
            self.register_buffer(name, table, persistent=False)

    def _map_in_force(self) -> Tensor:
        return self._map_after(self._env_steps)

    def _map_after(self, steps: Tensor) -> Tensor:
        if self._held is not None:
            return torch.full_like(steps, self._held)
        return torch.bucketize(steps, self._switch_steps, right=True)

    def _draw_start(self) -> Tensor:
        self._map = self._map_in_force()
        width = self._all_starts.shape[1]
        if width == 1:
            return self._all_starts.take(self._map)
        counts = self._start_counts.take(self._map)
        which = (self._uniform() * counts).long().minimum(counts - 1)
        return self._all_starts.take(self._map * width + which)

    def _move(self, state: Tensor, action: Tensor) -> Tensor:
        # Determined before the step is counted, so that the step's goal and image are from the same map.
        self._map = self._map_in_force()
        row = self._map * self.num_states + state
        return self._all_moves.take(row * self.num_actions + action)

    def _reached_goal(self, state: Tensor) -> Tensor:
        return self._all_goals.take(self._map * self.num_states + state)

    def _observe_now(self) -> Tensor:
        if self._all_observations is None:
            return self._compute_observation(self._state, self._all_seen_kinds[self._map])
        row = self._map * self.num_states + self._state
        observation = self._all_observations.index_select(0, row.reshape(-1))
        return observation.view(*self.batch_size, *self._observation_shape)


def current_map(env: EnvBase) -> int | None:
    """Returns the map of the last step of an environment that changes; ``None`` for other environments.

    For a batch it is the latest map of its environments.

    Args:
        env (EnvBase): any environment, under any transforms.

    Examples:
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.envs.grid.switching import current_map
        >>> env = make_env("NineRoomsGoalSwitch", switch_steps=5, batch_size=2)
        >>> _ = env.rollout(6, break_when_any_done=False)
        >>> current_map(env), current_map(make_env("NineRooms"))
        (1, None)
    """
    switching = _switching_env(env)
    return None if switching is None else int(switching.map_index.max())


def follow_map(follower: EnvBase, leader: EnvBase) -> None:
    """Sets one changing environment to the map of another from its next reset on; does nothing to other environments.

    Args:
        follower (EnvBase): for example, the evaluation environment.
        leader (EnvBase): the environment of training.

    Examples:
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.envs.grid.switching import current_map, follow_map
        >>> leader, follower = (make_env("NineRoomsGoalSwitch", switch_steps=5) for _ in range(2))
        >>> _ = leader.rollout(6)
        >>> follow_map(follower, leader)
        >>> current_map(follower)
        1
    """
    index = current_map(leader)
    if index is not None:
        hold_map(follower, index)


def hold_map(env: EnvBase, index: int | None) -> None:
    """Fixes the map of a changing environment from its next reset on; does nothing to other environments.

    Examples:
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.envs.grid.switching import current_map, hold_map
        >>> env = make_env("NineRoomsGoalSwitch")
        >>> hold_map(env, 1)
        >>> current_map(env)
        1
    """
    switching = _switching_env(env)
    if switching is not None:
        switching.hold_map(index)


def steps_made(env: EnvBase) -> Tensor | None:
    """Returns the step counts of a changing environment's batch; ``None`` for other environments.

    Examples:
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.envs.grid.switching import steps_made
        >>> env = make_env("NineRoomsGoalSwitch", batch_size=2)
        >>> _ = env.rollout(6, break_when_any_done=False)
        >>> steps_made(env)
        tensor([6, 6])
    """
    switching = _switching_env(env)
    return None if switching is None else switching._env_steps.clone()


def set_steps_made(env: EnvBase, steps: Tensor) -> None:
    """Sets the step counts of a changing environment, which determine its map.

    Args:
        env (EnvBase): any environment; nothing happens to environments that do not change.
        steps (Tensor): int64, of the environment's batch size.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.envs.grid.switching import current_map, set_steps_made
        >>> env = make_env("NineRoomsGoalSwitch", switch_steps=5, batch_size=2)
        >>> set_steps_made(env, torch.tensor([5, 6]))
        >>> current_map(env)
        1
    """
    switching = _switching_env(env)
    if switching is not None:
        switching._env_steps = steps.to(switching._env_steps).view(switching.batch_size).clone()
        switching._map = switching._map_in_force()


def _switching_env(env: EnvBase) -> SwitchingGridWorldEnv | None:
    while isinstance(env, TransformedEnv):
        env = env.base_env
    return env if isinstance(env, SwitchingGridWorldEnv) else None


def _check(maps: Sequence[Layout], steps: Sequence[int]) -> None:
    if len(maps) < 2 or len(steps) != len(maps) - 1:
        raise ValueError(
            f"a switching environment needs at least two maps and one switch between any two, got {len(maps)} maps and "
            f"{len(steps)} switch_steps"
        )
    if any(later <= earlier for earlier, later in zip([0, *steps], steps, strict=False)):
        raise ValueError(f"switch_steps must be positive and increasing, got {list(steps)}")
    first = maps[0]
    for i, layout in enumerate(maps[1:], start=1):
        if (layout.height, layout.width) != (first.height, first.width):
            raise ValueError(
                f"all maps must have one size, got {first.height} x {first.width} cells for map 0 and "
                f"{layout.height} x {layout.width} for map {i}"
            )
        different = sorted(set(layout.cells) ^ set(first.cells))
        if different:
            raise ValueError(
                f"cell {different[0]} has a state_id in only one of maps 0 and {i}: "
                "mark it 'X' where it is closed"
            )
