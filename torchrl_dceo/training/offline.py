"""Learning from a stored dataset of transitions, without a collector."""

from __future__ import annotations

from collections.abc import Sequence

from torchrl.data import ReplayBuffer

from torchrl_dceo.training.agent import Agent, Phase
from torchrl_dceo.training.metrics import RunMetrics

__all__ = ["fit"]


def fit(
    agent: Agent,
    replay: ReplayBuffer,
    num_updates: int,
    *,
    objectives: Sequence[str] | None = None,
) -> dict[str, float]:
    """Updates an agent from what a replay buffer holds, with no environment at hand.

    Encoder and options learn off-policy, so any data of the world will do. Every batch has the same distribution: the
    one of the dataset.

    Args:
        agent (Agent): it is trained in place.
        replay (ReplayBuffer): from :func:`~torchrl_dceo.data.make_replay_buffer`, filled or loaded.
        num_updates (int): how many batches to learn from.

    Keyword Args:
        objectives (sequence of str, optional): those of the agent's objectives that learn, e.g.
            ``("laplacian", "reward", "option")`` for encoder and options alone. Default: all.

    Returns:
        The losses and their other outputs, averaged over the last tenth of the updates.

    Examples:
        >>> from torchrl_dceo.agents import make_agent
        >>> from torchrl_dceo.data import make_replay_buffer
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training import fit
        >>> env = make_env("NineRooms", room_size=3, batch_size=10, seed=0)
        >>> replay = make_replay_buffer(5000, n_steps=5, num_streams=10, batch_size=32)
        >>> _ = replay.extend(env.rollout(100, break_when_any_done=False))
        >>> agent = make_agent("dceo", env, num_options=3, dimensions=4)
        >>> sorted(fit(agent, replay, 10, objectives=("laplacian", "reward", "option")))[:2]
        ['loss_laplacian', 'loss_option']
    """
    if num_updates < 1:
        raise ValueError(f"num_updates must be at least 1, got {num_updates}")
    unknown = set(objectives or ()) - set(agent.objectives)
    if unknown:
        raise ValueError(
            f"the agent has no objectives {sorted(unknown)}; it has {sorted(agent.objectives)}"
        )
    phase, metrics = Phase("offline", num_updates, objectives), RunMetrics()
    for update in range(num_updates):
        if update == num_updates - max(1, num_updates // 10):
            metrics = RunMetrics()
        metrics.updated(agent.learn(replay, phase))
    return metrics.row()
