"""Break the wall, fetch the key: ``python recipes/obstructed_key.py agent=dceo``; full size: ``env.room_size=5``."""

from launch import main

if __name__ == "__main__":
    main("obstructed_key")
