"""First-person Four Rooms in 3D; needs the extra `miniworld` and Mesa (docs/miniworld.md).

The whole run takes days of one core; 400,000 frames about five hours.

    python recipes/miniworld_four_rooms.py agent=dceo total_frames=400_000 agent.eps_frames=200_000
    python recipes/miniworld_four_rooms.py agent=dceo env.views=4 agent.pair_steps=50 agent.barrier=1   # all around
"""

from torchrl_dceo.cli.train import main

if __name__ == "__main__":
    main(recipe="miniworld_four_rooms")
