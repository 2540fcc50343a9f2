from __future__ import annotations

import io
import multiprocessing

import pytest
import torch

from torchrl_dceo.agents import make_agent
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import TrainConfig, Trainer
from torchrl_dceo.training.logging.metrics import ProgressLine


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_has_one_line_that_is_written_over():
    out = Terminal()
    line = ProgressLine(10, stream=out, label="dceo/seed_0")
    for frames in (5, 10):
        line.update(frames, {"ε": 0.5, "train_return": float("nan")}, force=True)
    line.close()
    text = out.getvalue()
    assert text.count("\r\x1b[2K") == 2 and text.count("\n") == 1
    assert "10/10" in text and "ε 0.5" in text and "nan" not in text
    assert "dceo/seed_0" not in text  # there is only one run to see


def test_the_worker_of_a_sweep_prints_plain_lines_with_its_name(monkeypatch):
    """Two processes that write over the same line of a terminal would show neither."""
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object())
    out = Terminal()
    line = ProgressLine(10, stream=out, label="dceo/seed_0")
    line.update(1, {})
    assert out.getvalue() == ""  # once a minute
    line.update(10, {}, force=True)
    line.close()
    assert out.getvalue().startswith("dceo/seed_0  [") and out.getvalue().endswith("left\n")
    assert "\r" not in out.getvalue()


def test_nothing_is_evaluated_for_a_line_that_is_not_shown():
    """ε may be on an accelerator, which stops for the answer."""

    class Watched(torch.nn.Module):
        @property
        def eps(self):
            raise LookupError("somebody looked")

    env = make_env("NineRooms", room_size=3)
    trainer = Trainer(make_agent("ddqn", env), env, TrainConfig(10))
    trainer.agent.explorer = Watched()
    trainer._show(ProgressLine(10, stream=io.StringIO(), enabled=False), force=True)
    line = ProgressLine(10, stream=Terminal())
    trainer._show(line)  # too soon after the last
    with pytest.raises(LookupError):
        trainer._show(line, force=True)


@pytest.mark.parametrize("enabled", [True, False])
def test_silence(enabled):
    out = io.StringIO()
    ProgressLine(10, stream=out, enabled=enabled).update(10, {}, force=True)
    assert bool(out.getvalue()) == enabled
