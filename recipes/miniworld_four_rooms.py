"""The paper's first-person Four Rooms in 3D; needs the extra `miniworld` and Mesa (docs/environments/miniworld.md).

`dceo` learns to reach the fixed goal in the opposite room. A run takes about ten minutes on one core.

    python recipes/miniworld_four_rooms.py agent=dceo seed=3
    python recipes/miniworld_four_rooms.py agent=ddqn                          # rarely leaves its first room
    python -m torchrl_dceo train env=miniworld_four_rooms_package agent=dceo   # the package's version
"""

from torchrl_dceo.cli.train import main

if __name__ == "__main__":
    main(recipe="miniworld_four_rooms")
