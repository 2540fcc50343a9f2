"""Obstructed Key: break the blue wall, pick up the key, and leave through a door in another room.

100,000 frames with small rooms take some minutes on one core. `dceo` ends at a greedy return of 0.97 (results/objects).

    python recipes/obstructed_key.py agent=dceo
    python recipes/obstructed_key.py agent=dceo env.room_size=5 env.max_steps=null total_frames=500_000   # full size
"""

from torchrl_dceo.cli.train import main

if __name__ == "__main__":
    main(recipe="obstructed_key")
