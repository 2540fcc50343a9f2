"""A number that is not finite ends the run: named, with an exit code, and every checkpoint finite."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys

import pytest
import torch
from faulty_env import faulty
from training_runs import difference, rows

from torchrl_dceo.agents import AGENTS, make_agent
from torchrl_dceo.data.persistence import copied
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import TrainConfig, Trainer
from torchrl_dceo.training.errors import NonFiniteError, exit_with_a_sentence
from torchrl_dceo.training.finite import FiniteGuard
from torchrl_dceo.training.logging.metrics import RunMetrics

FIELDS = {
    "total_frames": 1200,
    "update_period": 8,
    "learning_starts": 100,
    "replay_capacity": 2000,
    "log_period": 200,
    "checkpoint_period": 200,
    "eval_period": 400,
    "progress": False,
}


def vector_agent(env, name="ddqn", **settings):
    torch.manual_seed(0)
    small = {"batch_size": 8, "network": "mlp"}
    if name.startswith(("dceo", "rainbow_dceo")):
        small |= {"num_options": 2, "dimensions": 3}
    return make_agent(name, env, **{**small, **settings})


def make_trainer(run_dir, env=None, name="ddqn", agent_settings=None, **config) -> Trainer:
    env = faulty() if env is None else env
    agent = vector_agent(env, name, **(agent_settings or {}))
    return Trainer(agent, env, TrainConfig(**{**FIELDS, **config}), run_dir=run_dir)


def finite(value) -> bool:
    if isinstance(value, torch.Tensor):
        return not value.is_floating_point() or bool(value.isfinite().all())
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    if isinstance(value, list):
        return all(map(finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def learned(state) -> dict:
    return {part: state[part] for part in ("agent", "learning", "replay")}


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("key", ["reward", "observation"])
def test_what_is_collected_is_named_with_environment_and_step(tmp_path, key, value):
    env = faulty(fault=key, fault_step=131, fault_env=2, value=value)
    trainer = make_trainer(tmp_path, env)
    sentence = rf"environment 2 gave '{key}' = {value} at step 131 \(after 520 frames of the run\)"
    with pytest.raises(NonFiniteError, match=sentence):
        trainer.run()
    assert trainer.checkpoints.steps() == [200, 400]
    assert finite(learned(trainer.checkpoints.load_latest()))
    assert [row["frames"] for row in rows(tmp_path)] == ["200", "400"]


def test_the_first_observation_of_an_episode_is_looked_at_too():
    env = faulty()
    guard = FiniteGuard(vector_agent(env), env)
    data = env.rollout(10, break_when_any_done=False)
    guard.check_batch(data, 0)
    data["observation"][3, 0, 1] = torch.nan
    with pytest.raises(NonFiniteError, match="environment 3 gave 'observation' = nan at step 1 "):
        guard.check_batch(data, 0)


def test_large_numbers_are_finite():
    """Their sum is not."""
    env = faulty()
    guard = FiniteGuard(vector_agent(env), env)
    data = env.rollout(10, break_when_any_done=False)
    data["next", "reward"].fill_(3e38)
    guard.check_batch(data, 0)


@pytest.mark.parametrize(
    ("name", "objective"),
    [("ddqn", "main"), ("dceo", "laplacian|option|main"), ("rainbow", "main")],
)
def test_divergence_stops_the_run_and_keeps_what_is_finite(tmp_path, name, objective):
    """A step size of 1e30 after three checkpoints: nothing on disk changes after that."""
    trainer = make_trainer(tmp_path, name=name)
    kept = []

    def spoil(trainer):
        if trainer.counters.frames == 800:
            for group in trainer.agent.optimizer.param_groups:
                group["lr"] = 1e30
            kept.append(copied(learned(trainer.state())))
        return {}

    trainer.probes = (spoil,)
    sentence = rf"objective '({objective})' has diverged: .*(nan|inf|not finite) a(t|fter) .*update"
    with pytest.raises(NonFiniteError, match=sentence):
        trainer.run()
    assert trainer.checkpoints.steps() == [600, 800]
    newest = trainer.checkpoints.load_latest()
    assert finite(learned(newest)) and newest["counters"]["frames"] == 800
    assert difference(learned(newest), kept[0]) is None
    log = rows(tmp_path)
    assert log[-1]["frames"] == "800" and "nan" not in log[-1]["loss_main"]


def test_the_loss_is_named_with_its_update():
    trainer = make_trainer(None)
    real, count = trainer.agent.update, []

    def update(batch, phase):
        outputs = real(batch, phase)
        count.append(1)
        return {**outputs, "loss_main": torch.tensor(math.inf)} if len(count) == 33 else outputs

    trainer.agent.update = update
    sentence = "objective 'main' has diverged: loss_main is inf at update 33: lower the step size"
    with pytest.raises(NonFiniteError, match=sentence):
        trainer.run()
    assert len(count) < 33 + FIELDS["log_period"] // FIELDS["update_period"]


def test_a_gradient_is_named():
    """The loss and all weights are finite, the gradient of one weight was not."""
    trainer = make_trainer(None)
    trainer.config.total_frames = 400
    trainer.run()
    agent = trainer.agent
    trainer._guard.check_weights(3)
    parameter = agent.optimizer.param_groups[0]["params"][0]
    agent.optimizer.state[parameter]["exp_avg"].view(-1)[0] = torch.inf
    with pytest.raises(
        NonFiniteError, match=r"'main' has diverged: the gradient of objectives\.main\.\S+ was not"
    ):
        trainer._guard.check_weights(3)


def spoil_a_moment(trainer) -> None:
    parameter = trainer.agent.optimizer.param_groups[0]["params"][0]
    trainer.agent.optimizer.state[parameter]["exp_avg"].view(-1)[0] = torch.inf


def test_what_no_loss_shows_ends_the_run_too(tmp_path):
    """The last update before a row of the log, which is that of a checkpoint: neither is written."""
    trainer = make_trainer(tmp_path)
    real = trainer._take

    def take(data, streams):
        real(data, streams)
        if trainer.counters.frames == 600:
            spoil_a_moment(trainer)

    trainer._take = take
    with pytest.raises(NonFiniteError, match="the gradient of objectives"):
        trainer.run()
    assert trainer.checkpoints.steps() == [200, 400]
    assert [row["frames"] for row in rows(tmp_path)] == ["200", "400"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_nothing_that_is_not_finite(tmp_path, number):
    """Between two rows, before anything was looked at."""
    trainer = make_trainer(tmp_path)
    real = trainer._take

    def take(data, streams):
        real(data, streams)
        if trainer.counters.frames == 504:
            spoil_a_moment(trainer)
            os.kill(os.getpid(), number)

    trainer._take = take
    with pytest.raises(NonFiniteError, match="the gradient of objectives"):
        trainer.run()
    assert trainer.checkpoints.steps() == [200, 400]
    assert finite(learned(trainer.checkpoints.load_latest()))


def test_the_environments_of_a_worker_have_their_numbers():
    env = faulty()
    guard = FiniteGuard(vector_agent(env), env)
    data = env.rollout(5, break_when_any_done=False)[1:3]
    data["next", "reward"][1, 2] = -torch.inf
    with pytest.raises(NonFiniteError, match="environment 7 gave 'reward' = -inf at a step"):
        guard.check_batch(data, 40, streams=[5, 7])


def test_an_update_looks_at_no_number():
    """What an update gives stays on its device until a row is written: there may be nothing to look at yet."""
    metrics = RunMetrics()
    for _ in range(3):
        metrics.updated({"loss_main": torch.empty((), device="meta")})
    trainer = make_trainer(None, total_frames=800)
    looked, real = [], trainer._guard.check_weights
    trainer._guard.check_weights = lambda updates: looked.append(updates) or real(updates)
    trainer.run()
    assert trainer.counters.updates > 80 and len(looked) == 4  # once for each row


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_evaluation_that_is_not_finite_ends_the_run(tmp_path, monkeypatch, value):
    """It would be the best for ever: nothing is larger than NaN."""
    returns = iter([0.5, value, 1.0])
    monkeypatch.setattr(
        sys.modules["torchrl_dceo.training.trainer"], "evaluate", lambda *_, **__: next(returns)
    )
    env = faulty()
    config = TrainConfig(**{**FIELDS, "keep_best": True})
    trainer = Trainer(vector_agent(env), env, config, eval_env=faulty((2,)), run_dir=tmp_path)
    sentence = f"the greedy evaluation after 800 frames returned {value}: look at the rewards of"
    with pytest.raises(NonFiniteError, match=sentence):
        trainer.run()
    assert trainer.checkpoints.steps() == [400, 600]
    assert trainer.checkpoints.load_best()["counters"]["frames"] == 400


def test_an_error_made_of_nan_is_explained():
    """A categorical loss takes an index from its values: with NaN there is no such index."""
    trainer = make_trainer(None, name="rainbow")
    real = trainer.agent.update

    def update(batch, phase):
        if trainer.counters.updates == 20:
            with torch.no_grad():
                for parameter in trainer.agent.objectives["main"].parameters():
                    parameter.fill_(torch.nan)
        if trainer.counters.updates == 21:
            raise IndexError("index -9223372036854775808 is out of bounds")
        return real(batch, phase)

    trainer.agent.update = update
    with pytest.raises(NonFiniteError, match="objective 'main' has diverged: ") as caught:
        trainer.run()
    assert isinstance(caught.value.__cause__ or caught.value.__context__, Exception)


@pytest.mark.parametrize("name", AGENTS)
def test_no_agent_is_stopped_without_reason(name):
    env = make_env("NineRooms", room_size=3, batch_size=4, seed=0, visits="counts")
    guard = FiniteGuard(make_agent(name, env), env)
    guard.check_weights(0)
    guard.check_batch(env.rollout(5, break_when_any_done=False), 0)


def test_the_exit_code(tmp_path, capsys):
    env = faulty(fault="reward", fault_step=30)
    with pytest.raises(SystemExit) as end, exit_with_a_sentence(tmp_path):
        make_trainer(tmp_path, env).run()
    said = capsys.readouterr().err
    assert end.value.code == 1
    assert said.startswith(f"{tmp_path}: environment 0 gave 'reward' = nan at step 30")
    assert said.count("\n") == 1


def test_the_best_evaluated_checkpoint_is_kept(tmp_path, monkeypatch):
    returns = iter([0.5, 2.0, 1.0])
    monkeypatch.setattr(
        sys.modules["torchrl_dceo.training.trainer"], "evaluate", lambda *_, **__: next(returns)
    )
    env = faulty()
    agent = vector_agent(env)
    config = TrainConfig(**{**FIELDS, "keep_best": True, "keep_checkpoints": 1})
    trainer = Trainer(agent, env, config, eval_env=faulty((2,)), run_dir=tmp_path)
    trainer.run()
    assert trainer.checkpoints.steps() == [1200]
    best = trainer.checkpoints.load_best()
    assert best["counters"]["frames"] == 800 and best["last_row"]["eval_return"] == 2.0
    assert trainer.best_return == trainer.checkpoints.load_latest()["best_return"] == 2.0
    # A resumed run continues from the newest, and knows the best.
    again = Trainer(vector_agent(env), env, config, eval_env=faulty((2,)), run_dir=tmp_path)
    with contextlib.closing(again):
        assert again.resume() == 1200 and again.best_return == 2.0
    # Without being asked for, there is none.
    monkeypatch.setattr(
        sys.modules["torchrl_dceo.training.trainer"], "evaluate", lambda *_, **__: 1.0
    )
    plain = make_trainer(tmp_path / "plain", total_frames=400)
    plain.eval_env = faulty((2,))
    plain.run()
    assert not (tmp_path / "plain" / "checkpoints" / "best").exists()
