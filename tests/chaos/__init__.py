"""Runs that are killed, damaged, starved and fed with faulty numbers, and what must hold of them."""
