"""Past moving obstacles: ``python recipes/rooms_with_obstacles.py agent=dceo``; full size: ``env.room_size=5``."""

from launch import main

if __name__ == "__main__":
    main("rooms_with_obstacles")
