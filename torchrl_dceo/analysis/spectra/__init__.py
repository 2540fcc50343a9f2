"""Eigenfunctions, exact and learned, and the options that follow them."""
