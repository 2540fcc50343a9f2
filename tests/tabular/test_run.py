from __future__ import annotations

import pytest
import torch

from torchrl_dceo.envs import GridWorldEnv
from torchrl_dceo.tabular import METHODS, TabularConfig, run_tabular
from torchrl_dceo.tabular.run import steps_to_cover

CORRIDOR = "S......G"


def small_env(num_seeds=6, seed=0, **settings):
    return GridWorldEnv(CORRIDOR, batch_size=[num_seeds], seed=seed, max_steps=20, **settings)


def go(method, total_steps=600, env=None, **settings):
    torch.manual_seed(0)
    config = TabularConfig(
        total_steps=total_steps, **{"eval_period": 200, "discovery_steps": 200, **settings}
    )
    return run_tabular(
        method,
        small_env() if env is None else env,
        config,
        discovery_env=small_env(coverage=True, seed=1),
        eval_env=GridWorldEnv(CORRIDOR, batch_size=[6, 4], seed=2, max_steps=20),
    )


@pytest.mark.parametrize("method", METHODS)
def test_same_seed_gives_the_same_run(method):
    first, second = go(method), go(method)
    assert first["coverage"].shape == (6, 6)
    for name in ("coverage", "train_return", "counts", "action_value", "covered_at"):
        torch.testing.assert_close(first[name], second[name], equal_nan=True, rtol=0, atol=0)
    assert len(first["counts"].unique(dim=0)) == 6  # and each of the six seeds is a run of its own


@pytest.mark.parametrize("method", METHODS)
def test_learns_to_reach_the_goal(method):
    result = go(method, total_steps=2500, bonus_scale=0.01, option_prob=0.3, eval_period=500)
    assert result["eval_return"][-1].mean() > 0.9
    assert result["eval_return"].isnan().float().mean() == 0.8  # only now and then


def test_seeds_with_settings_of_their_own_are_like_runs_of_their_own():
    """One run of two settings: those without options never use any, and a seed that never explores stays greedy."""
    torch.manual_seed(0)
    configs = [TabularConfig(total_steps=300, eps=1.0, option_prob=p) for p in (0.0, 0.9)]
    env = small_env(coverage=True)
    result = run_tabular("ceo", env, [config for config in configs for _ in range(3)])
    share = result["option_share"].mean(0)
    assert (share[:3] == 0).all() and (share[3:] > 0.3).all()
    torch.manual_seed(0)
    greedy = [TabularConfig(total_steps=200, eps=e, bonus_scale=b) for e, b in ((1, 0), (0, 1))]
    learned = run_tabular("counts", env, [config for config in greedy for _ in range(3)])
    assert (learned["action_value"][:3] == 0).all()  # no bonus, no reward: nothing to learn
    assert (learned["action_value"][3:] > 0).all()
    with pytest.raises(ValueError, match="6 seeds need as many configs"):
        run_tabular("ceo", env, configs)
    with pytest.raises(ValueError, match="and not in total_steps: got 5 and 6"):
        run_tabular("ceo", env, [TabularConfig(total_steps=5 + (i > 2)) for i in range(6)])


def test_the_count_bonus_is_beta_over_root_n_of_the_next_state():
    """Without a discount and with the whole step a value is the bonus of the last time its action was taken."""
    env = GridWorldEnv("S..", batch_size=[1], seed=0, slip=0.0, coverage=True, max_steps=1000)
    config = TabularConfig(
        total_steps=60, step_size=1.0, gamma=0.0, eps=1.0, bonus_scale=0.5, optimistic=False
    )
    torch.manual_seed(0)
    result = run_tabular("counts", env, config)
    values, counts = result["action_value"][0], result["counts"][0]
    assert (counts > 3).all()
    for state, count in enumerate(counts.tolist()):
        bonuses = values[env.next_state == state]
        assert float(bonuses[bonuses > 0].min()) == pytest.approx(0.5 / count**0.5)


def test_counts_start_optimistic():
    result = go("counts", total_steps=100, bonus_scale=0.5)
    assert result["action_value"].max() == 50.0  # β / (1 - γ), where nothing was tried
    assert go("counts", total_steps=100, optimistic=False)["action_value"].min() == 0.0


def test_two_phases():
    result = go("ceo_two_phase", total_steps=1500, discovery_steps=500, option_prob=0.5)
    frames, share = result["frames"], result["option_share"].mean(1)
    # Nothing is learned in discovery: no reward, and a table of zeros until then.
    assert result["train_return"][frames <= 500].nan_to_num().sum() == 0
    discovery, learning = share[(frames > 100) & (frames <= 500)], share[frames > 500]
    assert discovery.mean() > 2 * learning.mean() > 0  # ε falls from 1 to 0.1
    own = go("ceo_two_phase", discovery_prob=0.0)["option_share"].mean(1)
    assert (own[:2] == 0).all() and own[2:].max() > 0


def test_two_phase_options_stay_as_discovered():
    torch.manual_seed(0)
    config = TabularConfig(total_steps=200, discovery_steps=100, eps=1.0)
    tables = []
    result = run_tabular(
        "ceo_two_phase",
        small_env(),
        config,
        discovery_env=small_env(coverage=True, seed=1),
        on_step=lambda steps, measures: tables.append(steps),
    )
    torch.manual_seed(0)
    alone = run_tabular(
        "ceo", small_env(coverage=True, seed=1), TabularConfig(total_steps=100, eps=1.0)
    )
    torch.testing.assert_close(result["option_action_value"], alone["option_action_value"])
    assert tables == list(range(1, 201))


def test_ceo_covers_a_corridor_faster_than_a_random_walk():
    def median(method):
        torch.manual_seed(0)
        env = GridWorldEnv("S" + "." * 19, batch_size=[12], seed=0, max_steps=50)
        config = TabularConfig(total_steps=3000, eps=1.0, option_prob=0.1)
        return float(
            steps_to_cover(run_tabular(method, env, config, stop_when_covered=True)).median()
        )

    assert median("random") > 4 * median("ceo")


def test_coverage_stops_when_it_is_complete():
    torch.manual_seed(0)
    env = GridWorldEnv("S...", batch_size=[3], seed=0)
    config = TabularConfig(total_steps=5000, eps=1.0)
    result = run_tabular("random", env, config, stop_when_covered=True)
    assert 0 < result["covered_at"].max() < 5000
    assert result["counts"].sum(1).max() < 5000
    assert (result["counts"] > 0).all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"option_prob": 1.5}, "option_prob must lie in"),
        ({"total_steps": 0}, "total_steps must be at least 1, got 0"),
        ({"log_period": 300}, "eval_period must be a multiple of log_period"),
        ({"termination": "never"}, "termination must be 'value' or 'geometric', got 'never'"),
        ({"bonus_scale": -1.0}, "bonus_scale must not be negative"),
    ],
)
def test_refuses_settings(wrong, message):
    with pytest.raises(ValueError, match=message):
        TabularConfig(**wrong)


def test_refuses_an_environment_that_does_not_fit():
    with pytest.raises(ValueError, match="method must be one of random, counts"):
        run_tabular("ddqn", small_env(), TabularConfig())
    with pytest.raises(ValueError, match=r"batch size \[B\], got \[\]"):
        run_tabular("random", GridWorldEnv(CORRIDOR), TabularConfig())
    with pytest.raises(ValueError, match="pass discovery_env"):
        run_tabular("ceo_two_phase", small_env(), TabularConfig())
    with pytest.raises(ValueError, match="discovery_steps must lie between 0 and total_steps"):
        go("ceo_two_phase", total_steps=200)
