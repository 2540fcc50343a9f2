"""Experiments other than training runs, each a plain function and a command.

This file has their common parts: transition tables by name, pairs of states from random walks, the command line.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, cast, get_args

import numpy as np
import torch
from torch import Tensor
from torchrl.data import Unbounded

from torchrl_dceo._fast import tune_process
from torchrl_dceo.analysis import reachable_states
from torchrl_dceo.envs import GridWorldEnv, TableEnv
from torchrl_dceo.envs.cube import RubiksCubeEnv
from torchrl_dceo.envs.grid.maps import find_map
from torchrl_dceo.envs.grid.random_maps import MapKind, random_map
from torchrl_dceo.settings import choices

if TYPE_CHECKING:
    from torchrl_dceo.envs.minigrid import KeyDoorEnv
    from torchrl_dceo.envs.minigrid.key_and_door import KeyDoorTableEnv

__all__ = [
    "GivenTableEnv",
    "Pairs",
    "Parser",
    "collect_pairs",
    "find_table",
    "object_table",
    "possible_starts",
    "run_command",
]

_TABLES = (".npy", ".csv")
_OBJECTS = ("EscapeRoom", "ObstructedKey")
_CUBE = "RubiksCube3"  # within three moves


class Parser(argparse.ArgumentParser):
    """A command line with one-sentence errors.

    Examples:
        >>> from torchrl_dceo.studies.experiments import Parser
        >>> parser = Parser(prog="walk")
        >>> _ = parser.add_argument("--steps", type=int)
        >>> parser.parse_args(["--step", "3"])
        Traceback (most recent call last):
        SystemExit: walk: unknown option '--step' (did you mean '--steps'?); choose from -h, --help, --steps
    """

    def __init__(self, prog: str | None = None, description: str | None = None) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def parse_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """Reads the arguments; an unknown option raises an error with the closest known one."""
        options, rest = self.parse_known_args(args, namespace)
        if rest:
            unknown = next((one for one in rest if one.startswith("-")), rest[0])
            self.error(f"unknown option {choices(unknown, list(self._option_string_actions))}")
        return options

    def error(self, message: str) -> NoReturn:
        """Ends the program with a one-sentence error."""
        sys.exit(f"{self.prog}: {message}")


def run_command(
    module: str,
    commands: Mapping[str, tuple[Callable[[Parser], None], Callable[[argparse.Namespace], None]]],
) -> None:
    """The command line of a module of experiments: the name of one of them, then its options.

    Args:
        module (str): as ``python -m`` takes it.
        commands (mapping): for each name what adds its options to a parser, and what runs it.
    """
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in commands:
        known = list(commands)
        sys.exit(
            f"python -m {module} takes the name of an experiment first, got {choices(name, known)}"
        )
    add_options, experiment = commands[name]
    described = (experiment.__doc__ or "").splitlines()[0]
    parser = Parser(prog=f"{module.rpartition('.')[2]} {name}", description=described)
    add_options(parser)
    options = parser.parse_args(sys.argv[2:])
    tune_process()
    try:
        experiment(options)
    except (ValueError, FileNotFoundError, ImportError) as error:
        sys.exit(f"{name}: {error}")


class GivenTableEnv(TableEnv):
    """An environment given only by a transition table, without a goal.

    Args:
        next_state (Tensor): int64 ``[S, A]``.

    Keyword Args:
        starts (Sequence[int], optional): start states. Default: all.
        **settings: of :class:`~torchrl_dceo.envs.TableEnv`.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.studies.experiments import GivenTableEnv
        >>> ring = GivenTableEnv(torch.tensor([[1, 2], [2, 0], [0, 1]]), slip=0.0)
        >>> ring.observe(torch.tensor([2]))
        tensor([[0., 0., 1.]])
    """

    def __init__(
        self, next_state: Tensor, *, starts: Sequence[int] | None = None, **settings: Any
    ) -> None:
        size = next_state.shape[0]
        given = range(size) if starts is None else starts
        super().__init__(next_state, given, None, "observation", Unbounded((size,)), **settings)

    def observe(self, state_ids: Tensor) -> Tensor:
        """One-hot vectors of the state ids."""
        return torch.nn.functional.one_hot(state_ids, self.num_states).float()


def find_table(name: str | Path, observation: Literal["xy", "pixels", "index"] = "xy") -> TableEnv:
    """A table-driven environment, by name or from a file, without a goal.

    Args:
        name (str or Path): a map (see :func:`~torchrl_dceo.envs.grid.maps.find_map`); ``"maze:7"``, ``"rooms:7"`` or
            ``"cave:7"``, a random map and its seed; ``"EscapeRoom"`` or ``"ObstructedKey"`` with rooms of 3 x 3;
            ``"RubiksCube3"``, the cube within three moves; or a file ``.npy`` or ``.csv`` with a table of next states,
            integers of shape ``[S, A]``.
        observation (str): the observation of maps; ignored by the others.

    Examples:
        >>> from torchrl_dceo.studies.experiments import find_table
        >>> find_table("S..\\n.#.").num_states, find_table("RubiksCube3").num_states
        (5, 385)
    """
    if str(name) == _CUBE:
        return RubiksCubeEnv(max_depth=3, coverage=True)
    if str(name) in _OBJECTS:
        return object_table(str(name), room_size=3)[1]
    if Path(str(name)).suffix in _TABLES and "\n" not in str(name):
        return GivenTableEnv(_read_table(Path(name)))
    kind, _, seed = str(name).partition(":")
    random = kind in get_args(MapKind) and seed.isdigit()
    text = random_map(int(seed), cast("MapKind", kind)) if random else find_map(name)
    return GridWorldEnv(text, observation=observation, coverage=True)


def object_table(name: str, **settings: Any) -> tuple[KeyDoorEnv, KeyDoorTableEnv]:
    """A key-and-door environment without slips and goal, and its table-driven version."""
    # Imported here because MiniGrid takes a second to import.
    from torchrl_dceo.envs.minigrid import ENVIRONMENTS
    from torchrl_dceo.envs.minigrid.key_and_door import KeyDoorTableEnv, list_states

    env = cast("KeyDoorEnv", ENVIRONMENTS[name](slip=0.0, coverage=True, **settings))
    return env, KeyDoorTableEnv(list_states(env), coverage=True)


def _read_table(path: Path) -> Tensor:
    """The table of next states in a file; an invalid file gives a one-sentence error."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        # No pickled objects: a file from elsewhere must not run code.
        if path.suffix == ".npy":
            table = np.load(path, allow_pickle=False)
        else:
            table = np.loadtxt(path, delimiter=",", ndmin=2)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path} is no table of numbers: {error}") from error
    if table.ndim != 2 or not table.size:
        raise ValueError(
            f"{path} must hold a table of next states of shape [states, actions], got {list(table.shape)}"
        )
    if not (np.isfinite(table).all() and (table == table.round()).all()):
        raise ValueError(
            f"{path} must hold the numbers of next states, got {table.flat[0]}: a row a state, a column an action"
        )
    wrong = table[(table < 0) | (table >= len(table))]
    if len(wrong):
        raise ValueError(
            f"{path} has {len(table)} states, numbered from 0, but leads to state {int(wrong[0])}"
        )
    return torch.as_tensor(table.astype(np.int64))


