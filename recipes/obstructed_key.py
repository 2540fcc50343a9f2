"""Obstructed Key: break tiles of the blue wall to get the key, then leave by a door rooms away.

100,000 frames of the small rooms take some minutes of one core; `dceo` ends at a greedy return of 0.97.

    python recipes/obstructed_key.py agent=dceo
    python recipes/obstructed_key.py agent=dceo env.room_size=5 env.max_steps=null total_frames=500_000   # full size
"""

from torchrl_dceo.cli.train import main

if __name__ == "__main__":
    main(recipe="obstructed_key")
