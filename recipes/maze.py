"""The maze, a corridor folded onto itself: ``python recipes/maze.py agent=dceo seed=3 total_frames=300_000``."""

from launch import main

if __name__ == "__main__":
    main("maze")
