"""Figures of runs, representations and studies."""
