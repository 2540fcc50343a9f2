"""My Way Home, sparse: ``python recipes/miniworld_my_way_home.py agent=dceo seed=3``."""

from launch import main

if __name__ == "__main__":
    main("miniworld_my_way_home")
