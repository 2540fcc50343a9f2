"""``make_env``: builds any environment by its name, with the transforms that the recipes need."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torchrl.envs import (
    Compose,
    EnvBase,
    InitTracker,
    RewardClipping,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)

from torchrl_dceo.envs.cube import RubiksCubeEnv
from torchrl_dceo.envs.grid import maps
from torchrl_dceo.envs.grid.grid_world import GridWorldEnv
from torchrl_dceo.envs.grid.layouts import Layout
from torchrl_dceo.envs.grid.switching import SwitchingGridWorldEnv
from torchrl_dceo.envs.gym import make_gym_env, parallel_envs
from torchrl_dceo.envs.transforms import Coverage, RowTransform, StateCounts, num_states
from torchrl_dceo.settings import choices

__all__ = [
    "EnvKind",
    "EnvRecipe",
    "env_kind",
    "env_recipe",
    "env_settings",
    "list_envs",
    "make_env",
]

_GYM_PREFIX, _GYM_SUFFIX = "torchrl_dceo/", "-v0"
_ATARI_PREFIX = "Atari/"
_RECIPE = "_torchrl_dceo_recipe"
_MAP_CHARACTERS = set("#. SGX\n")
# Half of the million frames of the grid recipes; the paper says "a certain number".
_SWITCH_STEPS = 500_000
# Arguments of make_env itself, or not settings of an environment.
_NOT_SETTINGS = {"self", "batch_size", "seed", "device", "layout", "layouts"}
_NOT_MINIGRID = {"rows", "mission", "actions", "observation", "render_tile_size"}


class _Entry(NamedTuple):
    """How to build an environment: ``build(batch_size=…, device=…, **settings)``."""

    build: Callable[..., EnvBase]
    settings: frozenset[str]
    records: Callable[[EnvBase], list[RowTransform]] = lambda env: []  # appended where visits are


def _settings_of(kind: type) -> set[str]:
    """The argument names of a constructor, and of its bases if it passes ``**kwargs`` on to them."""
    names: set[str] = set()
    for base in kind.__mro__:
        if "__init__" not in vars(base) or not base.__module__.startswith("torchrl_dceo"):
            continue
        parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        passes_on = any(p.kind is p.VAR_KEYWORD for p in parameters)
        names |= {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        if not passes_on:
            break
    return names - _NOT_SETTINGS


def _grid(layout: Callable[..., str]) -> _Entry:
    own = set(inspect.signature(layout).parameters)

    def build(**settings: Any) -> EnvBase:
        of_map = {name: settings.pop(name) for name in own & settings.keys()}
        return GridWorldEnv(layout(**of_map), **settings)

    return _Entry(build, frozenset(_settings_of(GridWorldEnv) | own))


def _switching(layouts: Callable[..., tuple[str, ...]]) -> _Entry:
    own = set(inspect.signature(layouts).parameters)

    def build(*, switch_steps: int | Sequence[int] = _SWITCH_STEPS, **settings: Any) -> EnvBase:
        of_map = {name: settings.pop(name) for name in own & settings.keys()}
        return SwitchingGridWorldEnv(layouts(**of_map), switch_steps, **settings)

    names = _settings_of(SwitchingGridWorldEnv) - {"goals", "starts"}
    return _Entry(build, frozenset(names | own))


def _side_by_side(
    name: str,
    make: Callable[[], EnvBase],
    batch_size: torch.Size,
    parallel: bool,
    serial: type[SerialEnv] = SerialEnv,
) -> EnvBase:
    """Unbatched environments: a single one, or several in this process or in separate processes."""
    if not batch_size:
        return make()
    if len(batch_size) > 1:
        raise ValueError(f"{name} runs in one batch dimension, got batch_size {list(batch_size)}")
    return (parallel_envs if parallel else serial)(batch_size[0], make)


def _minigrid(name: str) -> _Entry:
    # MiniGrid takes a second to import, so it is imported only when needed.
    from torchrl_dceo.envs.minigrid import ENVIRONMENTS

    short = name.removeprefix(_GYM_PREFIX).removesuffix(_GYM_SUFFIX)
    if short not in ENVIRONMENTS:
        raise _unknown("environment", name, (*list_envs(), *map(_gym_id, ENVIRONMENTS)))

    def build(*, batch_size: torch.Size, parallel: bool, **settings: Any) -> EnvBase:
        make = functools.partial(_make_minigrid, short, **settings)
        return _side_by_side(short, make, batch_size, parallel)

    names = _settings_of(ENVIRONMENTS[short]) - _NOT_MINIGRID
    return _Entry(build, frozenset(names | {"parallel"}))


def _make_minigrid(name: str, **settings: Any) -> EnvBase:
    from torchrl_dceo.envs.gym import MiniGridWorldEnv

    return MiniGridWorldEnv(name, **settings)


def _miniworld(name: str) -> _Entry:
    # Needs an extra and Mesa's libraries; raises an error if they are missing.
    from torchrl_dceo.envs.miniworld import ENVIRONMENTS

    short = name.removeprefix(_GYM_PREFIX).removesuffix(_GYM_SUFFIX)

    def build(*, batch_size: torch.Size, parallel: bool, **settings: Any) -> EnvBase:
        from torchrl_dceo.envs.gym import MiniWorldEnv3D, SerialGymEnvs

        make = functools.partial(MiniWorldEnv3D, short, **settings)
        return _side_by_side(short, make, batch_size, parallel, serial=SerialGymEnvs)

    names = _settings_of(ENVIRONMENTS[short]) - {"render_mode"}
    return _Entry(build, frozenset(names | {"parallel"}))


def _gym_id(name: str) -> str:
    return f"{_GYM_PREFIX}{name}{_GYM_SUFFIX}"


def _atari(name: str) -> _Entry:
    # ale-py is imported only when a game is requested.
    from torchrl_dceo.envs.atari import rom_path
    from torchrl_dceo.envs.atari.env import AtariEnv, PlayerRecord

    game = name.removeprefix(_ATARI_PREFIX)
    rom_path(game)  # or an error that names the game that was meant

    def build(
        *, batch_size: torch.Size, vector: bool = False, num_threads: int = 0, **settings: Any
    ) -> EnvBase:
        if not vector:
            if num_threads:
                raise ValueError(f"num_threads={num_threads} has no effect without vector=True")
            return AtariEnv(game, batch_size=batch_size, **settings)
        from torchrl_dceo.envs.atari.vector import AtariVectorEnv

        for setting in ("positions", "ram", "life_ends"):
            if settings.pop(setting, None):
                raise ValueError(f"vector=True does not support {setting}: remove it")
        return AtariVectorEnv(game, batch_size=batch_size, num_threads=num_threads, **settings)

    def records(env: EnvBase) -> list[RowTransform]:
        known = isinstance(env, AtariEnv) and env.positions is not None
        return [PlayerRecord(env.num_states)] if known else []

    names = _settings_of(AtariEnv) | {"vector", "num_threads", "clip_rewards"}
    return _Entry(build, frozenset(names - {"game"}), records)


_TORCH_ENVS: dict[str, Callable[[], _Entry]] = {
    **{name: functools.partial(_grid, layout) for name, layout in maps.MAPS.items()},
    "NineRoomsGoalSwitch": functools.partial(_switching, maps.nine_rooms_goal_switch),
    "NineRoomsTopologySwitch": functools.partial(_switching, maps.nine_rooms_topology_switch),
    "RubiksCube222": lambda: _Entry(RubiksCubeEnv, frozenset(_settings_of(RubiksCubeEnv))),
}
_OBJECT_ENVS = ("EscapeRoom", "RoomsWithObstacles", "ObstructedKey")
_ATARI_ENVS = ("MontezumaRevenge",)
_MINIWORLD_ENVS = (
    "MiniWorldFourRoomsStrafe",
    "MyWayHomeSparseStrafe",
    "MiniWorldFourRooms",
    "MyWayHomeSparse",
)


def list_envs() -> list[str]:
    """Returns the names of all environments of :func:`make_env` (besides maps and files).

    Examples:
        >>> from torchrl_dceo.envs import list_envs
        >>> list_envs()[:4]
        ['NineRooms', 'FourRooms', 'Maze', 'GridMaze']
    """
    return [*_TORCH_ENVS, *_OBJECT_ENVS, *_ATARI_ENVS, *_MINIWORLD_ENVS]


def env_settings(name: str | Path | Layout) -> list[str]:
    """Returns the settings specific to an environment of :func:`make_env`.

    Examples:
        >>> from torchrl_dceo.envs import env_settings
        >>> env_settings("RubiksCube222")
        ['coverage', 'max_depth', 'max_steps', 'slip', 'start']
    """
    return sorted(_find_entry(name).settings)


def _unknown(what: str, name: str, known: Iterable[str]) -> ValueError:
    return ValueError(f"unknown {what} {choices(str(name), list(known))}")


def _is_map(name: str | Path | Layout) -> bool:
    if not isinstance(name, str):
        return True
    return not set(name) - _MAP_CHARACTERS or "\n" in name or Path(name).is_file()


def _find_entry(name: str | Path | Layout) -> _Entry:
    if isinstance(name, str) and name in _TORCH_ENVS:
        return _TORCH_ENVS[name]()
    if name == "gym":
        names = inspect.signature(make_gym_env).parameters.keys() - _NOT_SETTINGS
        return _Entry(make_gym_env, frozenset(names - {"visits", "step_counter"}))
    if name in (*_MINIWORLD_ENVS, *map(_gym_id, _MINIWORLD_ENVS)):
        return _miniworld(str(name))
    if isinstance(name, str) and (name in _OBJECT_ENVS or name.startswith(_GYM_PREFIX)):
        return _minigrid(name)
    if isinstance(name, str) and (name in _ATARI_ENVS or name.startswith(_ATARI_PREFIX)):
        return _atari(name)
    if _is_map(name):
        settings = frozenset(_settings_of(GridWorldEnv))
        return _Entry(functools.partial(GridWorldEnv, name), settings)
    raise _unknown(
        "environment", str(name), (*list_envs(), "Atari/<game>", "or a map or the path of one")
    )


@dataclass(frozen=True)
class EnvRecipe:
    """The arguments with which :func:`make_env` built an environment.

    Args:
        made_from (dict): the name (or map) and the settings.
        seed (int, optional): its seed.

    Examples:
        >>> from torchrl_dceo.envs import env_recipe, make_env
        >>> recipe = env_recipe(make_env("NineRooms", seed=3, slip=0.0, batch_size=8))
        >>> recipe.made_from
        {'name': 'NineRooms', 'slip': 0.0}
        >>> env_recipe(recipe.build(100, batch_size=20)).seed
        103
    """

    made_from: dict[str, Any]
    seed: int | None

    def build(self, offset: int = 0, **changes: Any) -> TransformedEnv:
        """Builds another such environment.

        Args:
            offset (int): added to the seed.
            **changes: settings and arguments of :func:`make_env` that differ.
        """
        settings = dict(self.made_from)
        name = settings.pop("name")
        seed = None if self.seed is None else self.seed + offset
        return make_env(name, seed=seed, **{**settings, **changes})


def env_recipe(env: EnvBase) -> EnvRecipe | None:
    """The recipe of an environment built by :func:`make_env`, also with further transforms; else ``None``."""
    while True:
        # Not via getattr: an environment forwards missing attributes to its base, or to its workers.
        recipe = env.__dict__.get(_RECIPE)
        if recipe is not None or not isinstance(env, TransformedEnv):
            return recipe
        env = env.base_env


EnvKind = Literal["grid", "cube", "3d", "atari"]


def env_kind(env: EnvBase | str | Path | Layout) -> EnvKind:
    """Returns the kind of environment in the paper's settings: ``"cube"``, ``"3d"``, ``"atari"``, or else ``"grid"``.

    Args:
        env (EnvBase, str, Path or Layout): an environment of :func:`make_env`, or its name or map. One of your
            own counts as a grid.

    Examples:
        >>> from torchrl_dceo.envs import env_kind, make_env
        >>> env_kind("MontezumaRevenge"), env_kind(make_env("RubiksCube222", max_depth=2)), env_kind("S..G")
        ('atari', 'cube', 'grid')
    """
    if isinstance(env, EnvBase):
        recipe = env_recipe(env)
        name = "" if recipe is None else str(recipe.made_from["name"])
    else:
        name = str(env)
    if name in _ATARI_ENVS or name.startswith(_ATARI_PREFIX):
        return "atari"
    if name in _MINIWORLD_ENVS:
        return "3d"
    return "cube" if name == "RubiksCube222" else "grid"


def make_env(
    name: str | Path | Layout,
    *,
    batch_size: int | Sequence[int] = (),
    seed: int | None = None,
    device: torch.device | str = "cpu",
    visits: Literal["counts", "coverage"] | StateCounts | None = None,
    step_counter: bool = False,
    **settings: Any,
) -> TransformedEnv:
    """Builds any environment with the transforms that the recipes need.

    Navigation environments, their switching variants and the cube are batched tensors; the object environments
    are MiniGrid environments, several of them run by TorchRL's ``SerialEnv`` (or ``ParallelEnv``); Atari
    games are emulators. All of them have ``pixels`` (or ``observation``), ``state_id``, ``is_init`` and
    ``episode_reward``, categorical actions, and work with TorchRL's collectors.

    Args:
        name (str, Path or Layout): one of :func:`list_envs`; a gymnasium id of this package
            (``"torchrl_dceo/NineRooms-v0"``) for the MiniGrid version of an environment; any other Atari game
            (``"Atari/Pong"``); a map, as text or as the path of a file; or ``"gym"`` for any other environment, with
            ``id="CartPole-v1"`` or ``entry_point="package.module:make"``, see
            :func:`~torchrl_dceo.envs.gym.make_gym_env`.

    Keyword Args:
        batch_size (int or Sequence[int]): the number of environments; ``()`` for one without batch
            dimension. Object environments: one dimension at most. Default: ``()``.
        seed (int, optional): by default drawn from torch's global generator.
        device (torch.device or str): Default: ``"cpu"``.
        visits (str or StateCounts, optional): ``"counts"`` appends a
            :class:`~torchrl_dceo.envs.StateCounts`, ``"coverage"`` a
            :class:`~torchrl_dceo.envs.Coverage`, which also writes the entry ``coverage``. An instance
            is cloned, so that all environments built with it share its table. Find the transform
            with :func:`~torchrl_dceo.envs.find_transform`.
        step_counter (bool): appends a ``StepCounter`` (entry ``step_count``). Default: ``False``.
        **settings: the environment's own, see :func:`env_settings`: ``slip``, ``max_steps``, ``coverage`` (no
            reward and no goal) for all of them; ``observation``, ``tile_size``, ``goal_visible``, ``goals``,
            ``starts`` for grids; ``room_size``, ``switch_steps``, ``max_depth``, ``num_obstacles``, …;
            ``parallel=True`` runs object environments in separate processes. For Atari games, those of
            :class:`~torchrl_dceo.envs.atari.env.AtariEnv`; ``clip_rewards`` (default ``True``: to [-1, 1] for
            learning; ``episode_reward`` is not clipped); ``vector=True`` for ALE's threads, see
            :class:`~torchrl_dceo.envs.atari.vector.AtariVectorEnv`, with ``num_threads``.

    Examples:
        >>> from torchrl_dceo.envs import make_env
        >>> env = make_env("NineRooms", batch_size=16, seed=0, slip=0.0)
        >>> data = env.rollout(10)
        >>> data["pixels"].shape, data["next", "episode_reward"].shape
        (torch.Size([16, 10, 3, 19, 19]), torch.Size([16, 10, 1]))
        >>> make_env("EscapeRoom", batch_size=2, seed=0).rollout(3)["action"].shape
        torch.Size([2, 3])
        >>> make_env("NineRoms")
        Traceback (most recent call last):
        ValueError: unknown environment 'NineRoms' (did you mean 'NineRooms'?); choose from NineRooms, ...
    """
    if visits not in (None, "counts", "coverage") and not isinstance(visits, StateCounts):
        raise ValueError(f"visits must be 'counts', 'coverage' or a StateCounts, got {visits!r}")
    entry = _find_entry(name)
    for setting in settings:
        if setting not in entry.settings:
            short = name if isinstance(name, str) and not _is_map(name) else "a map"
            raise _unknown(f"setting of {short}", setting, sorted(entry.settings))
    shape = torch.Size([batch_size] if isinstance(batch_size, int) else batch_size)
    text = str(name) if isinstance(name, Path) else name
    recipe = EnvRecipe({"name": text, **settings}, seed)
    if name == "gym":
        prepared = make_gym_env(
            batch_size=shape,
            seed=seed,
            device=device,
            visits=visits,
            step_counter=step_counter,
            **settings,
        )
        prepared.__dict__[_RECIPE] = recipe
        return prepared
    if "parallel" in entry.settings:
        settings.setdefault("parallel", False)
    clips = "clip_rewards" in entry.settings and settings.pop("clip_rewards", True)
    base = entry.build(batch_size=shape, device=device, **settings)
    base.set_seed(int(torch.randint(2**31, ())) if seed is None else seed)
    chain: list[Any] = [InitTracker(), RewardSum()]
    if clips:
        # After the sum: learners see the clipped reward, and ``episode_reward`` is the true return.
        chain.append(RewardClipping(-1.0, 1.0))
    if step_counter:
        chain.append(StepCounter())
    if visits is not None and "state_id" not in base.full_observation_spec.keys():
        raise ValueError(
            "visits needs state_id, which this environment does not provide (such as Atari games with vector=True)"
        )
    if isinstance(visits, StateCounts):
        if visits.counts.numel() != num_states(base):
            raise ValueError(
                f"visits counts {visits.counts.numel()} states, but this environment has {num_states(base)}"
            )
        chain.append(visits.clone())
    elif visits is not None:
        chain.append((StateCounts if visits == "counts" else Coverage)(num_states(base)))
    if visits is not None:
        chain += entry.records(base)
    env = TransformedEnv(base, Compose(*chain))
    env.__dict__[_RECIPE] = recipe
    return env
