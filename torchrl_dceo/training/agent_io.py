"""Loads trained agents from the directories of their runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from tensordict.nn import TensorDictModule
from torchrl.envs import EnvBase

from torchrl_dceo.agents import make_agent
from torchrl_dceo.agents.agent import Agent
from torchrl_dceo.envs import make_env, prepare_env
from torchrl_dceo.modules import OptionQValueActor
from torchrl_dceo.training.checkpoint import Checkpoints
from torchrl_dceo.training.collection.workers import with_transforms
from torchrl_dceo.training.option_io import find_options, find_reward
from torchrl_dceo.training.run_settings import read_settings

__all__ = ["LearnedAgent", "load_agent"]


class LearnedAgent(NamedTuple):
    """The result of :func:`load_agent`.

    Attributes:
        policy (TensorDictModuleBase): writes ``action``; explores unless the exploration type is deterministic.
        options (OptionQValueActor or None): the agent's options, if it has any.
        encoder (TensorDictModule or None): the representation of the options, if any.
        metadata (dict): the run's settings, as stored, and its ``frames``.
        agent (Agent): the complete agent.
        env (EnvBase): the environment, with the transforms that the policy needs.
    """

    policy: Any
    options: OptionQValueActor | None
    encoder: TensorDictModule | None
    metadata: dict[str, Any]
    agent: Agent
    env: EnvBase


def load_agent(
    run_dir: str | os.PathLike[str],
    env: Any = None,
    *,
    agent: Agent | None = None,
    **env_settings: Any,
) -> LearnedAgent:
    """Loads a trained agent from the directory of its run: policy, options, encoder and settings.

    Args:
        run_dir (path-like): the directory of a run of :func:`~torchrl_dceo.training.train` or of the command line.
        env (EnvBase or gymnasium.Env, optional): the environment in which to use it. Default: built as in the run, by
            :func:`~torchrl_dceo.envs.make_env`; a run that was started from Python with an environment of your own
            needs it.

    Keyword Args:
        agent (Agent, optional): an agent built as in the run, into which the weights are loaded; needed for agents that
            :func:`~torchrl_dceo.agents.make_agent` cannot build again.
        **env_settings: settings that replace the run's: ``batch_size=20``, ``slip=0.0``, ``seed=1``.

    Examples:
        >>> import tempfile
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training import load_agent, train
        >>> env = make_env("NineRooms", room_size=3, seed=0)
        >>> with tempfile.TemporaryDirectory() as run_dir:
        ...     _ = train(make_agent("dceo", env, num_options=3, signs="+"), env, total_frames=200,
        ...               run_dir=run_dir, learning_starts=100, progress=False)
        ...     learned = load_agent(run_dir, env)
        >>> learned.metadata["agent"]["name"], learned.metadata["frames"], learned.options.num_options
        ('dceo', 200, 3)
    """
    run_dir = Path(run_dir)
    settings = read_settings(run_dir)
    made_from = settings.get("agent")
    if env is None:
        if settings.get("env") is None:
            raise ValueError(
                f"{run_dir} does not hold the environment of its run, which was started from Python: pass it, "
                "load_agent(run_dir, env)"
            )
        env_arguments = dict(settings["env"])
        if (made_from or {}).get("name") == "counts":
            env_settings.setdefault("visits", "counts")
        env = make_env(env_arguments.pop("name"), **{**env_arguments, **env_settings})
    elif env_settings:
        raise ValueError(
            f"{', '.join(env_settings)} cannot be combined with env: set them where env is built"
        )
    env = prepare_env(env)
    if agent is None:
        if made_from is None:
            raise ValueError(
                f"{run_dir} does not name the agent of its run: pass one that was built the same way, "
                "load_agent(run_dir, env, agent=…)"
            )
        own = dict(made_from)
        agent = make_agent(own.pop("name"), env, **own)
    state = Checkpoints(run_dir / "checkpoints").load_latest()
    agent.load_state_dict(state["agent"])
    env = with_transforms(env, agent.transforms)
    options, reward = find_options(agent), find_reward(agent)
    encoder = None if reward is None else reward.encoder
    metadata = {**settings, "frames": state["counters"]["frames"]}
    return LearnedAgent(agent.policy, options, encoder, metadata, agent, env)
