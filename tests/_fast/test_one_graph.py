"""An update as one graph of tensor operations: what a CUDA graph asks for, as far as a CPU can tell."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchrl_dceo.agents import agent as agents
from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import make_env
from torchrl_dceo.modules.networks import ConvNet

aten = torch.ops.aten
# Those whose result, or its shape, is only known once the device has answered.
VISITS = {
    aten._local_scalar_dense,
    aten.equal,
    aten.is_nonzero,
    aten.nonzero,
    aten.masked_select,
    aten.unique_dim,
    aten._unique2,
}
LOOKS = ("item", "cpu", "numpy", "tolist", "__bool__", "__float__", "__int__", "__index__")


class Elsewhere(TorchDispatchMode):
    """Raises where an accelerator would have to stop and answer."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in VISITS:
            raise AssertionError(f"{func} visits the host")
        return func(*args, **(kwargs or {}))


def trained(name, **settings):
    """An agent after a few updates, so that all moments exist, and a batch for the next."""
    torch.manual_seed(0)
    env = make_env("NineRooms", room_size=3, seed=0, batch_size=2)
    agent = make_agent(name, env, **settings)
    replay = agent.replay.make(env, 200, 0)
    steps = env.rollout(40, break_when_any_done=False)
    replay.extend(steps)
    for _ in range(3):
        agent.learn(replay, agent.phases[0])
    return agent, replay


def on_the_device(agent, monkeypatch):
    """The way of an update where networks are not on the CPU."""
    monkeypatch.setattr(agents, "is_possible", lambda: False)
    for module in agent.modules():
        if isinstance(module, ConvNet):
            module.fused = False


AGENTS = [
    ("ddqn", {}),
    ("dceo", {"num_options": 2, "dimensions": 3}),
    ("dceo", {"num_options": 2, "dimensions": 3, "independent_networks": True}),
    ("rainbow", {}),
    ("rainbow_dceo", {"num_options": 2, "dimensions": 3}),
]


@pytest.mark.parametrize(("name", "settings"), AGENTS)
def test_an_update_never_visits_the_host(name, settings, monkeypatch):
    agent, replay = trained(name, **settings)
    on_the_device(agent, monkeypatch)
    batch, before = replay.sample(), copy.deepcopy(agent.state_dict())

    def refused(self, *args, **kwargs):
        raise AssertionError("a tensor was looked at")

    with monkeypatch.context() as patch, Elsewhere():
        for look in LOOKS:
            patch.setattr(torch.Tensor, look, refused)
        agent.update(batch, agent.phases[0])
    after = agent.state_dict()
    assert any(not torch.equal(after[key], value) for key, value in before.items())


def test_the_watch_sees_a_visit():
    with Elsewhere(), pytest.raises(AssertionError, match="visits the host"):
        float(torch.ones(()))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        pytest.param(*case, marks=() if i == 1 else pytest.mark.slow)
        for i, case in enumerate(AGENTS)
    ],
)
def test_an_update_is_one_graph(name, settings, monkeypatch):
    """Losses, gradients, Adam and targets, without a break; the same weights as without torch.compile."""
    (agent, replay), (other, its_replay) = (trained(name, **settings) for _ in range(2))
    on_the_device(agent, monkeypatch)
    on_the_device(other, monkeypatch)
    batch = replay.sample()
    torch._dynamo.reset()
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        compiled = torch.compile(agent.update, backend="eager", fullgraph=True)
        outputs = compiled(batch, agent.phases[0])
    expected = other.update(its_replay.sample(), other.phases[0])
    assert list(outputs) == list(expected)
    for key, value in outputs.items():
        torch.testing.assert_close(value, expected[key], msg=key)
    state = other.state_dict()
    for key, value in agent.state_dict().items():
        torch.testing.assert_close(value, state[key], msg=key)
    torch._dynamo.reset()
