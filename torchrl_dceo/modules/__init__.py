"""Actors, exploration modules and rewards that compose into a TorchRL policy or pipeline."""
