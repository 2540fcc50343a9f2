"""Rainbow learns the path to a goal in the far corner of a room: ``python research/rainbow.py [run directory]``."""

import sys

import torch

from torchrl_dceo._fast import tune_process
from torchrl_dceo.agents import make_agent
from torchrl_dceo.analysis import draw_run
from torchrl_dceo.envs import make_env
from torchrl_dceo.training import train

ROOM = """
S.....
......
..##..
..##..
......
.....G
""".strip()

tune_process()
torch.manual_seed(0)
env = make_env(ROOM, batch_size=4, max_steps=30, seed=0, visits="counts")
agent = make_agent(
    "rainbow",
    env,
    lr=5e-4,  # a small network may take larger steps than Atari's
    target_period=100,
    v_max=1.0,  # the largest possible return
    centre_pixels=True,  # as the other agents on grids
    eps_end=0.05,
    eps_frames=6_000,
)
row = train(
    agent,
    env,
    total_frames=20_000,
    learning_starts=500,
    eval_env=make_env(ROOM, batch_size=20, max_steps=30, seed=1),
    eval_period=1000,
    log_period=1000,
    run_dir=sys.argv[1] if len(sys.argv) > 1 else None,
)
if len(sys.argv) > 1:
    draw_run(sys.argv[1])
print(f"greedy return, 1 for reaching the goal within 30 steps: {row['eval_return']:.2f}")
