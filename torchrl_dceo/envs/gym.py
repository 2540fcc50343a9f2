"""Gymnasium environments under TorchRL: registered ones, your own, and those of this package."""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import signal
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.envs import (
    CatFrames,
    EnvBase,
    GymEnv,
    ParallelEnv,
    RewardClipping,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)

from torchrl_dceo._fast import is_fast
from torchrl_dceo._fast.rollout import CompleteSteps
from torchrl_dceo.envs.grid.grid_world import TILE_KINDS, draw_tiles
from torchrl_dceo.envs.observations import Layout, ObservationReader, as_torchrl
from torchrl_dceo.envs.prepare import PreparedEnv, append_visits, prepare_env
from torchrl_dceo.envs.transforms import ActionNoise, StateCounts
from torchrl_dceo.settings import choices, imported

if TYPE_CHECKING:
    from torchrl_dceo.envs.minigrid import MiniGridMapEnv
    from torchrl_dceo.envs.miniworld import MiniWorld3D

__all__ = [
    "MiniGridWorldEnv",
    "MiniWorldEnv3D",
    "OptionActionWrapper",
    "SerialGymEnvs",
    "StatefulGymEnv",
    "make_gym_env",
    "parallel_envs",
]


def make_gym_env(
    id: str | None = None,  # gymnasium's name for it
    *,
    entry_point: str | Callable[..., EnvBase | gymnasium.Env] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str | Callable[[gymnasium.Env], gymnasium.Env]] = (),
    observation: str | Sequence[str] | None = None,
    layout: Layout = "auto",
    frame_stack: int = 1,
    max_steps: int | None = None,
    clip_rewards: bool = False,
    slip: float = 0.0,
    coverage: bool = False,
    batch_size: int | Sequence[int] = (),
    parallel: bool = False,
    seed: int | None = None,
    device: torch.device | str = "cpu",
    visits: Literal["counts", "coverage"] | StateCounts | None = None,
    step_counter: bool = False,
) -> PreparedEnv:
    """Builds any Gymnasium environment, or one of your own, with all entries that agents need.

    Args:
        id (str, optional): its id in gymnasium: ``"CartPole-v1"``, ``"MiniGrid-FourRooms-v0"``.

    Keyword Args:
        entry_point (str or callable, optional): instead of ``id``, a function that builds a Gymnasium or
            TorchRL (without batch dimension): ``"package.module:make"``.
        kwargs (mapping, optional): its arguments.
        wrappers (sequence of str or callable, optional): Gymnasium wrappers, the innermost first:
            ``["minigrid.wrappers:ImgObsWrapper"]``.
        observation, layout: see :func:`~torchrl_dceo.envs.prepare_env`.
        frame_stack (int, optional): the number of frames in an observation. Default: 1.
        max_steps (int, optional): step limit of an episode, instead of the registered one.
        clip_rewards (bool, optional): clip rewards to [-1, 1] for learning; ``episode_reward`` is not clipped. Default:
            ``False``.
        slip (float, optional): probability that a random action overwrites the action. Default: 0.
        coverage (bool, optional): no reward; episodes end as before. Default: ``False``.
        batch_size (int or sequence of int, optional): the number of environments, in one process (``SerialEnv``).
        parallel (bool, optional): one process per environment (``ParallelEnv``). Default: ``False``.
        seed, device, visits, step_counter: see :func:`~torchrl_dceo.envs.make_env`.

    Examples:
        >>> from torchrl_dceo.envs import make_env
        >>> env = make_env("gym", id="CartPole-v1", batch_size=2, frame_stack=3, seed=0)
        >>> env.rollout(5, break_when_any_done=False)["observation"].shape
        torch.Size([2, 5, 12])
        >>> make_env("gym", id="CartPool-v1")
        Traceback (most recent call last):
        ValueError: gymnasium has no environment 'CartPool-v1' (did you mean 'CartPole-v1'?)
    """
    if frame_stack < 1:
        raise ValueError(f"frame_stack must be at least 1, got {frame_stack}")
    if (id is None) == (entry_point is None):
        raise ValueError(
            "an environment needs either id, e.g. id='CartPole-v1', or entry_point='package.module:make'"
        )
    make = functools.partial(
        _make_single, id, entry_point, dict(kwargs or {}), tuple(wrappers or ()), max_steps
    )
    shape = torch.Size([batch_size] if isinstance(batch_size, int) else batch_size)
    base: EnvBase
    if not shape:
        base = make()
    elif len(shape) > 1:
        raise ValueError(f"batch_size must have one dimension at most, got {list(shape)}")
    else:
        base = (parallel_envs if parallel else SerialEnv)(shape[0], make)
    base.set_seed(int(torch.randint(2**31, ())) if seed is None else seed)
    env = prepare_env(base, observation=observation, layout=layout, reward_free=coverage)
    if not isinstance(env, PreparedEnv):
        env = PreparedEnv(env)
    if slip:
        env.append_transform(ActionNoise(slip, seed=seed))
    if visits is not None:
        # Before frames are stacked: a state is identified by the newest frame.
        append_visits(env, visits)
    if frame_stack > 1:
        image = "pixels" in env.full_observation_spec.keys()
        key, dim = ("pixels", -3) if image else ("observation", -1)
        env.append_transform(CatFrames(N=frame_stack, dim=dim, in_keys=[key]))
    if clip_rewards:
        # After the sum: learners see the clipped reward, and ``episode_reward`` is the true return.
        env.append_transform(RewardClipping(-1.0, 1.0))
    if step_counter:
        env.append_transform(StepCounter())
    return env if torch.device(device) == env.device else env.to(device)


