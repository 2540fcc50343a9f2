"""Batches as replay makes them, and what one update makes of them."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from torchrl_dceo._fast import fast_path
from torchrl_dceo.agents import make_agent
from torchrl_dceo.agents.agent import UNIFORM, Agent
from torchrl_dceo.envs import make_env

SHAPE, SIZE = (3, 13, 13), 12


def make_batch(seed: int, size: int = SIZE) -> TensorDict:
    generator = torch.Generator().manual_seed(seed)

    def pixels() -> Tensor:
        return torch.randint(256, (size, *SHAPE), dtype=torch.uint8, generator=generator)

    def flags() -> dict[str, Tensor]:
        draws = torch.rand(2, size, 1, generator=generator) < 0.2
        return {"done": draws[0] | draws[1], "terminated": draws[0]}

    def rows() -> dict[str, Any]:
        return {
            "pixels": pixels(),
            "action": torch.randint(4, (size,), generator=generator),
            "steps_to_next_obs": torch.randint(1, 6, (size, 1), generator=generator),
            "state_id": torch.randint(9, (size,), generator=generator),
            "successor": {"pixels": pixels(), **flags()},
            "later": {"pixels": pixels()},
            "next": {
                "pixels": pixels(),
                "reward": 3 * torch.randn(size, 1, generator=generator),
                **flags(),
            },
        }

    batch = TensorDict(rows(), [size])
    batch["priority_weight"] = 0.5 + torch.rand(size, generator=generator)
    batch[UNIFORM] = TensorDict(rows(), [size])
    return batch


def make(name: str = "dceo", **settings: Any) -> Agent:
    torch.manual_seed(0)
    return make_agent(name, make_env("NineRooms", room_size=3), **settings)


def gradients_of(
    agent: Agent, batch: TensorDict, direct: bool, *, expected: bool | None = None
) -> dict[str, Tensor]:
    """Those of one update that moves nothing; whether it went past autograd is checked."""
    found: dict[str, Tensor] = {}

    def step(*args: Any, trained: Any = (), **kwargs: Any) -> None:
        names = {id(p): n for n, p in agent.named_parameters()}
        for parameter in agent._trained():
            if parameter.grad is not None:
                found[names[id(parameter)]] = parameter.grad.clone()
        for rows in trained:
            whole = torch.zeros_like(rows.parameter)
            for i, option in enumerate(rows.options):
                block = slice(option * rows.rows, (option + 1) * rows.rows)
                part = None if rows.gradients is None else rows.gradients[i]
                whole[block] = rows.parameter.grad[block] if part is None else part
            found[names[id(rows.parameter)]] = whole

    agent.optimizer.step = step  # type: ignore[method-assign]
    torch.manual_seed(1)
    learned = agent._learn_directly
    taken = []

    def learn_directly(*args: Any) -> Any:
        out = learned(*args)
        taken.append(out is not None)
        return out

    agent._learn_directly = learn_directly  # type: ignore[method-assign]
    with fast_path(direct):
        outputs = agent.update(batch, agent.phases[0])
    agent._learn_directly = learned  # type: ignore[method-assign]
    assert taken == [direct if expected is None else expected]
    return {**found, **{f"output {key}": value for key, value in outputs.items()}}
