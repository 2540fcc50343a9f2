"""Exact spectra and the measures that compare learned representations with them."""
