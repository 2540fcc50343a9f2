"""Are a run's options limited by learning or by their discount?

For every option of a finished run: how much of its (learned) eigenfunction it climbs, and how much an option that is
solved exactly on the same function climbs, for several discounts. ``python research/attainable_climb.py <run dir>``.
"""

import argparse
import csv
import sys

from torchrl_dceo.analysis import load_analysis, option_climb, solved_option_values

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("run_dir", help="of a run with options on a grid; it holds analysis.npz")
parser.add_argument("--gammas", nargs="+", type=float, default=[0.9, 0.95, 0.98, 0.99])
arguments = parser.parse_args()

try:
    run = load_analysis(arguments.run_dir)
except (FileNotFoundError, ValueError) as error:
    sys.exit(str(error))
env, functions = run.grid, run.followed
if env is None or functions is None or run.option_values is None:
    sys.exit(f"{arguments.run_dir} has no options that climb eigenfunctions of a grid")

learned = option_climb(run.option_values, functions, env.next_state).mean()
solved = {
    gamma: option_climb(
        solved_option_values(functions, env.next_state, gamma=gamma, slip=env.slip),
        functions,
        env.next_state,
    ).mean()
    for gamma in arguments.gammas
}
rows = csv.writer(sys.stdout, lineterminator="\n")
rows.writerow(["option", "learned", *(f"solved_{gamma:g}" for gamma in solved)])
for i, own in enumerate(learned.tolist()):
    rows.writerow([i + 1, f"{own:.3f}", *(f"{float(climb[i]):.3f}" for climb in solved.values())])
means = (f"{float(climb.mean()):.3f}" for climb in solved.values())
rows.writerow(["mean", f"{float(learned.mean()):.3f}", *means])
