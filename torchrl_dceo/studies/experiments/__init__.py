"""Experiments that are no training run of an agent, as plain functions."""
