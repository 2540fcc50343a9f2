"""Nine Rooms whose start, goal and hallways change: ``python recipes/nine_rooms_topology_switch.py agent=dceo``."""

from launch import main

if __name__ == "__main__":
    main("nine_rooms_topology_switch")
