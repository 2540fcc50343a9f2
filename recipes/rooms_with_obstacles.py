"""Rooms with obstacles that move up and down: a collision gives -1 and ends the episode.

100,000 frames with small rooms take some minutes on one core. No agent learned it in 80,000 frames (results/objects).

    python recipes/rooms_with_obstacles.py agent=dceo
    python recipes/rooms_with_obstacles.py agent=dceo env.room_size=5 env.num_obstacles=null env.max_steps=null   # full
"""

from torchrl_dceo.cli.train import main

if __name__ == "__main__":
    main(recipe="rooms_with_obstacles")
