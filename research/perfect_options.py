"""How often do exact options reach the goal? Exact eigenfunctions, exact options, and Algorithm 1 at ε = 1.

The remaining choices are the number of eigenfunctions and whether to follow them in both directions. They matter
more than learning. ``python research/perfect_options.py results/option_quality/perfect_options.csv``.
"""

import argparse
import csv
import sys

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.envs import InitTracker, TransformedEnv

from torchrl_dceo.analysis import exact_eigenfunctions, find_table_env, solved_option_values
from torchrl_dceo.envs import make_env
from torchrl_dceo.modules import OptionExplorationModule

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("csv", nargs="?", help="where to write the numbers; default: the terminal")
parser.add_argument("--environments", nargs="+", default=["NineRooms", "Maze"])
parser.add_argument("--episodes", type=int, default=4000)
arguments = parser.parse_args()

GAMMA = 0.95
SIGNS = {"+": (1,), "-": (-1,), "both": (1, -1)}


def chance(name: str, number: int, signs: str, prob: float, duration: float) -> float:
    """The share of episodes that end at a goal."""
    torch.manual_seed(0)
    env = make_env(name, batch_size=arguments.episodes, seed=0, observation="index")
    table_env = find_table_env(env)
    _, functions = exact_eigenfunctions(table_env, number + 1)
    followed = torch.cat([sign * functions[:, 1:] for sign in SIGNS[signs]], -1)
    table = solved_option_values(
        followed, table_env.next_state, gamma=GAMMA, slip=table_env.slip
    ).float()
    explorer = OptionExplorationModule(
        env.action_spec_unbatched,
        num_options=followed.shape[-1],
        eps_init=1.0,
        eps_end=1.0,
        annealing_num_steps=1,
        option_prob=prob,
        option_duration=duration,
    )
    policy = TensorDictSequential(
        # No main learner: at ε = 1 its action is not used.
        TensorDictModule(torch.zeros_like, in_keys=["state_id"], out_keys=["action"]),
        TensorDictModule(
            lambda state: table[state], in_keys=["state_id"], out_keys=["option_action_value"]
        ),
        explorer,
    )
    env = TransformedEnv(table_env, InitTracker()).append_transform(
        explorer.make_tensordict_primer()
    )
    with torch.no_grad():
        walk = env.rollout(table_env.max_steps, policy, break_when_any_done=False)
    return float(walk["next", "terminated"].any(1).float().mean())


out = open(arguments.csv, "w", newline="") if arguments.csv else sys.stdout  # noqa: SIM115
rows = csv.writer(out)
rows.writerow(
    ["environment", "eigenfunctions", "signs", "option_prob", "option_duration", "reached"]
)
for name in arguments.environments:
    for number in (10, 5, 3):
        for signs in SIGNS:
            setting = (name, number, signs, 0.8, 10.0)
            rows.writerow([*setting, round(chance(*setting), 4)])
            out.flush()
    for duration in (5.0, 20.0):
        setting = (name, 5, "both", 0.8, duration)
        rows.writerow([*setting, round(chance(*setting), 4)])
    setting = (name, 1, "+", 0.0, 10.0)  # no options: a random walk
    rows.writerow([*setting, round(chance(*setting), 4)])