def _make_single(
    id: str | None,
    entry_point: str | Callable[..., EnvBase | gymnasium.Env] | None,
    kwargs: dict[str, Any],
    wrappers: Sequence[str | Callable[[gymnasium.Env], gymnasium.Env]],
    max_steps: int | None,
) -> EnvBase:
    env: EnvBase | gymnasium.Env
    if id is not None:
        limit: dict[str, Any] = {} if max_steps is None else {"max_episode_steps": max_steps}
        try:
            env = gymnasium.make(_known_id(id), **limit, **kwargs)
        except TypeError as error:
            raise ValueError(f"{id} cannot be built with {kwargs}: {error}") from None
    else:
        env = imported(entry_point)(**kwargs)
        if isinstance(env, EnvBase):
            if wrappers:
                raise ValueError(
                    "Gymnasium wrappers cannot wrap an environment of TorchRL: remove wrappers"
                )
            limited = env if max_steps is None else TransformedEnv(env, StepCounter(max_steps))
            return limited if env.device is not None else limited.to("cpu")
        if max_steps is not None:
            env = gymnasium.wrappers.TimeLimit(env, max_steps)
    for wrapper in wrappers:
        env = imported(wrapper)(env)
    return as_torchrl(env)


def _known_id(id: str) -> str:
    if id.startswith("MiniGrid-") or id.startswith("BabyAI-"):
        import minigrid  # noqa: F401  (registers its environments)
    elif id.startswith("ALE/"):
        import ale_py

        gymnasium.register_envs(ale_py)
    if id not in gymnasium.registry and ":" not in id:
        known = choices(id, sorted(gymnasium.registry)).split(";")[0]
        raise ValueError(f"gymnasium has no environment {known}")
    return id


class OptionActionWrapper(gymnasium.Wrapper):
    """A Gymnasium environment with options as additional actions (macro actions of several steps).

    The environment's own actions, 0 to ``num_actions - 1``, take one step. Action ``num_actions + i`` follows option
    ``i`` greedily; the option ends with probability 1/D after each step, and with the episode. Its rewards are
    summed, discounted by ``gamma``; ``info["option_steps"]`` is its number of steps. So agents of any library
    can explore with options learned with this package.

    Args:
        env (gymnasium.Env): with discrete actions, and observations as in the environment of the options.
        options (callable): writes ``option_action_value`` ``[N, A]`` into a tensordict with the observation: an
            :class:`~torchrl_dceo.modules.OptionQValueActor`, e.g. of :func:`~torchrl_dceo.training.load_options`.

    Keyword Args:
        num_options (int, optional): N. Default: ``options.num_options``.
        option_duration (float, optional): D, the mean number of steps of an option. Default: 10.
        gamma (float, optional): Default: 1, the plain sum.
        layout (str, optional): of images, see :func:`~torchrl_dceo.envs.prepare_env`. Default: ``"auto"``.

    Examples:
        >>> import gymnasium
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs.gym import OptionActionWrapper
        >>> env = gymnasium.make("CartPole-v1")
        >>> options = make_agent("dceo", env, num_options=3).policy[1]
        >>> wrapped = OptionActionWrapper(env, options)
        >>> wrapped.action_space
        Discrete(8)
        >>> _ = wrapped.reset(seed=0)
        >>> observation, reward, *_, info = wrapped.step(7)  # the last of 3 options in both directions
        >>> reward == info["option_steps"]  # CartPole gives 1 a step
        True
    """

    def __init__(
        self,
        env: gymnasium.Env,
        options: Any,
        *,
        num_options: int | None = None,
        option_duration: float = 10.0,
        gamma: float = 1.0,
        layout: Layout = "auto",
    ) -> None:
        super().__init__(env)
        if not isinstance(env.action_space, gymnasium.spaces.Discrete):
            raise ValueError(
                f"options are over discrete actions, this environment has {env.action_space}"
            )
        if option_duration < 1:
            raise ValueError(f"option_duration must be at least 1 step, got {option_duration}")
        self.options = options
        self.num_options = options.num_options if num_options is None else num_options
        self.option_duration, self.gamma = option_duration, gamma
        self.num_primitive = int(env.action_space.n)
        self._first = int(env.action_space.start)
        self.action_space = gymnasium.spaces.Discrete(self.num_primitive + self.num_options)
        self._formatted = ObservationReader(env, layout)
        self._observation: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets the environment."""
        if seed is not None:
            self._random = torch.Generator().manual_seed(seed)
        elif not hasattr(self, "_random"):
            self._random = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
        self._observation, info = self.env.reset(seed=seed, options=options)
        return self._observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes one step, or all steps of an option."""
        option = int(action) - self.num_primitive
        total, discount, steps = 0.0, 1.0, 0
        while True:
            chosen = int(action) if option < 0 else self._option_action(option)
            stepped = self.env.step(self._first + chosen)
            self._observation, reward, terminated, truncated, info = stepped
            total, discount, steps = (
                total + discount * float(reward),
                discount * self.gamma,
                steps + 1,
            )
            if option < 0 or terminated or truncated or self._ends():
                break
        return self._observation, total, terminated, truncated, {**info, "option_steps": steps}

    def _ends(self) -> bool:
        return float(torch.rand((), generator=self._random)) < 1 / self.option_duration

    @torch.no_grad()
    def _option_action(self, option: int) -> int:
        values = self.options(self._formatted(self._observation))["option_action_value"]
        return int(values[option].argmax(-1))


