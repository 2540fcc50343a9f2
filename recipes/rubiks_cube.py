"""The 2x2x2 cube within five moves of solved: deep options and a tabular main learner, as in the paper.

300,000 frames take about ten minutes on one core.

    python recipes/rubiks_cube.py agent=dceo agent.num_options=3 agent.option_prob=0.7   # the paper's N and μ
    python recipes/rubiks_cube.py agent=ddqn env.max_depth=3
"""

from torchrl_dceo.cli.train import main

if __name__ == "__main__":
    main(recipe="rubiks_cube")
