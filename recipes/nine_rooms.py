"""Nine Rooms, 19x19 cells, a goal in the far corner: what online DCEO learns and ε-greedy does not.

300,000 frames take about ten minutes of one core; `dceo` meets the goal greedily from about 100,000 frames on, `ddqn`
never does. `dceo train env=nine_rooms …` is the same command.

    python recipes/nine_rooms.py agent=dceo seed=3
    python recipes/nine_rooms.py agent=dceo env.room_size=3 total_frames=60_000 agent.eps_frames=40_000   # a minute
    python recipes/nine_rooms.py --multirun agent=dceo,ddqn,counts seed=0,1,2
    python recipes/nine_rooms.py agent=dceo env.name=my_map.txt   # any ASCII map: # wall, . floor, S start, G goal
"""

from torchrl_dceo.cli.train import main

if __name__ == "__main__":
    main(recipe="nine_rooms")