class StatefulGymEnv(GymEnv):
    """``GymEnv`` of a registered environment with ``state_id`` and save/restore; categorical actions, on the CPU.

    The Gymnasium environment needs ``num_states``, ``get_state`` and ``set_state`` (of plain numbers and arrays).

    Args:
        registered (str): its id in gymnasium.
        **kwargs: the arguments of the environment, and those of ``GymEnv`` such as ``device``.

    Examples:
        >>> from torchrl_dceo.envs.gym import StatefulGymEnv
        >>> from torchrl_dceo.envs.minigrid import env_id
        >>> env = StatefulGymEnv(env_id("EscapeRoom"))
        >>> _ = env.reset()
        >>> env.num_states, "agent_pos" in env.get_env_state()
        (420, True)
    """

    def __init__(self, registered: str, **kwargs: Any) -> None:
        kwargs = {"categorical_action_encoding": True, "device": "cpu", **kwargs}
        super().__init__(registered, **kwargs)

    @property
    def gym_env(self) -> Any:
        """The gymnasium environment itself."""
        return self._env.unwrapped

    @property
    def num_states(self) -> int:
        """The number of values of ``state_id``."""
        return self.gym_env.num_states

    def get_env_state(self) -> dict[str, Tensor]:
        """Returns the complete state, generator included, as plain tensors (copies)."""
        return {key: torch.as_tensor(value) for key, value in self.gym_env.get_state().items()}

    def set_env_state(self, state: dict[str, Tensor]) -> None:
        """Restores a state of :meth:`get_env_state`; the environment continues exactly."""
        arrays = {key: value.cpu().numpy().copy() for key, value in state.items()}
        self.gym_env.set_state({k: int(v) if v.ndim == 0 else v for k, v in arrays.items()})


class SerialGymEnvs(CompleteSteps, SerialEnv):
    """``SerialEnv`` of several :class:`StatefulGymEnv`, stepped directly, without a tensordict for each.

    The transitions equal those of ``SerialEnv``, whose implementation is used if the fast paths are switched off.

    Args:
        num_workers (int): how many.
        make (callable): builds one :class:`StatefulGymEnv`, without a wrapper of gymnasium that changes steps.
    """

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if not is_fast() or tensordict.get("_step", None) is not None:
            return super()._step(tensordict)
        envs: list[StatefulGymEnv] = self._envs
        actions = tensordict.get("action").tolist()
        results = [env.gym_env.step(action) for env, action in zip(envs, actions, strict=True)]
        observations, rewards, terminated, truncated, _ = zip(*results, strict=True)
        entries: dict[str, Any] = {
            key: torch.from_numpy(np.stack([seen[key] for seen in observations]))
            for key in observations[0]
        }
        ended, cut = (torch.tensor(flags).unsqueeze(-1) for flags in (terminated, truncated))
        entries |= {"reward": torch.tensor(rewards, dtype=torch.float32).unsqueeze(-1)}
        entries |= {"done": ended | cut, "terminated": ended, "truncated": cut}
        return TensorDict(entries, self.batch_size, device=self.device)


@dataclass
class _InWorker:
    """Builds an environment; in a worker process it also ignores signals, which the training process handles."""

    make: Callable[[], EnvBase]

    def __call__(self) -> EnvBase:
        if multiprocessing.parent_process() is not None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return self.make()


