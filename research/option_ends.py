"""When should an option end? Frozen options of runs at ε = 1, with other terminations and shares of options.

For the learned options of each run and for exact options of the graph that it had visited: goals per 1,000 steps and
states in 1,000 and 3,000 steps, means over the runs. ``python research/option_ends.py RUN … [--csv FILE]``.
"""

import argparse
import copy
import csv
import sys
from pathlib import Path

from torchrl_dceo.analysis import find_table_env, state_values
from torchrl_dceo.analysis.diagnosis import explored, option_tables
from torchrl_dceo.modules import TopTermination
from torchrl_dceo.training import load_agent
from torchrl_dceo.training.probes import eigen_reward, option_actor, visits_in_checkpoint

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("runs", nargs="+", help="directories of runs of dceo on grids")
parser.add_argument("--csv", help="where to write the numbers; default: the terminal")
parser.add_argument("--repeats", type=int, default=32, help="walks with each set of options")
arguments = parser.parse_args()

PARTS = ("learned", "visited")
STEPS = (1000, 3000)
VARIANTS = [(ends, mu) for ends in ("length", "top") for mu in (0.8, 0.5)]

totals: dict[tuple, list[tuple[float, float]]] = {}
for run in arguments.runs:
    learned = load_agent(run)
    table_env, agent = find_table_env(learned.env), learned.agent
    reward, options = eigen_reward(agent), option_actor(agent)
    visits = visits_in_checkpoint(Path(run), table_env.num_states)
    tables = option_tables(
        table_env,
        reward,
        state_values(reward.encoder, table_env),
        state_values(options, table_env),
        visits,
    )
    duration = agent.explorer.option_duration
    for ends, mu in VARIANTS:
        explorer = copy.deepcopy(agent.explorer)
        explorer.termination = TopTermination(duration=duration) if ends == "top" else None
        explorer.option_prob = mu
        for steps in STEPS:
            goals, states = explored(
                table_env,
                [tables[part] for part in PARTS],
                explorer,
                steps=steps,
                repeats=arguments.repeats,
            )
            for part, own_goals, own_states in zip(PARTS, goals, states, strict=True):
                env_name = learned.metadata["env"]["name"]
                own = totals.setdefault((env_name, part, ends, mu, steps), [])
                own.append((float(own_goals.mean()), float(own_states.mean())))

out = open(arguments.csv, "w", newline="") if arguments.csv else sys.stdout  # noqa: SIM115
rows = csv.writer(out)
rows.writerow(
    ["environment", "options", "ends", "option_prob", "steps", "goals_per_1000", "states", "runs"]
)
for key, values in totals.items():
    means = [sum(column) / len(values) for column in zip(*values, strict=True)]
    rows.writerow([*key, round(means[0], 4), round(means[1], 1), len(values)])
