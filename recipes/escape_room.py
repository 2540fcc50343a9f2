"""Fetch the key, come back, leave: ``python recipes/escape_room.py agent=dceo``; full size: ``env.room_size=5``."""

from launch import main

if __name__ == "__main__":
    main("escape_room")
