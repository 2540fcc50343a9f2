"""Greedy evaluation of the main learner."""

from __future__ import annotations

import torch
from tensordict.nn import TensorDictModuleBase
from torch import nn
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

__all__ = ["evaluate"]


@torch.no_grad()
def evaluate(policy: TensorDictModuleBase, env: EnvBase, max_steps: int = 30_000) -> float:
    """Mean return of the first episode of each environment in the batch, under the greedy policy.

    The return is the entry ``episode_reward`` of TorchRL's ``RewardSum``, if there is one: it is the true one where the
    learner sees clipped rewards. Otherwise the rewards are summed.

    Args:
        policy (TensorDictModuleBase): the agent's policy.
        env (EnvBase): an environment of its own, batched: one episode each.
        max_steps (int, optional): where to stop at the latest.

    Examples:
        >>> import torch
        >>> from torchrl_dceo.envs import make_env
        >>> from torchrl_dceo.training.evaluation import evaluate
        >>> env = make_env("S.G", batch_size=4, slip=0.0)
        >>> evaluate(lambda td: td.set("action", torch.ones(4, dtype=torch.int64)), env)  # always to the right
        1.0
    """
    parameters = policy.parameters() if isinstance(policy, nn.Module) else iter(())
    device = next((p.device for p in parameters), env.device)
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        step = env.reset()
        total = torch.zeros(env.batch_size, device=env.device)
        running = torch.ones_like(total, dtype=torch.bool)
        for _ in range(max_steps):
            acted = policy(step) if device == env.device else policy(step.to(device)).to(env.device)
            now, step = env.step_and_maybe_reset(acted)
            so_far = now.get(("next", "episode_reward"), None)
            if so_far is None:
                so_far = total + now["next", "reward"].reshape(env.batch_size)
            total = torch.where(running, so_far.reshape(env.batch_size), total)
            running &= ~now["next", "done"].reshape(env.batch_size)
            if not running.any():
                break
    return float(total.mean())
