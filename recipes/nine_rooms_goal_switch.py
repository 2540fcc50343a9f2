"""Nine Rooms whose start and goal move: ``python recipes/nine_rooms_goal_switch.py switch_frames=150_000``."""

from launch import main

if __name__ == "__main__":
    main("nine_rooms_goal_switch")
