"""Experiments that are more than training runs, each a plain function and a command; what they share: data, parser."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, NoReturn

import torch
from torch import Tensor

from torchrl_dceo._fast import tune_process
from torchrl_dceo.envs import GridWorldEnv, TableEnv
from torchrl_dceo.settings import choices

__all__ = ["Pairs", "Parser", "collect_pairs", "run_command"]


class Parser(argparse.ArgumentParser):
    """A command line whose mistakes are one sentence.

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
        """Reads the arguments; an option that is not known is refused with the one that may be meant."""
        options, rest = self.parse_known_args(args, namespace)
        if rest:
            unknown = next((one for one in rest if one.startswith("-")), rest[0])
            self.error(f"unknown option {choices(unknown, list(self._option_string_actions))}")
        return options

    def error(self, message: str) -> NoReturn:
        """Ends the program with one sentence."""
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


class Pairs(NamedTuple):
    """States and what followed them in the same episode.

    Attributes:
        states (Tensor): int64 ``[N]``.
        successors (Tensor): int64 ``[N]``.
    """

    states: Tensor
    successors: Tensor


def collect_pairs(
    world: TableEnv,
    samples: int,
    *,
    starts: Literal["uniform", "one"] = "uniform",
    episode_steps: int = 100,
    discount: float = 0.0,
    repeat: float = 1.0,
    seed: int = 0,
) -> Pairs:
    r"""Collects pairs of states with a random policy, in episodes of a fixed length.

    The successor is one step on or, with a discount :math:`\gamma > 0`, k steps on with probability
    :math:`(1 - \gamma) \gamma^{k-1}`, cut at the end of the episode: the positive pairs of Wu et al. (2019). On a chain
    that can be walked back as well as forth, as a random walk on a map can, this leaves the eigenfunctions as they are
    and moves an eigenvalue :math:`\lambda` to :math:`\lambda / (1 - \gamma (1 - \lambda))` (but for the cut), further
    from its neighbours and from the noise.

    Args:
        world (TableEnv): a map, or the table of an object world.
        samples (int): how many pairs, at least.

    Keyword Args:
        starts (str): every episode starts anywhere (``"uniform"``, default) or in a start of the map (``"one"``), from
            where a walk covers little.
        episode_steps (int): steps of an episode. With uniform starts, short ones make the pairs more independent and
            the states more evenly visited. Default: 100, the paper's limit.
        discount (float): :math:`\gamma`. Default: 0, one step.
        repeat (float): how many steps an action is kept, on average (slips aside). Above 1 the walk goes far, as
            options do, and is no longer reversible. Default: 1, the uniformly random walk.
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
    env = _walkers(world, walkers, starts == "uniform", seed)
    generator = torch.Generator().manual_seed(seed + 1)
    actions = torch.randint(env.num_actions, (episode_steps, walkers), generator=generator)
    if repeat > 1:
        kept = torch.rand(actions.shape, generator=generator) >= 1 / repeat
        for step in range(1, episode_steps):
            actions[step] = torch.where(kept[step], actions[step - 1], actions[step])
    data = env.reset()
    visited = [data["state_id"]]
    for action in actions:
        # The slip is a random action too: the walk is uniformly random with and without it.
        data = env.step(data.set("action", action))["next"]
        visited.append(data["state_id"])
    path = torch.stack(visited, dim=1)  # [walkers, steps + 1]
    time = torch.arange(episode_steps).expand(walkers, -1)
    ahead = torch.ones_like(time)
    if discount:
        ahead = torch.empty(time.shape).geometric_(1 - discount, generator=generator).long()
    last = (time + ahead).clamp(max=episode_steps)
    return Pairs(path[:, :-1].reshape(-1), path.gather(1, last).reshape(-1))


def _walkers(world: TableEnv, count: int, anywhere: bool, seed: int) -> TableEnv:
    """As many copies of an environment, side by side, without a goal."""
    starts: Literal["anywhere"] | None = "anywhere" if anywhere else None
    if isinstance(world, GridWorldEnv):
        return GridWorldEnv(
            world.layout,
            observation="xy",
            coverage=True,
            starts=starts,
            batch_size=[count],
            seed=seed,
        )
    # MiniGrid takes a second to import: only for its environments.
    from torchrl_dceo.envs.minigrid.key_and_door import KeyDoorTableEnv

    if not isinstance(world, KeyDoorTableEnv):
        raise TypeError(
            f"pairs come from a GridWorldEnv or a KeyDoorTableEnv, got {type(world).__name__}"
        )
    return KeyDoorTableEnv(world.table, coverage=True, starts=starts, batch_size=[count], seed=seed)
