"""Exact spectra and the measures that compare learned representations with them."""

from torchrl_dceo.analysis.similarity import Similarity, cosine_similarity
from torchrl_dceo.analysis.spectra import exact_eigenfunctions

__all__ = ["Similarity", "cosine_similarity", "exact_eigenfunctions"]
