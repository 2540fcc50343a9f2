"""Escape Room: fetch the key in another room, come back, leave by the door; +1 only for leaving.

100,000 frames of the small rooms take some minutes of one core; `dceo`, `counts` and `rnd` learn them.

    python recipes/escape_room.py agent=dceo
    python recipes/escape_room.py agent=dceo env.room_size=5 env.max_steps=null total_frames=500_000   # full size
"""

from torchrl_dceo.cli.train import main

if __name__ == "__main__":
    main(recipe="escape_room")
