"""Probes against numbers that are known: exact eigenfunctions and perfect options put into an agent."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from torchrl_dceo.agents import make_agent
from torchrl_dceo.analysis import exact_eigenfunctions, load_analysis, state_values
from torchrl_dceo.envs import StateCounts, find_transform, make_env
from torchrl_dceo.modules import CICReward, DIAYNReward, EigenReward, OptionQValueActor
from torchrl_dceo.training import TrainConfig, Trainer
from torchrl_dceo.training.probes import (
    OptionProbe,
    SkillProbe,
    SpectrumProbe,
    eigen_reward,
    option_actor,
    save_run_analysis,
)


class Table(nn.Module):
    """A network that knows the answer for every state."""

    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.values = values

    def forward(self, state_ids: torch.Tensor) -> torch.Tensor:
        return self.values[state_ids]


def make_trainer(name="dceo", env_name="NineRooms", settings=None, agent_settings=None, **kwargs):
    env = make_env(env_name, **({"room_size": 3} if settings is None else settings))
    agent = make_agent(name, env, **(agent_settings or {}))
    config = TrainConfig(total_frames=40, learning_starts=8, progress=False)
    return Trainer(agent, env, config, **kwargs)


def make_known(trainer, representation, option_values, signs="+"):
    """Puts tables in the place of an agent's encoder and options."""
    num_options = option_values.shape[1] // (2 if signs == "both" else 1)
    encoder = TensorDictModule(Table(representation), in_keys=["state_id"], out_keys=["f"])
    options = OptionQValueActor(
        Table(option_values),
        num_options=option_values.shape[1],
        in_keys=["state_id"],
        spec=trainer.env.action_spec_unbatched,
    )
    trainer.agent.objectives["reward"] = EigenReward(encoder, num_options, signs=signs)
    trainer.agent.policy = TensorDictSequential(options)
    return trainer


@pytest.fixture
def known():
    """A trainer, the exact eigenfunctions and options that go straight to their tops."""
    trainer = make_trainer()
    env = trainer.env.base_env
    f = exact_eigenfunctions(env, 8)[1]
    values = []
    for i in range(1, 4):
        near = env.layout.distances(env.layout.cells[int(f[:, i].argmax())])
        distance = torch.tensor([float(near[cell]) for cell in env.layout.cells])
        values.append(-distance[env.next_state])
    return trainer, f, torch.stack(values, 1)


def test_exact_eigenfunctions_are_perfect_whatever_their_signs(known):
    trainer, f, values = known
    signs = torch.tensor([1, -1, 1, 1, -1, -1, 1, 1])
    row = SpectrumProbe()(make_known(trainer, f * signs, values))
    assert row["cosine_similarity"] == pytest.approx(1)
    assert row["subspace_similarity"] == pytest.approx(1)
    assert row["orthogonality_error"] == pytest.approx(0, abs=1e-6)
    assert row["feature_correlation"] == pytest.approx(0, abs=1e-6)


def test_repeated_eigenvalues_may_rotate_and_scale_shows_in_the_error_alone(known):
    trainer, f, values = known
    turned = f.clone()
    turned[:, 1], turned[:, 2] = (f[:, 1] + f[:, 2]) / 2**0.5, (f[:, 1] - f[:, 2]) / 2**0.5
    row = SpectrumProbe()(make_known(trainer, 2 * turned, values))
    # Three options look at f_1 … f_4; of these f_2 and f_3 are rotated by 45 degrees.
    assert row["cosine_similarity"] == pytest.approx((2 + 2 * 0.5**0.5) / 4)
    assert row["subspace_similarity"] == pytest.approx(1)
    assert row["orthogonality_error"] == pytest.approx(3 * 4**0.5)  # ‖4 I - I‖ of a 4 x 4 matrix
    assert row["feature_correlation"] == pytest.approx(0, abs=1e-6)


def test_only_dimensions_that_options_follow_count(known):
    trainer, f, values = known
    broken = f.clone()
    broken[:, 4:] = 0
    row = SpectrumProbe()(make_known(trainer, broken, values))
    assert row["cosine_similarity"] == pytest.approx(1)
    broken[:, 3] = 0
    row = SpectrumProbe()(make_known(trainer, broken, values))
    assert row["cosine_similarity"] == pytest.approx(3 / 4)


