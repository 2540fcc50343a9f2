"""The cube within five moves, a table as main learner: ``python recipes/rubiks_cube.py agent=dceo seed=3``."""

from launch import main

if __name__ == "__main__":
    main("rubiks_cube")
