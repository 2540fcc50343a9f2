"""One switch for all optimisations: by environment variable and by function."""

from __future__ import annotations

import os
import subprocess
import sys
from unittest import mock

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import Categorical
from torchrl.modules import DistributionalQValueActor, QValueActor
from torchrl.objectives import DistributionalDQNLoss, DQNLoss

from torchrl_dceo._fast import fast_path, is_fast, tune_process
from torchrl_dceo._fast.actors import DistributionalGreedyActor, GreedyActor, PolicySequence
from torchrl_dceo._fast.losses import CategoricalDQNLoss, DoubleDQNLoss
from torchrl_dceo._fast.parameters import output_of, swapped
from torchrl_dceo.modules.distributional import DuelingDistribution, make_support
from torchrl_dceo.modules.networks import grid_net


def in_process(value: str | None, code: str) -> subprocess.CompletedProcess:
    env = {key: entry for key, entry in os.environ.items() if key != "TORCHRL_DCEO_FAST"}
    if value is not None:
        env["TORCHRL_DCEO_FAST"] = value
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)


@pytest.mark.parametrize(("value", "expected"), [(None, "True"), ("1", "True"), ("0", "False")])
def test_the_environment_variable_sets_the_switch(value, expected):
    result = in_process(value, "from torchrl_dceo._fast import is_fast; print(is_fast())")
    assert result.stdout.strip() == expected, result.stderr


def test_another_value_is_named():
    result = in_process("off", "import torchrl_dceo._fast")
    assert "TORCHRL_DCEO_FAST must be 0 or 1, got 'off'" in result.stderr


def test_a_block_restores_what_was_before():
    with fast_path(False):
        assert not is_fast()
        with pytest.raises(RuntimeError), fast_path(True):
            raise RuntimeError
        assert not is_fast()
    assert is_fast()


def test_as_a_function_it_lasts():
    fast_path(False)
    assert not is_fast()
    fast_path(True)
    assert is_fast()


def test_importing_changes_no_setting():
    code = """
import torch
threads, dtype, state = torch.get_num_threads(), torch.get_default_dtype(), torch.get_rng_state()
import torchrl_dceo.objectives, torchrl_dceo.modules, torchrl_dceo.data
from torchrl_dceo import _fast as process
from torchrl_dceo._fast import actors, convolution, losses, parameters
assert torch.get_num_threads() == threads and torch.get_default_dtype() == dtype
assert torch.equal(torch.get_rng_state(), state)
"""
    result = in_process(None, code)
    assert result.returncode == 0, result.stderr


def transitions() -> TensorDict:
    flags = torch.zeros(8, 1, dtype=torch.bool)
    following = {"observation": torch.randn(8, 6), "reward": torch.randn(8, 1)}
    return TensorDict(
        {
            "observation": torch.randn(8, 6),
            "action": torch.randint(4, (8,)),
            "steps_to_next_obs": torch.randint(1, 4, (8, 1)),
            "next": {**following, "done": flags, "terminated": flags},
        },
        [8],
    )


def double_dqn_loss() -> DQNLoss:
    loss = DoubleDQNLoss(GreedyActor(nn.Linear(6, 4), in_keys=["observation"], spec=Categorical(4)))
    loss.make_value_estimator(gamma=0.9)
    return loss


def categorical_loss() -> DistributionalDQNLoss:
    net = nn.Sequential(nn.Linear(6, 11 * 5), DuelingDistribution(11, 4))
    actor = DistributionalGreedyActor(
        net, support=make_support(11, 2.0), in_keys=["observation"], spec=Categorical(4)
    )
    return CategoricalDQNLoss(actor, gamma=0.9)


@pytest.mark.parametrize(
    ("make", "parent"), [(double_dqn_loss, DQNLoss), (categorical_loss, DistributionalDQNLoss)]
)
def test_losses_take_torchrls_path(make, parent):
    """With the switch off TorchRL's forward runs, on it does not, and the numbers are the same."""
    loss, batch = make(), transitions()
    with mock.patch.object(parent, "forward", autospec=True, side_effect=parent.forward) as theirs:
        fast = loss(batch.clone())
        assert theirs.call_count == 0
        with fast_path(False):
            slow_batch = batch.clone()
            slow = loss(slow_batch)
        assert theirs.call_count == 1
    loss(batch)
    assert set(fast.keys()) == set(slow.keys())
    for key, value in fast.items():
        torch.testing.assert_close(value, slow[key])
    torch.testing.assert_close(batch["td_error"], slow_batch["td_error"])


def test_actors_take_torchrls_path():
    net = nn.Sequential(nn.Linear(6, 11 * 5), DuelingDistribution(11, 4))
    settings = {"in_keys": ["observation"], "spec": Categorical(4)}
    categorical = DistributionalGreedyActor(net, support=make_support(11, 2.0), **settings)
    for actor, parent in (
        (GreedyActor(nn.Linear(6, 4), **settings), QValueActor),
        (categorical, DistributionalQValueActor),
    ):
        td = TensorDict({"observation": torch.randn(3, 6)}, [3])
        with mock.patch.object(
            parent, "forward", autospec=True, side_effect=parent.forward
        ) as theirs:
            fast = actor(td.clone())
            assert theirs.call_count == 0
            with fast_path(False):
                slow = actor(td.clone())
            assert theirs.call_count == 1
        assert set(fast.keys()) == set(slow.keys())
        for key, value in fast.items():
            torch.testing.assert_close(value, slow[key])


def test_sequences_and_parameters_take_tensordicts_path():
    layer = nn.Linear(2, 2)
    module = TensorDictModule(layer, in_keys=["x"], out_keys=["y"])
    policy, td = PolicySequence(module), TensorDict({"x": torch.ones(1, 2)}, [1])
    parameters = TensorDict.from_module(layer).data * 0
    with mock.patch.object(TensorDictModule, "_call_module", autospec=True) as theirs:
        theirs.side_effect = lambda self, tensors, **kwargs: self.module(*tensors, **kwargs)
        output_of(module, td, "y"), policy(td.clone())
        assert theirs.call_count == 0
        with fast_path(False):
            output_of(module, td, "y"), policy(td.clone())
        assert theirs.call_count == 2
    with mock.patch.object(TensorDict, "to_module", side_effect=RuntimeError) as theirs:
        with swapped(layer, parameters):
            assert not layer(torch.ones(2)).any()
        with fast_path(False), pytest.raises(RuntimeError), swapped(layer, parameters):
            pass
        assert theirs.call_count == 1


def test_convolutions_are_torchs():
    net, pixels = grid_net((3, 13, 13), 4), torch.randint(256, (5, 3, 13, 13), dtype=torch.uint8)
    with mock.patch("torchrl_dceo.modules.networks.fused_conv_net") as fused:
        fused.return_value = torch.zeros(5, 4)
        assert not net(pixels).any() and fused.call_count == 1
        with fast_path(False):
            assert net(pixels).any() and fused.call_count == 1
    with fast_path(False):
        slow = net(pixels)
    torch.testing.assert_close(net(pixels), slow)


def test_the_process_stays_as_it_is():
    torch.set_num_threads(2)
    with fast_path(False):
        tune_process(1)
    assert torch.get_num_threads() == 2
