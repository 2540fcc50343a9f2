"""Rainbow's learner under any agent: priorities, a uniform batch for the Laplacian, frames stored once, resuming."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs import CatFrames
from torchrl.objectives import LossModule

from torchrl_dceo._fast.losses import CategoricalDQNLoss
from torchrl_dceo.agents import make_agent
from torchrl_dceo.agents.agent import Objective
from torchrl_dceo.envs import make_env
from torchrl_dceo.objectives import OptionDistributionalDQNLoss, OptionDQNLoss
from torchrl_dceo.training import Agent, Phase, TrainConfig, Trainer

STACK = 3
SMALL = {"num_options": 2, "dimensions": 3, "num_atoms": 11, "batch_size": 8}


def build_env(stacked: bool = False, **settings):
    env = make_env(
        "NineRooms", room_size=3, batch_size=4, max_steps=12, visits="counts", **settings
    )
    if stacked:
        env.append_transform(
            CatFrames(N=STACK, dim=-3, in_keys=["pixels"], out_keys=["pixels"], padding="same")
        )
    return env


def make_trainer(
    name: str = "rainbow_dceo", *, frames: int = 400, stacked: bool = True, run_dir=None, **train
) -> Trainer:
    torch.manual_seed(0)
    env = build_env(stacked, seed=0)
    settings = SMALL if name == "rainbow_dceo" else {"num_atoms": 11, "batch_size": 8}
    agent = make_agent(name, env, lr=1e-3, target_period=5, **settings)
    config = {"learning_starts": 100, "log_period": 100, "update_period": 16, "progress": False}
    return Trainer(
        agent,
        env,
        TrainConfig(total_frames=frames, replay_capacity=300, **{**config, **train}),
        run_dir=run_dir,
    )


def test_the_options_of_a_rainbow_are_rainbows_and_those_of_a_network_are_not():
    env = build_env()
    agent = make_agent("rainbow_dceo", env)
    assert type(agent.objectives["main"]) is CategoricalDQNLoss
    assert type(agent.objectives["option"]) is OptionDistributionalDQNLoss
    assert type(make_agent("dceo", env).objectives["option"]) is OptionDQNLoss


def test_the_exponents_of_priorities_and_weights_are_the_agents():
    env = build_env()
    agent = make_agent("rainbow", env, priority_alpha=0.3, priority_beta=0.7)
    sampler = agent.replay.make(env, 200, seed=0).sampler
    assert (sampler.alpha, sampler.beta) == (0.3, 0.7)


@pytest.mark.parametrize("name", ["rnd", "cic", "counts", "ez_greedy", "diayn", "dco"])
def test_any_agent_learns_on_rainbows_learner(name):
    torch.manual_seed(0)
    env = build_env(seed=0)
    settings = {"discovery_frames": 200} if name in ("cic", "diayn") else {}
    agent = make_agent(name, env, main_learner="rainbow", prioritized=True, **settings)
    assert type(agent.objectives["main"]) is CategoricalDQNLoss
    config = TrainConfig(
        total_frames=400, learning_starts=100, update_period=50, log_period=200, progress=False
    )
    trainer = Trainer(agent, env, config, discovery_env=build_env(seed=1, coverage=True))
    assert math.isfinite(trainer.run()["loss_main"])


def test_priorities_become_the_errors_of_the_last_update():
    trainer = make_trainer(frames=120)
    trainer.run()
    replay, agent = trainer.replay, trainer.agent
    given = []
    update = agent.update
    agent.update = lambda batch, phase: given.append(batch) or update(batch, phase)
    agent.learn(replay, agent.phases[0])
    batch = given[0]
    weights = replay.sampler._tree.get(batch["index"])
    for row in batch["index"].unique():
        drawn = batch["index"] == row
        largest = float(batch["td_error"][drawn].max())
        assert weights[drawn].tolist() == pytest.approx(
            [(largest + 1e-6) ** 0.5] * int(drawn.sum()), rel=1e-5
        )


class _Spy(LossModule):
    """Notes the rows that it was given."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network
        self.rows: list[torch.Tensor] = []

    def forward(self, tensordict):
        self.rows.append(tensordict["index"])
        return TensorDict({"loss": self.network.weight.sum()})


