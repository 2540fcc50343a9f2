"""Nine Rooms whose goal moves and most of whose hallways close after half of the run.

About ten minutes of one core; with rooms of 3x3 three (docs/environments/adaptation.md).

    python recipes/nine_rooms_topology_switch.py agent=dceo
    python recipes/nine_rooms_topology_switch.py agent=dceo env.room_size=3 total_frames=80_000 agent.eps_frames=20_000
"""

from torchrl_dceo.cli.train import main

if __name__ == "__main__":
    main(recipe="nine_rooms_topology_switch")
