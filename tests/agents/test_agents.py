"""What holds for every agent: whatever is registered in ``AGENTS`` is tested here."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torchrl.objectives import LossModule

import torchrl_dceo.agents
from torchrl_dceo.agents import AGENTS, make_agent
from torchrl_dceo.agents.ddqn import DDQNConfig, make_ddqn
from torchrl_dceo.envs import make_env
from torchrl_dceo.modules import TopTermination
from torchrl_dceo.training import Agent, Phase, TrainConfig, Trainer

ENVIRONMENTS = {"NineRooms": {"room_size": 3}, "Maze": {}}
TWO_PHASE = ("dceo_two_phase", "diayn", "cic")


def build_env(name: str = "NineRooms", **settings):
    # Short episodes and many environments: what is tested here needs ends of episodes, not time.
    return make_env(
        name, batch_size=16, max_steps=20, visits="counts", **ENVIRONMENTS[name], **settings
    )


def make_trainer(
    name: str,
    env_name: str = "NineRooms",
    *,
    seed: int = 0,
    frames: int = 2000,
    average_options: bool = False,
    **train,
) -> Trainer:
    torch.manual_seed(seed)
    env = build_env(env_name, seed=seed)
    settings = {"discovery_frames": frames // 2} if name in TWO_PHASE else {}
    if average_options:
        settings["average_options"] = True
    agent = make_agent(name, env, batch_size=16, target_period=5, **settings)
    config = {"update_period": 32, "learning_starts": 200, "log_period": 1000, "progress": False}
    return Trainer(
        agent,
        env,
        TrainConfig(total_frames=frames, seed=seed, **{**config, **train}),
        eval_env=build_env(env_name, seed=seed + 10),
        discovery_env=build_env(env_name, seed=seed + 20, coverage=True),
    )


@pytest.fixture(scope="module", params=AGENTS)
def untrained(request) -> Trainer:
    """A trainer that has collected and learned nothing yet."""
    torch.manual_seed(0)
    trainer = make_trainer(request.param, frames=400, learning_starts=10**6)
    trainer.run()
    return trainer


def losses(agent: Agent) -> dict[str, LossModule]:
    return {k: v for k, v in agent.objectives.items() if isinstance(v, LossModule)}


def storages(loss: LossModule) -> set[int]:
    tensors = itertools.chain(loss.parameters(), loss.buffers())
    return {t.untyped_storage().data_ptr() for t in tensors}


def trained_parameters(loss: LossModule) -> list[Tensor]:
    return [p for p in loss.parameters() if p.requires_grad]


def test_main_learner_options_and_discovery_share_no_weights(untrained):
    """Not even target networks or buffers."""
    for (name, one), (other_name, other) in itertools.combinations(
        losses(untrained.agent).items(), 2
    ):
        assert not storages(one) & storages(other), f"{name} and {other_name} share weights"


def test_the_optimizer_holds_exactly_what_the_losses_train(untrained):
    agent = untrained.agent
    held = [id(p) for group in agent.optimizer.param_groups for p in group["params"]]
    trained = [id(p) for loss in losses(agent).values() for p in trained_parameters(loss)]
    assert len(held) == len(set(held)) and sorted(held) == sorted(trained)


def moved(agent: Agent, phase: Phase, batch) -> set[str]:
    """The losses whose parameters an update in this phase moves."""
    before = {
        name: [p.detach().clone() for p in trained_parameters(loss)]
        for name, loss in losses(agent).items()
    }
    agent.update(batch, phase)
    return {
        name
        for name, loss in losses(agent).items()
        if any(
            not torch.equal(old, new)
            for old, new in zip(before[name], trained_parameters(loss), strict=True)
        )
    }


def test_each_objective_moves_its_own_networks_only(untrained):
    agent = untrained.agent
    writers = tuple(set(agent.objectives) - set(losses(agent)))
    for name in losses(agent):
        phase = Phase("alone", objectives=(*writers, name))
        assert moved(agent, phase, untrained.replay.sample()) == {name}


def test_each_phase_moves_what_it_names(untrained):
    agent = untrained.agent
    for phase in agent.phases:
        names = set(losses(agent))
        expected = names if phase.objectives is None else names & set(phase.objectives)
        assert moved(agent, phase, untrained.replay.sample()) == expected


def test_the_policy_acts_with_the_weights_that_the_losses_train(untrained):
    agent = untrained.agent
    of_policy = {p.untyped_storage().data_ptr() for p in agent.policy.parameters()}
    trained = {name: trained_parameters(loss) for name, loss in losses(agent).items()}
    # Where options end at their top, the policy reads f.
    reads_f = any(isinstance(module, TopTermination) for module in agent.policy.modules())
    names = ("main", "option", "laplacian") if reads_f else ("main", "option")
    acting = [p for name in names for p in trained.get(name, ())]
    assert {p.untyped_storage().data_ptr() for p in acting} == of_policy


def test_averaged_options_follow_the_learned_ones_by_a_hundredth():
    trainer = make_trainer("dceo", frames=400, learning_starts=10**6, average_options=True)
    trainer.run()
    agent = trainer.agent
    learned = trained_parameters(agent.objectives["option"])
    acting = list(agent.policy[1].parameters())
    before = [p.clone() for p in acting]
    agent.update(trainer.replay.sample(), Phase("all"))
    for old, new, goal in zip(before, acting, learned, strict=True):
        torch.testing.assert_close(new, old + 0.01 * (goal - old))
    assert any(not torch.equal(old, new) for old, new in zip(before, acting, strict=True))


def test_frozen_options_stay_where_they_were(untrained):
    """Their target network too, which they act by: it must not run after the last weights."""
    agent = untrained.agent
    if "option" not in agent.objectives:
        return
    loss = agent.objectives["option"]
    for parameter in trained_parameters(loss):
        parameter.data += 0.1
    before = loss.target_option_network_params.data.clone()
    agent.update(untrained.replay.sample(), Phase("learning", objectives=("main",)))
    assert (loss.target_option_network_params.data == before).all()


def test_without_soft_targets_nothing_is_averaged():
    agent = make_agent("dceo", build_env(), average_options=True, target_tau=None)
    of_policy = {p.untyped_storage().data_ptr() for p in agent.policy.parameters()}
    learned = trained_parameters(agent.objectives["option"])
    assert {p.untyped_storage().data_ptr() for p in learned} <= of_policy


@pytest.mark.parametrize("env_name", ENVIRONMENTS)
@pytest.mark.parametrize("name", AGENTS)
def test_trains_2000_steps(name, env_name):
    trainer = make_trainer(name, env_name)
    row = trainer.run()
    assert row["frames"] >= 2000 and row["updates"] > 40
    assert row["phase"] == (1 if name in TWO_PHASE else 0)
    for loss in losses(trainer.agent):
        assert f"loss_{loss}" in row
    assert all(math.isfinite(value) for value in row.values()), row
    for parameter in trainer.agent.parameters():
        assert parameter.isfinite().all()


def fingerprint(trainer: Trainer) -> list[Tensor]:
    return [t for _, t in sorted(trainer.agent.state_dict().items()) if isinstance(t, Tensor)]


@pytest.mark.parametrize("name", AGENTS)
def test_deterministic_for_a_seed(name):
    """The same seed gives the same run to the bit; another seed another one."""
    runs, rows = [], []
    for seed in (3, 3, 4):
        trainer = make_trainer(name, seed=seed, frames=640)
        row = trainer.run()
        row.pop("seconds")
        rows.append(row)
        runs.append(fingerprint(trainer))
    assert rows[0] == rows[1] != rows[2]
    assert all(map(torch.equal, runs[0], runs[1]))
    assert not all(map(torch.equal, runs[0], runs[2]))


def test_save_and_load_restores_every_entry(untrained, request):
    trainer = untrained
    fresh = make_trainer(request.node.callspec.params["untrained"], seed=9)
    assert not all(map(torch.equal, fingerprint(fresh), fingerprint(trainer)))
    fresh.agent.load_state_dict(trainer.agent.state_dict())
    assert all(map(torch.equal, fingerprint(fresh), fingerprint(trainer)))


def test_the_updates_since_a_target_moved_are_saved():
    first, second = (
        make_agent("ddqn", build_env(), target_tau=None, target_period=5) for _ in range(2)
    )
    for _ in range(3):
        first.targets[0].step()
    second.load_learning_state(first.learning_state())
    assert first.targets[0].counter == second.targets[0].counter == 3


@pytest.mark.parametrize("name", AGENTS)
def test_a_wrong_setting_is_named_with_what_was_meant(name):
    with pytest.raises(
        ValueError, match=rf"unknown setting of {name} 'gama' \(did you mean 'gamma'\?\); choose"
    ):
        make_agent(name, build_env(), gama=0.9)


def test_an_unknown_agent_is_named_with_what_was_meant():
    with pytest.raises(ValueError, match=r"unknown agent 'diyan' \(did you mean 'diayn'\?\)"):
        make_agent("diyan", build_env())


def test_another_agent_is_one_builder_and_one_entry(monkeypatch):
    """The loop trains an agent that it never heard of."""

    @dataclass
    class TimidConfig(DDQNConfig):
        penalty: float = 0.1  # for living

    class Penalty(torch.nn.Module):
        def __init__(self, penalty: float) -> None:
            super().__init__()
            self.penalty = penalty

        def forward(self, batch):
            return batch.set(("next", "reward"), batch["next", "reward"] - self.penalty)

    def make_timid(env, config):
        ddqn = make_ddqn(env, config)
        return Agent(
            ddqn.policy,
            {"penalty": Penalty(config.penalty), **ddqn.objectives},
            explorer=ddqn.explorer,
            optimizer=ddqn.optimizer,
            targets=ddqn.targets,
            replay=ddqn.replay,
        )

    kind = torchrl_dceo.agents.AgentKind(TimidConfig, make_timid)
    monkeypatch.setitem(AGENTS, "timid", kind)
    trainer = make_trainer("timid", frames=600)
    assert math.isfinite(trainer.run()["loss_main"])


@pytest.mark.parametrize("name", AGENTS)
def test_all_networks_are_centred_alike_at_the_first_update(name):
    """Online and target networks of main learner, options and what they follow, by one mean image."""
    trainer = make_trainer(name, frames=480, learning_starts=100)
    buffers = [
        buffer
        for part in (trainer.agent.policy, trainer.agent.objectives)
        for key, buffer in part.named_buffers()
        if key.endswith("centre")
    ]
    if not AGENTS[name].config().centre_pixels:
        assert not buffers
        return
    main = trainer.agent.objectives["main"]
    assert sum(key.endswith("centre") for key, _ in main.named_buffers()) == 2
    assert not any(
        key.endswith("scale") for key, _ in main.named_buffers()
    )  # its own, never fitted
    fewest = 3 if "option" not in trainer.agent.objectives else 6
    assert len(buffers) >= fewest and not any(buffer.any() for buffer in buffers)
    trainer.run()
    assert trainer.counters.updates > 0
    assert buffers[0].any() and all(torch.equal(buffer, buffers[0]) for buffer in buffers)


@pytest.mark.parametrize("name", ["dceo", "dceo_two_phase", "dco"])
def test_discounted_rewards_want_several_steps(name):
    env = build_env()
    with pytest.raises(ValueError, match="set one_step_options=False with it"):
        make_agent(name, env, reward_mode="discounted")
    agent = make_agent(name, env, reward_mode="discounted", one_step_options=False)
    assert agent.replay.window and agent.objectives["option"].tensor_keys.successor == "next"
    assert not agent.objectives["option"].single_step


@pytest.mark.parametrize("name", ["dceo", "dceo_two_phase", "dco"])
@pytest.mark.parametrize("own", [0.7, None])
def test_the_options_rewards_and_their_loss_have_one_discount(name, own):
    agent = make_agent(name, build_env(), gamma=0.9, option_gamma=own)
    expected = 0.9 if own is None else own
    loss, reward = agent.objectives["option"], agent.objectives["reward"]
    assert reward.mode == "potential"  # the mode that depends on it
    assert reward.gamma == pytest.approx(expected)
    assert float(loss.value_estimator.gamma) == pytest.approx(expected)
