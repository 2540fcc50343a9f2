"""The paper's sparse My Way Home in 3D; needs the extra `miniworld` and Mesa (docs/environments/miniworld.md).

A run takes about 25 minutes on one core.

    python recipes/miniworld_my_way_home.py agent=dceo seed=3
    python -m torchrl_dceo train env=miniworld_twelve_rooms agent=dceo         # a longer maze with turning
"""

from torchrl_dceo.cli.train import main

if __name__ == "__main__":
    main(recipe="miniworld_my_way_home")
