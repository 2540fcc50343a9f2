"""Nine Rooms in which start and goal move after half of the run.

A run takes about ten minutes on one core, with rooms of 3x3 three minutes. Nothing is reset at the change
(docs/environments/adaptation.md).

    python recipes/nine_rooms_goal_switch.py agent=dceo
    python recipes/nine_rooms_goal_switch.py agent=dceo env.room_size=3 total_frames=80_000 agent.eps_frames=20_000
    python recipes/nine_rooms_goal_switch.py agent=dceo switch_frames=100_000
"""

from torchrl_dceo.cli.train import main

if __name__ == "__main__":
    main(recipe="nine_rooms_goal_switch")
