"""How much do goals and coverage of exact options change if the eigenfunctions change a little?

Exact eigenfunctions of a map, exact options, Algorithm 1 at ε = 1, with two changes that a learned representation also
has: eigenfunctions with equal eigenvalues are rotated into each other (any rotation is as exact), and noise is added,
as a share of their standard deviation. ``python research/goal_sensitivity.py results/option_quality/sensitivity.csv``.
"""

import argparse
import csv
import itertools
import sys

import torch
from torch import Tensor

from torchrl_dceo.agents import make_agent
from torchrl_dceo.analysis import exact_eigenfunctions, find_table_env, solved_option_values
from torchrl_dceo.analysis.diagnosis import OptionTables, explored
from torchrl_dceo.envs import make_env

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("csv", nargs="?", help="where to write the numbers; default: the terminal")
parser.add_argument("--environments", nargs="+", default=["NineRooms", "Maze"])
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument("--repeats", type=int, default=64)
parser.add_argument("--seeds", type=int, default=6)
arguments = parser.parse_args()

EIGENFUNCTIONS, GAMMA = 5, 0.95  # dceo's defaults, with both signs


def rotated(values: Tensor, functions: Tensor, generator: torch.Generator) -> Tensor:
    """Every group of functions with equal eigenvalues in another orthonormal basis of its span."""
    groups = (values.diff() > 1e-6).cumsum(0).tolist()
    parts = []
    for _, group in itertools.groupby(range(len(values)), lambda i: groups[i - 1] if i else -1):
        block = functions[:, list(group)]
        noise = torch.randn(block.shape[1], block.shape[1], generator=generator, dtype=block.dtype)
        parts.append(block @ torch.linalg.qr(noise).Q)
    return torch.cat(parts, -1)


out = open(arguments.csv, "w", newline="") if arguments.csv else sys.stdout  # noqa: SIM115
rows = csv.writer(out)
rows.writerow(["environment", "change", "amount", "seed", "goals", "states"])
for name in arguments.environments:
    env = make_env(name, batch_size=1, seed=0)
    table_env = find_table_env(env)
    assert table_env is not None
    explorer = make_agent("dceo", env, direction=0.0).explorer
    # One more than followed: a group of equal ones may be cut at the last.
    values, functions = exact_eigenfunctions(table_env, EIGENFUNCTIONS + 2)
    values, functions = values[1:], functions[:, 1:]
    changes = [
        ("rotation", 1.0),
        *(("noise", share) for share in (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)),
    ]
    for change, amount in changes:
        tables = []
        for seed in range(arguments.seeds):
            generator = torch.Generator().manual_seed(seed)
            if change == "rotation":
                f = rotated(values, functions, generator)
            else:
                noise = torch.randn(functions.shape, generator=generator, dtype=functions.dtype)
                f = functions + amount * noise
            f = f[:, :EIGENFUNCTIONS]
            option_values = solved_option_values(
                torch.cat([f, -f], -1),
                table_env.next_state,
                gamma=GAMMA,
                slip=table_env.slip,
                terminal=table_env._is_goal,
            )
            known = torch.ones(option_values.shape[:2], dtype=torch.bool)
            tables.append(OptionTables(option_values, known))
        goals, states = explored(
            table_env, tables, explorer, steps=arguments.steps, repeats=arguments.repeats
        )
        for seed in range(arguments.seeds):
            measured = (round(float(goals[seed].mean()), 3), round(float(states[seed].mean()), 1))
            rows.writerow([name, change, amount, seed, *measured])
        out.flush()