_open: weakref.WeakSet[ParallelEnv] = weakref.WeakSet()


def parallel_envs(num_workers: int, make: Callable[[], EnvBase]) -> ParallelEnv:
    """``ParallelEnv`` whose worker processes end with the process that steps them, and not before.

    Ctrl-C and a cluster's SIGTERM are sent to every process of a group. Workers that end could not be saved any more,
    and closing waits ten seconds for each. An environment that is still open when Python exits is closed then.

    Args:
        num_workers (int): how many.
        make (callable): builds one environment.
    """
    env = ParallelEnv(num_workers, _InWorker(make))
    # Registered after multiprocessing's handler, hence called before it; that one waits for the workers to end.
    atexit.unregister(_close_all)
    atexit.register(_close_all)
    _open.add(env)
    return env


def _close_all() -> None:
    for env in list(_open):
        workers = [] if env.is_closed else list(env._workers)
        try:
            env.close(raise_if_closed=False)
        except Exception:
            # One of them is dead: waiting for the others would never end.
            for worker in workers:
                worker.kill()


class MiniGridWorldEnv(StatefulGymEnv):
    """One MiniGrid environment of this package under TorchRL: categorical actions, pixels, ``state_id``.

    It is the ``GymEnv`` of the registered environment, with the features of the table-driven environments:
    ``num_states``, saving and restoring in mid-episode, and an image for people. For a batch, use
    TorchRL's ``SerialEnv`` or ``ParallelEnv``, or
    :func:`make_env(name, batch_size=n) <torchrl_dceo.envs.make_env>`.

    Args:
        name (str): ``"EscapeRoom"``, ``"RoomsWithObstacles"``, …, see
            :data:`torchrl_dceo.envs.minigrid.ENVIRONMENTS`.
        **kwargs: the arguments of the environment, and those of ``GymEnv`` such as ``device``.

    Examples:
        >>> from torchrl_dceo.envs.gym import MiniGridWorldEnv
        >>> env = MiniGridWorldEnv("EscapeRoom", slip=0.0)
        >>> _ = env.set_seed(0)
        >>> data = env.rollout(5)
        >>> data["pixels"].dtype, data["action"].shape, env.num_states
        (torch.uint8, torch.Size([5]), 420)
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        # Imported here because MiniGrid takes a second to import.
        from torchrl_dceo.envs.minigrid import env_id

        super().__init__(env_id(name), **kwargs)

    @property
    def gym_env(self) -> MiniGridMapEnv:
        """The MiniGrid environment itself."""
        return self._env.unwrapped

    def render(self, *, tile_size: int = 16) -> Tensor:
        """Returns an RGB image for people with the goal in it, ``uint8 [H, W, 3]``."""
        env = self.gym_env
        kinds = torch.as_tensor(env.cells, dtype=torch.int64)
        agent = "agent" if env.carrying is None else "agent_with_key"
        x, y = env.agent_pos
        kinds[y, x] = TILE_KINDS.index(agent)
        return draw_tiles(kinds, tile_size).movedim(0, -1).contiguous()


class MiniWorldEnv3D(StatefulGymEnv):
    """One MiniWorld environment of this package under TorchRL: categorical actions, ``pixels``, ``state_id``, ``pose``.

    It is the ``GymEnv`` of the registered environment, with the features of the others: ``num_states``, saving
    and restoring in mid-episode, and an image for people. Needs the extra ``miniworld`` and Mesa's libraries.

    Args:
        name (str): ``"MiniWorldFourRoomsStrafe"``, ``"MyWayHomeSparseStrafe"``, ``"MiniWorldFourRooms"`` or
            ``"MyWayHomeSparse"``.
        **kwargs: the arguments of the environment, and those of ``GymEnv`` such as ``device``.
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        # Imported here, so that a worker process that unpickles this class registers the environments too.
        from torchrl_dceo.envs.miniworld import ENVIRONMENTS

        if name not in ENVIRONMENTS:
            raise ValueError(f"unknown environment {name!r}; choose from {', '.join(ENVIRONMENTS)}")
        self._made_with = (name, kwargs)
        super().__init__(f"torchrl_dceo/{name}-v0", **kwargs)

    @property
    def gym_env(self) -> MiniWorld3D:
        """The MiniWorld environment itself."""
        return self._env.unwrapped

    def another(self, **settings: Any) -> MiniWorldEnv3D:
        """Builds another such environment, with some settings changed."""
        name, kwargs = self._made_with
        return MiniWorldEnv3D(name, **{**kwargs, **settings})

    def render(self, *, top: bool = False) -> Tensor:
        """Returns an RGB image for people, ``uint8 [600, 800, 3]``: the agent's view, or the view from above."""
        env = self.gym_env
        draw = env.render_top_view if top else env.render_obs
        return torch.from_numpy(draw(env.vis_fb))