class Pairs(NamedTuple):
    """States and their successors in the same episode.

    Attributes:
        states (Tensor): int64 ``[N]``.
        successors (Tensor): int64 ``[N]``.
    """

    states: Tensor
    successors: Tensor


def collect_pairs(
    table_env: TableEnv,
    samples: int,
    *,
    starts: Literal["uniform", "one"] = "uniform",
    episode_steps: int = 100,
    discount: float = 0.0,
    repeat: float = 1.0,
    seed: int = 0,
) -> Pairs:
    r"""Collects pairs of states with a random policy, in episodes of a fixed length.

    The successor is one step later or, with a discount :math:`\gamma > 0`, k steps later with probability
    :math:`(1 - \gamma) \gamma^{k-1}`, cut at the end of the episode: the positive pairs of Wu et al. (2019). For a
    reversible chain, such as a random walk on a map, this does not change the eigenfunctions
    and moves an eigenvalue :math:`\lambda` to :math:`\lambda / (1 - \gamma (1 - \lambda))` (apart from the cut),
    further from its neighbours.

    Args:
        table_env (TableEnv): an environment with a transition table; its goals do not end walks.
        samples (int): the minimum number of pairs.

    Keyword Args:
        starts (str): episodes start anywhere (``"uniform"``, default) or in a start of the map (``"one"``), from
            where a walk covers little.
        episode_steps (int): steps of an episode. With uniform starts, short ones make the pairs more independent and
            the visits more uniform. Default: 100, the paper's limit.
        discount (float): :math:`\gamma`. Default: 0, one step.
        repeat (float): the mean number of steps for which an action is repeated (without slips). Above 1 walks cover
            longer distances, like options, and is not reversible. Default: 1, the uniformly random walk.
        seed (int): of the data.

    Examples:
        >>> from torchrl_dceo.envs import GridWorldEnv
        >>> from torchrl_dceo.studies.experiments import collect_pairs
        >>> states, successors = collect_pairs(GridWorldEnv("S...."), 1000)
        >>> states.shape, int((states - successors).abs().max())
        (torch.Size([1000]), 1)
    """
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    if starts not in ("uniform", "one"):
        raise ValueError(f"starts must be 'uniform' or 'one', got {starts!r}")
    if episode_steps < 1:
        raise ValueError(f"episode_steps must be at least 1, got {episode_steps}")
    if not 0 <= discount < 1:
        raise ValueError(f"discount must lie in [0, 1), got {discount}")
    if repeat < 1:
        raise ValueError(f"repeat must be at least 1, got {repeat}")
    walkers = -(-samples // episode_steps)
    env = GivenTableEnv(
        table_env.next_state,
        starts=(possible_starts(table_env) if starts == "uniform" else table_env._starts).tolist(),
        slip=table_env.slip,
        max_steps=None,
        batch_size=[walkers],
        seed=seed,
    )
    generator = torch.Generator().manual_seed(seed + 1)
    actions = torch.randint(env.num_actions, (episode_steps, walkers), generator=generator)
    if repeat > 1:
        kept = torch.rand(actions.shape, generator=generator) >= 1 / repeat
        for step in range(1, episode_steps):
            actions[step] = torch.where(kept[step], actions[step - 1], actions[step])
    data = env.reset()
    visited = [data["state_id"]]
    for action in actions:
        # A slip is a random action too, so it does not change the uniformly random walk.
        data = env.step(data.set("action", action))["next"]
        visited.append(data["state_id"])
    path = torch.stack(visited, dim=1)  # [walkers, steps + 1]
    time = torch.arange(episode_steps).expand(walkers, -1)
    ahead = torch.ones_like(time)
    if discount:
        ahead = torch.empty(time.shape).geometric_(1 - discount, generator=generator).long()
    last = (time + ahead).clamp(max=episode_steps)
    return Pairs(path[:, :-1].reshape(-1), path.gather(1, last).reshape(-1))


def possible_starts(env: TableEnv) -> Tensor:
    """The starts of walks with uniform starts: every cell of a map; in other environments every reachable state."""
    every = torch.arange(env.num_states)
    if isinstance(env, GridWorldEnv):
        return every
    return every[reachable_states(env.next_state, env._starts)]
