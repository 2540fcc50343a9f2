"""Updates without autograd: the same gradients, moments and weights as through the graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from torchrl_dceo._fast import fast_path
from torchrl_dceo._fast.passes import _order
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


def gradients_of(agent: Agent, batch: TensorDict, direct: bool) -> dict[str, Tensor]:
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
    assert taken == [direct]
    return {**found, **{f"output {key}": value for key, value in outputs.items()}}


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "plus, telescoped, n steps": {
        "signs": "+",
        "reward_mode": "telescoped",
        "one_step_options": False,
    },
    "minus": {"signs": "-"},
    "not centred": {"centre_pixels": False},
    "log norms": {"norm": "log1p"},
    "split": {"estimator": "split"},
    "ALLO": {"objective": "allo"},
    "graph drawing": {"objective": "graph_drawing"},
    "distinct measure": {"laplacian_measure": "distinct"},
    "Rayleigh-Ritz": {"ritz_period": 1},
    "Rayleigh-Ritz, distinct": {"ritz_period": 1, "laplacian_measure": "distinct"},
    "pairs of two steps": {"pair_steps": 2},
    "priorities": {"prioritized": True},
    "priorities, mean weights": {"prioritized": True, "weighted_mean": True},
    "squared errors": {"loss_function": "l2"},
    "absolute errors": {"loss_function": "l1"},
    "three options": {"options_per_update": 3},
    "networks of their own": {"independent_networks": True, "num_options": 2},
    "three networks": {"independent_networks": True, "options_per_update": 3},
    "clipped": {"max_grad_norm": 0.1},
}


@pytest.mark.parametrize("settings", CASES.values(), ids=list(CASES))
def test_gradients_and_outputs_are_those_of_the_graph(settings: dict[str, Any]) -> None:
    found, expected = (
        gradients_of(make(**settings), make_batch(0), direct) for direct in (True, False)
    )
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = float(value.abs().max())
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5 * max(scale, 1e-3))


@pytest.mark.parametrize("name", ["ddqn", "ez_greedy", "dceo_two_phase"])
def test_other_agents(name: str) -> None:
    found, expected = (gradients_of(make(name), make_batch(0), direct) for direct in (True, False))
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        scale = float(value.abs().max())
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-5 * max(scale, 1e-3))


def test_everything_written_into_the_batch_is_written() -> None:
    batches = []
    for direct in (True, False):
        batch = make_batch(0)
        gradients_of(make(), batch, direct)
        batches.append(batch)
    found, expected = batches
    assert set(found.keys(True, True)) == set(expected.keys(True, True))
    for key, value in expected.items(True, True):
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"independent_networks": True, "options_per_update": 2}])
def test_a_hundred_updates_agree_optimizer_included(settings: dict[str, Any]) -> None:
    states = []
    for direct in (True, False):
        agent = make(lr=1e-5, **settings)
        torch.manual_seed(1)
        with fast_path(direct):
            for seed in range(100):
                agent.update(make_batch(seed), agent.phases[0])
        states.append((agent.state_dict(), agent.learning_state()["moments"]))
    (found, moments), (expected, expected_moments) = states
    for name, value in expected.items():
        if isinstance(value, Tensor):
            # A hundred steps of at most 1e-5, each.
            torch.testing.assert_close(found[name], value, rtol=1e-3, atol=2e-5)
    for index, entry in expected_moments.items():
        for kind, value in entry.items():
            scale = float(value.abs().max())
            torch.testing.assert_close(
                moments[index][kind], value, rtol=1e-2, atol=1e-3 * scale, msg=f"{index} {kind}"
            )


def test_an_option_that_is_left_out_does_not_move() -> None:
    agent = make(independent_networks=True, options_per_update=2)
    loss = agent.objectives["option"]
    torch.manual_seed(1)
    before = [p.detach().clone() for p in loss.option_network_params.values(True, True)]
    agent.update(make_batch(0), agent.phases[0])
    moved = set(loss.trained_rows()[0].options)
    for old, new in zip(before, loss.option_network_params.values(True, True), strict=True):
        if old.ndim > 1 and old.shape[0] == loss.num_options:
            rows = (old != new).flatten(1).any(1).nonzero().flatten().tolist()
            assert set(rows) <= moved


@pytest.mark.parametrize("what", ["hook", "subclass", "compiled"])
def test_a_network_that_is_more_than_its_tensors_keeps_its_graph(what: str) -> None:
    agent = make("ddqn")
    network = agent.objectives["main"].value_network.module[0].module.network
    if what == "hook":
        network.layers[0].register_forward_hook(lambda *args: None)
    elif what == "subclass":
        network.__class__ = type("Own", (type(network),), {"forward": lambda self, x: 0 * x})
    else:
        network.compile()
    with torch.no_grad():
        agent.objectives["centring"](make_batch(0))
    assert agent._learn_directly(make_batch(0), list(agent._declared.items())) is None


def test_images_and_networks_are_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import torchrl_dceo._fast.passes as module

    rows, gathered = [], []
    forward, first = module.forward_layers, module.first_columns
    monkeypatch.setattr(module, "forward_layers", lambda *a: rows.append(a[1]) or forward(*a))
    monkeypatch.setattr(
        module, "first_columns", lambda *a, **k: gathered.append(1) or first(*a, **k)
    )
    agent = make()
    agent.update(make_batch(0), agent.phases[0])
    # Encoder, options and main learner at two states each, two target networks at one.
    assert sorted(rows) == [SIZE, SIZE, 2 * SIZE, 2 * SIZE, 2 * SIZE]
    assert len(gathered) == 1


def test_images_of_a_network_lie_side_by_side() -> None:
    # s, successor, next: encoder and options see the first two, the main learner first and last.
    order = _order(3, (((0, 1), (0, 1)), ((0, 1), (0,)), ((1,), ()), ((0, 2), (0,)), ((2,), ())))
    assert order in [(1, 0, 2), (2, 0, 1)]


class NoHostVisit(TorchDispatchMode):
    """Raises where a value becomes a number of Python, or a shape depends on values."""

    refused = (
        torch.ops.aten._local_scalar_dense.default,
        torch.ops.aten.nonzero.default,
        torch.ops.aten.masked_select.default,
    )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func not in self.refused, f"{func} waits for the device"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(
    ("name", "settings"),
    [("ddqn", {}), ("dceo", {}), ("dceo", {"barrier": "auto"}), ("dceo", {"objective": "allo"})],
)
def test_an_update_reads_no_value_back(name: str, settings: dict[str, Any], direct: bool) -> None:
    """An accelerator would have to stop for it, and no CUDA graph could hold it."""
    agent = make(name, **settings)
    if not direct:
        agent._learn_directly = lambda *_: None  # type: ignore[method-assign]
    # The first update makes the optimizer's moments and fits the mean image.
    agent.update(make_batch(0), agent.phases[0])
    with NoHostVisit():
        agent.update(make_batch(1), agent.phases[0])


def test_a_value_read_back_is_noticed() -> None:
    with NoHostVisit(), pytest.raises(AssertionError, match="waits for the device"):
        torch.ones(()).item()
