"""How fast does the main learner propagate a rare reward to the start? Stored data, one loss, several settings.

Steps of a random walk from anywhere, a goal in some of them, n-step Double DQN and nothing else. For each setting and
seed: the chance that the greedy policy (with the environment's slips, within 100 steps) reaches a goal from the start,
after so many updates. ``python research/learner_quality.py results/option_quality/main_learner.csv`` keeps the numbers.
"""

import argparse
import csv
import sys

import torch
from torchrl.objectives import DQNLoss, HardUpdate, SoftUpdate

from torchrl_dceo._fast import tune_process
from torchrl_dceo._fast.actors import GreedyActor
from torchrl_dceo.analysis import find_table_env, state_values
from torchrl_dceo.data import make_replay_buffer
from torchrl_dceo.envs import make_env
from torchrl_dceo.modules import Centred, CentringFit, averaged
from torchrl_dceo.modules.networks import grid_net

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("csv", nargs="?", help="where to write the numbers; default: the terminal")
parser.add_argument("--room-size", type=int, default=3)
parser.add_argument("--updates", type=int, default=6000)
parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
arguments = parser.parse_args()

ENVS, STEPS = 16, 100
SETTINGS = [  # the value of a full pixel in centred images (0: not centred), targets (updates between, or τ), averaged
    (0, 250, False),
    (2, 250, False),
    (2, 50, False),
    (2, 0.01, False),
    (0, 0.01, True),
    (2, 0.01, True),
]
tune_process()
torch.manual_seed(500)
env = make_env(
    "NineRooms", room_size=arguments.room_size, batch_size=ENVS, seed=500, starts="anywhere"
)
data = env.rollout(3000, break_when_any_done=False)
table_env = find_table_env(make_env("NineRooms", room_size=arguments.room_size))
assert table_env is not None
start = int(make_env("NineRooms", room_size=arguments.room_size).reset()["state_id"])
ended = data["next", "terminated"].squeeze(-1)
goals = data["next", "state_id"][ended].unique()


def reached(values: torch.Tensor) -> float:
    """The chance that the policy greedy in ``values`` reaches a goal, from the slippery dynamics themselves."""
    states = torch.arange(table_env.num_states)
    moves = (1 - table_env.slip) * torch.nn.functional.one_hot(
        values.argmax(-1), table_env.num_actions
    )
    moves = moves + table_env.slip / table_env.num_actions
    dynamics = torch.zeros(table_env.num_states, table_env.num_states)
    dynamics.scatter_add_(1, table_env.next_state, moves)
    dynamics[goals] = (states == goals[:, None]).float()
    return float(torch.linalg.matrix_power(dynamics, STEPS)[start, goals].sum())


def learned(pixel: float, targets: float, average: bool, seed: int) -> list[float]:
    """Trains a main learner; the chance to reach a goal after each sixth of the updates."""
    torch.manual_seed(seed)
    replay = make_replay_buffer(
        4 * data.numel(), n_steps=5, batch_size=32, num_streams=ENVS, seed=seed
    )
    replay.extend(data)
    shape = data["pixels"].shape[-3:]
    net = Centred(grid_net(shape, 4), shape, scale=(pixel or 1) / 255)
    if pixel:
        CentringFit([net])(replay.sample())
    actor = GreedyActor(net, in_keys=["pixels"], spec=env.action_spec_unbatched)
    loss = DQNLoss(actor, double_dqn=True, loss_function="smooth_l1")
    loss.make_value_estimator(gamma=0.99)
    if targets < 1:
        target = SoftUpdate(loss, tau=targets)
    else:
        target = HardUpdate(loss, value_network_update_interval=targets)
    acting = averaged(actor, loss.target_value_network_params) if average else actor
    optimizer = torch.optim.Adam(
        [p for p in loss.parameters() if p.requires_grad], lr=5e-4, fused=True
    )
    chances = []
    for update in range(1, arguments.updates + 1):
        loss(replay.sample())["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        target.step()
        if update % (arguments.updates // 6) == 0:
            chances.append(
                round(reached(state_values(acting, table_env, out_key="action_value")), 2)
            )
    return chances


out = open(arguments.csv, "w", newline="") if arguments.csv else sys.stdout  # noqa: SIM115
table = csv.writer(out)
sixths = [arguments.updates * sixth // 6 for sixth in range(1, 7)]
table.writerow(["pixel", "targets", "averaged", "seed", *sixths])
for setting in SETTINGS:
    for seed in arguments.seeds:
        table.writerow([*setting, seed, *learned(*setting, seed)])
        out.flush()
