"""Nine Rooms, 19x19 cells with a goal in the far corner: online DCEO learns it, ε-greedy does not.

300,000 frames take about ten minutes on one core. The greedy policy of `dceo` reaches the goal from about 60,000 frames
on (results/exploration); that of `ddqn` never does (results/deep_online). `dceo train env=nine_rooms …` is the same
command.

    python recipes/nine_rooms.py agent=dceo seed=3
    python recipes/nine_rooms.py agent=dceo env.room_size=3 total_frames=60_000 agent.eps_frames=40_000   # a minute
    python recipes/nine_rooms.py --multirun agent=dceo,ddqn,counts seed=0,1,2
    python recipes/nine_rooms.py agent=dceo env.name=my_map.txt   # any ASCII map: # wall, . floor, S start, G goal
"""

from torchrl_dceo.cli.train import main

if __name__ == "__main__":
    main(recipe="nine_rooms")
