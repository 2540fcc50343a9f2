from __future__ import annotations

import pytest
import torch
from clock_env import ACTIONS, explorers_env
from tensordict import TensorDict
from tensordict.nn import TensorDictSequential as Seq
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import Categorical
from torchrl.envs.utils import ExplorationType, check_env_specs, set_exploration_type
from torchrl.modules import QValueActor

from torchrl_dceo.modules import EZGreedyModule


def ez_input(*shape: int, is_init: bool = True):
    """The main learner says action 0, and no action is being repeated."""
    zeros = torch.zeros(shape, dtype=torch.int64)
    is_init = torch.full((*shape, 1), is_init)
    return TensorDict(
        {
            "action": zeros,
            "option": zeros - 1,
            "option_remaining": zeros.clone(),
            "is_init": is_init,
        },
        shape,
    )


def ez_advance(td, explore):
    out = explore(td).clone()
    td.update({"option": td["next", "option"], "option_remaining": td["next", "option_remaining"]})
    td["action"] = torch.zeros_like(td["action"])
    td["is_init"] = torch.zeros_like(td["is_init"])
    return out


def test_ez_greedy_lengths_follow_zeta_2():
    explore = EZGreedyModule(Categorical(ACTIONS), eps_end=1.0)
    td = ez_input(200)
    starts = torch.stack([ez_advance(td, explore)["option_start"] for _ in range(1500)], -1)
    # Only the lengths that began in the first half: near the end the long ones would be cut off.
    begins = [s.nonzero().flatten() for s in starts]
    lengths = torch.cat([b.diff()[b[:-1] < 750] for b in begins])
    assert len(lengths) > 30_000
    frequency = torch.tensor([(lengths == k).float().mean() for k in range(1, 6)])
    zeta = torch.arange(1, 6).double() ** -2 / (torch.pi**2 / 6)
    torch.testing.assert_close(frequency.double(), zeta, rtol=0.03, atol=0.002)


def test_a_share_of_epsilon_of_all_steps_explores():
    """The mean of zeta cut at 6 is about 1.6."""
    explore = EZGreedyModule(
        Categorical(ACTIONS),
        eps_init=0.2,
        eps_end=0.2,
        option_prob=0.7,
        max_duration=6,
        eps_per="step",
    )
    td = ez_input(2000)
    for _ in range(50):
        ez_advance(td, explore)
    repeats = torch.stack([ez_advance(td, explore)["option"] >= 0 for _ in range(200)], -1)
    k = torch.arange(1, 7).double()
    mean = float((k**-1).sum() / (k**-2).sum())
    expected = 0.2 * 0.7 * mean / (0.7 * mean + 0.3)
    share = repeats.float().mean(-1)
    deviation = share.std().item() / len(share) ** 0.5
    assert abs(share.mean().item() - expected) < 5 * deviation < 0.02


def test_ez_greedy_durations_have_the_exact_law():
    explore = EZGreedyModule(Categorical(ACTIONS), zeta_exponent=3.0, max_duration=4)
    lengths = explore._draw_durations(torch.Size([400_000]))
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0]).double() ** -3
    frequency = torch.bincount(lengths, minlength=5)[1:].double() / 400_000
    torch.testing.assert_close(frequency, weights / weights.sum(), rtol=0, atol=0.003)


def test_ez_greedy_repeats_one_action_and_stops_with_the_episode():
    explore = EZGreedyModule(Categorical(ACTIONS), eps_end=1.0)
    td = ez_input(300)
    steps = torch.stack([ez_advance(td, explore) for _ in range(60)], -1)
    goes_on = ~steps["option_start"][:, 1:]
    assert goes_on.any()
    torch.testing.assert_close(steps["action"][:, 1:][goes_on], steps["action"][:, :-1][goes_on])
    td["is_init"] = torch.ones_like(td["is_init"])
    td["option_remaining"] = torch.full_like(td["option_remaining"], 5)
    assert ez_advance(td, explore)["option_start"].all()


def test_ez_greedy_option_prob_sets_the_share_of_repeats():
    explore = EZGreedyModule(Categorical(ACTIONS), eps_init=0.5, eps_end=0.5, option_prob=0.4)
    td = explore(ez_input(200_000))
    assert abs(td["option_start"].float().mean().item() - 0.2) < 0.004
    single = ~td["option_start"]
    assert (td["option_remaining"][single] == 0).all() and (td["option"][single] == -1).all()
    # Exploring without repeating is one random action; else greedy, which is 0.
    p = 0.5 * 0.6 / 0.8 / ACTIONS
    assert abs((td["action"][single] == 3).float().mean().item() - p) < 0.004


def test_ez_greedy_in_the_collector():
    torch.manual_seed(0)
    explore = EZGreedyModule(Categorical(ACTIONS), eps_init=0.9, eps_end=0.9)
    main = QValueActor(nn.Linear(2, ACTIONS), in_keys=["observation"], spec=Categorical(ACTIONS))
    env = explorers_env(explore, (3,), period=40)
    check_env_specs(env)
    data = next(iter(Collector(env, Seq(main, explore), frames_per_batch=3000, total_frames=3000)))
    goes_on = (data["option"][:, 1:] >= 0) & ~data["option_start"][:, 1:]
    assert goes_on.float().mean() > 0.2
    torch.testing.assert_close(data["action"][:, 1:][goes_on], data["action"][:, :-1][goes_on])
    assert data["option_start"][data["is_init"].squeeze(-1) & (data["option"] >= 0)].all()


def test_ez_greedy_is_greedy_under_deterministic_exploration():
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        td = EZGreedyModule(Categorical(ACTIONS))(ez_input(50))
    assert (td["action"] == 0).all() and (td["option"] == -1).all()
    assert (td["option_remaining"] == 0).all()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"zeta_exponent": 1.0}, "greater than 1, got 1.0"),
        ({"max_duration": 0}, "at least 1, got 0"),
    ],
)
def test_ez_greedy_bad_arguments_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        EZGreedyModule(Categorical(ACTIONS), **kwargs)


def test_masked_actions_are_neither_drawn_nor_repeated():
    """An action is repeated until it is no longer allowed, and drawn uniformly among those that are."""
    n = 40_000
    explore = EZGreedyModule(Categorical(ACTIONS), action_mask_key="action_mask")
    td = ez_input(n)
    td["action_mask"] = torch.tensor([True, False, True, True]).expand(n, ACTIONS)
    first = ez_advance(td, explore)
    counts = torch.bincount(first["action"], minlength=ACTIONS)
    assert counts[1] == 0
    assert (counts[[0, 2, 3]] - n / 3).abs().max() < 4.5 * (n * 2 / 9) ** 0.5
    going = td["option_remaining"] > 0
    td["action_mask"] = torch.tensor([True, True, True, False]).expand(n, ACTIONS)
    second = ez_advance(td, explore)
    assert (second["action"] != 3).all()
    kept = going & (first["action"] != 3)
    assert torch.equal(second["action"][kept], first["action"][kept])
    assert not second["option_start"][kept].any()
    assert second["option_start"][going & (first["action"] == 3)].all()
