"""Rooms with obstacles that move up and down: hitting one costs 1 and ends the episode.

100,000 frames of the small rooms take some minutes of one core; no agent passes them in 80,000.

    python recipes/rooms_with_obstacles.py agent=dceo
    python recipes/rooms_with_obstacles.py agent=dceo env.room_size=5 env.num_obstacles=null env.max_steps=null   # full
"""

from torchrl_dceo.cli.train import main

if __name__ == "__main__":
    main(recipe="rooms_with_obstacles")
