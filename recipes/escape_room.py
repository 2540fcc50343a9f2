"""Escape Room: pick up the key in another room, return, and leave through the door; +1 only for leaving.

100,000 frames with small rooms take some minutes on one core. `dceo`, `counts` and `rnd` learn it.

    python recipes/escape_room.py agent=dceo
    python recipes/escape_room.py agent=dceo env.room_size=5 env.max_steps=null total_frames=500_000   # full size
"""

from torchrl_dceo.cli.train import main

if __name__ == "__main__":
    main(recipe="escape_room")
