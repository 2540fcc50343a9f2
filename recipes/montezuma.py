"""Montezuma's Revenge: Rainbow with eigenoptions, with the authors' settings (docs/environments/atari.md).

50 million steps need a GPU and days. 20,000 steps take a quarter of an hour on one core and show that everything works.

    python recipes/montezuma.py agent=rainbow_dceo device=cuda replay_storage=memmap
    python recipes/montezuma.py agent=rnd device=cuda
    python recipes/montezuma.py total_frames=2_000 learning_starts=500 replay_capacity=5_000 eval_episodes=0
"""

from torchrl_dceo.cli.train import main

if __name__ == "__main__":
    main(recipe="montezuma")