def test_objectives_that_average_get_uniform_rows_and_the_others_prioritized_ones():
    env = build_env(seed=0)
    rainbow = make_agent("rainbow", env, batch_size=400)
    averaging, drawn = _Spy(torch.nn.Linear(1, 1)), _Spy(torch.nn.Linear(1, 1))
    agent = Agent(
        rainbow.policy,
        {"averaging": Objective(averaging, uniform=True), "drawn": drawn},
        explorer=rainbow.explorer,
        optimizer=rainbow.optimizer,
        replay=rainbow.replay,
    )
    replay = agent.replay.make(env, 800, seed=0)
    rows = replay.extend(env.rollout(50, break_when_any_done=False))
    replay.update_priority(rows.flatten(), (rows.flatten() == int(rows[0, 3])).float() * 1e6)
    agent.learn(replay, Phase("all"))
    share = float((drawn.rows[0] == int(rows[0, 3])).float().mean())
    assert share > 0.9
    # One of some 190 rows.
    assert float((averaging.rows[0] == int(rows[0, 3])).float().mean()) < 0.05


def test_each_frame_is_stored_once():
    trainer = make_trainer(frames=120)
    trainer.run()
    stored = trainer.replay.writer.tensors["pixels"]
    shown = trainer.env.observation_spec["pixels"].shape[1:]
    assert shown[0] == STACK * stored.shape[1] and stored.shape[2:] == shown[1:]
    batch = trainer.replay.sample()
    assert batch["pixels"].shape[1:] == shown
    assert batch["uniform", "successor", "pixels"].shape[1:] == shown


@pytest.mark.parametrize("name", ["rainbow", "rainbow_dceo"])
@pytest.mark.parametrize("storage", ["memory", "memmap"])
def test_resumed_runs_go_on_to_the_bit(name, storage, tmp_path):
    """Priorities, stacks and, on disk or not, the frames themselves; the buffer is full before the interruption."""
    settings = {"replay_storage": storage, "checkpoint_period": 100}
    if storage == "memmap":
        settings["replay_dir"] = str(tmp_path / "whole_frames")
    whole = make_trainer(name, frames=600, run_dir=tmp_path / "whole", **settings)
    expected = whole.run()
    if storage == "memmap":
        assert any((tmp_path / "whole_frames").rglob("*.memmap"))
        settings["replay_dir"] = str(tmp_path / "frames")
    make_trainer(name, frames=400, run_dir=tmp_path / "run", **settings).run()
    resumed = make_trainer(name, frames=600, run_dir=tmp_path / "run", **settings)
    assert resumed.resume() == 400
    row = resumed.run()
    del expected["seconds"], row["seconds"]
    assert row == expected
    for key, value in whole.agent.state_dict().items():
        assert torch.equal(value, resumed.agent.state_dict()[key]), key
    one, two = whole.replay.sample(), resumed.replay.sample()
    assert torch.equal(one["index"], two["index"])
    assert torch.equal(one["pixels"], two["pixels"])
    assert torch.equal(one["priority_weight"], two["priority_weight"])


@pytest.mark.fast_only
def test_compiled_networks_learn_the_same():
    """Captured whole, in every variant: with and without gradient, of any batch."""
    plain = make_trainer(frames=160).run()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    trainer = make_trainer(frames=160)
    trainer.agent.compile_networks(backend="aot_eager")  # the capture is tested, not the compiler
    row = trainer.run()
    frames, breaks = (torch._dynamo.utils.counters[name] for name in ("frames", "graph_break"))
    assert frames["ok"] == frames["total"] > 0 and not breaks
    for name in ("loss_main", "loss_option", "loss_laplacian"):
        assert row[name] == pytest.approx(plain[name], rel=1e-4)


