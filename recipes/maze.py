"""The Maze, one corridor folded onto itself, a goal at each end.

300,000 frames take about ten minutes of one core; `dceo` ends at a greedy return of 1, `ez_greedy` and `ddqn` do not
meet the goal.

    python recipes/maze.py agent=dceo seed=3
    python recipes/maze.py --multirun seed=0,1,2 agent=dceo,ddqn
"""

from torchrl_dceo.cli.train import main

if __name__ == "__main__":
    main(recipe="maze")
