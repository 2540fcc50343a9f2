"""Past moving obstacles: ``python recipes/rooms_with_obstacles.py agent=dceo``.

Full size: ``env.room_size=5 env.num_obstacles=null``.
"""

from launch import main

if __name__ == "__main__":
    main("rooms_with_obstacles")
