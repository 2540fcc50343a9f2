"""Runs compared over seeds: aggregates, intervals, tables."""
