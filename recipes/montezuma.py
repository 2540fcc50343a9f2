"""Montezuma's Revenge: ``python recipes/montezuma.py agent=rainbow_dceo device=cuda replay_storage=memmap``."""

from launch import main

if __name__ == "__main__":
    main("montezuma")
