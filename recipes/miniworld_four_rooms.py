"""MiniWorld Four Rooms: ``python recipes/miniworld_four_rooms.py agent=dceo seed=3``."""

from launch import main

if __name__ == "__main__":
    main("miniworld_four_rooms")
