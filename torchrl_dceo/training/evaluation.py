"""Greedy evaluation, and training from a fixed set of transitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import nn
from torchrl.data import Categorical, ReplayBuffer
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_dceo._fast import is_fast
from torchrl_dceo._fast.actors import PolicySequence
from torchrl_dceo._fast.rollout import DirectSteps, reason_against
from torchrl_dceo.agents.agent import Agent, Phase
from torchrl_dceo.training.logging.metrics import RunMetrics

__all__ = [
    "evaluate",
    "fit",
]


@torch.no_grad()
def evaluate(
    policy: TensorDictModuleBase,
    env: EnvBase,
    max_steps: int = 30_000,
    *,
    eps: float = 0.0,
    generator: torch.Generator | None = None,
) -> float:
    """Mean return of the first episode of each environment in the batch, under the greedy policy.

    The return is the entry ``episode_reward`` of TorchRL's ``RewardSum``, if there is one: it is not clipped if the
    learner's rewards are. Otherwise the rewards are summed.

    Args:
        policy (TensorDictModuleBase): the agent's policy.
        env (EnvBase): a separate batch of environments: one episode each.
        max_steps (int, optional): the maximum number of steps.

    Keyword Args:
        eps (float, optional): probability of a uniformly random action instead of the greedy one, at every step. A
            deterministic policy on images can repeat itself until the step limit. Default: ``0.0``.
        generator (torch.Generator, optional): for these random actions, on the CPU. Default: torch's global one.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.evaluation import evaluate
        >>> env = make_env("S.G", batch_size=4, slip=0.0)
        >>> evaluate(lambda td: td.set("action", torch.ones(4, dtype=torch.int64)), env)  # always to the right
        1.0
    """
    if not 0 <= eps <= 1:
        raise ValueError(f"eps must lie in [0, 1], got {eps}")
    parameters = policy.parameters() if isinstance(policy, nn.Module) else iter(())
    device = next((p.device for p in parameters), env.device)
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        step = env.reset()
        act: Callable[[TensorDict], None] | None = None
        take: DirectSteps | None = None
        if is_fast() and device == env.device and type(step) is TensorDict:
            # As in collecting; the options, which a greedy policy does not follow, are not computed.
            if isinstance(policy, PolicySequence):
                act = policy.greedy().prepared(step)
            if reason_against(env) is None:
                take = DirectSteps(env)
        total = torch.zeros(env.batch_size, device=env.device)
        running = torch.ones_like(total, dtype=torch.bool)
        for _ in range(max_steps):
            if act is not None and type(step) is TensorDict:
                act(step)
                acted = step
            elif device == env.device:
                acted = policy(step)
            else:
                acted = policy(step.to(device)).to(env.device)
            if eps > 0:
                _act_randomly(acted, env, eps, generator)
            if take is not None and type(acted) is TensorDict:
                now, step = acted, take(acted)
            else:
                now, step = env.step_and_maybe_reset(acted)
            so_far = now.get(("next", "episode_reward"), None)
            if so_far is None:
                so_far = total + now["next", "reward"].reshape(env.batch_size)
            total = torch.where(running, so_far.reshape(env.batch_size), total)
            running &= ~now["next", "done"].reshape(env.batch_size)
            if not running.any():
                break
    # In double precision: nine of ten goals are 0.9, and in float32 less than solved_return=0.9.
    return float(total.double().mean())


def _act_randomly(
    acted: TensorDictBase, env: EnvBase, eps: float, generator: torch.Generator | None
) -> None:
    """Overwrites the action with probability ``eps``, independently in each environment."""
    action, spec = acted.get(env.action_key), env.action_spec_unbatched
    if not isinstance(spec, Categorical) or action.shape != env.batch_size:
        raise TypeError(
            f"eps needs one categorical action per environment, got {spec}: build the environment with "
            "categorical_action_encoding=True or set eps=0"
        )
    randomly = torch.rand(action.shape, generator=generator) < eps
    anything = torch.randint(spec.space.n, action.shape, generator=generator)
    overwritten = torch.where(randomly.to(action.device), anything.to(action), action)
    acted.set(env.action_key, overwritten)


def fit(
    agent: Agent,
    replay: ReplayBuffer,
    num_updates: int,
    *,
    objectives: Sequence[str] | None = None,
) -> dict[str, float]:
    """Trains an agent offline, from a replay buffer.

    Encoder and options learn off-policy, so any data of the environment can be used. All batches are sampled from the
    same distribution, that of the dataset.

    Args:
        agent (Agent): it is trained in place.
        replay (ReplayBuffer): from :func:`~torchrl_dceo.data.make_replay_buffer`, filled or loaded.
        num_updates (int): the number of batches.

    Keyword Args:
        objectives (sequence of str, optional): the objectives to train, e.g.
            ``("laplacian", "reward", "option")`` for encoder and options only. Default: all.

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
