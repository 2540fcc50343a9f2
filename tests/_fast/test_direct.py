"""Calling past the tensordict gives what the module writes, or leaves the call to the module."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from torchrl_dceo._fast.parameters import output_of


class Two(nn.Module):
    def forward(self, x):
        return x + 1, x - 1


class Method(nn.Module):
    def forward(self, x):
        return x

    def tripled(self, x):
        return 3 * x


def make(kind):
    if kind == "plain":
        return TensorDictModule(lambda x: x + 1, in_keys=["x"], out_keys=["out"])
    if kind == "nested":
        return TensorDictModule(lambda x: x + 1, in_keys=[("a", "x")], out_keys=["out"])
    if kind == "two outputs":
        return TensorDictModule(Two(), in_keys=["x"], out_keys=["out", "other"])
    if kind == "second output":
        return TensorDictModule(Two(), in_keys=["x"], out_keys=["other", "out"])
    if kind == "keyword":
        return TensorDictModule(lambda *, z: z + 1, in_keys={"z": "x"}, out_keys=["out"])
    if kind == "method":
        return TensorDictModule(Method(), in_keys=["x"], out_keys=["out"], method="tripled")
    if kind == "tuple":
        return TensorDictModule(lambda x: (x + 1,), in_keys=["x"], out_keys=["out"])
    if kind == "hook":
        module = TensorDictModule(lambda x: x, in_keys=["x"], out_keys=["out"])
        module.register_forward_hook(lambda module, inputs, out: out.apply(lambda v: 5 * v))
        return module
    first = TensorDictModule(lambda x: x + 1, in_keys=["x"], out_keys=["middle"])
    return TensorDictSequential(
        first, TensorDictModule(lambda m: 2 * m, in_keys=["middle"], out_keys=["out"])
    )


KINDS = {
    "plain": 3.0,
    "nested": 8.0,
    "two outputs": 3.0,
    "second output": 1.0,
    "keyword": 3.0,
    "method": 6.0,
    "tuple": 3.0,
    "hook": 10.0,
    "sequence": 6.0,
}


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_call(kind):
    module = make(kind)
    batch = TensorDict({"x": torch.full((3,), 2.0), "a": {"x": torch.full((3,), 7.0)}}, [3])
    before = batch.clone()
    assert output_of(module, batch, "out").tolist() == [KINDS[kind]] * 3
    assert (batch == before).all() and set(batch.keys(True)) == set(before.keys(True))
    assert module(batch)["out"].tolist() == [KINDS[kind]] * 3


def test_an_output_that_is_not_the_modules_is_named():
    with pytest.raises(KeyError, match="other"):
        output_of(make("plain"), TensorDict({"x": torch.ones(3)}, [3]), "other")


def test_a_missing_entry_is_the_modules_to_name():
    with pytest.raises((KeyError, TypeError)):
        output_of(make("plain"), TensorDict({}, []), "out")