# --- what the authors' code does otherwise, and the settings that do so -----------------------------------------------


def batch_of(agent: Agent, env, **settings):
    replay = agent.replay.make(env, 800, seed=0)
    replay.extend(env.rollout(50, break_when_any_done=False))
    return replay.sample(**settings)


def test_epsilons_fall_from_eps_start_on_inside_options_too():
    settings = {"eps_frames": 100, "eps_end": 0.2, "option_eps": 0.1, "eps_start": 40}
    online = make_agent("rainbow_dceo", build_env(), option_eps_init=0.9, **SMALL, **settings)
    settings |= {"eps_per": "decision", "eps_after_reward": False}
    later = make_agent("dceo_two_phase", build_env(), discovery_frames=300, **settings)
    for explorer, start in ((online.explorer, 40), (later.explorer, 340)):
        explorer.step(start)
        assert float(explorer.eps) == 1
        explorer.step(50)
        assert float(explorer.eps) == pytest.approx(0.6)
    assert float(online.explorer.annealed_option_eps) == pytest.approx(0.5)
    assert later.explorer.annealed_option_eps is None


@pytest.mark.parametrize("settings", [{}, {"objective": "allo"}, {"ritz_period": 2}])
@pytest.mark.parametrize("uniform", [True, False])
def test_the_laplacian_learns_from_the_prioritized_batch_if_told(uniform, settings):
    env = build_env(seed=0)
    agent = make_agent("rainbow_dceo", env, laplacian_uniform=uniform, **SMALL, **settings)
    seen = []
    names = [name for name in ("laplacian", "ritz") if name in agent.objectives]
    for name in names:
        agent.objectives[name].register_forward_hook(lambda _, inputs, out: seen.append(inputs[0]))
    batch = batch_of(agent, env)
    assert ("uniform" in batch.keys()) == uniform
    agent.update(batch, agent.phases[0])
    expected = batch["uniform"] if uniform else batch
    assert len(seen) == len(names)
    assert all(torch.equal(given["pixels"], expected["pixels"]) for given in seen)


def test_a_uniform_measure_needs_a_batch_of_its_own():
    with pytest.raises(ValueError, match="set laplacian_uniform to True"):
        make_agent("dceo", build_env(), laplacian_measure="distinct", laplacian_uniform=False)


@pytest.mark.parametrize(("own", "period"), [(3, 3), (None, 2)])
def test_the_options_targets_have_a_period_of_their_own(own, period):
    env = build_env(seed=0)
    agent = make_agent("rainbow_dceo", env, target_period=2, option_target_period=own, **SMALL)
    batch = batch_of(agent, env)
    option, main = agent.objectives["option"], agent.objectives["main"]
    copied: dict[str, list[int]] = {"option": [], "main": []}
    for number in range(1, 13):
        agent.update(batch.clone(), agent.phases[0])
        for name, online, target in (
            ("option", option.option_network_params, option.target_option_network_params),
            ("main", main.value_network_params, main.target_value_network_params),
        ):
            if (online.data == target.data).all():
                copied[name].append(number)
    # TorchRL's HardUpdate lets that many updates pass before the one at which it copies.
    expected = {"option": list(range(period + 1, 13, period + 1)), "main": [3, 6, 9, 12]}
    assert copied == expected


def test_a_period_of_the_options_targets_needs_hard_updates():
    with pytest.raises(ValueError, match="option_target_period=3 is for hard target updates"):
        make_agent("dceo", build_env(), option_target_period=3)


