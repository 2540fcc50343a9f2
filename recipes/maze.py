"""The Maze: one folded corridor with a goal at each end.

300,000 frames take about ten minutes on one core. `dceo` reaches a greedy return of 1; `ez_greedy` and `ddqn` do not
reach the goal.

    python recipes/maze.py agent=dceo seed=3
    python recipes/maze.py --multirun seed=0,1,2 agent=dceo,ddqn
"""

from torchrl_dceo.cli.train import main

if __name__ == "__main__":
    main(recipe="maze")
