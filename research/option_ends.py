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
VARIANTS = [(ends, mu, d) for ends in ("length", "top") for mu in (0.8, 0.5) for d in (10.0, 30.0)]

totals: dict[tuple, list[float]] = {}
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
    for ends, mu, duration in VARIANTS:
        explorer = copy.deepcopy(agent.explorer)
        explorer.termination = TopTermination(duration=duration) if ends == "top" else None
        explorer.option_prob, explorer.option_duration = mu, duration
        for steps in STEPS:
            goals, states = explored(
                table_env,
                [tables[part] for part in PARTS],
                explorer,
                steps=steps,
                repeats=arguments.repeats,
            )
            for part, own_goals, own_states in zip(PARTS, goals, states, strict=True):
                own = totals.setdefault((part, ends, mu, duration, steps), [0.0, 0.0])
                own[0] += float(own_goals.mean()) / len(arguments.runs)
                own[1] += float(own_states.mean()) / len(arguments.runs)

out = open(arguments.csv, "w", newline="") if arguments.csv else sys.stdout  # noqa: SIM115
rows = csv.writer(out)
rows.writerow(["options", "ends", "option_prob", "duration", "steps", "goals_per_1000", "states"])
for key, (goals, states) in totals.items():
    rows.writerow([*key, round(goals, 4), round(states, 1)])