def test_prioritized_losses_are_weighted_averages_or_means_of_weighted_errors():
    env = build_env(seed=0)
    weight = torch.linspace(0.1, 1, SMALL["batch_size"])
    batch, losses, moved = None, {}, {}
    for mean in (False, True):
        torch.manual_seed(0)
        agent = make_agent("rainbow_dceo", env, weighted_mean=mean, **SMALL)
        batch = batch_of(agent, env) if batch is None else batch
        own = batch.clone().set("priority_weight", weight)
        # Plain steps of size 1 are the gradients.
        agent.optimizer = torch.optim.SGD(agent._trained(), lr=1.0)
        before = {
            name: [p.detach().clone() for p in agent.objectives[name].parameters()]
            for name in ("laplacian", "option", "main")
        }
        losses[mean] = agent.update(own, agent.phases[0])
        moved[mean] = {
            name: torch.cat(
                [
                    (p.detach() - old).flatten()
                    for p, old in zip(agent.objectives[name].parameters(), olds, strict=True)
                ]
            ).norm()
            for name, olds in before.items()
        }
        # What the main learner wrote last: its cross-entropies.
        error = own["td_error"].squeeze(-1)
        total = (weight * error).sum()
        expected = total / len(weight) if mean else total / weight.sum()
        torch.testing.assert_close(losses[mean]["loss_main"], expected)
    for name, factor in (("laplacian", 1.0), ("option", 0.55), ("main", 0.55)):
        for values, key in ((losses, f"loss_{name}"), (moved, name)):
            assert float(values[True][key] / values[False][key]) == pytest.approx(factor, rel=1e-3)


def test_without_priorities_the_two_means_are_one():
    env = build_env(seed=0)
    agent = make_agent("rainbow", env, prioritized=False, weighted_mean=True, num_atoms=11)
    batch = batch_of(agent, env)
    loss = agent.update(batch, agent.phases[0])["loss_main"]
    torch.testing.assert_close(loss, batch["td_error"].mean())


@pytest.fixture
def on_meta(monkeypatch) -> Callable[[str], Agent]:
    """Builds an agent on a device without memory: any look at a value is an error, and so is a tensor left behind."""
    # TorchRL's target updaters compare memory when they are made, which this device has none of.
    monkeypatch.setattr("torchrl_dceo.agents.builders.make_targets", lambda *_: [])

    def build(name: str) -> Agent:
        env = build_env()
        with torch.device("meta"):
            return make_agent(name, env, **(SMALL if name == "rainbow_dceo" else {}))

    return build


@pytest.mark.parametrize("name", ["rainbow", "rainbow_dceo"])
def test_an_agent_is_built_on_the_device_of_its_context(name, on_meta):
    agent = on_meta(name)
    assert isinstance(agent.optimizer, torch.optim.Adam)
    tensors = {**dict(agent.named_parameters()), **dict(agent.named_buffers())}
    left = [key for key, tensor in tensors.items() if tensor.device.type != "meta"]
    assert not left


@pytest.mark.fast_only
@pytest.mark.parametrize("name", ["rainbow", "rainbow_dceo"])
def test_losses_and_gradients_need_no_look_at_a_value(name, on_meta):
    """What an accelerator would have to stop for, or copy to the host, fails on a device that has no values."""
    host = make_trainer(name, frames=120, stacked=False)
    host.run()
    batch = host.replay.sample().to("meta")
    agent = on_meta(name)
    total = torch.zeros((), device="meta")
    for key, objective in agent.objectives.items():
        own = batch["uniform"] if key == "laplacian" else batch
        out = objective(own)
        if isinstance(objective, LossModule):
            total = total + next(value for key, value in out.items() if key.startswith("loss"))
    total.backward()
    assert all(
        p.grad is not None for group in agent.optimizer.param_groups for p in group["params"]
    )
    assert batch["td_error"].device.type == "meta"


@pytest.mark.fast_only
@pytest.mark.parametrize("name", ["rainbow", "rainbow_dceo"])
def test_acting_needs_no_look_at_a_value(name, on_meta):
    agent = on_meta(name)
    step = build_env().reset().to("meta")
    step["option"] = torch.full(step.shape, -1, device="meta")
    assert agent.policy(step)["action"].device.type == "meta"