def test_orthogonality_is_that_of_the_states_visited():
    trainer = make_trainer(settings={"room_size": 3, "visits": "counts"})
    f = exact_eigenfunctions(trainer.env.base_env, 4)[1]
    make_known(trainer, f, torch.zeros(93, 3, 4))
    counts = find_transform(trainer.env, StateCounts).counts
    counts.zero_()
    counts[:3] = torch.tensor([1, 2, 3])
    weight = torch.tensor([1.0, 2.0, 3.0]).double() / 6
    moments = (f[:3].T * weight) @ f[:3]
    expected = (moments - torch.eye(4)).norm()
    assert SpectrumProbe()(trainer)["orthogonality_error"] == pytest.approx(float(expected))


def test_a_spectrum_is_computed_once_for_an_environment_and_again_when_it_changes(monkeypatch):
    import torchrl_dceo.training.probes as module

    calls = []
    exact = module.exact_eigenfunctions
    monkeypatch.setattr(
        module, "exact_eigenfunctions", lambda *a, **k: calls.append(1) or exact(*a, **k)
    )
    trainer = make_trainer(
        env_name="NineRoomsTopologySwitch", settings={"room_size": 3, "switch_steps": 5}
    )
    probe = SpectrumProbe()
    probe(trainer), probe(trainer)
    assert len(calls) == 1
    trainer.env.rollout(6, break_when_any_done=False)
    probe(trainer), probe(trainer)
    assert len(calls) == 2


def test_perfect_options_climb_and_following_the_other_sign_is_a_fall(known):
    trainer, f, values = known
    row = OptionProbe()(make_known(trainer, f, values))
    assert row["option_climb"] == pytest.approx(1) == row["option_climb_best"]
    assert [row[f"option_climb_{i}"] for i in (1, 2, 3)] == pytest.approx([1, 1, 1])
    assert row["option_climb_start"] == pytest.approx(1)
    gain = f[:, 1:4].amax(0) - f[:, 1:4]
    assert row["option_return"] == pytest.approx(float(gain.mean()))
    both = OptionProbe()(make_known(trainer, f, torch.cat([values, values], 1), signs="both"))
    assert both["option_climb_3"] == pytest.approx(1) and both["option_climb_4"] < 0
    assert OptionProbe()(make_known(trainer, f, values, signs="-"))["option_climb"] < 0


def test_what_has_no_number_is_left_out(known):
    trainer, f, values = known
    constant = torch.ones_like(f)
    row = OptionProbe()(make_known(trainer, constant, values))
    assert row == {"option_return": 0.0}


@pytest.mark.parametrize("probe", [SpectrumProbe(), OptionProbe()])
def test_agents_and_environments_without_such_numbers_give_none(probe):
    assert probe(make_trainer("ddqn")) == {}
    assert probe(make_trainer(env_name="EscapeRoom", settings={})) == {}


def test_environments_too_large_for_their_spectrum_are_left_out():
    trainer = make_trainer()
    assert SpectrumProbe(max_states=92)(trainer) == {} != SpectrumProbe(max_states=93)(trainer)


def test_probes_follow_learning_and_change_nothing():
    """They see the networks that the losses train, draw no random number and leave no gradient."""
    torch.manual_seed(0)
    trainer = make_trainer(agent_settings={"lr": 0.01})
    encoder, options = eigen_reward(trainer.agent).encoder, option_actor(trainer.agent)
    before = [state_values(module, trainer.env) for module in (encoder, options)]
    trainer.run()
    assert trainer.counters.updates > 0
    after = [state_values(module, trainer.env) for module in (encoder, options)]
    assert all(not torch.allclose(b, a) for b, a in zip(before, after, strict=True))
    weights = {name: p.clone() for name, p in trainer.agent.named_parameters()}
    generator = torch.get_rng_state()
    row = {**SpectrumProbe()(trainer), **OptionProbe()(trainer)}
    assert all(isinstance(value, float) for value in row.values())
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(p, weights[name]) for name, p in trainer.agent.named_parameters())
    assert all(p.grad is None or not p.grad.any() for p in trainer.agent.parameters())


