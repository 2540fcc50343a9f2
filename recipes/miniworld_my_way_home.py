"""The paper's My Way Home, sparse, in 3D: ten rooms; needs extra `miniworld` and Mesa (docs/environments/miniworld.md).

The whole run takes an hour of one core.

    python recipes/miniworld_my_way_home.py agent=dceo seed=3
    python -m torchrl_dceo train env=miniworld_twelve_rooms agent=dceo         # a longer maze in which the agent turns
"""

from torchrl_dceo.cli.train import main

if __name__ == "__main__":
    main(recipe="miniworld_my_way_home")
