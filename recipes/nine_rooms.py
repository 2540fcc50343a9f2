"""Nine Rooms: ``python recipes/nine_rooms.py agent=dceo seed=3 total_frames=300_000``."""

from launch import main

if __name__ == "__main__":
    main("nine_rooms")