def test_the_log_has_them(tmp_path):
    trainer = make_trainer(run_dir=tmp_path, probes=(SpectrumProbe(), OptionProbe()))
    trainer.run()
    assert {"cosine_similarity", "option_climb"} <= set(trainer.log.read()[-1])


def test_a_run_is_stored_with_the_visits_of_all_its_environments(tmp_path):
    settings = {"room_size": 3, "visits": "counts"}
    discovery = make_env("NineRooms", coverage=True, **settings)
    trainer = make_trainer(
        "dceo_two_phase",
        settings=settings,
        agent_settings={"discovery_frames": 20, "num_options": 10, "signs": "+"},
        discovery_env=discovery,
    )
    trainer.run()
    save_run_analysis(trainer, tmp_path)
    stored = load_analysis(tmp_path)
    tables = [find_transform(env, StateCounts).counts for env in (trainer.env, discovery)]
    assert all(int(table.sum()) for table in tables)
    assert torch.equal(stored.counts, tables[0] + tables[1])
    assert stored.representation.shape == (93, 11) and stored.option_values.shape == (93, 10, 4)
    assert torch.equal(stored.followed, stored.representation[:, 1:11])


def test_one_shared_table_of_visits_counts_once(tmp_path):
    shared = StateCounts(93)
    settings = {"room_size": 3, "visits": shared}
    discovery = make_env("NineRooms", coverage=True, **settings)
    trainer = make_trainer("ddqn", settings=settings, discovery_env=discovery)
    trainer.env.rollout(10)
    save_run_analysis(trainer, tmp_path)
    assert torch.equal(load_analysis(tmp_path).counts, shared.counts)
    assert load_analysis(tmp_path).representation is None


def test_the_return_of_skills_is_the_sum_along_their_greedy_paths():
    """A corridor of four: skill 0 goes left, skill 1 right; the discriminator looks at the half."""
    trainer = make_trainer(
        "diayn",
        "S..G",
        {"slip": 0.0},
        {"num_options": 2, "option_duration": 3.0},
        discovery_env=make_env("S..G", coverage=True),
    )
    logits = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.0, 2.0]])
    discriminator = TensorDictModule(Table(logits), in_keys=["state_id"], out_keys=["skill_logits"])
    actions = trainer.env.base_env.next_state[0].tolist()
    right = actions.index(1)
    left = trainer.env.base_env.next_state[1].tolist().index(0)
    values = torch.zeros(4, 2, len(actions))
    values[:, 0, left] = values[:, 1, right] = 1.0
    make_known(trainer, torch.zeros(4, 3), values)
    trainer.agent.objectives["reward"] = DIAYNReward(discriminator)
    good, bad = (math.log(2 * p) for p in (1 / (1 + math.exp(-2)), 1 / (1 + math.exp(2))))
    # In three steps to the left, skill 0 is in the left half 3, 3, 3 and 2 times; skill 1 mirrors it.
    expected = (11 * good + bad) / 4
    assert SkillProbe()(trainer)["option_return"] == pytest.approx(expected, rel=1e-5)
    assert SkillProbe()(make_trainer("ddqn")) == {}

    # CIC scores the step, not the state: here both skills want to stay in their half, and 1 more to have moved.
    class Moves(torch.nn.Module):
        def forward(self, here, there):
            return logits.gather(0, there.long().expand(-1, 2)) + (here != there)

    encoder = TensorDictModule(
        lambda state: state.unsqueeze(-1).float(), in_keys=["state_id"], out_keys=["features"]
    )
    reward = CICReward(encoder, Moves())
    trainer.agent.objectives["reward"] = reward
    assert SkillProbe()(trainer)["option_return"] == pytest.approx(expected, rel=1e-5)
    moved = Moves()(torch.zeros(1, 1), torch.ones(1, 1))
    assert torch.allclose(reward.skill_reward(moved), reward.skill_reward(moved - 1))
