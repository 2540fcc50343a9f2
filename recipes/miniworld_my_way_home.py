"""First-person MyWayHomeSparse in 3D; needs the extra `miniworld` and Mesa (docs/miniworld.md).

The whole run takes weeks of one core.

    python recipes/miniworld_my_way_home.py agent=dceo
    python recipes/miniworld_my_way_home.py agent=dceo env.parallel=true   # a process for each environment
"""

from torchrl_dceo.cli.train import main

if __name__ == "__main__":
    main(recipe="miniworld_my_way_home")
