"""What makes good options? Exact eigenfunctions, data of a random walk, and one option loss with several settings.

For each setting: how much of the range of its eigenfunction an option's greedy policy climbs, mean over ten options and
all states, after so many updates. Nothing but the options learns, so the settings of their loss are all that differs.
``python research/option_quality.py results/option_quality/nine_rooms.csv`` keeps the numbers.
"""

import argparse
import csv
import itertools
import sys

import torch
from tensordict.nn import TensorDictModule
from torchrl.objectives import HardUpdate, SoftUpdate

from torchrl_dceo._fast import tune_process
from torchrl_dceo.analysis import exact_eigenfunctions, find_table_env, option_climb, state_values
from torchrl_dceo.data import make_replay_buffer
from torchrl_dceo.envs import make_env
from torchrl_dceo.modules import Centred, CentringFit, EigenReward, OptionQValueActor, averaged
from torchrl_dceo.modules.networks import MultiHeadNet, grid_net
from torchrl_dceo.objectives import OptionDQNLoss

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("csv", nargs="?", help="where to write the numbers; default: the terminal")
parser.add_argument("--env", default="NineRooms")
parser.add_argument("--updates", type=int, default=4000)
parser.add_argument("--seed", type=int, default=0)
arguments = parser.parse_args()

ENVS, OPTIONS = 16, 10
SETTINGS = [  # steps of a transition, reward, discount, targets (updates between, or τ), images centred, averaged
    *itertools.product((5, 3, 1), ("telescoped",), (0.99,), (250,), (False,), (False,)),
    *itertools.product((5, 1), ("telescoped", "potential"), (0.95,), (50,), (False,), (False,)),
    *itertools.product((1,), ("potential",), (0.99, 0.9), (50,), (False,), (False,)),
    (1, "potential", 0.95, 50, True, False),
    *itertools.product((1,), ("potential",), (0.95,), (0.01,), (True,), (False, True)),
]
tune_process()
torch.manual_seed(arguments.seed)
env = make_env(
    arguments.env, batch_size=ENVS, seed=arguments.seed, coverage=True, starts="anywhere"
)
table_env = find_table_env(env)
assert table_env is not None
_, eigenfunctions = exact_eigenfunctions(table_env, OPTIONS + 1)
table = torch.nn.Embedding.from_pretrained(eigenfunctions.float())
encoder = TensorDictModule(table, in_keys=["state_id"], out_keys=["representation"])
data = env.rollout(3000, break_when_any_done=False)


def climbed(
    steps: int, mode: str, gamma: float, targets: float, centred: bool, average: bool
) -> list[float]:
    """Trains ten options; how much they climb after each quarter of the updates."""
    torch.manual_seed(arguments.seed)
    replay = make_replay_buffer(
        4 * data.numel(),
        n_steps=steps,
        batch_size=32,
        num_streams=ENVS,
        state_keys=["state_id"],
        seed=arguments.seed,
    )
    replay.extend(data)
    reward = EigenReward(encoder, OPTIONS, mode=mode, gamma=gamma)
    shape = data["pixels"].shape[-3:]
    net = Centred(MultiHeadNet(lambda out: grid_net(shape, out), OPTIONS, 4), shape)
    if centred:
        CentringFit([net])(replay.sample())
    actor = OptionQValueActor(
        net, num_options=OPTIONS, in_keys=["pixels"], spec=env.action_spec_unbatched
    )
    loss = OptionDQNLoss(actor)
    loss.make_value_estimator(gamma=gamma)
    if targets < 1:
        target = SoftUpdate(loss, tau=targets)
    else:
        target = HardUpdate(loss, value_network_update_interval=targets)
    acting = averaged(actor, loss.target_option_network_params) if average else actor
    optimizer = torch.optim.Adam(
        [p for p in loss.parameters() if p.requires_grad], lr=5e-4, fused=True
    )
    scores = []
    for update in range(1, arguments.updates + 1):
        loss(reward(replay.sample()))["loss_option"].backward()
        optimizer.step()
        optimizer.zero_grad()
        target.step()
        if update % (arguments.updates // 4) == 0:
            climb = option_climb(
                state_values(acting, table_env), eigenfunctions[:, 1:], table_env.next_state
            )
            scores.append(round(float(climb.mean().nanmean()), 3))
    return scores


out = open(arguments.csv, "w", newline="") if arguments.csv else sys.stdout  # noqa: SIM115
table_of_scores = csv.writer(out)
quarters = [arguments.updates * quarter // 4 for quarter in (1, 2, 3, 4)]
table_of_scores.writerow(
    ["n_steps", "reward_mode", "gamma", "targets", "centred", "averaged", *quarters]
)
for setting in SETTINGS:
    table_of_scores.writerow([*setting, *climbed(*setting)])
    out.flush()
