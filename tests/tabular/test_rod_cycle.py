from __future__ import annotations

import pytest
import torch

from torchrl_dceo.envs import GridWorldEnv
from torchrl_dceo.tabular import RODCycle, laplacian_eigenvectors, solve_options


def run(cycle, env, num_steps, actions=None):
    step = env.reset()
    renewed = []
    for _ in range(num_steps):
        action = env.action_spec.rand() if actions is None else actions
        now, step = env.step_and_maybe_reset(step.set("action", action))
        renewed.append(cycle.update(now))
    return torch.stack(renewed)


def small_env(**settings):
    return GridWorldEnv("S........", coverage=True, **{"batch_size": [2], "seed": 0, **settings})


def test_options_are_those_of_what_was_seen():
    torch.manual_seed(0)
    env = small_env(max_steps=10)
    cycle = RODCycle(
        2, env.num_states, env.num_actions, 2, signs="+", weights="edges", gamma=0.95, prior=0.0
    )
    renewed = run(cycle, env, 30)
    assert renewed.nonzero()[:, 0].unique().tolist()[0] == 9  # with the end of the first episode
    cycle.discover(torch.arange(2))
    for seed in range(2):
        _, f = laplacian_eigenvectors(cycle.graph.edges(seed), env.num_states, 2)
        torch.testing.assert_close(cycle.eigenvectors[seed], f)
        q = solve_options(*cycle.graph.model(torch.tensor([seed])), f.unsqueeze(0), gamma=0.95)
        torch.testing.assert_close(cycle.options.table[seed], q[0].transpose(0, 1))
    assert not torch.equal(*cycle.options.table)


def test_a_move_that_keeps_failing_loses_its_value_within_the_episode():
    """An option has seen action 0 lead to the right once, by a slip. It must not insist."""
    env = small_env(batch_size=[1], slip=0.0, max_steps=30)
    cycle = RODCycle(1, env.num_states, env.num_actions, 1)

    def show(action, following, done=False):
        step = env.reset().set("action", torch.tensor([action]))
        step.set("state_id", torch.tensor([0]))
        step.set("next", {"state_id": torch.tensor([following]), "done": torch.tensor([[done]])})
        cycle.update(step)

    for _ in range(5):
        show(3, 0)
    show(0, 1, done=True)
    values = cycle.options.table[0, 0, 0]
    assert values.argmax() == 0 and values[0] > 0
    tries = 0
    while cycle.options.table[0, 0, 0].argmax() == 0:
        before = cycle.options.table[0, :, 0].clone()
        show(0, 0)  # tried again, and it stays where it is
        tries += 1
        # Its value is that of the model with what was just seen.
        share, lists = cycle.graph.outcomes(torch.tensor([0]), torch.tensor([0]), prior=1.0)
        f = cycle.eigenvectors[0, :, 0]
        worth = f[lists[0]] - f[0] + 0.9 * before[lists[0]].amax(-1).clamp(min=0)
        expected = (share[0] * worth).sum()
        torch.testing.assert_close(cycle.options.table[0, 0, 0, 0], expected)
    assert 0 < tries < 10 and (cycle.options.table[0, 0, 0] > 0).any()


def test_rare_options_lead_away_from_what_was_visited_most():
    env = small_env(slip=0.0, max_steps=9)
    cycle = RODCycle(2, env.num_states, env.num_actions, 1)
    # To the end once, and then against the wall of the start for many episodes.
    run(cycle, env, 9, torch.tensor([1, 1]))
    for _ in range(3):
        run(cycle, env, 9, torch.tensor([3, 0]))
    f = cycle.eigenvectors[..., 0]
    assert (f[:, 8] > f[:, 0]).all() and f.argmax(1).tolist() == [8, 8]


@pytest.mark.parametrize("signs", ["+", "-", "both"])
def test_signs(signs):
    env = small_env(slip=0.0, batch_size=[1], max_steps=4)
    cycle = RODCycle(1, env.num_states, env.num_actions, 1, signs=signs)
    run(cycle, env, 4, torch.tensor([1]))
    f = cycle.eigenvectors[0, :, 0]
    assert (f[f.abs().argmax()] < 0) == (signs == "-")
    q = cycle.options.table[0]  # [S, N, A]
    assert q.shape[1] == (2 if signs == "both" else 1)
    if (
        signs == "both"
    ):  # one of them goes right, where it can, and nobody has been left of the start
        right = int(f[4] > f[0])
        assert (q[:4, 1 - right, 1] > 0).all() and (q[:4, right] <= 0).all()


def test_a_known_environment_keeps_its_options_until_there_is_more_experience():
    torch.manual_seed(0)
    env = small_env(max_steps=20)
    cycle = RODCycle(2, env.num_states, env.num_actions, 2)
    run(cycle, env, 3000)
    assert cycle.graph.num_edges.tolist() == [8, 8]
    solved = cycle.num_solved
    renewed = run(
        cycle, env, 280
    )  # fourteen episodes; a fiftieth of the experience are three or four
    assert 2 <= cycle.num_solved - solved == int(renewed.sum()) <= 10
    run(cycle, env, 100)
    assert cycle.num_solved > solved


def test_seeds_are_solved_together_at_every_so_many_steps():
    torch.manual_seed(0)
    env = small_env(max_steps=10)
    cycle = RODCycle(2, env.num_states, env.num_actions, 2, period=25)
    renewed = run(cycle, env, 60)
    assert renewed.any(1).nonzero().flatten().tolist() == [24, 49]
    assert renewed[24].all()


def test_before_the_first_episode_ends_there_are_no_options():
    env = small_env(max_steps=50)
    cycle = RODCycle(2, env.num_states, env.num_actions, 3)
    run(cycle, env, 49)
    assert cycle.options.table.abs().sum() == 0 and cycle.num_solved == 0


def test_weights_by_visits_separate_what_is_hard_to_get_to():
    torch.manual_seed(0)
    env = GridWorldEnv("S....#.\n.......\n.....#.", batch_size=[1], coverage=True, seed=0)
    first = {}
    for weights in ("edges", "visits"):
        cycle = RODCycle(1, env.num_states, env.num_actions, 1, weights=weights)
        run(cycle, env, 600)
        cycle.discover(torch.tensor([0]))
        visits = cycle.graph.edge_visits(0) if weights == "visits" else None
        _, f = laplacian_eigenvectors(cycle.graph.edges(0), env.num_states, 1, weights=visits)
        assert torch.equal(cycle.eigenvectors[0].abs(), f.abs())
        first[weights] = cycle.eigenvectors[0, :, 0]
    assert not torch.allclose(first["edges"].abs(), first["visits"].abs(), atol=0.05)


def test_each_seed_may_have_a_number_of_options_of_its_own():
    torch.manual_seed(0)
    env = small_env(max_steps=20)
    cycle = RODCycle(2, env.num_states, env.num_actions, torch.tensor([1, 3]))
    run(cycle, env, 60)
    acts = (cycle.options.table > 0).any(-1).any(1)  # [B, N]
    assert acts.tolist() == [[True, False, False], [True, True, True]]


def test_refuses_unknown_signs():
    with pytest.raises(ValueError, match="signs must be '\\+', '-', 'both' or 'rare', got 'up'"):
        RODCycle(1, 2, 2, 1, signs="up")
    with pytest.raises(ValueError, match="weights must be 'edges' or 'visits', got 'all'"):
        RODCycle(1, 2, 2, 1, weights="all")
    with pytest.raises(ValueError, match="num_options must be at least 1, got 0"):
        RODCycle(2, 2, 2, torch.tensor([1, 0]))
